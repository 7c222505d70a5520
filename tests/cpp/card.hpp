/*
 * card.hpp: a small simulated card that is behind the host, for tests of the C++ headers: two streams, and memory that is judged by its contents.
 * Its clock stands still unless something synchronises, so memory handed out too early shows as contents that differ. At the end of its scope
 * all work is done, contents were right and nothing was done that CUDA forbids.
 *
 * It is not tests/api/scene.h, which is C and makes the pool too. No locks: a card belongs to its thread.
 */
#ifndef CENOTE_TESTS_CPP_CARD_HPP
#define CENOTE_TESTS_CPP_CARD_HPP

#include "sim/sim.h"
#include "tests/harness.h"

#include <cenote/cenote.hpp>
#include <cenote/report.h>
#include <cuda.h>

constexpr std::size_t MIB = 1 << 20;

#define DONE(call) EXPECT_EQ((int)(call), 0)

class card {
public:
    explicit card(int devices = 1)
    {
        sim_shape shape;
        sim_shape_default(&shape);
        shape.capacity = 64 * MIB;
        shape.devices = devices;
        shape.context_bytes = 0;
        shape.manual_clock = true;
        shape.lag = 1000000;
        sim_reset(&shape);
        DONE(cuInit(0));
        DONE(cuDevicePrimaryCtxRetain(&context, 0));
        DONE(cuCtxPushCurrent(context));
        DONE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
        DONE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    }
    card(const card &) = delete;
    ~card()
    {
        struct sim_books books;
        DONE(cuCtxSynchronize());
        EXPECT_EQ(sim_mismatches(), 0);
        sim_books(&books);
        EXPECT_EQ(books.violations, 0);
        DONE(cuStreamDestroy(a));
        DONE(cuStreamDestroy(b));
        DONE(cuCtxPopCurrent(nullptr));
        DONE(cuDevicePrimaryCtxRelease(0));
    }

    /* A pool's options: pages of 2 MiB, the simulated clock, captures that are announced. */
    static cenote::options options()
    {
        cenote::options options("page_mib:2,harvest_budget:off,announced:1");
        options.clock = [](void *) { return sim_now(); };
        return options;
    }
    static void fill(CUstream stream, const void *at, uint64_t pattern, std::size_t bytes)
    {
        DONE(sim_launch_fill(stream, (CUdeviceptr)at, pattern, bytes));
    }
    static void expect(CUstream stream, const void *at, uint64_t pattern, std::size_t bytes)
    {
        DONE(sim_launch_expect(stream, (CUdeviceptr)at, pattern, bytes));
    }
    /* What `before` has been given comes before what `after` will be given. */
    static void order(CUstream before, CUstream after)
    {
        CUevent event;
        DONE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        DONE(cuEventRecord(event, before));
        DONE(cuStreamWaitEvent(after, event, 0));
        DONE(cuEventDestroy(event));
    }

    CUcontext context;
    CUstream a, b;
};

/* Live blocks of a pool. */
inline uint64_t live(cenote::pool_ref pool)
{
    cenote_stats stats;
    cenote::check(cenote_pool_stats(pool.get(), &stats));
    return stats.blocks.current;
}

#endif
