/*
 * test_watch.c: a program that remembers what lies under an address is told in time (cenote_pool_watch).
 *
 * A registry as communication libraries keep one (registry.h) is kept by the watch function alone. Every use of a block compares all of it
 * with what the driver says now.
 * Not: refusals at every single call (tests/faults/), pins (tests/hazard/pages.c).
 */
#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/registry.h"
#include "tests/base/random.h"

#define CARD (96 * MIB)
#define BLOCKS 48

/* --------------------------------------------------------------------------------------------------------------------- one by one */

CASE(every_page_is_told_of)
{
    static struct registry g;
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g));
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
    EXPECT_EQ(g.mapped, 1); /* neighbours are one notice */
    EXPECT_EQ(g.ranges[0].end - g.ranges[0].at, 10 * MIB);
    registry_use(&g, held.at, held.bytes);
    held_give(&held);
    EXPECT_EQ(g.freed, 0); /* no thread waited for it */
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
    EXPECT_EQ(g.mapped, 1);
    held_give(&held);
    DONE(cenote_pool_trim(scene.pool, 4 * MIB, CENOTE_TRIM_WAIT));
    EXPECT_EQ(g.unmapping, 3);
    EXPECT_EQ(cenote_pool_watch(NULL, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g), CENOTE_INVALID);
    DONE(cenote_pool_check(scene.pool));
    scene_judge(&scene);
    scene_destroy_pool(&scene);
    EXPECT_EQ(g.unmapping, 5);
    EXPECT_EQ(g.range_count, 0);
    registry_judge(&g);
    scene_close(&scene);
}

CASE(a_harvest_changes_nothing_where_it_takes_from)
{
    static struct registry g;
    struct scene scene;
    struct held hole, kept, wide;
    scene_open(&scene, CARD);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g));
    REQUIRE(held_take(&hole, scene.pool, 6 * MIB, scene.stream[A]));
    REQUIRE(held_take(&kept, scene.pool, 2 * MIB, scene.stream[A]));
    registry_use(&g, hole.at, hole.bytes);
    held_give(&hole);
    REQUIRE(held_take(&wide, scene.pool, 10 * MIB, scene.stream[A]));
    EXPECT(scene_stats(scene.pool).pages_aliased >= 3);
    EXPECT_EQ(g.unmapping, 0);
    registry_use(&g, hole.at, hole.bytes); /* the old addresses still lead to the same memory */
    registry_use(&g, wide.at, wide.bytes);
    registry_judge(&g);
    held_give(&kept);
    held_give(&wide);
    scene_close(&scene);
}

/* Slots that a fill emptied before the driver refused to map there are empty: they are not said to be mapped again. */
CASE(what_a_failed_fill_took_away_stays_away)
{
    static struct registry g;
    struct scene scene;
    struct held hole, kept, wide, again;
    void *none;
    scene_open(&scene, CARD);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g));
    REQUIRE(held_take(&hole, scene.pool, 6 * MIB, scene.stream[A]));
    REQUIRE(held_take(&kept, scene.pool, 2 * MIB, scene.stream[A]));
    held_give(&hole);
    REQUIRE(held_take(&wide, scene.pool, 10 * MIB, scene.stream[A]));
    uint64_t mapped = g.mapped, unmapping = g.unmapping;
    fault_arm("cuMemMap", 1, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(cenote_alloc(scene.pool, 6 * MIB, scene.stream[A], &none), CENOTE_DRIVER);
    EXPECT(fault_fired() > 0);
    fault_disarm();
    EXPECT(g.unmapping > unmapping);
    EXPECT_EQ(g.mapped, mapped);
    REQUIRE(held_take(&again, scene.pool, 6 * MIB, scene.stream[A]));
    registry_use(&g, again.at, again.bytes);
    held_give(&again);
    held_give(&kept);
    held_give(&wide);
    registry_judge(&g);
    scene_close(&scene);
}

