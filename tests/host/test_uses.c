/*
 * test_uses.c: which uses of a block are remembered, and that they end: whose stream it was, also if numbers and handles are given again; and how
 * many uses there are, which follows what has yet to run and not what has been called.
 */
#include "host/host.h"
#include "tests/host/pinned.h"
#include "tests/patience.h"

#include <pthread.h>

#define BYTES (64 * KIB)

struct scene_card { struct scene scene; CUdeviceptr there; };

static CUcontext context;

/* All threads of this program have the number that the system gives to a thread once another has ended. */
pid_t gettid(void)
{
    return 4711;
}

static void card_open(struct scene_card *card)
{
    pinned_open(&card->scene);
    context = card->scene.context;
    DONE(cuMemAlloc(&card->there, BYTES));
}

static void card_open_without_ids(struct scene_card *card)
{
    cenote_host_options options = pinned_options();
    struct sim_shape shape = scene_card(64 * MIB);
    scene_open_card(&card->scene, &shape);
    sim_hide("cuStreamGetId");
    DONE(cenote_host_open(&options));
    DONE(cuMemAlloc(&card->there, BYTES));
}

static void card_close(struct scene_card *card)
{
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(card->there));
    pinned_close(&card->scene);
}

static void copy_late(CUdeviceptr there, char *block, CUstream stream)
{
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cuMemcpyHtoDAsync(there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
}

/* Uses that are remembered, of all blocks. */
static uint32_t remembered(void)
{
    struct host *h = atomic_load(&host_opened);
    return h->uses.used - 1 - h->uses.free_count;
}

/* The block is freed and not handed out before the copy has run, which reads it with what it held. */
static void expect_kept(struct scene_card *card, char *block)
{
    DONE(cenote_host_free(block));
    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    memset(other, 9, BYTES);
    DONE(cenote_host_free(other));
    DONE(cuCtxSynchronize());
    DONE(sim_launch_expect(card->scene.stream[A], card->there, 0x0505050505050505, BYTES));
    DONE(cuStreamSynchronize(card->scene.stream[A]));
    EXPECT_EQ(sim_mismatches(), 0);
}

/* ---------------------------------------------------------------------------------------------------------------- whose stream it was */

struct part { struct scene_card *card; char *block; bool copies; };

static void *use_own_stream(void *arg)
{
    struct part *part = arg;
    DONE(cuCtxSetCurrent(context));
    if (part->copies)
        copy_late(part->card->there, part->block, CU_STREAM_PER_THREAD);
    else
        DONE(cenote_host_use(part->block, 0, CU_STREAM_PER_THREAD));
    return NULL;
}

static void in_a_thread(struct part part)
{
    pthread_t thread;
    REQUIRE_EQ(pthread_create(&thread, NULL, use_own_stream, &part), 0);
    pthread_join(thread, NULL);
}

/* The stream of a thread that ended has work; that of the next thread, which has its number, has none. */
CASE(a_thread_has_the_number_of_another_that_ended)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    in_a_thread((struct part){&card, block, true});
    in_a_thread((struct part){&card, block, false});
    expect_kept(&card, block);
    card_close(&card);
}

