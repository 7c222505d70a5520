/*
 * test_extend.c: a live block grows at its place (cenote_extend): over virgin addresses, what a neighbour left, pages that moved; and where it
 * may not: beside another block, at the end of its memory, asleep, exported, captured, without its stream.
 */
#include <cenote/share.h>

#include "tests/api/sleeps.h"

/* What was in it stays; then all of it is written anew. */
static int extend(struct held *held, size_t bytes)
{
    held_expect(held, held->stream);
    int error = cenote_extend(held->at, bytes);
    held_expect(held, held->stream);
    if (!error)
        *held = held_of(held->at, bytes, held->stream);
    return error;
}

static cenote_block found(const struct held *held)
{
    cenote_block block = {0};
    DONE(cenote_find(held->at, &block));
    return block;
}

static void judge(struct scene *scene)
{
    cenote_stats stats = scene_stats(scene->pool);
    EXPECT(stats.allocated.current >= stats.requested.current);
    scene_judge(scene);
}

/* Tokens come, a few at a time: pages are made for what is new, and no byte is copied. */
CASE(a_cache_grows_by_tokens)
{
    struct scene scene;
    struct held cache;
    scene_open(&scene, 128 * MIB);
    EXPECT(held_take(&cache, scene.pool, 700 * KIB, scene.stream[A]));
    char *at = cache.at;
    for (size_t bytes = 900 * KIB; bytes < 40 * MIB; bytes += 900 * KIB) {
        DONE(extend(&cache, bytes));
        EXPECT(cache.at == at);
        EXPECT_EQ(found(&cache).requested, bytes);
        EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
        EXPECT_EQ(scene_stats(scene.pool).requested.current, bytes);
        EXPECT_EQ(scene_stats(scene.pool).allocated.peak, (bytes + 511) & ~(size_t)511);
        EXPECT(scene_stats(scene.pool).reserved.current < bytes + 3 * MIB);
        DONE(cenote_pool_check(scene.pool));
    }
    judge(&scene);
    held_give(&cache);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    EXPECT_EQ(scene_stats(scene.pool).requested.total_in, scene_stats(scene.pool).requested.total_out);
    scene_close(&scene);
}

/* With a group for each, caches do not lie in each other's way. */
CASE(a_group_for_each_cache)
{
    struct scene scene;
    struct held cache[3];
    cenote_group *group[3];
    void *at;
    scene_open(&scene, 128 * MIB);
    for (int i = 0; i < 3; i++) {
        DONE(cenote_group_create(scene.pool, "cache", 0, NULL, &group[i]));
        DONE(group_alloc(group[i], MIB, 512, scene.stream[A], &at));
        cache[i] = held_of(at, MIB, scene.stream[A]);
    }
    for (size_t bytes = 2 * MIB; bytes < 40 * MIB; bytes += 2 * MIB)
        for (int i = 0; i < 3; i++)
            DONE(extend(&cache[i], bytes));
    judge(&scene);
    for (int i = 0; i < 3; i++) {
        held_give(&cache[i]);
        DONE(cenote_group_destroy(group[i]));
    }
    scene_close(&scene);
}

/* The last block freed lies there still, then a range, then a range whose pages another block has. */
CASE(over_what_a_neighbour_left)
{
    struct scene scene;
    struct held first, second, third, other;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&first, scene.pool, 4 * MIB, scene.stream[A]));
    EXPECT(held_take(&second, scene.pool, 4 * MIB, scene.stream[A]));
    EXPECT(held_take(&third, scene.pool, 4 * MIB, scene.stream[A]));
    EXPECT(second.at == first.at + 4 * MIB && third.at == second.at + 4 * MIB);
    EXPECT_EQ(extend(&first, 5 * MIB), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "another lies behind it"));
    held_give(&second);
    uint64_t calls = scene_stats(scene.pool).driver_calls;
    DONE(extend(&first, 5 * MIB + 100));
    EXPECT_EQ(extend(&first, 8 * MIB + 1), CENOTE_BUSY);
    DONE(extend(&first, 6 * MIB));
    EXPECT_EQ(scene_stats(scene.pool).driver_calls, calls);
    DONE(cuCtxSynchronize());
    EXPECT(held_take(&other, scene.pool, 54 * MIB, scene.stream[B])); /* with the pages behind */
    EXPECT_EQ(extend(&first, 8 * MIB), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(found(&first).requested, 6 * MIB);
    held_give(&other);
    DONE(extend(&first, 8 * MIB));
    judge(&scene);
    held_give(&first);
    held_give(&third);
    scene_close(&scene);
}

