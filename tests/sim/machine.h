/*
 * machine.h: what the tests of the simulated driver share. Only calls of the CUDA driver: a test that includes no more than this would
 * pass on a real device too. Tests that need the hand on the simulated one include sim/sim.h as well.
 */
#ifndef CENOTE_TESTS_SIM_MACHINE_H
#define CENOTE_TESTS_SIM_MACHINE_H

#include <cuda.h>

#include "tests/harness.h"

#define EXPECT_OK(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define REQUIRE_OK(call) REQUIRE_EQ(call, CUDA_SUCCESS)

extern CUcontext machine_context;   /* primary context of device 0, held and current between begin and end */

void machine_begin(void);
void machine_end(void);

/* A second context of device 0, made current on top of the stack. */
CUcontext machine_new_context(void);

/* The id of the capture that a stream is in; 0: it captures nothing. */
cuuint64_t machine_capture_id(CUstream stream);

/* Properties of ordinary memory of a device. */
CUmemAllocationProp machine_memory_of(CUdevice device);
size_t machine_granularity(void);

/* A range of address space with `pages` pages of the granularity in it, readable and writable by device 0. */
struct machine_range {
    CUdeviceptr at;
    size_t      bytes;
    size_t      page;
};

struct machine_range machine_map(size_t pages);
void machine_unmap(struct machine_range range);

/* One page more, without handle: it lives as long as it is mapped. */
void machine_map_page(CUdeviceptr at);
CUmemGenericAllocationHandle machine_create_page(void);
void machine_allow(CUdeviceptr at, size_t bytes);

#endif
