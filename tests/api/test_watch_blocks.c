/*
 * test_watch_blocks.c: a tool that follows blocks knows at each moment which are live (cenote_pool_watch: ALLOCATED, EXTENDED, ENDED).
 *
 * The tool keeps its own list by what it hears alone. It faults a block over another one, an end without a beginning, and a wrong length.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/api/scene.h"
#include "tests/base/random.h"
#include "tests/patience.h"
#include "tests/requests.h"

#define CHANGES (CENOTE_ALLOCATED | CENOTE_EXTENDED | CENOTE_ENDED)
#define LIVE_MAX 4096
#define THREADS 4

struct tool {
    struct { char *at; size_t bytes; } live[LIVE_MAX];
    int count, faults, begun, grown, ended;
    cenote_stream stream;   /* of the last block */
};

static int find(const struct tool *t, const char *at)
{
    int i = 0;
    while (i < t->count && t->live[i].at != at)
        i++;
    return i;
}

/* Does another block lie on what the one of that number has? */
static bool overlaps(const struct tool *t, int which)
{
    bool overlaps = false;
    for (int i = 0; i < t->count; i++)
        overlaps |= i != which && t->live[i].at < t->live[which].at + t->live[which].bytes && t->live[which].at < t->live[i].at + t->live[i].bytes;
    return overlaps;
}

static void begins(struct tool *t, const cenote_notice *notice)
{
    if (t->count == LIVE_MAX) {
        t->faults++;
        return;
    }
    t->live[t->count].at = notice->address;
    t->live[t->count].bytes = notice->bytes;
    t->begun++;
    t->count++;
    t->faults += overlaps(t, t->count - 1);
    t->stream = notice->stream;
}

static void hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct tool *t = arg;
    int i = find(t, notice->address);
    (void)pool;
    if (notice->change == CENOTE_ALLOCATED) {
        t->faults += i < t->count;
        begins(t, notice);
        return;
    }
    if (i == t->count) {
        t->faults++;
        return;
    }
    if (notice->change == CENOTE_EXTENDED) {
        t->faults += notice->bytes <= t->live[i].bytes;
        t->live[i].bytes = notice->bytes;
        t->faults += overlaps(t, i);
        t->grown++;
        return;
    }
    t->faults += notice->bytes != t->live[i].bytes || notice->stream != NULL;
    t->live[i] = t->live[--t->count];
    t->ended++;
}

CASE(each_call_that_begins_or_ends_a_block_is_told_of)
{
    static struct tool t;
    struct scene scene;
    void *small, *large, *held, *again;
    cenote_group *group;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &held)); /* before the tool came: it does not know it */
    DONE(cenote_pool_watch(scene.pool, CHANGES, hear, &t));
    DONE(cenote_alloc(scene.pool, 1000, scene.stream[A], &small));
    DONE(alloc_aligned(scene.pool, 3 * MIB, 2 * MIB, scene.stream[B], &large));
    EXPECT(t.stream == scene.stream[B]);
    EXPECT_EQ(t.begun, 2);
    EXPECT(t.live[find(&t, small)].bytes == 1000 && t.live[find(&t, large)].bytes == 3 * MIB);
    DONE(cenote_extend(large, 3 * MIB + 200));
    EXPECT_EQ(t.grown, 1);
    DONE(cenote_extend(large, 9 * MIB)); /* pages come */
    EXPECT_EQ(t.live[find(&t, large)].bytes, 9 * MIB);
    EXPECT_EQ(cenote_free_sized(large, 3 * MIB), CENOTE_WRONG_SIZE);
    EXPECT_EQ(cenote_free((char *)large + 512), CENOTE_INTERIOR);
    EXPECT_EQ(t.ended, 0);
    DONE(cenote_use(large, scene.stream[C])); /* it ends when it is freed, though its memory waits */
    DONE(cenote_free_sized(large, 9 * MIB));
    EXPECT_EQ(t.ended, 1);
    EXPECT_EQ(cenote_free(large) != CENOTE_OK, true);
    EXPECT_EQ(t.ended, 1);
    DONE(cenote_free(small));
    DONE(alloc_at(scene.pool, NULL, small, 1000, scene.stream[A]));
    DONE(cenote_free(small));
    EXPECT_EQ(t.begun, 3);
    DONE(cenote_group_create(scene.pool, "group", 0, NULL, &group));
    for (int i = 0; i < 600; i++)
        DONE(group_alloc(group, i % 3 ? 700 : 20 * KIB, 512, scene.stream[i % 2], &again));
    EXPECT_EQ(t.count, 600);
    DONE(cenote_group_reset(group));
    EXPECT_EQ(t.count, 0);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_reserve(scene.pool, 8 * MIB, scene.stream[A])); /* pages, no block */
    EXPECT_EQ(cenote_alloc(scene.pool, GIB, scene.stream[A], &again), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_alloc(scene.pool, 0, scene.stream[A], &again));
    EXPECT_EQ(t.begun, 603);
    EXPECT_EQ(t.faults, 0);
    DONE(cenote_pool_watch(scene.pool, 0, hear, &t));
    DONE(cenote_free(held));
    EXPECT_EQ(t.ended, 603);
    scene_close(&scene);
}