/* Items of slabs, and blocks that end within their last 512 bytes. */
CASE(within_its_size)
{
    struct scene scene;
    struct held item, beside, block;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&item, scene.pool, 2100, scene.stream[A]));
    EXPECT(held_take(&beside, scene.pool, 2100, scene.stream[A]));
    size_t room = found(&item).size;
    DONE(extend(&item, room));
    EXPECT_EQ(found(&item).requested, room);
    EXPECT_EQ(extend(&item, room + 1), CENOTE_BUSY);
    EXPECT_EQ(cenote_extend(item.at, room), CENOTE_INVALID);
    EXPECT_EQ(cenote_extend(item.at, 1), CENOTE_INVALID);
    EXPECT(held_take(&block, scene.pool, 100 * KIB + 1, scene.stream[A]));
    DONE(extend(&block, 100 * KIB + 512));
    EXPECT_EQ(cenote_free_sized(block.at, 100 * KIB + 1), CENOTE_WRONG_SIZE);
    judge(&scene);
    held_give(&item);
    held_give(&beside);
    held_give(&block);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

/* What the block lacks lies in its segment, or nowhere; guard has nothing behind a block, ever. */
CASE(in_segments)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    const unsigned providers[] = {CENOTE_PLAIN, CENOTE_ASYNC, CENOTE_GUARD};
    for (int i = 0; i < 3; i++) {
        struct held block;
        options.provider = providers[i];
        scene_open_with(&scene, &shape, &options);
        EXPECT(held_take(&block, scene.pool, 9 * MIB + 100, scene.stream[A]));
        DONE(extend(&block, 9 * MIB + 200));
        EXPECT_EQ(extend(&block, 18 * MIB), providers[i] == CENOTE_GUARD ? CENOTE_BUSY : CENOTE_OK);
        EXPECT_EQ(extend(&block, 30 * MIB), CENOTE_BUSY);
        judge(&scene);
        held_give(&block);
        scene_close(&scene);
    }
}

/* Whole pages, so that the next block shares none. */
CASE(with_pages_of_its_own)
{
    struct scene scene;
    struct held block;
    cenote_group *group;
    void *at, *next;
    scene_open(&scene, 128 * MIB);
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group));
    DONE(group_alloc(group, 3 * MIB, 512, scene.stream[A], &at));
    block = held_of(at, 3 * MIB, scene.stream[A]);
    DONE(extend(&block, 4 * MIB));
    DONE(extend(&block, 4 * MIB + 1));
    EXPECT_EQ(found(&block).size, 6 * MIB);
    DONE(group_alloc(group, 512, 512, scene.stream[A], &next));
    EXPECT((uintptr_t)next % (2 * MIB) == 0);
    judge(&scene);
    held_give(&block);
    DONE(cenote_free(next));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Another stream reads it: what it grew by waits as well when it is freed. */
CASE(used_on_another_stream)
{
    struct scene scene;
    struct held block, next;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&block, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(extend(&block, 12 * MIB));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    held_give(&block);
    EXPECT(held_take(&next, scene.pool, 12 * MIB, scene.stream[A]));
    EXPECT(!held_overlap(&block, &next));
    held_give(&next);
    scene_close(&scene);
}

/* A graph writes to what a private group's block grew by in its capture; blocks of others do not grow on that stream meanwhile. */
CASE(in_a_capture)
{
    struct scene scene;
    struct held mine, other;
    cenote_group *group;
    CUgraph graph;
    CUgraphExec exec;
    void *at;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    EXPECT(held_take(&other, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &at));
    EXPECT_EQ(cenote_extend(other.at, 6 * MIB), CENOTE_CAPTURE);
    DONE(cenote_extend(at, 8 * MIB));
    mine = held_of(at, 8 * MIB, scene.stream[A]);
    held_expect(&mine, scene.stream[A]);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cenote_free(at));
    DONE(extend(&other, 6 * MIB));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    judge(&scene);
    held_give(&other);
    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* A copy of constant contents is of the block before it grew, and of no use afterwards. */
