/*
 * test_devices.c: two devices: each serves its own memory, and lets in the other where the program says so.
 */
#include "tests/preload/card.h"

static CUcontext contexts[2];
static CUstream  streams[2];

#define ON_TWO_CARDS(name) ON_TWO_CARDS_OF(name, CAPACITY)
#define ON_TWO_CARDS_OF(name, capacity) \
    static void name##_on_cards(void);  \
    ENDS_WITH(name, 0)                  \
    {                                   \
        card_open(capacity, 2);         \
        open_both();                    \
        name##_on_cards();              \
        judge_both();                   \
    }                                   \
    static void name##_on_cards(void)

static void open_both(void)
{
    contexts[0] = card.context;
    DONE(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    for (int i = 0; i < 2; i++) {
        DONE(cuCtxSetCurrent(contexts[i]));
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    DONE(cuCtxSetCurrent(contexts[0]));
}

static void judge_both(void)
{
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuCtxSynchronize());
    DONE(cuCtxSetCurrent(contexts[0]));
    card_close();
}

static int device_of(CUdeviceptr at)
{
    int device = -1;
    DONE(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    return device;
}

ON_TWO_CARDS(memory_is_of_the_current_device)
{
    CUdeviceptr at[2];
    for (int i = 0; i < 2; i++) {
        DONE(cuCtxSetCurrent(contexts[i]));
        DONE(cuMemAlloc(&at[i], 3 * MIB));
        EXPECT(is_ours(at[i]));
        EXPECT_EQ(device_of(at[i]), i);
    }
    for (int i = 0; i < 2; i++) /* freed while the other one is current */
        DONE(cuMemFree(at[i]));
    EXPECT_EQ(driver_allocations(), 0);
}

/* A stream says whose memory it takes, whatever is current. */
ON_TWO_CARDS(stream_memory_is_of_the_stream)
{
    CUdeviceptr at = 0;
    DONE(cuMemAllocAsync(&at, 3 * MIB, streams[1]));
    EXPECT(is_ours(at));
    EXPECT_EQ(device_of(at), 1);
    DONE(cuMemFreeAsync(at, streams[1]));
    EXPECT_EQ(driver_allocations(), 0);
}

/* The free waits for the device that the memory is of. */
ON_TWO_CARDS(a_free_waits_for_its_own_device)
{
    CUdeviceptr at = 0;
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&at, 3 * MIB));
    struct held held = held_of((void *)(uintptr_t)at, 3 * MIB, streams[1]);
    held_linger(&held, streams[1]);
    DONE(cuCtxSetCurrent(contexts[0]));
    uint64_t before = sim_now();
    DONE(cuMemFree(at));
    EXPECT(sim_now() - before >= 10 * MSEC);
}

/* Kernels of device 0 use memory of device 1, of each kind of moment at which it may have been taken. */
ON_TWO_CARDS(peer_access)
{
    CUdeviceptr before = 0, after = 0;
    CUcontext now;
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&before, 3 * MIB));
    DONE(cuCtxSetCurrent(contexts[0]));
    DONE(cuCtxEnablePeerAccess(contexts[1], 0));
    DONE(cuCtxGetCurrent(&now));
    EXPECT_EQ(now, contexts[0]);
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&after, 40 * MIB));
    DONE(cuCtxSetCurrent(contexts[0]));
    struct held held[] = {held_of((void *)(uintptr_t)before, 3 * MIB, streams[0]), held_of((void *)(uintptr_t)after, 40 * MIB, streams[0])};
    for (int i = 0; i < 2; i++) {
        held_expect(&held[i], streams[0]);
        DONE(cuStreamSynchronize(streams[0]));
        DONE(cuMemFree(at_of(&held[i])));
    }
}

/* Access was enabled before the other device served anything. */
ON_TWO_CARDS(peer_access_before_the_first_allocation)
{
    CUdeviceptr at = 0;
    DONE(cuCtxEnablePeerAccess(contexts[1], 0));
    EXPECT(cuCtxEnablePeerAccess(contexts[1], 0) != CUDA_SUCCESS);
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&at, 3 * MIB));
    DONE(cuCtxSetCurrent(contexts[0]));
    struct held held = held_of((void *)(uintptr_t)at, 3 * MIB, streams[0]);
    held_expect(&held, streams[0]);
    DONE(cuStreamSynchronize(streams[0]));
    DONE(cuMemFree(at));
}