CASE(a_block_that_waited_is_told_of_when_it_is_free)
{
    static struct registry g;
    struct scene scene;
    struct held held, other;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g));
    for (size_t bytes = 100; bytes <= 8 * MIB; bytes += 8 * MIB - 100) {
        REQUIRE(held_take(&held, scene.pool, bytes, scene.stream[A]));
        DONE(cenote_use(held.at, scene.stream[B]));
        DONE(sim_launch_wait(scene.stream[B], 10 * MSEC));
        g.waiting[g.waiting_count++] = (struct range){(uint64_t)(uintptr_t)held.at, (uint64_t)(uintptr_t)held.at + bytes};
        uint64_t before = g.freed;
        held_give(&held);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        EXPECT_EQ(g.freed, before);
        REQUIRE(held_take(&other, scene.pool, bytes, scene.stream[A]));
        registry_use(&g, other.at, other.bytes);
        held_give(&other);
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        EXPECT_EQ(g.freed, before + 1);
        EXPECT_EQ(g.waiting_count, 0);
    }
    registry_judge(&g);
    scene_close(&scene);
}

CASE(a_refused_unmap_is_taken_back)
{
    static struct registry g;
    static const unsigned providers[] = {CENOTE_VMM, CENOTE_PLAIN};
    static const char *const call[] = {"cuMemUnmap", "cuMemFree"};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        struct held held;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        options.provider = providers[i];
        memset(&g, 0, sizeof g);
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &g));
        REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
        registry_use(&g, held.at, held.bytes);
        held_give(&held);
        uint64_t mapped = g.mapped;
        fault_arm(call[i], 1, CUDA_ERROR_UNKNOWN, true);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT(fault_fired() > 0);
        fault_disarm();
        EXPECT(g.unmapping > 0);
        EXPECT_EQ(g.mapped, mapped + g.unmapping);
        REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
        registry_use(&g, held.at, held.bytes);
        held_give(&held);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(g.range_count, 0);
        registry_judge(&g);
        scene_close(&scene);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ several threads */

struct worker {
    cenote_pool *pool;
    CUstream     stream;
    _Atomic bool stop;
};

static void count_calls(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice;
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    void *block;
    while (!atomic_load(&w->stop))
        if (!cenote_alloc(w->pool, 6 * MIB, w->stream, &block)) {
            cenote_free(block);
            cenote_pool_trim(w->pool, 0, CENOTE_TRIM_WAIT);
        }
    return NULL;
}

CASE(nothing_comes_after_it_was_taken_away)
{
    struct scene scene;
    pthread_t threads[2];
    struct worker workers[2];
    atomic_uint calls = 0;
    uint64_t late = 0;
    scene_open(&scene, CARD);
    for (int i = 0; i < 2; i++) {
        workers[i].pool = scene.pool;
        workers[i].stream = scene.stream[i];
        atomic_store(&workers[i].stop, false);
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < 100; i++) {
        DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, count_calls, &calls));
        while (i % 10 == 0 && !atomic_load(&calls))
            continue;
        DONE(cenote_pool_watch(scene.pool, 0, count_calls, &calls));
        atomic_store(&calls, 0);
        for (int look = 0; look < 100; look++)
            late += atomic_load(&calls);
    }
    EXPECT_EQ(late, 0);
    for (int i = 0; i < 2; i++) {
        atomic_store(&workers[i].stop, true);
        pthread_join(threads[i], NULL);
    }
    scene_close(&scene);
}

/* ----------------------------------------------------------------------------------------------------------------- a random program */

struct program {
    struct scene    scene;
    struct registry g;
    struct random   random;
    struct held     held[BLOCKS];
    bool            used[BLOCKS];       /* on another stream too */
    cenote_group   *group;
    bool            faults;
    uint64_t        steps, refused;
};

static unsigned pick(struct program *p, uint32_t end) { return random_below(&p->random, end); }

static void take_one(struct program *p, int slot)
{
    void *block = NULL;
    CUstream stream = p->scene.stream[pick(p, SCENE_STREAMS)];
    size_t bytes = pick(p, 3) ? (size_t)1 + pick(p, 16 * MIB) : (size_t)1 + pick(p, 9000);
    bool in_group = p->group && pick(p, 4) == 0;
    int error = in_group ? group_alloc(p->group, bytes, 512, stream, &block) : cenote_alloc(p->scene.pool, bytes, stream, &block);
    p->refused += error != 0;
    if (error)
        return;
    p->held[slot] = held_of(block, bytes, stream);
    p->used[slot] = false;
    registry_use(&p->g, p->held[slot].at, p->held[slot].bytes);
}

