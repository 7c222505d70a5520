/*
 * test_streams.c: which stream a block belongs to: default streams, per-thread streams, streams that retire or live for ever, many of each.
 * Not: what the device is doing meanwhile (tests/hazard/fences.c).
 */
#include "tests/api/scene.h"

#include <pthread.h>

#define CARD       (64 * MIB)
#define SMALL_CARD (24 * MIB)  /* for what is done hundreds of times */

/* Handles 0 and 1 are the same stream. */
CASE(two_names_of_the_default_stream)
{
    struct scene scene;
    struct held held;
    cenote_block found[2];
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, NULL));
    DONE(cenote_find(held.at, &found[0]));
    held_give(&held);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, CU_STREAM_LEGACY));
    DONE(cenote_find(held.at, &found[1]));
    EXPECT_EQ(found[0].start, found[1].start); /* handed out again at once */
    EXPECT_EQ(found[0].stream_id, found[1].stream_id);
    EXPECT_EQ(scene_stats(scene.pool).arenas, 1);
    held_give(&held);
    scene_close(&scene);
}

/* The other stream has needed more before, so that a place as high as the block's is no reason to look for another one. */
CASE(freed_last_on_another_stream)
{
    struct scene scene;
    struct held first, last, other;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&other, scene.pool, 16 * MIB, scene.stream[B]));
    held_give(&other);
    REQUIRE(held_take(&first, scene.pool, 3 * MIB, scene.stream[A]));
    REQUIRE(held_take(&last, scene.pool, 3 * MIB, scene.stream[A]));
    void *at = last.at;
    sim_set_lag(MSEC);
    held_linger(&last, scene.stream[A]);
    held_give(&last);
    REQUIRE(held_take(&other, scene.pool, 3 * MIB, scene.stream[B]));
    EXPECT(other.at != at);
    held_give(&other);
    held_give(&first);
    scene_close(&scene);
}

/* It does not end, and the next allocation may be on it. The default stream of a thread does. */
CASE(default_stream_is_not_retired)
{
    struct scene scene;
    void *block;
    scene_open(&scene, CARD);
    EXPECT_EQ(cenote_stream_retire(scene.pool, NULL), CENOTE_INVALID);
    DONE(cenote_alloc(scene.pool, MIB, NULL, &block));
    EXPECT_EQ(cenote_stream_retire(scene.pool, CU_STREAM_LEGACY), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "default stream") != NULL);
    DONE(cenote_free(block));
    DONE(cenote_alloc(scene.pool, MIB, CU_STREAM_PER_THREAD, &block));
    DONE(cenote_free(block));
    DONE(cenote_stream_retire(scene.pool, CU_STREAM_PER_THREAD));
    scene_close(&scene);
}

CASE(retired_streams_let_go)
{
    struct scene scene;
    struct held kept, held, whole;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&kept, scene.pool, 3 * MIB, scene.stream[A]));
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    held_linger(&held, scene.stream[A]);
    held_give(&held);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cenote_stream_retire(scene.pool, scene.stream[B])); /* cenote never saw it: fine */
    REQUIRE(held_take(&whole, scene.pool, 58 * MIB, scene.stream[B]));
    held_give(&whole);
    held_give(&kept); /* live blocks of a retired stream stay valid */
    scene_judge(&scene);
    REQUIRE(held_take(&held, scene.pool, CARD, scene.stream[C]));
    held_give(&held);
    scene_judge(&scene);
    DONE(cenote_stream_retire(scene.pool, scene.stream[C]));
    REQUIRE(held_take(&held, scene.pool, MIB, scene.stream[C])); /* and if it lives on after all, it starts again */
    held_give(&held);
    scene_close(&scene);
}

/* A new stream takes over what a retired one has left, but not before the device is done with it. */
CASE(retired_streams_let_go_when_the_device_is_done)
{
    struct scene scene;
    struct held held, next;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 12 * MIB, scene.stream[A]));
    held_linger(&held, scene.stream[A]);
    DONE(cenote_free(held.at));
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    REQUIRE(held_take(&next, scene.pool, 12 * MIB, scene.stream[B]));
    EXPECT(!held_overlap(&next, &held));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* nothing goes, but now it is known */
    REQUIRE(held_take(&held, scene.pool, 12 * MIB, scene.stream[C]));
    EXPECT_EQ(scene_stats(scene.pool).arenas, 2);
    held_give(&held);
    held_give(&next);
    scene_close(&scene);
}