/* Without peer access the driver copies between devices all the same. */
ON_TWO_CARDS(a_copy_between_devices)
{
    struct held held[2];
    for (int round = 0; round < 2; round++) {
        CUdeviceptr at[2];
        for (int i = 0; i < 2; i++) {
            DONE(cuCtxSetCurrent(contexts[i]));
            DONE(cuMemAlloc(&at[i], (size_t)(1 + 39 * round) * MIB));
            held[i] = held_of((void *)(uintptr_t)at[i], (size_t)(1 + 39 * round) * MIB, streams[i]);
            DONE(cuStreamSynchronize(streams[i]));
        }
        DONE(cuMemcpyDtoDAsync(at[1], at[0], held[0].bytes, streams[1])); /* device 1 is current: it reads */
        held[1].pattern = held[0].pattern;
        held_expect(&held[1], streams[1]);
        DONE(cuStreamSynchronize(streams[1]));
        DONE(cuCtxSetCurrent(contexts[0]));
        DONE(cuMemcpyDtoD(at[1], at[0], held[0].bytes)); /* device 0 writes */
        DONE(cuMemFree(at[0]));
        DONE(cuMemFree(at[1]));
    }
}

/* Memory of pools is opened by cuMemPoolSetAccess: to a device, too, on which the process allocates nothing. */
ON_TWO_CARDS(access_to_a_pool)
{
    CUmemoryPool pools[2];
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuDeviceGetDefaultMemPool(&pools[0], 1));
    DONE(cuMemPoolCreate(&pools[1], &props));
    for (int i = 0; i < 2; i++) {
        CUdeviceptr at = 0;
        DONE(cuMemPoolSetAccess(pools[i], &access, 1));
        DONE(cuMemAllocFromPoolAsync(&at, 3 * MIB, pools[i], streams[1]));
        EXPECT(is_ours(at));
        DONE(cuStreamSynchronize(streams[1]));
        struct held held = held_of((void *)(uintptr_t)at, 3 * MIB, streams[0]);
        held_expect(&held, streams[0]);
        DONE(cuStreamSynchronize(streams[0]));
        DONE(cuMemFreeAsync(at, streams[1]));
    }
    DONE(cuMemPoolDestroy(pools[1]));
}

/* A capture on one device: the other one goes on, and ends it no more than its own does. */
ON_TWO_CARDS(a_capture_beside_another_device)
{
    CUgraph graph = NULL;
    CUdeviceptr at = 0;
    DONE(cuMemAlloc(&at, 3 * MIB));
    DONE(cuMemFree(at));
    DONE(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 1; i < 6; i++) {
        DONE(cuMemAllocAsync(&at, (size_t)i * 9 * MIB, streams[1])); /* the first one opens the device's pool */
        EXPECT(is_ours(at));
        DONE(cuMemFreeAsync(at, streams[1]));
    }
    DONE(sim_launch_wait(streams[0], 1));
    DONE(cuStreamEndCapture(streams[0], &graph));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
}

/*
 * A context ends with its memory, whatever other devices do, which are let into it: they may be capturing. So it does where the device that captures
 * has no memory of cenote's, and its capture goes on.
 */