/* The free comes in the order of the block's stream, or later where others were named. */
static void give_one(struct program *p, int slot)
{
    struct held *held = &p->held[slot];
    struct range block = {(uint64_t)(uintptr_t)held->at, (uint64_t)(uintptr_t)held->at + held->bytes};
    registry_use(&p->g, held->at, held->bytes);
    if (p->used[slot])
        p->g.waiting[p->g.waiting_count++] = block;
    held_give(held);
    held->at = NULL;
}

static void use_elsewhere(struct program *p, int slot)
{
    CUstream other = p->scene.stream[pick(p, SCENE_STREAMS)];
    if (other == p->held[slot].stream || cenote_use(p->held[slot].at, other))
        return;
    p->used[slot] = true;
    order(p->held[slot].stream, other);
    held_linger(&p->held[slot], other);
}

static void change_group(struct program *p)
{
    static const cenote_source own = {take_source, give_source, NULL};
    if (p->group) {
        DONE(cenote_group_destroy(p->group));
        p->group = NULL;
    } else if (cenote_group_create(p->scene.pool, "some", pick(p, 2), pick(p, 3) ? NULL : &own, &p->group)) {
        p->group = NULL;
    }
}

static void give_all(struct program *p)
{
    for (int slot = 0; slot < BLOCKS; slot++)
        if (p->held[slot].at)
            give_one(p, slot);
}

static void step(struct program *p)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemRelease", "cuMemFree",
                                        "cuMemAlloc", "cuMemAddressFree", "cuMemAddressReserve", "cuEventRecord"};
    int slot = (int)pick(p, BLOCKS);
    unsigned what = pick(p, 100);
    if (p->faults && pick(p, 8) == 0)
        fault_arm(calls[pick(p, sizeof calls / sizeof *calls)], 1 + pick(p, 6), pick(p, 2) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN,
                  pick(p, 4) == 0);
    if (what < 80 && !p->held[slot].at)
        take_one(p, slot);
    else if (what < 50)
        give_one(p, slot);
    else if (what < 80)
        registry_use(&p->g, p->held[slot].at, p->held[slot].bytes);
    else if (what < 86 && p->held[slot].at)
        use_elsewhere(p, slot);
    else if (what < 93)
        p->refused += cenote_pool_trim(p->scene.pool, pick(p, 64) * MIB, pick(p, 2)) != 0;
    else if (what < 95)
        change_group(p);
    else if (what < 96)
        give_all(p);
    else
        DONE(cuCtxSynchronize());
    fault_disarm();
}

static struct program the_program;

static void run_program(uint64_t seed, unsigned provider, bool faults)
{
    struct program *p = &the_program;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    memset(p, 0, sizeof *p);
    p->random.state = seed;
    p->faults = faults;
    shape.lag = MSEC;
    options.provider = provider;
    scene_open_with(&p->scene, &shape, &options);
    DONE(cenote_pool_watch(p->scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &p->g));
    for (int i = 0; i < 1500; i++)
        step(p);
    give_all(p);
    if (p->group)
        change_group(p);
    EXPECT(p->g.hits > 1000);
    EXPECT(p->g.freed > 10);
    EXPECT(p->g.unmapping > (provider == CENOTE_VMM ? 50 : 1)); /* segments are larger than pages */
    scene_judge(&p->scene);
    scene_destroy_pool(&p->scene);
    EXPECT_EQ(p->g.range_count, 0);
    EXPECT_EQ(p->g.waiting_count, 0);
    registry_judge(&p->g);
    scene_close(&p->scene);
}

static const unsigned providers[] = {CENOTE_VMM, CENOTE_VMM, CENOTE_VMM, CENOTE_PLAIN, CENOTE_ASYNC};

CASE(a_registry_is_never_stale)
{
    for (uint64_t seed = 0; seed < 5; seed++)
        run_program(seed, providers[seed], false);
}

CASE(a_registry_is_never_stale_where_calls_fail)
{
    for (uint64_t seed = 0; seed < 5; seed++)
        run_program(100 + seed, providers[seed], true);
}

SCENES_MAIN("watch")
