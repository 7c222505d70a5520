/*
 * test_stats.c: what a pool says about itself agrees with what a program did, at every moment.
 * Not: the texts printed from it (tests/stats/).
 */
#include "pool/pool.h"
#include "tests/api/scene.h"

#include <stddef.h>
#include <stdlib.h>

#define CARD (64 * MIB)
#define BLOCKS 64

/* What the program knows. */
struct known {
    void  *block[BLOCKS];
    size_t bytes[BLOCKS];
    uint64_t requested, rounded, blocks;
    uint64_t requested_peak;
    uint64_t requested_in, blocks_in;
};

static void check_level(const cenote_level *level)
{
    EXPECT(level->current <= level->peak);
    EXPECT(level->peak <= level->total_in);
    EXPECT_EQ(level->total_in - level->total_out, level->current);
}

/* What is counted alone is the first part of all. The rest of the struct is the program's. */
static void check_counted(cenote_pool *pool, const cenote_stats *all)
{
    cenote_stats counted;
    memset(&counted, 0x5a, sizeof counted);
    DONE((cenote_pool_stats)(pool, &counted, CENOTE_STATS_COUNTED));
    EXPECT(!memcmp(&counted, all, CENOTE_STATS_COUNTED));
    EXPECT_EQ(counted.driver_calls, 0x5a5a5a5a5a5a5a5au);
    EXPECT_EQ(counted.orders, 0x5a5a5a5a5a5a5a5au);
}

static void check_identities(cenote_pool *pool, const struct known *known)
{
    struct sim_books books;
    cenote_stats s = scene_stats(pool);
    EXPECT_EQ(s.requested.current, known->requested);
    EXPECT_EQ(s.allocated.current, known->rounded);
    EXPECT_EQ(s.blocks.current, known->blocks);
    EXPECT_EQ(s.requested.peak, known->requested_peak);
    EXPECT_EQ(s.requested.total_in, known->requested_in);
    EXPECT_EQ(s.blocks.total_in, known->blocks_in);

    EXPECT_EQ(s.reserved.current, s.allocated.current + s.cached.current);
    EXPECT(s.requested.current <= s.allocated.current);
    EXPECT(s.allocated.current <= s.active.current);
    EXPECT(s.active.current <= s.reserved.current);
    EXPECT_EQ((s.pages_owned + s.pages_free) * s.page_bytes, s.reserved.current);
    EXPECT(s.pages_aliased <= s.pages_owned + s.pages_free);
    EXPECT(s.harvestable <= s.pages_free * s.page_bytes);
    EXPECT_EQ(s.pages_created - s.pages_released, s.pages_owned + s.pages_free);
    const cenote_level *levels[] = {&s.requested, &s.allocated, &s.active, &s.reserved, &s.cached, &s.blocks};
    for (int i = 0; i < 6; i++)
        check_level(levels[i]);

    sim_books(&books); /* the card's own books say the same */
    EXPECT_EQ(s.reserved.current, books.used);
    EXPECT_EQ(s.address_space, books.reserved);
    EXPECT_EQ(s.pages_owned + s.pages_free, books.handles);
    EXPECT_EQ(s.capacity, CARD);
    check_counted(pool, &s);
}

static void take(struct scene *scene, struct known *known, int i)
{
    size_t bytes = (size_t)(rand() % (rand() % 4 ? 40000 : 3000000)) + 1;
    if (cenote_alloc(scene->pool, bytes, scene->stream[rand() % 2], &known->block[i]))
        return;
    known->bytes[i] = bytes;
    known->requested += bytes;
    known->requested_in += bytes;
    known->rounded += (bytes + 511) / 512 * 512;
    known->blocks++;
    known->blocks_in++;
    if (known->requested > known->requested_peak)
        known->requested_peak = known->requested;
}

static void give(struct scene *scene, struct known *known, int i)
{
    if (rand() % 5 == 0)
        DONE(cenote_use(known->block[i], scene->stream[C]));
    DONE(cenote_free_sized(known->block[i], known->bytes[i]));
    known->block[i] = NULL;
    known->requested -= known->bytes[i];
    known->rounded -= (known->bytes[i] + 511) / 512 * 512;
    known->blocks--;
}

CASE(identities_after_random_operations)
{
    struct scene scene;
    struct known known = {0};
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    srand(1);
    for (int step = 0; step < 4000; step++) {
        int i = rand() % BLOCKS;
        if (known.block[i])
            give(&scene, &known, i);
        else
            take(&scene, &known, i);
        if (step % 50 == 0)
            sim_advance(MSEC / 3);
        if (step % 400 == 399)
            DONE(cenote_pool_trim(scene.pool, (uint64_t)(rand() % 32) * MIB, 0));
        if (step % 20 == 0)
            check_identities(scene.pool, &known);
        if (step % 200 == 0)
            DONE(cenote_pool_check(scene.pool));
    }
    for (int i = 0; i < BLOCKS; i++)
        if (known.block[i])
            give(&scene, &known, i);
    check_identities(scene.pool, &known);
    scene_close(&scene);
}

