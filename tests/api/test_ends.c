/*
 * test_ends.c: groups and pools that end while other threads are on their way to them. A thread that comes too late is told so: no call does its work
 * on what has gone, and nothing is left open.
 *
 * A watch function, which runs with the pool's turn, holds up the calls that need it; they have all looked at the group or pool by then.
 */
#include "pool/life/turn.h"
#include "stats/report/pieces.h"
#include "tests/api/caller.h"
#include "tests/api/scene.h"
#include "tests/patience.h"

#include <pthread.h>
#include <unistd.h>

static struct scene scene;
static cenote_group *group;
static atomic_bool holds, may_go;

static void hold(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)notice;
    struct wait wait = {0};
    (void)pool, (void)arg;
    atomic_store(&holds, true);
    while (!atomic_load(&may_go) && wait_on(&wait))
        ;
}

static void *trim(void *unused)
{
    cuCtxSetCurrent(scene.context);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    return unused;
}

/* Both are inside, the first before the second, when the turn comes to them. */
static void at_once(int (*first)(void), int (*second)(void), struct caller callers[2])
{
    pthread_t holder;
    void *block;
    struct wait wait = {0};
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block)); /* something to be given back */
    DONE(cenote_free(block));
    atomic_store(&holds, false);
    atomic_store(&may_go, false);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, hold, NULL));
    REQUIRE(!pthread_create(&holder, NULL, trim, NULL));
    while (!atomic_load(&holds) && wait_on(&wait))
        ;
    EXPECT(atomic_load(&holds));
    caller_start(&callers[0], first, scene.context);
    caller_start(&callers[1], second, scene.context);
    atomic_store(&may_go, true);
    pthread_join(callers[0].thread, NULL);
    pthread_join(callers[1].thread, NULL);
    pthread_join(holder, NULL);
    cenote_pool_watch(scene.pool, 0, hold, NULL); /* it may be gone */
}

static int destroy_group(void) { return cenote_group_destroy(group); }
static int begin_capture(void) { return cenote_capture_begin(scene.pool, group, scene.stream[B]); }
static int destroy_pool(void) { return cenote_pool_destroy(scene.pool); }

/* What the two were told, whichever came first. */
static void expect_errors(const struct caller callers[2], int one, int other)
{
    bool turned = callers[0].error != one;
    EXPECT_EQ(callers[turned].error, one);
    EXPECT_EQ(callers[!turned].error, other);
}

CASE(two_threads_destroy_a_group)
{
    struct caller callers[2];
    cenote_group *other[3];
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "ends twice", 0, NULL, &group));
    at_once(destroy_group, destroy_group, callers);
    expect_errors(callers, CENOTE_OK, CENOTE_INVALID);
    for (int i = 0; i < 3; i++)
        DONE(cenote_group_create(scene.pool, "another", 0, NULL, &other[i]));
    EXPECT(other[0] != other[1] && other[1] != other[2]);
    for (int i = 0; i < 3; i++)
        DONE(cenote_group_destroy(other[i]));
    scene_close(&scene);
}

/* A capture of a group that has gone could not be ended any more, and nothing would ever be given back on that device. */
static void end_beside_capture(int (*first)(void), int (*second)(void))
{
    struct caller callers[2];
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "captured", CENOTE_GROUP_PRIVATE, NULL, &group));
    at_once(first, second, callers);
    int begun = callers[first == begin_capture ? 0 : 1].error, ended = callers[first == begin_capture ? 1 : 0].error;
    EXPECT_EQ(begun, ended ? CENOTE_OK : CENOTE_INVALID);
    EXPECT_EQ(ended, begun ? CENOTE_OK : CENOTE_CAPTURE);
    if (!begun) {
        DONE(cenote_capture_end(scene.pool, group, scene.stream[B]));
        DONE(cenote_group_destroy(group));
    }
    scene_close(&scene);
}

CASE(a_group_ends_before_its_capture_begins)
{
    for (int i = 0; i < 4; i++) {
        end_beside_capture(destroy_group, begin_capture);
        end_beside_capture(begin_capture, destroy_group);
    }
}

/* ------------------------------------------------------------------------------------------------------------------------------ pools */

/* The device stays open by a second pool. */
static void end_beside(int (*second)(void), int ends, int told)
{
    struct caller callers[2];
    cenote_options options = scene_options();
    cenote_pool *other;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_pool_create(0, &options, &other));
    at_once(destroy_pool, second, callers);
    expect_errors(callers, ends, told);
    if (ends)
        DONE(cenote_pool_destroy(scene.pool));
    scene.pool = other;
    scene_close(&scene);
}

CASE(two_threads_destroy_a_pool)
{
    end_beside(destroy_pool, CENOTE_OK, CENOTE_BUSY);
}

static int check(void) { return cenote_pool_check(scene.pool); }
static int unwatch(void) { return cenote_pool_watch(scene.pool, 0, hold, NULL); }
static int trim_too(void) { return cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT); }
static int limit(void) { return cenote_pool_set_limit(scene.pool, MIB); }

/* They wait for the turn, and get it when the pool has gone. */
CASE(calls_that_come_too_late_for_a_pool)
{
    int (*const calls[])(void) = {check, unwatch, trim_too, limit};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        end_beside(calls[i], CENOTE_OK, CENOTE_INVALID);
}

static int take_and_give(void)
{
    void *block;
    int error = cenote_alloc(scene.pool, 40 * MIB, scene.stream[B], &block);
    return error ? error : cenote_free(block);
}