CASE(beside_sleep)
{
    struct scene scene;
    struct held block;
    cenote_sleep slept;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&block, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, NULL));
    EXPECT_EQ(cenote_extend(block.at, 5 * MIB), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "cenote_pool_resume"));
    DONE(resume_of(scene.pool, NULL, NULL));
    DONE(extend(&block, 3 * MIB + 600 * KIB)); /* on the page that has a copy */
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    EXPECT(slept.kept >= 3 * MIB + 600 * KIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_expect(&block, scene.stream[A]);
    DONE(extend(&block, 5 * MIB));
    judge(&scene);
    held_give(&block);
    scene_close(&scene);
}

/* Other processes were told how long it is. */
CASE(not_when_exported)
{
    struct scene scene;
    struct held block;
    cenote_share share;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&block, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_export(block.at, &share));
    EXPECT_EQ(extend(&block, 4 * MIB), CENOTE_BUSY);
    held_give(&block);
    scene_close(&scene);
}

/* Its stream or its group is gone, and with it the order in which what lies behind was freed. */
CASE(not_without_its_stream_or_group)
{
    struct scene scene;
    cenote_group *group;
    void *block, *of_group;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "gone", 0, NULL, &group));
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block));
    DONE(group_alloc(group, 3 * MIB, 512, scene.stream[B], &of_group));
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(cenote_extend(block, 5 * MIB), CENOTE_INVALID);
    EXPECT_EQ(cenote_extend(of_group, 5 * MIB), CENOTE_INVALID);
    DONE(cenote_free(block));
    DONE(cenote_free(of_group));
    scene_close(&scene);
}

struct eviction {
    struct held victim;
    int         calls;
};

static int evict(cenote_pool *pool, size_t bytes, void *arg)
{
    struct eviction *e = arg;
    (void)pool;
    EXPECT_EQ(bytes, 8 * MIB);
    e->calls++;
    if (e->calls > 1)
        return 0;
    held_give(&e->victim);
    return 1;
}

/* As cenote_alloc: the program is asked, and the device waited for. */
CASE(memory_is_short)
{
    struct scene scene;
    struct held cache;
    struct eviction e = {.calls = 0};
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&cache, scene.pool, 40 * MIB, scene.stream[A]));
    EXPECT(held_take(&e.victim, scene.pool, 20 * MIB, scene.stream[B]));
    DONE(cenote_pool_on_shortage(scene.pool, 1, evict, &e));
    DONE(sim_launch_wait(scene.stream[B], MSEC));
    DONE(extend(&cache, 48 * MIB));
    EXPECT_EQ(e.calls, 2); /* what the first call freed was in flight */
    DONE(cenote_pool_on_shortage(scene.pool, 0, evict, &e));
    EXPECT_EQ(extend(&cache, 80 * MIB), CENOTE_BUSY); /* its region ends before */
    judge(&scene);
    held_give(&cache);
    scene_close(&scene);
}

static int evict_the_growing_one(cenote_pool *pool, size_t bytes, void *arg)
{
    struct held *cache = arg;
    (void)pool, (void)bytes;
    if (!cache->at)
        return 0;
    held_give(cache);
    cache->at = NULL;
    return 1;
}

/* The program evicts the youngest, which is the one that grows: it hears that, and must not copy from it. */
CASE(the_program_frees_the_block_itself)
{
    struct scene scene;
    struct held cache, beside;
    scene_open(&scene, 64 * MIB);
    EXPECT(held_take(&cache, scene.pool, 40 * MIB, scene.stream[A]));
    EXPECT(held_take(&beside, scene.pool, 20 * MIB, scene.stream[B]));
    void *at = cache.at;
    DONE(cenote_pool_on_shortage(scene.pool, 1, evict_the_growing_one, &cache));
    EXPECT_EQ(cenote_extend(at, 60 * MIB), CENOTE_DOUBLE_FREE);
    DONE(cenote_pool_on_shortage(scene.pool, 0, evict_the_growing_one, &cache));
    judge(&scene);
    held_give(&beside);
    scene_close(&scene);
}

SCENES_MAIN("blocks that grow")
