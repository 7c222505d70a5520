/*
 * test_faults.c: every driver call that pinned memory makes fails once, and for good from then on, with errors that pass and with one that
 * ends the context; so does host memory for books.
 * Afterwards: contents are right, structures are sound, everything can be given back, and the card's books are empty,
 * but for what the driver would not take back.
 */
#include "base/memory.h"
#include "tests/host/pinned.h"

#include <pthread.h>

#define BLOCKS 12
#define MOST_CALLS 400

struct act {
    struct scene scene;
    CUdeviceptr  there;
    char        *block[BLOCKS];
    unsigned     refused;
    bool         lost;
};

static bool passes(struct act *act, int error)
{
    act->refused += error != 0;
    act->lost = act->lost || error == CENOTE_DEVICE_LOST;
    EXPECT(!error || error == CENOTE_DRIVER || error == CENOTE_DEVICE_LOST || error == CENOTE_OUT_OF_HOST_MEMORY || error == CENOTE_NO_DEVICE);
    EXPECT(!error || strlen(cenote_host_message()) > 10);
    return !error;
}

static void take(struct act *act, int i, size_t bytes)
{
    void *block = NULL;
    if (!passes(act, cenote_host_alloc(0, bytes, &block)))
        return;
    act->block[i] = block;
    memset(block, i + 1, bytes < 1000 ? bytes : 1000);
}

static void *free_it(void *block)
{
    DONE(cenote_host_free(block));
    return NULL;
}

/* Registers chunks of several sizes, copies, frees what is in flight, and gives memory back. */
static void scenario(struct act *act)
{
    for (int i = 0; i < BLOCKS; i++)
        take(act, i, (size_t)100 << (2 * (i % 9)));
    for (int i = 0; i < BLOCKS; i += 2) {
        CUstream stream = act->scene.stream[i % 3];
        if (!act->block[i])
            continue;
        sim_launch_wait(stream, MSEC);
        cuMemcpyHtoDAsync(act->there, act->block[i], 100, stream);
        passes(act, cenote_host_use(act->block[i], 0, stream));
        DONE(cenote_host_free(act->block[i]));
        act->block[i] = NULL;
    }
    for (int i = 0; i < BLOCKS; i += 2)
        take(act, i, (size_t)300 << (2 * (i % 9)));
    passes(act, cenote_host_trim(0, CENOTE_TRIM_WAIT));
    for (int i = 1; i < BLOCKS; i += 2) {
        for (int k = 0; act->block[i] && k < 100; k++)
            EXPECT_EQ(act->block[i][k], i + 1);
        pthread_t thread; /* a free never fails, in a thread that keeps nothing yet, either */
        if (!pthread_create(&thread, NULL, free_it, act->block[i]))
            pthread_join(thread, NULL);
        act->block[i] = NULL;
    }
    passes(act, cenote_host_trim(0, 0));
    DONE(cenote_host_check());
}

static void give_all(struct act *act)
{
    for (int i = 0; i < BLOCKS; i++) {
        DONE(cenote_host_free(act->block[i]));
        act->block[i] = NULL;
    }
}

static bool gives_back(const char *call)
{
    return call && (!strcmp(call, "cuMemHostUnregister") || !strcmp(call, "cuEventDestroy") || !strcmp(call, "cuCtxPushCurrent") ||
           !strcmp(call, "cuThreadExchangeStreamCaptureMode") || !strcmp(call, "cuDevicePrimaryCtxRelease"));
}

/* NULL for a call: host memory for cenote's books fails. */
static void arm(const char *call, uint64_t nth, CUresult error, bool persistent)
{
    if (call)
        fault_arm(call, nth, error, persistent);
    else
        memory_fail(nth, persistent);
}

static bool disarm(const char *call)
{
    bool fired = call ? fault_fired() != 0 : memory_failed() != 0;
    if (call)
        fault_disarm();
    else
        memory_fail(0, false);
    return fired;
}

