/*
 * test_lost.c: devices that the program resets, or whose context is lost. What was registered in a context that ended is not pinned: it is not handed
 * out once that is known. Frees go on, everything can be given back, and other devices keep what is theirs.
 */
#include "tests/host/pinned.h"

static void open_two(struct scene *scene, CUcontext *second)
{
    cenote_host_options options = pinned_options();
    pinned_open_devices(scene, &options, 2);
    DONE(cuDevicePrimaryCtxRetain(second, 1));
}

/* What was made in the context is gone with it. */
static void after_a_reset(void)
{
    DONE(cuCtxSetCurrent(NULL));
    scene_is_open = false;
}

static void *take_near(int device, size_t bytes)
{
    void *block = NULL;
    DONE(cenote_host_alloc(device, bytes, &block));
    return block;
}

/* A second time with a context that the program has made anew, under the same handle. */
CASE(what_a_reset_has_ended_is_not_handed_out)
{
    for (int anew = 0; anew < 2; anew++) {
        struct scene scene;
        CUcontext context;
        void *block = NULL;
        pinned_open(&scene);
        char *kept = pinned_take(3000), *small = pinned_take(100 * KIB), *flying = pinned_take(100 * KIB);
        kept[2999] = 3;
        DONE(cenote_host_free(small));
        DONE(sim_launch_wait(scene.stream[A], MSEC));
        DONE(cenote_host_use(flying, 0, scene.stream[A]));
        DONE(cenote_host_free(flying));
        DONE(cuDevicePrimaryCtxReset(0));
        if (anew)
            DONE(cuDevicePrimaryCtxRetain(&context, 0));
        EXPECT_EQ(cenote_host_alloc(0, 100 * KIB, &block), CENOTE_DEVICE_LOST); /* it asks after what is flying */
        EXPECT(strstr(cenote_host_message(), "reset"));
        EXPECT_EQ(cenote_host_alloc(0, 2000, &block), CENOTE_DEVICE_LOST);
        EXPECT_EQ(cenote_host_alloc(0, 3 * MIB, &block), CENOTE_DEVICE_LOST);
        EXPECT_EQ(cenote_host_use(kept, 0, NULL), CENOTE_DEVICE_LOST);
        EXPECT_EQ(kept[2999], 3);
        EXPECT_EQ(pinned_stats().pending_blocks, 0);
        DONE(cenote_host_free(kept));
        DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(pinned_stats().registered.current, 0);
        DONE(cenote_host_check());
        if (anew)
            DONE(cenote_host_close());
        DONE(cenote_host_free(take_near(0, 1000))); /* the device serves again */
        EXPECT_EQ(pinned_chunks(), 1);
        DONE(cenote_host_close());
        EXPECT_EQ(pinned_chunks(), 0);
        after_a_reset();
    }
}

CASE(one_of_two_devices_is_reset)
{
    struct scene scene;
    CUcontext second;
    open_two(&scene, &second);
    void *first = take_near(0, 3 * MIB), *other = take_near(1, 30 * MIB);
    DONE(cenote_host_use(other, 0, scene.stream[A]));
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cenote_host_free(first));
    DONE(cenote_host_free(other));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_chunks(), 0);
    EXPECT_EQ(pinned_stats().registered.current, 0);
    DONE(cenote_host_free(take_near(1, 3 * MIB))); /* nothing was left of the other when it was noticed */
    DONE(cenote_host_free(take_near(0, 30 * MIB)));
    DONE(cenote_host_close());
    EXPECT_EQ(pinned_chunks(), 0);
    after_a_reset();
}