/* Blocks that wait for immortal streams come back one after the other, each once. */
CASE(blocks_wait_for_immortal_streams)
{
    struct scene scene;
    struct held held;
    struct sim_books books;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    for (int i = 0; i < 40; i++) {
        for (int k = 0; k <= i % 3; k++) {
            REQUIRE(held_take(&held, scene.pool, i % 2 ? 3 * MIB : 700, scene.stream[A]));
            order(scene.stream[A], scene.stream[B]);
            held_linger(&held, scene.stream[B]);
            DONE(cenote_use(held.at, scene.stream[B]));
            DONE(cenote_free(held.at));
        }
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, i % 3 + 1);
        DONE(cuStreamSynchronize(scene.stream[B]));
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    }
    sim_books(&books);
    EXPECT(books.events <= 20); /* three at a time, and some fences: they serve again */
    scene_close(&scene);
}

CASE(immortal_streams)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    for (int i = 0; i < SCENE_STREAMS; i++) {
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i])); /* saying it twice is no mistake */
    }
    for (int i = 0; i < 30; i++) {
        REQUIRE(held_take(&held, scene.pool, (size_t)(i + 1) * MIB, scene.stream[i % SCENE_STREAMS]));
        held_give(&held);
    }
    scene_close(&scene);
}

/* Streams are created and destroyed for ever, their handles repeat; what they leave is found again and their arenas do not pile up. */
CASE(many_short_lived_streams)
{
    struct scene scene;
    uint64_t metadata = 0, addresses = 0;
    scene_open(&scene, SMALL_CARD);
    sim_set_lag(MSEC / 10);
    for (int i = 0; i < 500; i++) {
        CUstream stream;
        struct held held;
        DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        REQUIRE(held_take(&held, scene.pool, (size_t)(i % 7 + 1) * 2 * MIB, stream));
        held_give(&held);
        if (i % 2)
            DONE(cenote_stream_retire(scene.pool, stream));
        DONE(cuStreamDestroy(stream));
        sim_advance(MSEC / 100);
        if (i == 150) {
            metadata = scene_stats(scene.pool).metadata;
            addresses = scene_stats(scene.pool).address_space;
        }
    }
    cenote_stats s = scene_stats(scene.pool);
    EXPECT(s.arenas < 150);
    EXPECT(s.metadata <= 2 * metadata);
    EXPECT(s.address_space <= 2 * addresses);
    scene_close(&scene);
}

/* Those beyond the table's room are asked for as before. Default streams are immortal by themselves. */
CASE(more_immortal_streams_than_are_kept)
{
    enum { MANY = 1500 };
    static CUstream streams[MANY];
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    DONE(cenote_stream_set_immortal(scene.pool, NULL));
    DONE(cenote_stream_set_immortal(scene.pool, CU_STREAM_PER_THREAD));
    for (int i = 0; i < MANY; i++) {
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_stream_set_immortal(scene.pool, streams[i]));
        DONE(cenote_stream_set_immortal(scene.pool, streams[i])); /* once is enough */
    }
    for (int i = 0; i < MANY; i += 100) {
        REQUIRE(held_take(&held, scene.pool, 512, streams[i]));
        held_give(&held);
    }
    scene_destroy_pool(&scene);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamDestroy(streams[i]));
    scene_close(&scene);
}

/* The stream that a block was used on has gone, and its handle names one that was declared immortal: no event is recorded on that. */
CASE(an_immortal_stream_with_the_handle_of_another)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    CUstream old = scene.stream[C];
    DONE(cenote_use(held.at, old));
    DONE(cuStreamDestroy(old));
    DONE(cuStreamCreate(&scene.stream[C], CU_STREAM_NON_BLOCKING));
    REQUIRE_EQ(scene.stream[C], old);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    held_give(&held);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_destroy_pool(&scene);
    scene_close(&scene);
}