CASE(a_handle_is_given_again_and_the_driver_has_no_ids)
{
    struct scene_card card;
    CUstream stream, next;
    card_open_without_ids(&card);
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    copy_late(card.there, block, stream);
    DONE(cuStreamDestroy(stream));
    DONE(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(next, stream);
    DONE(cenote_host_use(block, 0, next));
    expect_kept(&card, block);
    DONE(cuStreamDestroy(next));
    card_close(&card);
}

/* A replay reads the block on another stream, whatever the stream is given that was captured. */
CASE(a_captured_stream_is_used_again_after_its_capture)
{
    struct scene_card card;
    CUgraph graph;
    CUgraphExec exec;
    card_open(&card);
    for (int round = 0; round < 2; round++) {
        CUstream stream = round ? card.scene.stream[B] : CU_STREAM_PER_THREAD;
        char *block = pinned_take(BYTES);
        memset(block, 5, BYTES);
        DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        copy_late(card.there, block, stream);
        DONE(cuStreamEndCapture(stream, &graph));
        DONE(cuGraphInstantiate(&exec, graph, 0));
        DONE(cenote_host_use(block, 0, stream));
        DONE(cuGraphLaunch(exec, card.scene.stream[C]));
        expect_kept(&card, block);
        DONE(cuGraphExecDestroy(exec));
        DONE(cuGraphDestroy(graph));
        DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    }
    card_close(&card);
}

/* What is live in a graph keeps allocations from waiting for the device, which would end the capture, whatever the block is used for beside it. */
CASE(a_block_stays_captured)
{
    struct scene_card card;
    CUgraph graph;
    void *other = NULL;
    cenote_host_options options = pinned_options();
    options.limit = 8 * MIB;
    pinned_open_devices(&card.scene, &options, 1);
    DONE(cuMemAlloc(&card.there, BYTES));
    CUstream stream = card.scene.stream[A];
    for (int round = 0; round < 2; round++) { /* the block of the first round waits for the device in the second */
        char *block = pinned_take(3 * MIB);
        DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cuMemcpyHtoDAsync(card.there, block, BYTES, stream));
        DONE(cenote_host_use(block, 0, stream));
        fault_arm("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
        DONE(cenote_host_use(block, 0, card.scene.stream[B]));
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        if (round)
            EXPECT_EQ(cenote_host_alloc(0, 3 * MIB, &other), CENOTE_OUT_OF_HOST_MEMORY);
        DONE(cuStreamEndCapture(stream, &graph));
        DONE(cuGraphDestroy(graph));
        DONE(cenote_host_free(block));
    }
    DONE(cenote_host_alloc(0, 3 * MIB, &other));
    DONE(cenote_host_free(other));
    card_close(&card);
}

/* Memory is registered in the primary context, and events are recorded there: on the stream of another context none can be. */
CASE(a_stream_of_another_context_is_refused)
{
    struct scene_card card;
    CUcontext beside, second;
    CUstream stream, far;
    cenote_host_options options = pinned_options();
    pinned_open_devices(&card.scene, &options, 2);
    sim_set_quiet(true);
    char *block = pinned_take(BYTES);
    DONE(cuDevicePrimaryCtxRetain(&second, 1));
    DONE(cuCtxPushCurrent(second));
    DONE(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cenote_host_use(block, 0, far), CENOTE_INVALID);
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuCtxCreate(&beside, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cenote_host_use(block, 0, stream), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_use(block, 0, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_use(block, 0, CU_STREAM_LEGACY), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_use(block, 0, CU_STREAM_PER_THREAD), CENOTE_INVALID);
    EXPECT(strstr(cenote_host_message(), "context"));
    EXPECT_EQ(remembered(), 0);
    DONE(cenote_host_free(block));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cenote_host_close());
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxDestroy(beside));
    scene_is_open = false; /* the card counts the event on that stream as a violation */
    sim_set_quiet(false);
}

/* ------------------------------------------------------------------------------------------------------------------------- how many */

CASE(uses_of_captures_are_one_for_each_block)
{
    enum { CAPTURES = 20, COPIES = 50 };
    struct scene_card card;
    CUgraph graph;
    card_open(&card);
    char *block = pinned_take(BYTES);
    for (int i = 0; i < CAPTURES; i++) {
        CUstream stream = card.scene.stream[i % SCENE_STREAMS];
        DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int k = 0; k < COPIES; k++) {
            DONE(cuMemcpyHtoDAsync(card.there, block, BYTES, stream));
            DONE(cenote_host_use(block, 0, stream));
        }
        DONE(cuStreamEndCapture(stream, &graph));
        DONE(cuGraphDestroy(graph));
    }
    EXPECT_EQ(remembered(), 1);
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(remembered(), 0);
    card_close(&card);
}

#define MANY 5000

/* As many as no call looks after, and twice as many as are not done. */
static uint32_t at_most(uint32_t undone)
{
    const struct host *h = atomic_load(&host_opened);
    return h->few_uses + 2 * undone;
}

