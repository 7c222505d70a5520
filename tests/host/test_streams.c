/* test_streams.c: a block that a device may still be using is not handed out, and it is handed out as soon as that use is done. */
#include "tests/host/pinned.h"

#define BYTES (64 * KIB)

struct scene_card { struct scene scene; CUdeviceptr there; };

static void card_open(struct scene_card *card)
{
    pinned_open(&card->scene);
    DONE(cuMemAlloc(&card->there, BYTES));
}

static void card_close(struct scene_card *card)
{
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(card->there));
    pinned_close(&card->scene);
}

/* The device is busy for a while, then copies the block. */
static void copy_late(struct scene_card *card, char *block, CUstream stream)
{
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cuMemcpyHtoDAsync(card->there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
}

CASE(a_block_in_flight_is_not_handed_out)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    copy_late(&card, block, card.scene.stream[A]);
    DONE(cenote_host_free(block));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT_EQ(cenote_host_free(block), CENOTE_DOUBLE_FREE);

    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    memset(other, 9, BYTES);
    DONE(cenote_host_free(other));
    DONE(cuStreamSynchronize(card.scene.stream[A]));
    DONE(sim_launch_expect(card.scene.stream[A], card.there, 0x0505050505050505, BYTES));
    DONE(cuStreamSynchronize(card.scene.stream[A]));
    EXPECT_EQ(sim_mismatches(), 0);

    char *more[2] = {pinned_take(BYTES), pinned_take(BYTES)};
    EXPECT(more[0] == block || more[1] == block);
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cenote_host_free(more[0]));
    DONE(cenote_host_free(more[1]));
    card_close(&card);
}

CASE(every_stream_is_waited_for)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(BYTES);
    copy_late(&card, block, card.scene.stream[A]);
    copy_late(&card, block, card.scene.stream[B]);
    copy_late(&card, block, NULL);
    DONE(sim_launch_wait(card.scene.stream[C], 100 * MSEC));
    DONE(cenote_host_free(block));
    DONE(cuStreamSynchronize(card.scene.stream[A]));
    DONE(sim_launch_wait(card.scene.stream[B], 10 * MSEC)); /* later work has nothing to do with the block */
    char *other = pinned_take(BYTES);
    EXPECT_EQ(other, block);
    DONE(cenote_host_free(other));
    card_close(&card);
}

CASE(a_later_use_moves_the_event)
{
    struct scene_card card;
    struct sim_books before, after;
    card_open(&card);
    char *block = pinned_take(BYTES);
    copy_late(&card, block, card.scene.stream[A]);
    sim_books(&before);
    for (int i = 0; i < 50; i++)
        copy_late(&card, block, card.scene.stream[A]);
    sim_books(&after);
    EXPECT_EQ(after.events, before.events);
    DONE(cenote_host_free(block));
    sim_advance(500 * MSEC);
    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    sim_advance(100 * MSEC);
    char *third = pinned_take(BYTES);
    EXPECT_EQ(third, block);
    DONE(cenote_host_free(other));
    DONE(cenote_host_free(third));
    card_close(&card);
}

/* The handle of a stream that is gone may name another stream: its use is another one. */
CASE(a_stream_that_is_destroyed_is_waited_for)
{
    struct scene_card card;
    CUstream stream, next;
    card_open(&card);
    char *block = pinned_take(BYTES);
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    copy_late(&card, block, stream);
    DONE(cuStreamDestroy(stream));
    DONE(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(next, stream);
    DONE(cenote_host_use(block, 0, next));
    DONE(cenote_host_free(block));
    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    DONE(cenote_host_free(other));
    DONE(cuStreamDestroy(next));
    card_close(&card);
}

/* Inside cenote the handle of its default stream means that of the primary context, which has nothing to do. */
CASE(the_default_stream_of_a_green_context_is_waited_for)
{
    struct scene_card card;
    CUdevResource whole;
    CUdevResourceDesc described;
    CUgreenCtx green;
    CUcontext context;
    card_open(&card);
    DONE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevResourceGenerateDesc(&described, &whole, 1));
    DONE(cuGreenCtxCreate(&green, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DONE(cuCtxFromGreenCtx(&context, green));
    char *block = pinned_take(BYTES);
    memset(block, 5, BYTES);
    DONE(cuCtxPushCurrent(context));
    copy_late(&card, block, NULL);
    DONE(cenote_host_use(block, 0, CU_STREAM_LEGACY));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_host_free(block));
    char *other = pinned_take(BYTES);
    EXPECT(other != block);
    memset(other, 9, BYTES);
    DONE(cenote_host_free(other));
    DONE(cuCtxSynchronize());
    DONE(sim_launch_expect(card.scene.stream[A], card.there, 0x0505050505050505, BYTES));
    DONE(cuStreamSynchronize(card.scene.stream[A]));
    EXPECT_EQ(sim_mismatches(), 0);
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cuGreenCtxDestroy(green));
    card_close(&card);
}