CASE(a_device_is_reset_that_has_registered_nothing)
{
    struct scene scene;
    struct sim_books books;
    CUcontext second;
    open_two(&scene, &second);
    void *other = take_near(1, 3 * MIB), *spare = take_near(1, 3 * MIB);
    DONE(cenote_host_use(other, 0, scene.stream[A]));
    DONE(cenote_host_use(other, 0, NULL));
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cenote_host_use(other, 0, NULL)); /* in the next context: not by the event that has ended */
    DONE(cenote_host_use(spare, 0, NULL));
    DONE(cenote_host_free(spare));
    DONE(cenote_host_trim(UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_host_free(other)); /* its events that have ended do not take the place of the spare one */
    DONE(cenote_host_trim(UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    void *more[2] = {take_near(1, 20 * MIB), take_near(1, 3 * MIB)};
    for (int i = 0; i < 2; i++)
        DONE(cenote_host_use(more[i], 0, NULL)); /* by events of that one alone */
    for (int i = 0; i < 2; i++)
        DONE(cenote_host_free(more[i]));
    sim_books(&books);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    DONE(cenote_host_free(take_near(0, 50 * MIB)));
    DONE(cenote_host_close());
    EXPECT_EQ(pinned_chunks(), 0);
    sim_books(&books);
    EXPECT_EQ(books.events, 0);
    after_a_reset();
}

/* Uses that the device has yet to come to, spare events, and what a captured stream used, whose sweep is due with announced:0. */
static void use_everything(CUcontext *context)
{
    CUstream stream;
    CUgraph graph = NULL;
    DONE(cuDevicePrimaryCtxRetain(context, 0));
    DONE(cuCtxSetCurrent(*context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_host_stream_set_immortal(0, stream));
    char *flying = take_near(0, 100 * KIB), *kept = take_near(0, 3 * MIB), *captured = take_near(0, 100 * KIB), *done[4];
    for (int i = 0; i < 4; i++) {
        done[i] = take_near(0, 3000);
        DONE(cenote_host_use(done[i], 0, stream));
    }
    for (int i = 0; i < 4; i++)
        DONE(cenote_host_free(done[i]));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 0); /* their events are spare, more than are used next */
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cenote_host_use(captured, 0, stream));
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuGraphDestroy(graph));
    DONE(sim_launch_wait(stream, MSEC));
    DONE(cenote_host_use(flying, 0, stream));
    DONE(cenote_host_use(kept, 0, stream));
    DONE(cenote_host_free(flying));
    DONE(cenote_host_free(captured));
    DONE(cenote_host_trim(UINT64_MAX, 0)); /* its sweep is due */
    EXPECT_EQ(pinned_stats().pending_blocks, 2);
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cuDevicePrimaryCtxRelease(0));
    DONE(cenote_host_free(kept));
    DONE(cenote_host_trim(0, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    EXPECT_EQ(pinned_stats().registered.current, 0);
}

/* Nothing of a context that has ended is named to the driver in the next one, which may have its handle. */
CASE(a_device_serves_after_each_reset)
{
    for (int announced = 0; announced < 2; announced++) {
        struct scene scene;
        CUcontext context;
        struct sim_books books;
        cenote_host_options options = pinned_options();
        options.announced = announced;
        pinned_open_devices(&scene, &options, 1);
        for (int i = 0; i < 4; i++)
            use_everything(&context);
        DONE(cenote_host_check());
        DONE(cenote_host_close());
        sim_books(&books);
        EXPECT_EQ(books.violations + books.events + books.streams, 0);
        EXPECT_TEXT_EQ(sim_last_violation(), "");
        after_a_reset();
    }
}

/* A stream of the next context is not named too early: what its replays read would be handed out under them. */
CASE(immortal_stream_of_the_next_context)
{
    struct scene scene;
    CUcontext context;
    CUstream immortal, captured;
    CUgraph graph;
    cenote_host_options options = pinned_options();
    options.announced = 0;
    pinned_open_devices(&scene, &options, 1);
    char *before = pinned_take(100 * KIB);
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cuDevicePrimaryCtxRetain(&context, 0));
    DONE(cuCtxSetCurrent(context));
    DONE(cuStreamCreate(&immortal, CU_STREAM_NON_BLOCKING));
    DONE(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cenote_host_stream_set_immortal(0, immortal), CENOTE_DEVICE_LOST);
    EXPECT(strstr(cenote_host_message(), "cenote_host_trim"));
    DONE(cenote_host_free(before));
    DONE(cenote_host_trim(0, 0));
    DONE(cenote_host_stream_set_immortal(0, immortal));
    char *replayed = pinned_take(100 * KIB);
    DONE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cenote_host_use(replayed, 0, captured));
    DONE(cuStreamEndCapture(captured, &graph));
    DONE(cuGraphDestroy(graph));
    DONE(sim_launch_wait(immortal, MSEC)); /* as a replay there */
    DONE(cenote_host_free(replayed));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    DONE(cuStreamSynchronize(immortal));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    DONE(cenote_host_close());
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    after_a_reset();
}

/* The driver keeps what the lost one registered, and that keeps nothing else. */
CASE(one_of_two_devices_is_lost)
{
    struct scene scene;
    CUcontext second;
    void *block = NULL;
    open_two(&scene, &second);
    sim_set_quiet(true);
    void *first = take_near(0, 3 * MIB), *other = take_near(1, 30 * MIB);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    DONE(cenote_host_free(first));
    DONE(cenote_host_trim(UINT64_MAX, 0)); /* it is idle for longer than the other */
    DONE(cenote_host_free(other));
    DONE(cenote_host_trim(0, 0));
    EXPECT_EQ(pinned_stats().registered.current, 4 * MIB);
    DONE(cenote_host_free(take_near(1, 40 * MIB)));
    EXPECT_EQ(cenote_host_alloc(0, 50 * MIB, &block), CENOTE_DEVICE_LOST);
    EXPECT_EQ(cenote_host_close(), CENOTE_DRIVER);
    EXPECT(strstr(cenote_host_message(), "4194304 bytes"));
    sim_set_quiet(false);
    after_a_reset();
}

SCENES_MAIN("lost")