/* ---------------------------------------------------------------------------------------------------------------- several threads */

struct worker {
    cenote_pool *pool;
    cenote_group *group;
    CUstream      stream;
    uint64_t      seed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    void *blocks[32] = {NULL};
    struct random r = {w->seed};
    for (int step = 0; step < 3000; step++) {
        int i = (int)random_below(&r, 32);
        if (blocks[i] && !random_below(&r, 4))
            cenote_extend(blocks[i], 600 * KIB + random_below(&r, MIB));
        else if (blocks[i]) {
            DONE(cenote_free(blocks[i]));
            blocks[i] = NULL;
        } else if (random_below(&r, 2))
            DONE(cenote_alloc(w->pool, 1 + random_below(&r, random_below(&r, 2) ? 9000 : 600 * KIB), w->stream, &blocks[i]));
        else {
            void *of_group;
            DONE(group_alloc(w->group, 1 + random_below(&r, 30 * KIB), 512, w->stream, &of_group));
        }
        if (!random_below(&r, 64))
            DONE(cenote_group_reset(w->group));
    }
    for (int i = 0; i < 32; i++)
        DONE(cenote_free(blocks[i]));
    return NULL;
}

/* Memory of one thread's streams and of one arena goes to the others: the list of the tool is right at each notice. */
CASE(the_list_of_a_tool_is_right_under_threads)
{
    static struct tool t;
    struct scene scene;
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    scene_open(&scene, 512 * MIB);
    DONE(cenote_pool_watch(scene.pool, CHANGES, hear, &t));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){scene.pool, NULL, scene.stream[i % 2], 77 + (uint64_t)i};
        DONE(cenote_group_create(scene.pool, "of a thread", 0, NULL, &workers[i].group));
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        DONE(cenote_group_reset(workers[i].group));
        DONE(cenote_group_destroy(workers[i].group));
    }
    EXPECT_EQ(t.faults, 0);
    EXPECT_EQ(t.count, 0);
    EXPECT(t.begun > 4000 && t.grown > 100);
    EXPECT_EQ(t.begun, t.ended);
    scene_close(&scene);
}

static void hear_slowly(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    for (int i = 0; i < 3; i++)
        sched_yield();
    hear(pool, notice, arg);
}

static void *take_and_give(void *arg)
{
    const struct worker *w = arg;
    void *block;
    for (int i = 0; i < 2000; i++) {
        DONE(cenote_alloc(w->pool, MIB, w->stream, &block));
        DONE(cenote_free(block));
    }
    return NULL;
}

/* What one thread gives back another one has at once: threads that tell of it wait for a slow tool, and keep their order. */
CASE(the_end_is_told_of_before_the_next_beginning)
{
    static struct tool t;
    struct scene scene;
    pthread_t threads[THREADS];
    scene_open(&scene, 64 * MIB);
    struct worker worker = {.pool = scene.pool, .stream = scene.stream[A]};
    DONE(cenote_pool_watch(scene.pool, CHANGES, hear_slowly, &t));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, take_and_give, &worker);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    EXPECT_EQ(t.faults, 0);
    EXPECT_EQ(t.count, 0);
    EXPECT_EQ(t.ended, THREADS * 2000);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------- a group that another thread resets */

static void *take_and_reset(void *arg)
{
    const struct worker *w = arg;
    void *blocks[20];
    cenote_request request = {.group = w->group, .stream = w->stream, .word = w->seed % 2};
    for (int i = 0; i < 2000; i++) {
        request.bytes = i % 3 ? 700 : 200 * KIB;
        DONE(i % 10 ? cenote_alloc_with(NULL, &request, blocks) : cenote_alloc_many(NULL, &request, 20, blocks));
        if (i % 8 == 0)
            DONE(cenote_group_reset(w->group));
    }
    return NULL;
}