/* A block that is on its way is as good as live. */
CASE(a_pool_stays_for_an_allocation_that_is_under_way)
{
    end_beside(take_and_give, CENOTE_BUSY, CENOTE_OK);
}

/* A call that wants sums has looked at the pool before: what it is told is that the pool has ended, and not that host memory is short. */
CASE(sums_of_a_pool_that_has_ended)
{
    struct arena_sums sums;
    cenote_pool *pool;
    void *block;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_pool_create(0, NULL, &pool));
    DONE(cenote_alloc(pool, MIB, scene.stream[A], &block));
    REQUIRE(pieces_sums_open(&sums, pool));
    EXPECT(sums.arenas > 0);
    pieces_sums_close(&sums);
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(pool));
    EXPECT(pieces_sums_open(&sums, pool));
    EXPECT_EQ(sums.arenas, 0);
    pieces_sums_close(&sums);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------ a pool that ends while it is looked at */

#define LOOKED_AT 40                /* streams, each with an arena and a region */

static cenote_pool *looked_at;
static CUstream streams[LOOKED_AT];
static size_t answer;

static int end_it(void) { return cenote_pool_destroy(looked_at); }

static int count_arenas(void)
{
    cenote_stats stats;
    int error = cenote_pool_stats(looked_at, &stats);
    answer = (size_t)stats.arenas;
    return error;
}

static int list_rows(void)
{
    cenote_row rows[2 * LOOKED_AT];
    return cenote_pool_rows(looked_at, CENOTE_BY_ARENA, rows, 2 * LOOKED_AT, &answer);
}

static int draw_pieces(void)
{
    cenote_piece pieces[4 * LOOKED_AT];
    return cenote_pool_pieces(looked_at, NULL, pieces, 4 * LOOKED_AT, &answer);
}

static int write_snapshot(void)
{
    answer = 0;
    return cenote_pool_snapshot(looked_at, "/dev/null");
}

static void open_looked_at(void)
{
    void *block[LOOKED_AT];
    cenote_options options = scene_options();
    DONE(cenote_pool_create(0, &options, &looked_at));
    for (int i = 0; i < LOOKED_AT; i++) {
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_alloc(looked_at, MIB, streams[i], &block[i]));
    }
    for (int i = 0; i < LOOKED_AT; i++)
        DONE(cenote_free(block[i]));
}

/* The thread that destroys has the turn and waits for the pool's lock, as the looking one does: it has it before the look or in a pause of it. */
static void end_beneath(int (*look_at_it)(void))
{
    struct caller ends, looks;
    struct wait wait = {0};
    struct look look;
    open_looked_at();
    DONE(look_at_it());
    size_t whole = answer;
    DONE(turn_take(looked_at));
    caller_start(&ends, end_it, scene.context);
    look_begin_held(&look, looked_at);
    caller_start(&looks, look_at_it, scene.context);
    lock_give(&looked_at->turn);
    while (atomic_load(&looked_at->turn.state) == LOCK_FREE && !atomic_load(&ends.is_back) && wait_on(&wait))
        ;
    look_end(&look);
    pthread_join(looks.thread, NULL);
    pthread_join(ends.thread, NULL);
    for (int i = 0; i < LOOKED_AT; i++)
        DONE(cuStreamDestroy(streams[i]));
    EXPECT_EQ(ends.error, CENOTE_OK);
    EXPECT(looks.error == CENOTE_INVALID || (!looks.error && answer == whole));
}

CASE(a_pool_ends_while_it_is_looked_at)
{
    int (*const looks[])(void) = {count_arenas, list_rows, draw_pieces, write_snapshot};
    lock_set_portions(1);
    scene_open(&scene, 256 * MIB);
    for (unsigned i = 0; i < 4 * (sizeof looks / sizeof *looks); i++)
        end_beneath(looks[i / 4]);
    scene_close(&scene);
    lock_set_portions(0);
}

static atomic_bool looks_now, is_enough;

static void *look_on(void *unused)
{
    struct look look;
    DONE(look_begin(&look, looked_at));
    atomic_store(&looks_now, true);
    while (!atomic_load(&is_enough))
        look_goes_on(&look, PORTION);
    look_end(&look);
    return unused;
}

/* The end of a pool meets a look in its pause, because no thread is the next to have a lock: it waits. */
CASE(a_look_that_pauses_keeps_its_pool)
{
    pthread_t looking;
    struct caller ends;
    struct wait wait = {0};
    scene_open(&scene, 256 * MIB);
    open_looked_at();
    REQUIRE(!pthread_create(&looking, NULL, look_on, NULL));
    while (!atomic_load(&looks_now) && wait_on(&wait))
        ;
    lock_take(&looked_at->lock); /* in a pause */
    EXPECT_EQ(looked_at->life.away, 1);
    caller_start(&ends, end_it, scene.context);
    while (!atomic_load(&looked_at->life.ending) && wait_on(&wait))
        ;
    atomic_store(&is_enough, true);
    lock_give(&looked_at->lock);
    pthread_join(looking, NULL);
    pthread_join(ends.thread, NULL);
    EXPECT_EQ(ends.error, CENOTE_OK);
    for (int i = 0; i < LOOKED_AT; i++)
        DONE(cuStreamDestroy(streams[i]));
    scene_close(&scene);
}

SCENES_MAIN("ends")
