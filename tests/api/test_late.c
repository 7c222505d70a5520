/*
 * test_late.c: handles of pools, groups and loans that have ended, named again when others have been made. Each call is told so, and the others are
 * as they were. Not: calls that are under way when it ends (test_ends.c, test_ends_between.c).
 */
#include "base/memory.h"
#include "pool/pool.h"
#include "tests/api/scene.h"

#include <cenote/report.h>
#include <cenote/share.h>
#include <cenote/sleep.h>

#define MANY 40

static struct scene scene;
static cenote_pool *late;
static cenote_group *late_group;

static int stats(void) { cenote_stats s; return cenote_pool_stats(late, &s); }
static int rows(void) { size_t count; return cenote_pool_rows(late, CENOTE_BY_KIND, NULL, 0, &count); }
static int pieces(void) { size_t count; return cenote_pool_pieces(late, NULL, NULL, 0, &count); }
static int check(void) { return cenote_pool_check(late); }
static int snapshot(void) { return cenote_pool_snapshot(late, "/dev/null"); }
static int reset_peaks(void) { return cenote_pool_reset_peaks(late); }
static int record(void) { return cenote_pool_record(late, 16); }
static int trim(void) { return cenote_pool_trim(late, 0, CENOTE_TRIM_WAIT); }
static int step(void) { return cenote_pool_step(late); }
static int limit(void) { return cenote_pool_set_limit(late, 2 * MIB); }
static int trim_above(void) { return cenote_pool_set_trim_above(late, 0.5); }
static int reserve(void) { return cenote_pool_reserve(late, 8 * MIB, scene.stream[A]); }
static int nap(void) { return cenote_pool_pause(late, NULL); }
static int wake(void) { return cenote_pool_resume(late, NULL); }
static void hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
}
static int watch(void) { return cenote_pool_watch(late, CENOTE_MAPPED, hear, NULL); }
static int make_room(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes, (void)arg;
    return 0;
}
static int shortage(void) { return cenote_pool_on_shortage(late, 1, make_room, NULL); }
static int available(void) { cenote_available b; return cenote_pool_available(late, &b); }
static int retire(void) { return cenote_stream_retire(late, scene.stream[B]); }
static int immortal(void) { return cenote_stream_set_immortal(late, scene.stream[B]); }
static int sync_begin(void) { uint64_t sync; return cenote_pool_sync_begin(late, &sync); }
static int capture_begin(void) { return cenote_capture_begin(late, NULL, scene.stream[B]); }
static int capture_end(void) { return cenote_capture_end(late, NULL, scene.stream[B]); }
static int destroy(void) { return cenote_pool_destroy(late); }
static int alloc(void) { void *block; return cenote_alloc(late, MIB, scene.stream[A], &block); }
static int lend(void) { cenote_loan *loan; return cenote_pool_lend(late, NULL, &loan); }

static int group_of_it(void)
{
    cenote_group *group;
    return cenote_group_create(late, "late", 0, NULL, &group);
}

static int (*const of_pools[])(void) = {stats,    rows,     pieces,     check,         snapshot,    reset_peaks, record, trim, step,
                                        limit,    trim_above, reserve,  nap,           wake,        watch,       shortage, available,
                                        retire,   immortal, sync_begin, capture_begin, capture_end, destroy,     alloc,  lend, group_of_it};

static int grow(void) { void *block; return group_alloc(late_group, MIB, 512, scene.stream[A], &block); }
static int flags(void) { return cenote_group_set_flags(late_group, CENOTE_GROUP_LEND); }
static int end(void) { return cenote_group_destroy(late_group); }
static int empty(void) { return cenote_group_reset(late_group); }
static int reserved(void) { uint64_t bytes; return cenote_group_reserved(late_group, &bytes); }
static int trim_group(void) { return cenote_group_trim(late_group, 0); }
static int begin_capture(void) { return cenote_capture_begin(NULL, late_group, scene.stream[B]); }
static int end_capture(void) { return cenote_capture_end(NULL, late_group, scene.stream[B]); }
static int picture(void) { size_t count; return cenote_pool_pieces(scene.pool, late_group, NULL, 0, &count); }
static int group_naps(void) { return cenote_pool_pause(scene.pool, &(cenote_sleep){.group = late_group}); }
static int group_wakes(void) { return cenote_pool_resume(scene.pool, &(cenote_sleep){.group = late_group}); }

