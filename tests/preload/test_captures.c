/*
 * test_captures.c: captures of streams, in every mode, beside allocations and frees. Memory of a captured stream is the graph's; a capture ends as
 * the program has captured it, whatever cenote has to do meanwhile.
 */
#include "tests/preload/card.h"

#include <pthread.h>

#define PAIR 0x1234567812345678u

/* A graph that takes memory, writes and reads it, and gives it back: all of it nodes of the driver. */
static CUgraphExec capture_a_round(CUstream stream, CUstreamCaptureMode mode)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr at = 0;
    DONE(cuStreamBeginCapture(stream, mode));
    DONE(cuMemAllocAsync(&at, 3 * MIB, stream));
    EXPECT(!is_ours(at));
    DONE(sim_launch_fill(stream, at, PAIR, 3 * MIB));
    DONE(sim_launch_expect(stream, at, PAIR, 3 * MIB));
    DONE(cuMemFreeAsync(at, stream));
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphDestroy(graph));
    return exec;
}

ON_CARD(memory_of_a_graph_is_the_drivers)
{
    CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int i = 0; i < 3; i++) {
        struct held before = stream_take(8 * MIB, card.stream[A]);
        CUgraphExec exec = capture_a_round(card.stream[A], modes[i]);
        for (int round = 0; round < 3; round++)
            DONE(cuGraphLaunch(exec, card.stream[A]));
        held_expect(&before, card.stream[A]);
        DONE(cuMemFreeAsync(at_of(&before), card.stream[A]));
        DONE(cuStreamSynchronize(card.stream[A]));
        DONE(cuGraphExecDestroy(exec));
    }
}

/* While a stream is captured, others take and give memory, of sizes for which cenote has to call the driver. */
ON_CARD(a_capture_outlives_allocations)
{
    struct held block = plain_take(8 * MIB, card.stream[A]), more;
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 1; i < 8; i++) {
        more = stream_take((size_t)i * 5 * MIB, card.stream[B]);
        held_linger(&more, card.stream[B]);
        DONE(cuMemFreeAsync(at_of(&more), card.stream[B]));
    }
    DONE(cuThreadExchangeStreamCaptureMode(&mode));
    more = plain_take(40 * MIB, card.stream[C]);
    REQUIRE(more.at);
    DONE(cuThreadExchangeStreamCaptureMode(&mode));
    held_expect(&block, card.stream[A]);
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphLaunch(exec, card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuMemFree(at_of(&block)));
    DONE(cuMemFree(at_of(&more)));
}