static void end_beside_a_capture(bool is_own, bool is_served)
{
    CUgraph graph = NULL;
    CUcontext ends;
    CUdeviceptr at, far = 0;
    card_open(CAPACITY, 2);
    open_both();
    ends = contexts[0];
    if (is_own)
        DONE(cuCtxCreate(&ends, NULL, 0, 0));
    DONE(cuMemAlloc(&at, 60 * MIB));
    DONE(cuCtxSetCurrent(contexts[1]));
    if (is_served)
        DONE(cuMemAlloc(&far, MIB));
    else
        DONE(cuCtxEnablePeerAccess(ends, 0));
    DONE(cuStreamBeginCapture(streams[1], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(is_own ? cuCtxDestroy(ends) : cuDevicePrimaryCtxReset(0));
    EXPECT(used() <= 2 * MIB);
    DONE(sim_launch_wait(streams[1], 1));
    DONE(cuStreamEndCapture(streams[1], &graph));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
    if (is_served)
        DONE(cuMemFree(far));
    scene_is_open = false;
}

ENDS_WITH(a_context_ends_beside_a_capture_of_another_device, 0) { end_beside_a_capture(true, true); }
ENDS_WITH(a_context_ends_beside_a_capture_without_memory, 0) { end_beside_a_capture(true, false); }
ENDS_WITH(a_reset_beside_a_capture_of_another_device, 0) { end_beside_a_capture(false, true); }
ENDS_WITH(a_reset_beside_a_capture_without_memory, 0) { end_beside_a_capture(false, false); }

/* A default stream at the free is that of the current device, whichever one the block is of. */
ON_TWO_CARDS_OF(a_free_on_the_default_stream_of_another_device, 64 * MIB)
{
    CUstream defaults[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    CUdeviceptr far = 0, at;
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&far, MIB)); /* device 1 is let into the memory of device 0 */
    for (int i = 0; i < 3; i++) {
        DONE(cuCtxSetCurrent(contexts[0]));
        DONE(cuMemAllocAsync(&at, 40 * MIB, streams[0]));
        struct held first = held_of((void *)(uintptr_t)at, 40 * MIB, streams[0]);
        DONE(cuStreamSynchronize(streams[0]));
        DONE(cuCtxSetCurrent(contexts[1]));
        held_linger(&first, defaults[i]);
        DONE(cuMemFreeAsync(at, defaults[i]));
        DONE(cuCtxSetCurrent(contexts[0]));
        DONE(cuMemAllocAsync(&at, 40 * MIB, streams[0]));
        struct held second = held_of((void *)(uintptr_t)at, 40 * MIB, streams[0]);
        held_expect(&second, streams[0]);
        DONE(cuMemFreeAsync(at, streams[0]));
    }
    DONE(cuCtxSetCurrent(NULL));
    DONE(cuCtxSetCurrent(contexts[0]));
    DONE(cuMemFree(far));
}

/* A context that a program makes itself, also on another device: its streams may free what is of a primary context, and the block waits for them. */
static void free_in_own_context(int device)
{
    CUcontext own, popped;
    CUstream created;
    CUdeviceptr far = 0, at;
    DONE(cuCtxSetCurrent(contexts[1]));
    DONE(cuMemAlloc(&far, MIB));
    DONE(cuCtxCreate(&own, NULL, 0, device));
    DONE(cuStreamCreate(&created, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(&popped));
    CUstream all[] = {created, NULL, CU_STREAM_PER_THREAD};
    for (int i = 0; i < 6; i++) {
        CUstream stream = all[i / 2];
        DONE(cuCtxSetCurrent(contexts[0]));
        DONE(i & 1 ? cuMemAlloc(&at, 40 * MIB) : cuMemAllocAsync(&at, 40 * MIB, streams[0]));
        struct held first = held_of((void *)(uintptr_t)at, 40 * MIB, streams[0]);
        DONE(cuStreamSynchronize(streams[0]));
        if (stream != created)
            DONE(cuCtxPushCurrent(own));
        held_linger(&first, stream);
        DONE(cuMemFreeAsync(at, stream));
        if (stream != created)
            DONE(cuCtxPopCurrent(&popped));
        EXPECT(!is_ours(at));
        DONE(cuMemAllocAsync(&at, 40 * MIB, streams[0]));
        struct held second = held_of((void *)(uintptr_t)at, 40 * MIB, streams[0]);
        held_expect(&second, streams[0]);
        DONE(cuMemFreeAsync(at, streams[0]));
        DONE(cuCtxSynchronize());
    }
    DONE(cuMemFree(far));
    DONE(cuCtxDestroy(own));
}

ON_TWO_CARDS_OF(a_free_in_a_context_of_the_program, 64 * MIB) { free_in_own_context(0); }
ON_TWO_CARDS_OF(a_free_in_such_a_context_of_another_device, 64 * MIB) { free_in_own_context(1); }

/* No context is current: the driver cannot tell which default stream is meant, and nothing happens. */
ON_TWO_CARDS(a_free_on_no_default_stream)
{
    CUdeviceptr at = 0;
    DONE(cuMemAllocAsync(&at, MIB, streams[0]));
    DONE(cuCtxSetCurrent(NULL));
    EXPECT_EQ(cuMemFreeAsync(at, NULL), CUDA_ERROR_INVALID_CONTEXT);
    DONE(cuCtxSetCurrent(contexts[0]));
    EXPECT(is_ours(at));
    DONE(cuMemFreeAsync(at, streams[0]));
}

PRELOAD_MAIN("devices")
