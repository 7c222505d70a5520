/*
 * test_promises.c: sentences of the headers that no other test holds (tools/check/promises.txt has them all).
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)

/* No earlier block of that size lay there: that is no shortage, which would be counted and explained, whatever the size. */
CASE(an_address_for_more_than_the_device_has)
{
    struct scene scene;
    struct held a, b;
    cenote_stats stats;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&a, scene.pool, 6 * MIB, scene.stream[A]));
    REQUIRE(held_take(&b, scene.pool, 6 * MIB, scene.stream[A]));
    char *at = a.at;
    held_give(&a);
    EXPECT_EQ(alloc_at(scene.pool, NULL, at, CARD - MIB, scene.stream[A]), CENOTE_INVALID); /* with another block live: too much */
    EXPECT_EQ(alloc_at(scene.pool, NULL, at, CARD + MIB, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, at, 1ull << 45, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, at, SIZE_MAX / 2, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, at, SIZE_MAX, scene.stream[A]), CENOTE_INVALID);
    DONE(cenote_pool_stats(scene.pool, &stats));
    EXPECT_EQ(stats.ooms, 0);
    held_give(&b);
    scene_close(&scene);
}

/* What was created for a block that failed is kept for the next growth: it lies nowhere. */
CASE(pages_without_an_address_are_in_the_picture)
{
    struct scene scene;
    cenote_piece pieces[64];
    size_t count;
    void *block;
    scene_open(&scene, CARD);
    fault_arm("cuMemMap", 3, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    uint64_t spare = scene_stats(scene.pool).reserved.current;
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    REQUIRE(spare && count);
    const cenote_piece *p = &pieces[count - 1];
    EXPECT_EQ(p->address, 0);
    EXPECT_EQ(p->segment, 0);
    EXPECT_EQ(p->size, spare);
    EXPECT_EQ(p->state, CENOTE_PIECE_FREE);
    DONE(cenote_alloc(scene.pool, spare, scene.stream[A], &block));
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    for (size_t i = 0; i < count; i++)
        EXPECT(pieces[i].address);
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* The same program twice, the second time with labels, and with each question after each call: every block lies where it lay. */
static void run_program(bool looks, size_t *places, unsigned count)
{
    struct scene scene;
    void *block[40] = {NULL};
    char *first = NULL, text[4096];
    cenote_marked marked = {0};
    cenote_stats stats;
    cenote_piece pieces[64];
    size_t found;
    scene_open(&scene, CARD);
    srand(11);
    for (unsigned i = 0; i < count; i++) {
        void **b = &block[rand() % 40];
        if (looks) {
            DONE(i % 3 ? cenote_phase_set((int)i % CENOTE_PHASES) : cenote_tag_push("looked at"));
            DONE(*b ? cenote_block_set_kind(*b, (int)i % CENOTE_KINDS) : 0);
        }
        DONE(cenote_free(*b));
        *b = NULL;
        DONE(cenote_alloc(scene.pool, (size_t)rand() % (i % 4 ? 9000 : 5 * MIB), scene.stream[i % 3 ? A : B], b));
        first = first ? first : *b;
        places[i] = (size_t)((char *)*b - first);
        if (!looks)
            continue;
        DONE(i % 3 ? 0 : cenote_tag_pop());
        DONE(cenote_pool_stats(scene.pool, &stats));
        for (int division = CENOTE_BY_ARENA; division <= CENOTE_BY_KIND; division++)
            DONE(cenote_pool_rows(scene.pool, division, NULL, 0, &found));
        DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &found));
        EXPECT(cenote_pool_mark(scene.pool, "mark", &marked, text, sizeof text));
        EXPECT(cenote_pool_explain(scene.pool, 0, text, sizeof text));
        DONE(cenote_pool_reset_peaks(scene.pool));
        DONE(cenote_pool_check(scene.pool));
    }
    DONE(cenote_phase_set(CENOTE_PHASE_NONE));
    for (int i = 0; i < 40; i++)
        DONE(cenote_free(block[i]));
    scene_close(&scene);
}

CASE(labels_and_looks_move_no_block)
{
    enum { CALLS = 400 };
    static size_t places[2][CALLS];
    for (int looks = 0; looks < 2; looks++)
        run_program(looks, places[looks], CALLS);
    EXPECT(!memcmp(places[0], places[1], sizeof places[0]));
}

CASE(keys_of_rows)
{
    struct scene scene;
    struct held held;
    cenote_block found;
    cenote_row rows[8];
    size_t count;
    unsigned long long largest = 0;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_find(held.at, &found));
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_ARENA, rows, 8, &count));
    REQUIRE_EQ(count, 1);
    EXPECT_EQ(rows[0].key, found.stream_id);
    EXPECT_EQ(rows[0].stream, scene.stream[A]);
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_CLASS, rows, 8, &count));
    REQUIRE_EQ(count, 1);
    EXPECT_EQ(sscanf(rows[0].name, "block to %llu", &largest), 1);
    EXPECT_EQ(rows[0].key, largest);
    EXPECT(rows[0].key >= 3 * MIB);
    EXPECT_EQ(rows[0].blocks, 1);
    held_give(&held);
    scene_close(&scene);
}

SCENES_MAIN("api: promises")
