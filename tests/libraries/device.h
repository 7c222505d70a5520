/*
 * device.h: the simulated device under the tests of the libraries: one device on which nothing was done, a stream, and what the books say.
 *
 * No locks: main thread only.
 */
#ifndef CENOTE_TESTS_LIBRARIES_DEVICE_H
#define CENOTE_TESTS_LIBRARIES_DEVICE_H

#include <cuda.h>
#include <stddef.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define OK(call) EXPECT_EQ(call, 0)
#define MUST(call) REQUIRE_EQ(call, 0)
#define MIB (1ull << 20)
#define UNTOUCHED 0x5a5a5a5a    /* a word of what filled() returns */

static CUcontext context;
static CUstream stream;

static inline void begin_with(uint64_t capacity)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = capacity;
    shape.context_bytes = 0;
    shape.manual_clock = true;
    sim_reset(&shape);
    sim_set_quiet(true);
    unsetenv("CUBLAS_WORKSPACE_CONFIG");
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static inline void begin(void)
{
    begin_with(1024 * MIB);
}

static inline uint64_t in_use(void)
{
    size_t left = 0, total = 0;
    MUST(cuMemGetInfo(&left, &total));
    return total - left;
}

static inline uint64_t kernels(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.kernels;
}

/* Device memory of `bytes` bytes, each of them 0x5a. */
static inline CUdeviceptr filled(size_t bytes)
{
    CUdeviceptr at = 0;
    MUST(cuMemAlloc(&at, bytes));
    MUST(cuMemsetD8(at, 0x5a, bytes));
    return at;
}

static inline int word(CUdeviceptr at, int index)
{
    int value = 0;
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(&value, at + 4 * (unsigned)index, 4));
    return value;
}

#endif