/* The driver allows cuMemFree in this mode, and waiting for the context would end the capture. The block must not be handed out while B reads it. */
ON_CARD_OF(a_free_during_a_capture, 64 * MIB)
{
    struct held first = plain_take(20 * MIB, card.stream[B]), second;
    CUgraph graph = NULL;
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    held_linger(&first, card.stream[B]);
    DONE(cuMemFree(at_of(&first)));
    EXPECT_EQ(cuMemFree(at_of(&first)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFreeAsync(at_of(&first), card.stream[B]), CUDA_ERROR_INVALID_VALUE);
    second = plain_take(20 * MIB, card.stream[C]);
    REQUIRE(second.at);
    EXPECT(!held_overlap(&first, &second));
    DONE(sim_launch_wait(card.stream[A], 1));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
    DONE(cuMemFree(at_of(&second)));
    EXPECT(!is_ours(at_of(&first)));
    first = plain_take(60 * MIB, card.stream[C]); /* both are free now */
    EXPECT(first.at);
}

/* The blocks come back when the capture has ended and the device is done with them: no other free is needed. */
static void expect_back(bool at_once)
{
    struct held first = plain_take(40 * MIB, card.stream[B]), second;
    size_t left, total;
    CUgraph graph = NULL;
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    held_linger(&first, card.stream[B]);
    DONE(cuMemFree(at_of(&first)));
    DONE(sim_launch_wait(card.stream[B], 10 * MSEC));
    DONE(cuMemGetInfo(&left, &total));
    EXPECT_EQ(left, at_once ? total : total - 2 * MIB); /* without the event the driver has memory of its own, to wait by freeing it */
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    DONE(cuGraphDestroy(graph));
    EXPECT_EQ(is_ours(at_of(&first)), !at_once);
    EXPECT_EQ(cuStreamQuery(card.stream[B]), CUDA_ERROR_NOT_READY); /* the end of a capture waits for nothing */
    second = plain_take(40 * MIB, card.stream[C]);
    REQUIRE(second.at);
    held_expect(&second, card.stream[C]);
    DONE(cuMemFree(at_of(&second)));
}

ON_CARD_OF(a_block_freed_in_a_capture_comes_back, 64 * MIB) { expect_back(true); }

ENDS_WITH(it_comes_back_with_an_older_driver, 0)
{
    struct sim_shape shape = scene_card(64 * MIB);
    shape.driver_version = 12040;
    scene_open_card(&card, &shape);
    expect_back(false);
    card_close();
}

/* What the driver refuses in the capture of a thread is refused, and the capture is as the driver leaves it: invalid. */
static void free_what_is_forbidden(struct held block)
{
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    sim_set_quiet(true);
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cuMemFree(at_of(&block)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    DONE(cuStreamIsCapturing(card.stream[A], &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(card.stream[A], &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(is_ours(at_of(&block)));
    DONE(cuMemFree(at_of(&block)));
    EXPECT(!is_ours(at_of(&block)));
    scene_is_open = false;
    exit(failures_said()); /* the refusal counts as a violation */
}

ON_CARD(a_free_that_the_driver_forbids) { free_what_is_forbidden(plain_take(20 * MIB, card.stream[B])); }
ON_CARD(a_free_of_stream_memory_that_the_driver_forbids) { free_what_is_forbidden(stream_take(20 * MIB, card.stream[B])); }

/* It allows the free in this mode, whatever the memory. */
ON_CARD(a_free_of_stream_memory_during_a_capture)
{
    struct held block = stream_take(20 * MIB, card.stream[B]);
    CUgraph graph = NULL;
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cuMemFree(at_of(&block)));
    EXPECT(!is_ours(at_of(&block)));
    DONE(sim_launch_wait(card.stream[A], 1));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    DONE(cuGraphDestroy(graph));
}

/* Whether memory may be taken beside a capture, and whether the capture goes on, is as without the preload: of each mode, here and on its thread. */
struct taker {
    CUstreamCaptureMode eased;
    CUdeviceptr at;
    CUresult result;
    bool by_pitch;
};

static void *take_beside(void *arg)
{
    struct taker *t = arg;
    size_t pitch;
    DONE(cuCtxSetCurrent(card.context));
    DONE(cuThreadExchangeStreamCaptureMode(&t->eased));
    t->result = t->by_pitch ? cuMemAllocPitch(&t->at, &pitch, 1000, 100, 4) : cuMemAlloc(&t->at, 100000);
    DONE(cuThreadExchangeStreamCaptureMode(&t->eased));
    return NULL;
}

static void take_in_modes(const char *is_on)
{
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    sim_set_quiet(true);
    for (int i = 0; i < 36; i++) {
        int mode = i / 2 % 3, eased = i / 6 % 3;
        bool elsewhere = i >= 18, is_refused = eased != 2 && (elsewhere ? mode == 0 && eased == 0 : mode != 2);
        struct taker t = {.eased = (CUstreamCaptureMode)eased, .by_pitch = i % 2};
        CUgraph graph = NULL;
        pthread_t thread;
        DONE(cuStreamBeginCapture(card.stream[A], (CUstreamCaptureMode)mode));
        if (elsewhere)
            REQUIRE(!pthread_create(&thread, NULL, take_beside, &t) && !pthread_join(thread, NULL));
        else
            take_beside(&t);
        EXPECT_EQ(t.result, is_refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        EXPECT_EQ(cuStreamEndCapture(card.stream[A], &graph), is_refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
        EXPECT_EQ(graph != NULL, !is_refused);
        if (graph)
            DONE(cuGraphDestroy(graph));
        EXPECT(is_refused || is_ours(t.at) == !strcmp(is_on, "on"));
        if (!is_refused)
            DONE(cuMemFree(t.at));
    }
    scene_is_open = false;
}

ENDS_WITH(memory_taken_beside_a_capture_under_the_preload, 0) { take_in_modes("on"); }
ENDS_WITH(memory_taken_beside_a_capture_without_it, 0) { take_in_modes("off"); }

/* A graph gives back only what it took: the driver refuses others' memory in a capture, and the block stays. */
ON_CARD(a_free_in_a_captured_stream)
{
    struct held block = stream_take(20 * MIB, card.stream[A]);
    CUgraph graph = NULL;
    sim_set_quiet(true);
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cuMemFreeAsync(at_of(&block), card.stream[A]), CUDA_ERROR_INVALID_VALUE);
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    EXPECT(is_ours(at_of(&block)));
    held_expect(&block, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&block), card.stream[A]));
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    scene_is_open = false;
    exit(failures_said());
}

/* A capture ends with its stream, and is not open for ever: frees wait again. */
ON_CARD(a_stream_destroyed_during_its_capture)
{
    struct held block = plain_take(20 * MIB, card.stream[B]);
    sim_set_quiet(true);
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    cuStreamDestroy(card.stream[A]);
    held_linger(&block, card.stream[B]);
    DONE(cuMemFree(at_of(&block)));
    EXPECT(!is_ours(at_of(&block)));
    EXPECT_EQ(sim_mismatches(), 0);
    scene_is_open = false;
    exit(failures_said());
}

/* The program's first allocation comes while its first capture is open. */
ON_CARD(the_first_allocation_in_a_capture)
{
    CUgraph graph = NULL;
    struct held block;
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    block = stream_take(20 * MIB, card.stream[B]);
    EXPECT(is_ours(at_of(&block)));
    DONE(cuMemFreeAsync(at_of(&block), card.stream[B]));
    block = stream_take(30 * MIB, card.stream[C]);
    DONE(cuMemFreeAsync(at_of(&block), card.stream[C]));
    DONE(sim_launch_wait(card.stream[A], 1));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
    EXPECT_EQ(driver_allocations(), 0);
}

/* The driver refuses a capture: cenote does not take it for open. */
ON_CARD(a_capture_that_does_not_begin)
{
    struct held block = plain_take(20 * MIB, card.stream[B]);
    sim_set_quiet(true);
    EXPECT(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS);
    held_linger(&block, card.stream[B]);
    uint64_t before = sim_now();
    DONE(cuMemFree(at_of(&block)));
    EXPECT(sim_now() - before >= 10 * MSEC);
    EXPECT(!is_ours(at_of(&block)));
    scene_is_open = false;
    exit(failures_said());
}

/* With announced:0 cenote does no harm to a capture that it has not seen, and the graph's memory is the graph's. */
static void capture_unseen(void)
{
    union {
        void *from;
        CUresult (*to)(CUstream, CUstreamCaptureMode);
    } begin;
    CUgraphExec exec;
    CUgraph graph = NULL;
    CUdeviceptr at = 0;
    setenv("CENOTE_CONF", "announced:0", 1);
    card_open(CAPACITY, 1);
    struct held block = stream_take(8 * MIB, card.stream[B]), more;
    begin.from = past_the_hooks("cuStreamBeginCapture_v2");
    REQUIRE(begin.from && begin.from != dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2"));
    DONE(begin.to(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cuMemAllocAsync(&at, 3 * MIB, card.stream[A]));
    EXPECT(!is_ours(at));
    for (int i = 1; i < 8; i++) {
        more = stream_take((size_t)i * 5 * MIB, card.stream[i & 1 ? B : C]);
        held_linger(&more, more.stream);
        DONE(cuMemFreeAsync(at_of(&more), more.stream));
    }
    DONE(sim_launch_fill(card.stream[A], at, PAIR, 3 * MIB));
    DONE(sim_launch_expect(card.stream[A], at, PAIR, 3 * MIB));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphLaunch(exec, card.stream[A]));
    held_expect(&block, card.stream[B]);
    DONE(cuMemFreeAsync(at_of(&block), card.stream[B]));
    card_close();
}

ENDS_WITH(a_capture_past_the_hooks, 0) { capture_unseen(); }

/*
 * cuMemFree meanwhile: the driver allows it in this mode, waits, and harms no capture. The device is full, so that the driver has no memory to be
 * asked with.
 */
static void free_beside_the_unseen(void)
{
    union {
        void *from;
        CUresult (*to)(CUstream, CUstreamCaptureMode);
    } begin = {.from = past_the_hooks("cuStreamBeginCapture_v2")};
    CUgraph graph = NULL;
    setenv("CENOTE_CONF", "announced:0", 1);
    card_open(64 * MIB, 1);
    struct held all[8] = {plain_take(20 * MIB, card.stream[B])};
    int count = 1;
    while (count < 8 && (all[count] = plain_take(count < 3 ? 20 * MIB : 2 * MIB, card.stream[B])).at)
        count++;
    EXPECT(count == 4 || count == 5);
    for (int i = 0; i < count; i++) {
        DONE(begin.to(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
        held_linger(&all[i], card.stream[B]);
        DONE(cuMemFree(at_of(&all[i])));
        EXPECT(!is_ours(at_of(&all[i])));
        DONE(cuStreamQuery(card.stream[B]));
        DONE(sim_launch_wait(card.stream[A], 1));
        DONE(cuStreamEndCapture(card.stream[A], &graph));
        DONE(cuGraphDestroy(graph));
    }
    card_close();
}

ENDS_WITH(a_free_beside_a_capture_past_the_hooks, 0) { free_beside_the_unseen(); }

/* The device waits for a call of another thread, while a thread waits for the device in cuMemFree. */
static struct stall {
    atomic_bool waits, is_over, in_time;
    CUresult (*call)(void);
    CUresult result;
} stall;

static bool comes_true(atomic_bool *what)
{
    struct wait wait = {0};
    while (!atomic_load(what) && wait_on(&wait))
        ;
    return atomic_load(what);
}

/* Its clock stands still until a thread waits for the device: then that function runs. */
static void CUDA_CB hold_up_the_device(void *unused)
{
    (void)unused;
    atomic_store(&stall.waits, true);
    atomic_store(&stall.in_time, comes_true(&stall.is_over));
}

static void *call_meanwhile(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(card.context);
    if (comes_true(&stall.waits))
        stall.result = stall.call();
    atomic_store(&stall.is_over, true);
    return NULL;
}

static void free_during(CUresult (*call)(void))
{
    pthread_t other;
    struct held block = plain_take(20 * MIB, card.stream[A]);
    stall.call = call;
    held_linger(&block, card.stream[B]);
    DONE(cuLaunchHostFunc(card.stream[B], hold_up_the_device, NULL));
    REQUIRE(!pthread_create(&other, NULL, call_meanwhile, NULL));
    DONE(cuMemFree(at_of(&block)));
    pthread_join(other, NULL);
    DONE(stall.result);
    EXPECT(atomic_load(&stall.in_time));
    EXPECT(!is_ours(at_of(&block)));
}

static CUresult capture_nothing(void)
{
    CUgraph graph = NULL;
    CUresult result = cuStreamBeginCapture(card.stream[C], CU_STREAM_CAPTURE_MODE_GLOBAL);
    result = result ? result : cuStreamEndCapture(card.stream[C], &graph);
    return result ? result : cuGraphDestroy(graph);
}

static CUresult destroy_a_stream(void)
{
    return cuStreamDestroy(card.stream[C]);
}

static CUresult allocate_on_another_device(void)
{
    CUcontext context;
    CUdeviceptr at = 0;
    CUresult result = cuDevicePrimaryCtxRetain(&context, 1);
    if (!result && !(result = cuCtxPushCurrent(context)) && !(result = cuMemAlloc(&at, MIB)) && !is_ours(at))
        result = CUDA_ERROR_UNKNOWN;
    return result ? result : cuMemFree(at);
}

ON_CARD(a_capture_while_a_free_waits) { free_during(capture_nothing); }
ON_CARD(a_stream_destroyed_while_a_free_waits) { free_during(destroy_a_stream); }

ENDS_WITH(a_first_allocation_while_a_free_waits, 0)
{
    card_open(CAPACITY, 2);
    free_during(allocate_on_another_device);
    card_close();
}

/* A context ends, and the driver waits for what the device has still to do in it: meanwhile others go on. */
static void end_a_context_during(CUresult (*call)(void))
{
    CUcontext own;
    CUstream stream;
    pthread_t other;
    card_open(CAPACITY, 2);
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    struct held block = plain_take(20 * MIB, stream);
    stall.call = call;
    held_linger(&block, stream);
    DONE(cuLaunchHostFunc(stream, hold_up_the_device, NULL));
    REQUIRE(!pthread_create(&other, NULL, call_meanwhile, NULL));
    DONE(cuCtxDestroy(own));
    pthread_join(other, NULL);
    DONE(stall.result);
    EXPECT(atomic_load(&stall.in_time));
    EXPECT(!is_ours(at_of(&block)));
    card_close();
}

ENDS_WITH(a_first_allocation_while_a_context_ends, 0) { end_a_context_during(allocate_on_another_device); }
ENDS_WITH(a_capture_while_a_context_ends, 0) { end_a_context_during(capture_nothing); }
ENDS_WITH(a_stream_destroyed_while_a_context_ends, 0) { end_a_context_during(destroy_a_stream); }

/* A driver before CUDA 12.5 has no event over a context: the driver waits itself, and holds no other thread up. */
static void without_context_events(CUresult (*call)(void))
{
    struct sim_shape shape = scene_card(CAPACITY);
    shape.driver_version = 12040;
    scene_open_card(&card, &shape);
    free_during(call);
    card_close();
}

ENDS_WITH(a_stream_destroyed_with_an_older_driver, 0) { without_context_events(destroy_a_stream); }
ENDS_WITH(a_capture_with_an_older_driver, 0) { without_context_events(capture_nothing); }

PRELOAD_MAIN("captures")