/* There are so many events and no more: blocks beyond them wait for a fence, and all come back. */
CASE(more_waiting_blocks_than_events)
{
    enum { MANY = 5000 };
    static void *blocks[MANY];
    struct scene scene;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    DONE(sim_launch_wait(NULL, 10 * MSEC));
    for (int i = 0; i < MANY; i++) {
        REQUIRE(!cenote_alloc(scene.pool, 512, scene.stream[A], &blocks[i]));
        REQUIRE(!cenote_use(blocks[i], NULL));
    }
    for (int i = 0; i < MANY; i++)
        REQUIRE(!cenote_free(blocks[i]));
    EXPECT(scene_stats(scene.pool).pending_blocks > 4096);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- threads */

static void *use_per_thread(void *arg)
{
    const struct held *held = arg;
    return cenote_use(held->at, CU_STREAM_PER_THREAD) ? NULL : arg;
}

/* On a thread's default stream no other thread can record an event: a fence takes its place. */
/* A stream that took blocks of the pool is its device's: each use asks for the stream's id, and for nothing else. */
CASE(uses_of_streams_that_are_known)
{
    struct scene scene;
    struct sim_books before, after;
    void *blocks[2];
    scene_open(&scene, CARD);
    for (int s = 0; s < 2; s++)
        DONE(cenote_alloc(scene.pool, MIB, scene.stream[s], &blocks[s]));
    sim_books(&before);
    for (int i = 0; i < 100; i++)
        DONE(cenote_use(blocks[i % 2], scene.stream[i / 2 % 2]));
    sim_books(&after);
    EXPECT_EQ(after.calls - before.calls, 100);
    for (int s = 0; s < 2; s++)
        DONE(cenote_free(blocks[s]));
    scene_close(&scene);
}

CASE(used_by_a_thread_and_freed_by_another)
{
    struct scene scene;
    struct held held;
    pthread_t thread;
    void *used = NULL;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(pthread_create(&thread, NULL, use_per_thread, &held));
    DONE(pthread_join(thread, &used));
    EXPECT_EQ(used, &held);
    held_give(&held);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

/* Works on the thread's own default stream and counts what went wrong: checks are for the main thread. */
struct worker {
    struct scene *scene;
    uint64_t seed;
    int failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    w->failures += cuCtxPushCurrent(w->scene->context) != CUDA_SUCCESS;
    for (int i = 0; i < 300; i++) {
        void *block[2] = {NULL, NULL};
        uint64_t pattern = w->seed + (uint64_t)i;
        size_t bytes = (size_t)(i * 7919 % 3000 + 1) * 512;
        w->failures += cenote_alloc(w->scene->pool, bytes, CU_STREAM_PER_THREAD, &block[0]) != CENOTE_OK;
        w->failures += cenote_alloc(w->scene->pool, 4096, CU_STREAM_PER_THREAD, &block[1]) != CENOTE_OK;
        for (int b = 0; b < 2; b++)
            w->failures += sim_launch_fill(CU_STREAM_PER_THREAD, device_address(block[b]), pattern, b ? 4096 : bytes) != CUDA_SUCCESS;
        for (int b = 0; b < 2; b++) {
            w->failures += sim_launch_expect(CU_STREAM_PER_THREAD, device_address(block[b]), pattern, b ? 4096 : bytes) != CUDA_SUCCESS;
            w->failures += cenote_free(block[b]) != CENOTE_OK;
        }
        if (i % 16 == 0)
            sim_advance(MSEC / 20);
    }
    w->failures += cuCtxPopCurrent(NULL) != CUDA_SUCCESS;
    return NULL;
}

CASE(per_thread_default_streams)
{
    enum { THREADS = 4 };
    struct scene scene;
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    scene_open(&scene, CARD);
    sim_set_lag(MSEC / 10);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){&scene, (uint64_t)(i + 1) << 32, 0};
        DONE(pthread_create(&threads[i], NULL, work, &workers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        DONE(pthread_join(threads[i], NULL));
        EXPECT_EQ(workers[i].failures, 0);
    }
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

/* Freed by another thread, a block goes back to the stream it came from, whichever stream the freeing thread means by handle 2. */
struct stranger {
    void *block;
    int   error;
};

static void *free_it(void *arg)
{
    struct stranger *stranger = arg;
    stranger->error = cenote_free(stranger->block);
    return NULL;
}

CASE(freed_by_another_thread)
{
    struct scene scene;
    struct held held, next;
    pthread_t thread;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    for (int i = 0; i < 4; i++) {
        CUstream stream = i % 2 ? CU_STREAM_PER_THREAD : scene.stream[A];
        REQUIRE(held_take(&held, scene.pool, i < 2 ? 9 * MIB : 3000, stream));
        held_linger(&held, stream);
        struct stranger stranger = {held.at, -1};
        DONE(pthread_create(&thread, NULL, free_it, &stranger));
        DONE(pthread_join(thread, NULL));
        EXPECT_EQ(stranger.error, CENOTE_OK);
        REQUIRE(held_take(&next, scene.pool, held.bytes, stream));
        EXPECT_EQ(next.at, held.at);
        held_give(&next);
    }
    scene_close(&scene);
}

/* The message of a thread is its own. */
static void *fail_elsewhere(void *arg)
{
    *(int *)arg = cenote_free(arg);
    return NULL;
}

CASE(messages_belong_to_threads)
{
    char mine[512];
    int error = 0;
    pthread_t thread;
    EXPECT_EQ(cenote_alloc(NULL, 512, NULL, NULL), CENOTE_INVALID);
    snprintf(mine, sizeof mine, "%s", cenote_message());
    DONE(pthread_create(&thread, NULL, fail_elsewhere, &error));
    DONE(pthread_join(thread, NULL));
    EXPECT_EQ(error, CENOTE_NOT_OURS);
    EXPECT(!strncmp(cenote_message(), mine, sizeof mine - 1));
}

SCENES_MAIN("api: streams")