/* A block that a call has not given out yet is no block of the group's that a reset would free: it would end before it is told of. */
CASE(a_reset_leaves_what_is_not_given_out_yet)
{
    static struct tool t;
    struct scene scene;
    cenote_group *group;
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    scene_open(&scene, 512 * MIB);
    DONE(cenote_group_create(scene.pool, "of all", 0, NULL, &group));
    DONE(cenote_pool_watch(scene.pool, CHANGES, hear_slowly, &t));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){scene.pool, group, scene.stream[i % 2], 5 + (uint64_t)i};
        pthread_create(&threads[i], NULL, take_and_reset, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    DONE(cenote_group_reset(group));
    EXPECT_EQ(t.faults, 0);
    EXPECT_EQ(t.count, 0);
    EXPECT_EQ(t.begun, t.ended);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- the end of the pool */

struct ending {
    int          ender;
    void        *block;
    atomic_int   is_told, pool_ended;   /* of the last block; the pool, before the function had returned */
    atomic_bool  ended;
};

/* The other thread frees nothing and asks nothing: it waits for this one, in the end of the pool. */
static void hear_of_the_last(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct ending *e = arg;
    (void)pool;
    atomic_fetch_add(&e->is_told, notice->change == CENOTE_ENDED);
    struct wait wait = {0};
    for (int looks = 0; looks < 5 && !atomic_load(&e->ended) && wait_on(&wait);)
        looks = is_asleep(e->ender) ? looks + 1 : 0;
    atomic_fetch_add(&e->pool_ended, atomic_load(&e->ended));
}

static void *free_the_last(void *arg)
{
    struct ending *e = arg;
    DONE(cenote_free(e->block));
    return NULL;
}

/* When cenote_pool_destroy has returned no watch function runs: what it was given may be gone. */
CASE(no_function_outlives_the_pool)
{
    for (int round = 0; round < 5; round++) {
        struct scene scene;
        struct ending e = {0};
        pthread_t thread;
        scene_open(&scene, 64 * MIB);
        e.ender = gettid();
        DONE(cenote_alloc(scene.pool, 700, scene.stream[A], &e.block));
        DONE(cenote_pool_watch(scene.pool, CENOTE_ENDED, hear_of_the_last, &e));
        pthread_create(&thread, NULL, free_the_last, &e);
        while (!atomic_load(&e.is_told))
            sched_yield();
        while (cenote_pool_destroy(scene.pool) == CENOTE_BUSY)
            sched_yield();
        atomic_store(&e.ended, true);
        pthread_join(thread, NULL);
        EXPECT_EQ(e.pool_ended, 0);
        scene.pool = NULL;
        scene_close(&scene);
    }
}

/* -------------------------------------------------------------------------------------------------------------- several functions */

static void count(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice;
    ++*(int *)arg;
}

CASE(each_function_hears_what_it_asked_for)
{
    enum { MOST = 8 };
    struct scene scene;
    int heard[MOST + 1] = {0};
    void *block;
    scene_open(&scene, 64 * MIB);
    for (int i = 0; i < MOST; i++)
        DONE(cenote_pool_watch(scene.pool, i ? CENOTE_ALLOCATED : CENOTE_MAPPED, count, &heard[i]));
    EXPECT_EQ(cenote_pool_watch(scene.pool, CENOTE_MAPPED, count, &heard[MOST]), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "8 watch functions are set"));
    DONE(cenote_alloc(scene.pool, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    EXPECT_EQ(heard[0], 1);
    EXPECT_EQ(heard[1], 1);
    DONE(cenote_pool_watch(scene.pool, CENOTE_ALLOCATED | CENOTE_ENDED, count, &heard[1])); /* the same place */
    DONE(cenote_pool_watch(scene.pool, 0, count, &heard[2]));
    DONE(cenote_pool_watch(scene.pool, 0, count, &heard[2])); /* it is gone already */
    DONE(cenote_pool_watch(scene.pool, CENOTE_ENDED, count, &heard[MOST]));
    DONE(cenote_alloc(scene.pool, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    EXPECT_EQ(heard[0], 1);
    EXPECT_EQ(heard[1], 3);
    EXPECT_EQ(heard[2], 1);
    EXPECT_EQ(heard[3], 2);
    EXPECT_EQ(heard[MOST], 1);
    scene_close(&scene);
}

SCENES_MAIN("tools that follow blocks")
