/*
 * test_no_wait.c: allocations with CENOTE_NO_WAIT: what can be had at once, and a refusal where others would wait or call the program.
 */
#include "tests/api/scene.h"
#include "tests/patience.h"

#include <pthread.h>

static int ask_now(cenote_pool *pool, cenote_group *group, size_t bytes, CUstream stream, void **block)
{
    return cenote_alloc_with(pool, (&(cenote_request){.bytes = bytes, .group = group, .stream = stream, .flags = CENOTE_NO_WAIT}), block);
}

CASE(a_request_is_all_that_the_other_calls_say)
{
    struct scene scene;
    cenote_group *group;
    cenote_block found;
    void *block, *other;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "some", 0, NULL, &group));
    cenote_request request = {.bytes = 5000, .alignment = 1 << 16, .group = group, .stream = scene.stream[B]};
    DONE(cenote_alloc_with(scene.pool, &request, &block));
    DONE(cenote_find(block, &found));
    EXPECT_EQ(found.requested, 5000);
    EXPECT(found.group == group && found.stream == scene.stream[B]);
    EXPECT_EQ((uintptr_t)block % (1 << 16), 0);
    request = (cenote_request){.bytes = 3 * MIB, .stream = scene.stream[A]};
    DONE(cenote_alloc_with(scene.pool, &request, &other));
    EXPECT_EQ((uintptr_t)other % 512, 0);
    DONE(cenote_free(block));
    DONE(cenote_free(other));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

static int frees_nothing(cenote_pool *pool, size_t bytes, void *calls)
{
    (void)pool, (void)bytes;
    ++*(int *)calls;
    return 0;
}

/* All is in flight: an ordinary allocation waits for it, and asks the program first. */
CASE(what_is_in_flight_is_not_waited_for)
{
    struct scene scene;
    void *block;
    int calls = 0;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_pool_on_shortage(scene.pool, 1, frees_nothing, &calls));
    DONE(ask_now(scene.pool, NULL, 60 * MIB, scene.stream[A], &block)); /* from the driver */
    DONE(cenote_use(block, scene.stream[B]));
    DONE(sim_launch_wait(scene.stream[A], 5 * MSEC));
    DONE(sim_launch_wait(scene.stream[B], 5 * MSEC));
    DONE(cenote_free(block));
    uint64_t now = sim_now();
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(ask_now(scene.pool, NULL, 40 * MIB, scene.stream[i], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT(strstr(cenote_message(), "the call does not wait"));
    EXPECT_EQ(sim_now(), now);
    EXPECT_EQ(calls, 0);
    cenote_stats stats = scene_stats(scene.pool);
    EXPECT(stats.waits == 0 && stats.ooms == 0 && stats.orders == 0 && stats.pages_released == 0);
    DONE(cenote_alloc(scene.pool, 40 * MIB, scene.stream[C], &block));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(scene_stats(scene.pool).waits, 1);
    DONE(cenote_free(block));
    DONE(cenote_pool_on_shortage(scene.pool, 0, frees_nothing, &calls));
    scene_close(&scene);
}

/* Free pages of another stream move, once the device is done with them; those of the own one at once. */
CASE(what_is_free_moves)
{
    struct scene scene;
    void *block, *beside;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_alloc(scene.pool, 60 * MIB, scene.stream[A], &block));
    DONE(sim_launch_wait(scene.stream[A], MSEC));
    DONE(cenote_free(block));
    DONE(ask_now(scene.pool, NULL, 50 * MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    EXPECT_EQ(ask_now(scene.pool, NULL, 50 * MIB, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cuCtxSynchronize());
    DONE(ask_now(scene.pool, NULL, 50 * MIB, scene.stream[B], &block));
    DONE(ask_now(scene.pool, NULL, 5000, scene.stream[C], &beside));
    DONE(cenote_free(block));
    DONE(cenote_free(beside));
    scene_close(&scene);
}

static void *never(size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    EXPECT(!"the source is not asked");
    return NULL;
}

CASE(a_source_is_not_asked)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    const cenote_source source = {never, give_source, NULL};
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "program's", 0, &source, &group));
    EXPECT_EQ(ask_now(scene.pool, group, MIB, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------- while another thread maps pages */

struct mapper {
    struct scene scene;
    atomic_bool  maps, goes_on;
};

static void stay_there(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct mapper *m = arg;
    struct wait wait = {0};
    (void)pool;
    if (notice->change == CENOTE_MAPPED)
        atomic_store(&m->maps, true);
    while (!atomic_load(&m->goes_on) && wait_on(&wait)) {}
}

static void *map_pages(void *arg)
{
    struct mapper *m = arg;
    void *block;
    DONE(cuCtxPushCurrent(m->scene.context));
    DONE(cenote_alloc(m->scene.pool, 20 * MIB, m->scene.stream[B], &block));
    DONE(cenote_free(block));
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

CASE(the_turn_is_not_waited_for)
{
    struct mapper m = {0};
    struct wait wait = {0};
    pthread_t thread;
    void *block, *other;
    scene_open(&m.scene, 64 * MIB);
    DONE(cenote_alloc(m.scene.pool, 4 * MIB, m.scene.stream[A], &block));
    DONE(sim_launch_wait(m.scene.stream[A], MSEC)); /* so that no other stream takes what was freed */
    DONE(cenote_free(block));
    DONE(cenote_pool_watch(m.scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, stay_there, &m));
    EXPECT_EQ(pthread_create(&thread, NULL, map_pages, &m), 0);
    while (!atomic_load(&m.maps) && wait_on(&wait)) {}
    DONE(ask_now(m.scene.pool, NULL, 4 * MIB, m.scene.stream[A], &block)); /* pages in place */
    EXPECT_EQ(ask_now(m.scene.pool, NULL, 8 * MIB, m.scene.stream[A], &other), CENOTE_BUSY);
    atomic_store(&m.goes_on, true);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    DONE(ask_now(m.scene.pool, NULL, 8 * MIB, m.scene.stream[A], &other));
    DONE(cenote_pool_watch(m.scene.pool, 0, stay_there, &m));
    DONE(cenote_free(block));
    DONE(cenote_free(other));
    scene_close(&m.scene);
}

SCENES_MAIN("allocations that do not wait")