CASE(waiting_blocks_are_active)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&held, scene.stream[B]);
    DONE(cenote_use(held.at, scene.stream[B]));
    DONE(cenote_free(held.at));
    cenote_stats waiting = scene_stats(scene.pool);
    EXPECT_EQ(waiting.allocated.current, 0);
    EXPECT_EQ(waiting.active.current, 3 * MIB);
    EXPECT_EQ(waiting.pending_blocks, 1);
    DONE(cuCtxSynchronize());
    for (int i = 0; i < 100; i++) { /* allocations find out, not each of them, once the device has caught up */
        REQUIRE(held_take(&held, scene.pool, 512, scene.stream[A]));
        held_give(&held);
        sim_advance(2 * MSEC);
    }
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene_stats(scene.pool).active.current, 0);
    scene_close(&scene);
}

CASE(peaks_and_totals_start_again)
{
    struct scene scene;
    struct held held[4];
    scene_open(&scene, CARD);
    for (int i = 0; i < 4; i++)
        REQUIRE(held_take(&held[i], scene.pool, 5 * MIB, scene.stream[A]));
    for (int i = 1; i < 4; i++)
        held_give(&held[i]);
    cenote_stats s = scene_stats(scene.pool);
    EXPECT_EQ(s.allocated.peak, 20 * MIB);
    EXPECT_EQ(s.allocated.total_in, 20 * MIB);
    EXPECT_EQ(s.allocated.total_out, 15 * MIB);
    EXPECT(s.pages_created >= 10 && s.driver_calls > 0 && s.slow_allocs > 0);

    DONE(cenote_pool_reset_peaks(scene.pool));
    s = scene_stats(scene.pool);
    EXPECT_EQ(s.allocated.peak, 5 * MIB);
    EXPECT_EQ(s.reserved.peak, s.reserved.current);
    EXPECT_EQ(s.cached.peak, s.cached.current);
    EXPECT_EQ(s.allocated.total_in, 20 * MIB);

    DONE(cenote_pool_reset_totals(scene.pool));
    s = scene_stats(scene.pool);
    EXPECT_EQ(s.allocated.current, 5 * MIB);
    EXPECT_EQ(s.allocated.total_in, 0);
    EXPECT_EQ(s.allocated.total_out, 0);
    EXPECT_EQ(s.pages_created, 0);
    EXPECT_EQ(s.driver_calls, 0);
    EXPECT_EQ(s.slow_allocs, 0);
    EXPECT(s.pages_owned > 0);

    held_give(&held[0]);
    EXPECT_EQ(scene_stats(scene.pool).allocated.total_out, 5 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).allocated.peak, 5 * MIB);
    scene_close(&scene);
}

/* The warm path does not touch the driver. */
CASE(no_driver_calls_on_a_warm_pool)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    for (int i = 0; i < 3; i++) {
        REQUIRE(held_take(&held, scene.pool, 5 * MIB, scene.stream[A]));
        held_give(&held);
        REQUIRE(held_take(&held, scene.pool, 5000, scene.stream[A]));
        held_give(&held);
    }
    DONE(cenote_pool_reset_totals(scene.pool));
    for (int i = 0; i < 100; i++) {
        REQUIRE(held_take(&held, scene.pool, i % 2 ? 5 * MIB : 5000, scene.stream[A]));
        held_give(&held);
    }
    EXPECT_EQ(scene_stats(scene.pool).slow_allocs, 0);
    EXPECT_EQ(scene_stats(scene.pool).driver_calls, 0);
    scene_close(&scene);
}

/* At most 1 % of reserved + 64 B per live block + 256 KiB. */
static void expect_broken(cenote_pool *pool, const char *rule)
{
    EXPECT_EQ(cenote_pool_check(pool), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), rule) != NULL);
}

/* Books that are wrong by a little, in each of their parts, and then right again. */
CASE(a_check_finds_what_is_wrong)
{
    struct scene scene;
    struct held large, small, tagged;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&large, scene.pool, 5 * MIB, scene.stream[A]));
    REQUIRE(held_take(&small, scene.pool, 700, scene.stream[A]));
    cenote_pool *pool = scene.pool;
    struct arena *a = arena_of(pool, 1);