CASE(a_captured_copy_keeps_the_block)
{
    struct scene_card card;
    CUgraph graph;
    card_open(&card);
    char *block = pinned_take(BYTES);
    CUstream stream = card.scene.stream[A];
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cuMemcpyHtoDAsync(card.there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
    DONE(cenote_host_free(block));
    char *other = pinned_take(3 * MIB); /* registers a chunk in the middle of a capture */
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuCtxSynchronize());
    DONE(cenote_host_free(other));
    char *third = pinned_take(BYTES);
    EXPECT(third != block);
    DONE(cuGraphDestroy(graph));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cenote_host_free(third));
    card_close(&card);
}

CASE(a_trim_waits_for_what_is_in_flight_if_it_is_told)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(BYTES);
    copy_late(&card, block, card.scene.stream[A]);
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(0, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(pinned_stats().registered.current > 0);
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    EXPECT_EQ(pinned_stats().registered.current, 0);
    card_close(&card);
}

static void open_limited(struct scene_card *card)
{
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    options.limit = 8 * MIB;
    scene_open_card(&card->scene, &shape);
    DONE(cenote_host_open(&options));
    DONE(cuMemAlloc(&card->there, BYTES));
}

/* The graph is gone, the device is idle and nothing is live: only the wait for the device, as a trim's, can say so. */
CASE(a_captured_copy_is_waited_for_when_nothing_else_is_left)
{
    struct scene_card card;
    CUgraph graph;
    open_limited(&card);
    CUstream stream = card.scene.stream[A];
    char *block = pinned_take(6 * MIB);
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cuMemcpyHtoDAsync(card.there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_host_free(block));
    char *other = pinned_take(7 * MIB);
    EXPECT(other != NULL);
    EXPECT_EQ(pinned_stats().waits, 1);
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cenote_host_free(other));
    card_close(&card);
}

/* A block that a graph uses is live while the graph is captured: then the device is not waited for, which would end the capture. */
CASE(no_allocation_waits_while_a_capture_uses_pinned_memory)
{
    struct scene_card card;
    CUgraph graph;
    void *other = NULL;
    open_limited(&card);
    CUstream stream = card.scene.stream[A];
    for (int round = 0; round < 2; round++) { /* the block of the first round waits for the device in the second */
        char *block = pinned_take(3 * MIB);
        DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cuMemcpyHtoDAsync(card.there, block, BYTES, stream));
        DONE(cenote_host_use(block, 0, stream));
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

CASE(when_nothing_else_is_left_it_waits)
{
    struct scene_card card;
    open_limited(&card);
    char *block = pinned_take(6 * MIB);
    copy_late(&card, block, card.scene.stream[A]);
    DONE(cenote_host_free(block));
    char *other = pinned_take(7 * MIB);
    EXPECT(other != NULL);
    EXPECT_EQ(pinned_stats().waits, 1);
    EXPECT_EQ(cuStreamQuery(card.scene.stream[A]), CUDA_SUCCESS);
    DONE(cenote_host_free(other));
    card_close(&card);
}

/* Some thousand are kept for later, those of host.h: the others go back to the driver. */
CASE(every_event_goes_back)
{
    enum { KEPT = 4096, MANY = KEPT + 100 };
    static char *block[MANY];
    struct scene scene;
    struct sim_books books;
    pinned_open(&scene);
    DONE(sim_launch_wait(scene.stream[A], MSEC)); /* or those that are done would go before the free */
    for (int i = 0; i < MANY; i++) {
        block[i] = pinned_take(512);
        DONE(cenote_host_use(block[i], 0, scene.stream[A]));
    }
    for (int i = 0; i < MANY; i++)
        DONE(cenote_host_free(block[i]));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    DONE(cenote_host_close());
    sim_books(&books);
    EXPECT_EQ(books.events, 0);
    scene_close(&scene);
}

CASE(blocks_in_flight_are_waited_for_at_the_end)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(BYTES);
    copy_late(&card, block, card.scene.stream[A]);
    DONE(cenote_host_free(block));
    DONE(cenote_host_close());
    EXPECT_EQ(cuStreamQuery(card.scene.stream[A]), CUDA_SUCCESS);
    card_close(&card);
}

SCENES_MAIN("streams")