/* True: the failure came. */
static bool run_with(const char *call, uint64_t nth, CUresult error, bool persistent)
{
    struct act act = {.refused = 0};
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    options.topology = TOPOLOGIES "two-nodes.xml"; /* read faster than this machine's */
    scene_open_card(&act.scene, &shape);
    DONE(cuMemAlloc(&act.there, MIB));
    arm(call, nth, error, persistent);
    bool opens = passes(&act, cenote_host_open(&options));
    if (opens)
        scenario(&act);
    bool fired = disarm(call);
    if (!opens)
        DONE(cenote_host_open(&options));
    DONE(cuCtxSetCurrent(act.scene.context)); /* an ordered failure of leaving is excused */
    DONE(cenote_host_check());
    EXPECT(fired || !act.refused);
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    give_all(&act);

    act.refused = 0;
    scenario(&act); /* the same again works */
    EXPECT_EQ(act.refused, 0);
    give_all(&act);
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(act.there));
    DONE(cenote_host_close());
    EXPECT_EQ(pinned_chunks(), 0);
    struct sim_books books;
    sim_books(&books);
    bool leaks = fired && gives_back(call);
    EXPECT(leaks || books.contexts == 1);
    if (leaks) {
        while (books.contexts-- > 1)
            cuDevicePrimaryCtxRelease(0);
        scene_is_open = false; /* what was refused for good is still there: the next card begins anew */
        return fired;
    }
    scene_close(&act.scene);
    return fired;
}

static void sweep(CUresult error, bool persistent)
{
    static const char *const calls[] = {"cuMemHostRegister", "cuMemHostUnregister", "cuEventCreate", "cuEventRecord", "cuEventQuery",
                                        "cuEventSynchronize", "cuCtxSynchronize", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode",
                                        "cuDevicePrimaryCtxRetain", "cuDeviceGetPCIBusId", "cuStreamGetId", "cuStreamIsCapturing", "cuEventDestroy"};
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        uint64_t nth = 1;
        while (nth < MOST_CALLS && run_with(calls[c], nth, error, persistent))
            nth += nth > 8 ? 5 : 1; /* the first ones, then every fifth */
        EXPECT(nth < MOST_CALLS);
        EXPECT(nth > 1 || !strcmp(calls[c], "cuEventDestroy") || !strcmp(calls[c], "cuEventSynchronize") || !strcmp(calls[c], "cuCtxSynchronize"));
    }
}

CASE(every_call_fails_once)
{
    sweep(CUDA_ERROR_OUT_OF_MEMORY, false);
    sweep(CUDA_ERROR_UNKNOWN, false);
}

CASE(every_call_fails_for_good)
{
    sweep(CUDA_ERROR_OUT_OF_MEMORY, true);
    sweep(CUDA_ERROR_NOT_SUPPORTED, true);
}

/* Each time that memory for books is asked for, from the opening on. */
CASE(host_memory_fails)
{
    for (int persistent = 0; persistent < 2; persistent++) {
        uint64_t nth = 1;
        while (nth < MOST_CALLS && run_with(NULL, nth, CUDA_SUCCESS, persistent))
            nth++;
        EXPECT(nth > 8 && nth < MOST_CALLS);
    }
}

CASE(the_device_is_lost)
{
    struct act act = {.refused = 0};
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    scene_open_card(&act.scene, &shape);
    sim_set_quiet(true);
    DONE(cenote_host_open(&options));
    void *block = pinned_take(1000), *used = pinned_take(3000), *more;
    DONE(sim_launch_wait(act.scene.stream[A], MSEC));
    DONE(cenote_host_use(used, 0, act.scene.stream[A]));
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    memset(block, 1, 1000); /* it is the host's memory */
    DONE(cenote_host_free(used));
    EXPECT_EQ(cenote_host_alloc(0, 50 * MIB, &more), CENOTE_DEVICE_LOST);
    EXPECT_EQ(cenote_host_use(block, 0, act.scene.stream[A]), CENOTE_DEVICE_LOST);
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT_EQ(cenote_host_trim(0, CENOTE_TRIM_WAIT), CENOTE_DEVICE_LOST);
    EXPECT_EQ(pinned_stats().pending_blocks, 0); /* a lost device uses nothing */
    DONE(cenote_host_free(block));
    DONE(cenote_host_check());
    EXPECT_EQ(pinned_stats().registered.current, 2 * MIB);
    int error = cenote_host_close();
    EXPECT(error == CENOTE_DEVICE_LOST || error == CENOTE_DRIVER);
    EXPECT(strstr(cenote_host_message(), "2097152 bytes"));
    scene_is_open = false;
    sim_set_quiet(false);
}

SCENES_MAIN("faults")