#define WRONG(rule, field, by)          \
    do {                                \
        (field) += (by);                \
        expect_broken(pool, rule);      \
        (field) -= (by);                \
        DONE(cenote_pool_check(pool));  \
    } while (0)

    WRONG("invariant 9:", pool->store.pages.reserved, 1);
    WRONG("invariant 11:", region_of(&pool->store.pages, a->heap.regions)->top, 512);
    WRONG("invariant 16:", a->slabs.empty, 1);
    WRONG("invariant 15", pool->clock.fences.done, 1000);
    WRONG("invariant 17: reserved", pool->account.stats.reserved.current, 1);
    WRONG("invariant 17: requested", pool->account.stats.requested.current, MIB);
    WRONG("invariant 17: requested", pool->account.stats.active.current, (uint64_t)-MIB);
    WRONG("invariant 17: active", pool->account.stats.active.current, 64 * MIB);
    WRONG("invariant 18:", region_of(&pool->store.pages, a->heap.regions)->edges[0], 1);
    WRONG("invariant 20: arenas", a->row.current, 512);
    WRONG("invariant 27:", region_of(&pool->store.pages, a->heap.regions)->heap, 1);
    WRONG("invariant 20: arenas", pool->account.by_size[0].current, 512);
    pool->account.by_kind[0].current += 512; /* is not kept before the first label */
    DONE(cenote_pool_check(pool));
    pool->account.by_kind[0].current -= 512;
    DONE(cenote_tag_push("labelled"));
    REQUIRE(held_take(&tagged, pool, 3 * MIB, scene.stream[B]));
    DONE(cenote_tag_pop());
    WRONG("invariant 20: kinds", pool->account.by_kind[0].current, 512);
    WRONG("invariant 20: kinds", pool->account.by_phase[1].current, 512);
    WRONG("invariant 20: kinds", TABLE_AT(struct row, &pool->account.by_tag, 0)->current, 512);
    held_give(&tagged);
    held_give(&small);
    held_give(&large);
    scene_close(&scene);
}

/* A block remembers the step that it was born after, as far as its mark can count. */
CASE(more_steps_than_a_mark_holds)
{
    struct scene scene;
    struct held held;
    cenote_piece piece;
    size_t count;
    scene_open(&scene, CARD);
    scene.pool->steps.count = MARK_STEPS_MAX - 1;
    for (int i = 0; i < 3; i++)
        DONE(cenote_pool_step(scene.pool));
    REQUIRE(held_take(&held, scene.pool, 2 * MIB, scene.stream[A]));
    DONE(cenote_pool_pieces(scene.pool, NULL, &piece, 1, &count));
    EXPECT_EQ(piece.address, (uint64_t)(uintptr_t)held.at);
    EXPECT_EQ(piece.born, MARK_STEPS_MAX);
    held_give(&held);
    scene_close(&scene);
}

CASE(a_pool_that_is_gone_has_no_statistics)
{
    struct scene scene;
    cenote_stats stats;
    cenote_pool *gone;
    scene_open(&scene, CARD);
    DONE(cenote_pool_create(0, NULL, &gone));
    DONE(cenote_pool_destroy(gone));
    EXPECT_EQ(cenote_pool_stats(gone, &stats), CENOTE_INVALID);
    scene_close(&scene);
}

CASE(bookkeeping_is_small)
{
    enum { MANY = 100000 };
    struct scene scene;
    static void *blocks[MANY];
    scene_open(&scene, CARD);
    for (int i = 0; i < MANY; i++)
        REQUIRE(cenote_alloc(scene.pool, 512, scene.stream[A], &blocks[i]) == CENOTE_OK);
    cenote_stats s = scene_stats(scene.pool);
    EXPECT(s.metadata > 0);
    EXPECT(s.metadata <= s.reserved.current / 100 + 64 * s.blocks.current + 256 * KIB);
    for (int i = 0; i < MANY; i++)
        REQUIRE(cenote_free(blocks[i]) == CENOTE_OK);
    scene_close(&scene);
}

CASE(text_and_json)
{
    struct scene scene;
    char text[16384], start[16];
    scene_open(&scene, CARD);
    cenote_stats s = scene_stats(scene.pool);
    size_t length = cenote_stats_text(&s, text, sizeof text);
    EXPECT_EQ(length, strlen(text));
    EXPECT(strstr(text, "reserved"));
    EXPECT_EQ(cenote_stats_text(&s, start, sizeof start), length);
    EXPECT_EQ(strlen(start), sizeof start - 1);
    EXPECT_EQ(cenote_stats_text(&s, NULL, 0), length);
    length = cenote_stats_json(&s, text, sizeof text);
    EXPECT_EQ(length, strlen(text));
    EXPECT_EQ(text[0], '{');
    EXPECT(strstr(text, "\"pages_frozen\""));
    scene_close(&scene);
}

SCENES_MAIN("api: statistics")
