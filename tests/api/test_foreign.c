/*
 * test_foreign.c: captures that the program did not announce, on streams that cenote knows and on others, in every mode: cenote invalidates none of
 * them, and hands out nothing early. Their pools have the option announced:0.
 */
#include "tests/api/strict.h"
#include "tests/patience.h"


static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
#define MODES 3

/* A capture of a library's, on a stream of its own. */
struct foreign {
    CUstream stream;
    bool     created;
};

static struct foreign capture_on(CUstream stream, CUstreamCaptureMode mode)
{
    struct foreign f = {stream, stream == NULL};
    if (f.created)
        DONE(cuStreamCreate(&f.stream, CU_STREAM_NON_BLOCKING));
    DONE(cuStreamBeginCapture(f.stream, mode));
    DONE(sim_launch_kernel(f.stream, "foreign"));
    return f;
}

static void expect_whole(const struct foreign *f)
{
    CUstreamCaptureStatus status;
    DONE(cuStreamIsCapturing(f->stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

static void end(struct foreign *f)
{
    CUgraph graph = NULL;
    size_t nodes = 0;
    expect_whole(f);
    DONE(cuStreamEndCapture(f->stream, &graph));
    DONE(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT_EQ(nodes, 1); /* nothing of cenote's is in it */
    DONE(cuGraphDestroy(graph));
    if (f->created)
        DONE(cuStreamDestroy(f->stream));
}

/* ---------------------------------------------------------------------------------------------------------- what a pool does meanwhile */

CASE(allocation_that_needs_a_fence)
{
    for (int m = 0; m < MODES; m++) {
        struct scene scene;
        struct held next;
        open_strict(&scene, false);
        leave_card(&scene, scene.stream[A]);
        struct foreign f = capture_on(NULL, modes[m]);
        REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[B])); /* waits, and gets all of A's pages */
        held_give(&next);
        end(&f);
        close_strict(&scene);
    }
}

CASE(blocking_stream_is_captured_while_the_default_stream_frees)
{
    for (int m = 0; m < MODES; m++) {
        struct scene scene;
        struct held next;
        struct foreign f = {0};
        open_strict(&scene, false);
        leave_card(&scene, NULL);
        DONE(cuStreamCreate(&f.stream, CU_STREAM_DEFAULT));
        f.created = true;
        DONE(cuStreamBeginCapture(f.stream, modes[m]));
        DONE(sim_launch_kernel(f.stream, "foreign"));
        REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[B]));
        held_give(&next);
        end(&f);
        close_strict(&scene);
    }
}

/* Its memory stays until it can be asked after: what is in flight on it cannot be known. */
CASE(known_stream_is_captured)
{
    for (int m = 0; m < MODES; m++) {
        struct scene scene;
        struct held next;
        void *block;
        open_strict(&scene, false);
        leave_card(&scene, scene.stream[A]);
        struct foreign f = capture_on(scene.stream[A], modes[m]);
        EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        expect_whole(&f);
        end(&f);
        REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[B])); /* without any free since */
        held_give(&next);
        close_strict(&scene);
    }
}

/* No stream but that one is held back. */
CASE(other_streams_go_on_while_one_is_captured)
{
    struct scene scene;
    struct held one, other;
    open_strict(&scene, false);
    REQUIRE(held_take(&one, scene.pool, 16 * MIB, scene.stream[A]));
    REQUIRE(held_take(&other, scene.pool, 32 * MIB, scene.stream[B]));
    held_give(&one);
    struct foreign f = capture_on(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL);
    held_give(&other);
    for (int i = 0; i < 3; i++) {
        REQUIRE(held_take(&other, scene.pool, 40 * MIB, scene.stream[i % 2 ? B : C]));
        held_give(&other);
    }
    end(&f);
    REQUIRE(held_take(&other, scene.pool, 60 * MIB, scene.stream[C])); /* A's are back */
    held_give(&other);
    close_strict(&scene);
}

CASE(free_of_a_used_block)
{
    for (int m = 0; m < MODES; m++) {
        for (int captured = 0; captured < 2; captured++) { /* the stream that the block is used on; another one */
            struct scene scene;
            struct held block, next;
            open_strict(&scene, false);
            REQUIRE(held_take(&block, scene.pool, 48 * MIB, scene.stream[A]));
            order(scene.stream[A], scene.stream[B]);
            held_linger(&block, scene.stream[B]);
            DONE(cenote_use(block.at, scene.stream[B]));
            struct foreign f = capture_on(captured ? scene.stream[B] : NULL, modes[m]);
            DONE(cenote_free(block.at));
            EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
            EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[A], (void **)&next.at) == CENOTE_OK, !captured);
            if (!captured)
                DONE(cenote_free(next.at));
            end(&f);
            REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[C]));
            held_give(&next);
            close_strict(&scene);
        }
    }
}

CASE(trims_and_the_end_of_a_pool)
{
    for (int m = 0; m < MODES; m++) {
        struct scene scene;
        open_strict(&scene, false);
        leave_card(&scene, scene.stream[A]);
        struct foreign f = capture_on(NULL, modes[m]);
        DONE(cenote_pool_trim(scene.pool, 0, 0));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
        leave_card(&scene, scene.stream[B]);
        scene_destroy_pool(&scene);
        end(&f);
        scene_close(&scene);
    }
}