static int ask(void)
{
    void *block;
    return cenote_alloc_with(scene.pool, &(cenote_request){.bytes = MIB, .group = late_group, .stream = scene.stream[A]}, &block);
}

static int (*const of_groups[])(void) = {grow,          flags,       end,     empty,      reserved,    trim_group,
                                         begin_capture, end_capture, picture, group_naps, group_wakes, ask};

static void expect_refusals(int (*const *calls)(void), size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int error = calls[i]();
        EXPECT_EQ(error, CENOTE_INVALID);
        if (error != CENOTE_INVALID)
            fprintf(stderr, "call %zu: %s\n", i, error ? cenote_message() : "done");
    }
}

CASE(a_pool_that_has_ended_is_no_other_pool)
{
    cenote_pool *others[MANY];
    void *block;
    scene_open(&scene, GIB);
    DONE(cenote_pool_create(0, NULL, &late));
    DONE(cenote_alloc(late, MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(late));
    for (int i = 0; i < MANY; i++) {
        DONE(cenote_pool_create(0, NULL, &others[i]));
        if (i % 2)
            DONE(cenote_pool_destroy(others[i]));
    }
    expect_refusals(of_pools, sizeof of_pools / sizeof *of_pools);
    EXPECT_EQ(cenote_pool_device(late), -1);
    for (int i = 0; i < MANY; i += 2)
        DONE(cenote_pool_destroy(others[i]));
    scene_close(&scene);
}

static void end_many(cenote_pool *pool)
{
    cenote_group *other;
    for (int i = 0; i < MANY; i++) {
        DONE(cenote_group_create(pool, "ends too", 0, NULL, &other));
        DONE(cenote_group_destroy(other));
    }
}

CASE(a_group_that_has_ended_is_no_other_group)
{
    cenote_group *other;
    cenote_pool *pool;
    scene_open(&scene, GIB);
    DONE(cenote_group_create(scene.pool, "late", CENOTE_GROUP_PRIVATE, NULL, &late_group));
    DONE(cenote_group_destroy(late_group));
    end_many(scene.pool);
    DONE(cenote_group_create(scene.pool, "another", CENOTE_GROUP_PRIVATE, NULL, &other));
    expect_refusals(of_groups, sizeof of_groups / sizeof *of_groups);
    DONE(cenote_group_destroy(other));

    DONE(cenote_pool_create(0, NULL, &pool)); /* with its pool */
    DONE(cenote_group_create(pool, "late", 0, NULL, &late_group));
    DONE(cenote_group_destroy(late_group));
    DONE(cenote_pool_destroy(pool));
    DONE(cenote_pool_create(0, NULL, &pool));
    end_many(pool);
    expect_refusals(of_groups, sizeof of_groups / sizeof *of_groups);
    DONE(cenote_pool_destroy(pool));
    scene_close(&scene);
}

CASE(a_loan_that_has_ended_is_no_other_loan)
{
    cenote_loan *loan, *other;
    struct sim_shape shape = scene_card(GIB);
    cenote_options options = scene_options();
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_lend(scene.pool, NULL, &loan));
    DONE(cenote_loan_end(loan, NULL));
    DONE(cenote_pool_lend(scene.pool, NULL, &other));
    EXPECT_EQ(cenote_loan_end(loan, NULL), CENOTE_INVALID);
    DONE(cenote_loan_end(other, NULL));
    scene_close(&scene);
}

/* What they were is used again: programs may make any number. */
CASE(many_pools_and_groups_take_no_more_memory)
{
    cenote_pool *pool;
    cenote_group *group;
    scene_open(&scene, GIB);
    for (int i = 0; i < 2 * GROUPS_KEPT; i++) {
        DONE(cenote_group_create(scene.pool, "one of many", 0, NULL, &group));
        DONE(cenote_group_destroy(group));
    }
    EXPECT(scene.pool->groups.table.used <= GROUPS_KEPT + 2u);
    size_t most = 0;
    for (int i = 0; i < 3 * POOLS_KEPT; i++) {
        DONE(cenote_pool_create(0, NULL, &pool));
        DONE(cenote_pool_destroy(pool));
        if (i == POOLS_KEPT)
            most = memory_in_use();
    }
    EXPECT(memory_in_use() <= most);
    scene_close(&scene);
}

SCENES_MAIN("late")