static void copies_that_are_done(struct scene_card *card, char *block, CUstream stream)
{
    DONE(cuMemcpyHtoDAsync(card->there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
    DONE(cuStreamSynchronize(stream));
}

CASE(uses_that_are_done_go_from_a_block_that_stays)
{
    for (int ids = 0; ids < 2; ids++) {
        struct scene_card card;
        if (ids)
            card_open(&card);
        else
            card_open_without_ids(&card);
        char *block = pinned_take(BYTES);
        for (int i = 0; i < MANY; i++) {
            CUstream stream;
            DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            copies_that_are_done(&card, block, stream);
            DONE(cuStreamDestroy(stream));
        }
        EXPECT(remembered() <= at_most(0));
        DONE(cenote_host_check());
        DONE(cenote_host_free(block));
        card_close(&card);
    }
}

CASE(uses_that_are_done_go_from_blocks_that_stay)
{
    static char *block[MANY];
    struct scene_card card;
    card_open(&card);
    for (int i = 0; i < MANY; i++) {
        block[i] = pinned_take(BYTES);
        copies_that_are_done(&card, block[i], card.scene.stream[A]);
    }
    EXPECT(remembered() <= at_most(0));
    DONE(cenote_host_check());
    for (int i = 0; i < MANY; i++)
        DONE(cenote_host_free(block[i]));
    card_close(&card);
}

/* Those that are not done for long keep none of the others. */
CASE(uses_that_are_done_go_beside_some_that_are_not)
{
    enum { UNDONE = 1000, ROUNDS = 20000 };
    static CUstream busy[UNDONE];
    struct scene_card card;
    CUstream stream;
    card_open(&card);
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    for (int i = 0; i < UNDONE; i++) {
        DONE(cuStreamCreate(&busy[i], CU_STREAM_NON_BLOCKING));
        DONE(sim_launch_wait(busy[i], 1000 * 1000 * MSEC));
        DONE(cenote_host_use(block, 0, busy[i]));
    }
    copy_late(card.there, block, busy[0]);
    for (int i = 0; i < ROUNDS; i++) {
        DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DONE(cenote_host_use(block, 0, stream));
        DONE(cuStreamDestroy(stream));
    }
    EXPECT(remembered() <= at_most(UNDONE));
    DONE(cenote_host_free(block));
    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    DONE(cenote_host_free(other));
    for (int i = 0; i < UNDONE; i++)
        DONE(cuStreamDestroy(busy[i]));
    card_close(&card);
}

/* To its last number: then a use is refused, the earlier ones hold, and there is room again when some are over. */
CASE(the_table_of_uses_is_full)
{
    struct scene_card card;
    card_open(&card);
    struct host *h = atomic_load(&host_opened);
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    copy_late(card.there, block, card.scene.stream[B]);
    lock_take(&h->lock);
    while (table_take(&h->uses))
        ;
    EXPECT_EQ(h->uses.used, USES_MAX + 1);
    lock_give(&h->lock);
    EXPECT_EQ(cenote_host_use(block, 0, card.scene.stream[C]), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_host_use(block, 0, card.scene.stream[B]));
    lock_take(&h->lock);
    table_give(&h->uses, USES_MAX);
    lock_give(&h->lock);
    DONE(cenote_host_use(block, 0, card.scene.stream[C]));
    EXPECT_EQ(RECORD_USES(atomic_load(record_of(h, (uint64_t)block))), USES_MAX);
    expect_kept(&card, block);
    card_close(&card);
}

/* A block that two devices use waits for both. */
CASE(two_devices_use_one_block)
{
    struct scene scene;
    CUcontext second;
    CUstream stream;
    CUdeviceptr there[2];
    cenote_host_options options = pinned_options();
    pinned_open_devices(&scene, &options, 2);
    DONE(cuMemAlloc(&there[0], BYTES));
    DONE(cuDevicePrimaryCtxRetain(&second, 1));
    DONE(cuCtxPushCurrent(second));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuMemAlloc(&there[1], BYTES));
    char *block = pinned_take(BYTES);
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cuMemcpyHtoDAsync(there[1], block, BYTES, stream));
    DONE(cenote_host_use(block, 1, stream));
    DONE(cuCtxPopCurrent(NULL));
    DONE(sim_launch_wait(scene.stream[A], 20 * MSEC));
    DONE(cuMemcpyHtoDAsync(there[0], block, BYTES, scene.stream[A]));
    DONE(cenote_host_use(block, 0, scene.stream[A]));
    DONE(cenote_host_free(block));
    for (int done = 0; done < 3; done++) {
        DONE(cenote_host_trim(UINT64_MAX, 0));
        EXPECT_EQ(pinned_stats().pending_blocks, done < 2);
        sim_advance(12 * MSEC);
    }
    DONE(cuMemFree(there[0]));
    DONE(cuMemFree(there[1]));
    DONE(cuStreamDestroy(stream));
    DONE(cuDevicePrimaryCtxRelease(1));
    pinned_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------ two threads at once */

static pthread_barrier_t together;

static void *use_again_and_again(void *arg)
{
    struct part *part = arg;
    DONE(cuCtxSetCurrent(context));
    pthread_barrier_wait(&together);
    for (int i = 0; i < 500; i++)
        DONE(cenote_host_use(part->block, 0, part->card->scene.stream[A]));
    return NULL;
}

CASE(two_threads_use_one_block_on_one_stream)
{
    struct scene_card card;
    pthread_t thread[2];
    struct sim_books books;
    card_open(&card);
    pthread_barrier_init(&together, NULL, 2);
    struct part part = {&card, pinned_take(BYTES), false};
    for (int i = 0; i < 2; i++)
        REQUIRE_EQ(pthread_create(&thread[i], NULL, use_again_and_again, &part), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&together);
    EXPECT(remembered() <= 2);
    DONE(cenote_host_free(part.block));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    DONE(cenote_host_close());
    sim_books(&books);
    EXPECT_EQ(books.events, 0);
    card_close(&card);
}

SCENES_MAIN("uses")