/* With no call under way: the thread of background.c looks by its own clock, and the simulated device goes on as it asks. */
CASE(background_thread)
{
    for (int m = 0; m < MODES; m++) {
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = strict();
        struct scene scene;
        shape.manual_clock = false;
        options.clock = NULL;
        options.background = 1;
        options.decay_ms = 5;
        scene_open_with(&scene, &shape, &options);
        struct foreign f = capture_on(NULL, modes[m]);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
        leave_card(&scene, scene.stream[A]);
        struct wait wait = {0};
        while (scene_stats(scene.pool).reserved.current && wait_on(&wait)) {}
        EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
        end(&f);
        close_strict(&scene);
    }
}

/* -------------------------------------------------------------------------------------------------------------------- mortal streams */

/* Neither immortal nor retired: its handle may be dead, so what it freed stays with it until a call names it. */
CASE(stream_that_may_be_dead_is_not_touched)
{
    struct scene scene;
    struct held next;
    void *block;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    struct foreign f = capture_on(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    end(&f);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[B]));
    held_give(&next);
    DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    scene_destroy_pool(&scene);
    scene_close(&scene);
}

CASE(stream_that_is_named_again_gives_its_memory)
{
    struct scene scene;
    struct held next, small;
    void *block;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    REQUIRE(held_take(&small, scene.pool, 512, scene.stream[A]));
    REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[B]));
    held_give(&next);
    held_give(&small);
    close_strict(&scene);
}

CASE(retired_stream_gives_its_memory)
{
    struct scene scene;
    struct held next, late;
    open_strict(&scene, true);
    REQUIRE(held_take(&late, scene.pool, 8 * MIB, scene.stream[A]));
    leave_card(&scene, scene.stream[A]);
    held_linger(&late, scene.stream[A]);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamDestroy(scene.stream[A]));
    scene.stream[A] = NULL;
    DONE(cenote_free(late.at)); /* of a stream that is gone */
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[B]));
    held_give(&next);
    close_strict(&scene);
}

CASE(use_on_a_stream_that_may_be_dead)
{
    for (int retired = 0; retired < 2; retired++) {
        struct scene scene;
        struct held block, next;
        open_strict(&scene, true);
        REQUIRE(held_take(&block, scene.pool, 48 * MIB, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        held_linger(&block, scene.stream[B]);
        DONE(cenote_use(block.at, scene.stream[B]));
        if (retired) {
            DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
            DONE(cuStreamDestroy(scene.stream[B]));
            scene.stream[B] = NULL;
        }
        DONE(cenote_free(block.at));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
        EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[A], (void **)&next.at) == CENOTE_OK, retired);
        if (!retired) { /* the call names it */
            REQUIRE(held_take(&next, scene.pool, 512, scene.stream[C]));
            DONE(cenote_use(next.at, scene.stream[B]));
            DONE(cenote_free(next.at));
            REQUIRE(held_take(&next, scene.pool, 48 * MIB, scene.stream[A]));
        }
        DONE(cenote_free(next.at));
        close_strict(&scene);
    }
}

/* ------------------------------------------------------------------------------------------------------------------------ what it costs */

static uint64_t fences_of(struct scene *scene, int streams)
{
    struct sim_books before, after;
    struct held block;
    for (int i = 0; i < 2; i++) { /* the second time events are there */
        REQUIRE(held_take(&block, scene->pool, 48 * MIB, scene->stream[A]));
        held_give(&block);
        sim_books(&before);
        REQUIRE(held_take(&block, scene->pool, 48 * MIB, scene->stream[B]));
        sim_books(&after);
        held_give(&block);
    }
    (void)streams;
    return after.calls - before.calls;
}

/* A fence is one event a stream. A program that has settled makes none. */
CASE(calls_of_a_fence)
{
    static const int counts[] = {3, 8, 64};
    uint64_t calls[3];
    for (int c = 0; c < 3; c++) {
        struct scene scene;
        struct sim_books before, after;
        struct held block;
        CUstream more[64];
        open_strict(&scene, false);
        for (int i = 3; i < counts[c]; i++) {
            DONE(cuStreamCreate(&more[i], CU_STREAM_NON_BLOCKING));
            DONE(cenote_stream_set_immortal(scene.pool, more[i]));
        }
        calls[c] = fences_of(&scene, counts[c]);
        for (int i = 0; i < 100; i++) {
            if (i == 10)
                sim_books(&before);
            REQUIRE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], (void **)&block.at) == CENOTE_OK);
            DONE(cenote_free(block.at));
        }
        sim_books(&after);
        EXPECT_EQ(after.calls, before.calls);
        scene_destroy_pool(&scene);
        for (int i = 3; i < counts[c]; i++)
            DONE(cuStreamDestroy(more[i]));
        scene_close(&scene);
    }
    printf(" calls of a road with fences over 3, 8, 64 streams: %d, %d, %d ", (int)calls[0], (int)calls[1], (int)calls[2]);
    EXPECT(calls[2] - calls[1] <= 6 * 56 * 2); /* an event: two questions about a capture, a record, a query */
}

SCENES_MAIN("foreign")
