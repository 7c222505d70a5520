/*
 * test_resets.c: random programs on two devices that are reset in any order: between the resets memory, captures, copies between the devices and peer
 * access have to work as ever. Contents judge. Single resets: test_ends.c.
 */
#include "tests/preload/card.h"
#include "tests/rounds.h"

#define STEPS 60
#define SEEDS 12

static CUcontext contexts[2];
static CUstream  streams[2];
static struct held held[2];
static uint64_t random_state;
static const char *const providers[] = {"provider:vmm", "provider:plain", "provider:async"};
static const char *options;

static uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

static void begin(int d)
{
    DONE(cuDevicePrimaryCtxRetain(&contexts[d], d));
    DONE(cuCtxSetCurrent(contexts[d]));
    DONE(cuStreamCreate(&streams[d], CU_STREAM_NON_BLOCKING));
    held[d].at = NULL;
}

/* No thread has anything under way on either device. */
static void reset(int d)
{
    for (int i = 0; i < 2; i++) {
        DONE(cuCtxSetCurrent(contexts[i]));
        DONE(cuCtxSynchronize());
    }
    DONE(cuDevicePrimaryCtxReset(d));
    begin(d);
}

static void take(int d)
{
    DONE(cuCtxSetCurrent(contexts[d]));
    if (held[d].at)
        return;
    held[d] = draw(2) ? plain_take(4 * MIB, streams[d]) : stream_take(4 * MIB, streams[d]);
    REQUIRE(held[d].at);
    EXPECT(is_ours(at_of(&held[d])));
}

static void give(int d)
{
    DONE(cuCtxSetCurrent(contexts[d]));
    if (!held[d].at)
        return;
    held_expect(&held[d], streams[d]);
    DONE(draw(2) ? cuMemFree(at_of(&held[d])) : cuMemFreeAsync(at_of(&held[d]), streams[d]));
    held[d].at = NULL;
}

static void capture(int d)
{
    CUgraph graph = NULL;
    DONE(cuCtxSetCurrent(contexts[d]));
    DONE(cuStreamBeginCapture(streams[d], CU_STREAM_CAPTURE_MODE_RELAXED));
    take(1 - d);
    DONE(cuCtxSetCurrent(contexts[d]));
    DONE(cuStreamEndCapture(streams[d], &graph));
    REQUIRE(graph);
    DONE(cuGraphDestroy(graph));
}

/* The block of `d` has the contents of the other one afterwards. */
static void copy_to(int d)
{
    take(0);
    take(1);
    DONE(cuStreamSynchronize(streams[0]));
    DONE(cuStreamSynchronize(streams[1]));
    DONE(cuCtxSetCurrent(contexts[d]));
    DONE(cuMemcpyAsync(at_of(&held[d]), at_of(&held[1 - d]), 4 * MIB, streams[d]));
    DONE(cuStreamSynchronize(streams[d]));
    held[d].pattern = held[1 - d].pattern;
}

/* Kernels of the other device read the block of `d`. */
static void read_from(int d)
{
    take(d);
    DONE(cuStreamSynchronize(streams[d]));
    DONE(cuCtxSetCurrent(contexts[1 - d]));
    CUresult result = cuCtxEnablePeerAccess(contexts[d], 0);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    held_expect(&held[d], streams[1 - d]);
    DONE(cuStreamSynchronize(streams[1 - d]));
}

static void program(void)
{
    setenv("CENOTE_CONF", options, 1);
    card_open(CAPACITY, 2);
    begin(0);
    begin(1);
    for (int i = 0; i < STEPS; i++) {
        int d = (int)draw(2);
        switch (draw(8)) {
        case 0: reset(d); break;
        case 1: reset(d), reset(1 - d); break;
        case 2: capture(d); break;
        case 3: copy_to(d); break;
        case 4: read_from(d); break;
        case 5: give(d); break;
        default: take(d); break;
        }
    }
    give(0);
    give(1);
    for (int d = 0; d < 2; d++) {
        DONE(cuCtxSetCurrent(contexts[d]));
        DONE(cuCtxSynchronize());
    }
    card_close();
}

CASE(programs_with_resets)
{
    for (unsigned p = 0; p < sizeof providers / sizeof providers[0]; p++)
        for (int seed = 0; seed < rounds(SEEDS); seed++) {
            options = providers[p];
            random_state = (uint64_t)seed;
            int status = status_of(program);
            if (status)
                fprintf(stderr, "%s, seed %d\n", options, seed);
            EXPECT_EQ(status, 0);
        }
}

PRELOAD_MAIN("orders of resets")
