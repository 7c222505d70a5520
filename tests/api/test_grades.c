/*
 * test_grades.c: large pages of 16 MiB and small ones of 2 MiB: what is made under shortage, how free ones of both sizes are used before memory is
 * created, and blocks that lie on both. Which unit changes: test_units.c.
 */
#include "tests/api/pair.h"
#include "tests/api/units.h"

#define LARGE  (16 * MIB)
#define FEW    (4 * MIB)       /* small pages: less than a unit */
#define SMALL  (2 * MIB)

static const size_t bytes_of[GRADES] = {SMALL, LARGE};

static void open_with(struct scene *scene, const char *conf) { units_open(scene, LARGE, conf); }

/* Takes it where idle units become pages of that grade. */
static struct held take_of(struct scene *scene, enum grade grade, size_t bytes, int stream)
{
    return take(scene, grade == GRADE_LARGE ? WIDE : SPLIT, bytes, stream);
}

/* So much is free afterwards in pages of that grade, wherever pages of the others are free. */
static void leave_free(struct scene *scene, struct held *held)
{
    give(scene, held);
    DONE(cenote_pool_check(scene->pool));
}

static void empty(struct scene *scene)
{
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(scene), 0);
    units_end(scene);
}

/* ---------------------------------------------------------------------------------------------------------------- which grade is made */

/* The pool needs enough for large pages: whatever its other streams need. */
CASE(a_large_pool_makes_large_pages_for_each_stream)
{
    struct scene scene;
    open_with(&scene, "");
    struct held large = take(&scene, 8, 140 * MIB, A);
    EXPECT_EQ(in_pages(&scene, GRADE_LARGE), 9 * LARGE);
    struct held little = take(&scene, 8, 3 * MIB, B);
    EXPECT_EQ(in_pages(&scene, GRADE_LARGE), 10 * LARGE);
    give(&scene, &little);
    give(&scene, &large);
    empty(&scene);
}

/* No page is larger than what is missing. */
CASE(under_shortage_small_pages_are_made)
{
    struct scene scene;
    open_with(&scene, "limit:28MiB");
    struct held large = take(&scene, WIDE, LARGE, A), held = take(&scene, WIDE, 10 * MIB, A);
    EXPECT_EQ(reserved(&scene), LARGE + 5 * SMALL);
    give(&scene, &held);
    give(&scene, &large);
    empty(&scene);
}

CASE(under_shortage_of_the_device_small_pages_are_made)
{
    struct scene scene;
    struct sim_shape shape = scene_card(28 * MIB);
    cenote_options options = units_options(LARGE, "");
    scene_open_with(&scene, &shape, &options);
    struct held large = take(&scene, WIDE, LARGE, A), held = take(&scene, WIDE, 10 * MIB, B);
    EXPECT_EQ(reserved(&scene), LARGE + 5 * SMALL);
    give(&scene, &held);
    give(&scene, &large);
    empty(&scene);
}

/* On a card of `capacity`: a block on a unit, and behind it units of which B has taken the pages of so many. */
static void open_between(struct scene *scene, size_t capacity, int units, int taken, struct held held[2])
{
    struct sim_shape shape = scene_card(capacity);
    cenote_options options = units_options(LARGE, "");
    scene_open_with(scene, &shape, &options);
    held[0] = take(scene, WIDE, LARGE, A);
    struct held free = take(scene, WIDE, (size_t)units * LARGE, A);
    give(scene, &free);
    held[1] = take(scene, WIDE, (size_t)taken * LARGE, B);
    EXPECT_EQ(reserved(scene), (size_t)(1 + units) * LARGE);
}

/* The place begins in a unit whose page another block has, and takes 10 MiB of it: more than that is left, and less than a large page. */
CASE(under_shortage_a_unit_is_split_of_which_the_place_takes_a_part)
{
    struct scene scene;
    struct held held[2];
    open_between(&scene, 42 * MIB, 1, 1, held);
    struct held last = take(&scene, WIDE, 10 * MIB, A);
    EXPECT_EQ(last.at, held[0].at + LARGE);
    EXPECT_EQ(reserved(&scene), 42 * MIB);
    held_expect(&last, last.stream);
    give(&scene, &last);
    give(&scene, &held[0]);
    give(&scene, &held[1]);
    empty(&scene);
}

/* The place lacks the page of its first unit, and takes 4 MiB of the second one: the free page there serves the first, and small ones come. */
CASE(under_shortage_a_page_of_which_the_place_takes_a_part_serves_another_unit)
{
    struct scene scene;
    struct held held[2];
    open_between(&scene, 58 * MIB, 2, 1, held);
    struct held last = take(&scene, WIDE, LARGE + FEW, A);
    EXPECT_EQ(last.at, held[0].at + LARGE);
    EXPECT_EQ(reserved(&scene), 3 * LARGE + FEW);
    held_expect(&last, last.stream);
    give(&scene, &last);
    give(&scene, &held[0]);
    give(&scene, &held[1]);
    empty(&scene);
}

/* ------------------------------------------------------------------------------------------------------- what is free is used first */

static void turns(enum grade from, enum grade to, const char *conf)
{
    struct scene scene;
    open_with(&scene, conf);
    struct held stays = take_of(&scene, GRADE_LARGE, LARGE, A), free = take_of(&scene, from, 3 * LARGE, C);
    leave_free(&scene, &free);
    uint64_t before = created(&scene);
    EXPECT_EQ(before, 1 + 3 * LARGE / bytes_of[from]);
    struct held held = take_of(&scene, to, 3 * LARGE, A);
    EXPECT_EQ(created(&scene), before);
    EXPECT_EQ(reserved(&scene), 4 * LARGE);
    give(&scene, &held);
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* the units stay as they are, with nothing mapped */
    held = take_of(&scene, to, 3 * LARGE, A);
    EXPECT_EQ(in_pages(&scene, to), (to == GRADE_LARGE ? 4 : 3) * LARGE);
    give(&scene, &held);
    give(&scene, &stays);
    empty(&scene);
}

CASE(free_pages_of_each_grade_serve_for_each_other)
{
    for (enum grade from = 0; from < GRADES; from++)
        for (enum grade to = 0; to < GRADES; to++)
            turns(from, to, "");
}

CASE(they_do_where_pages_are_mapped_once) /* aliases:off */
{
    for (enum grade from = 0; from < GRADES; from++)
        for (enum grade to = 0; to < GRADES; to++)
            turns(from, to, "aliases:off");
}

CASE(they_do_where_streams_wait_rather_than_the_pool_grow) /* order:2 */
{
    for (enum grade from = 0; from < GRADES; from++)
        for (enum grade to = 0; to < GRADES; to++)
            turns(from, to, "order:2");
}

/* Each time in the same units, behind a block that keeps the region. */
CASE(units_change_there_and_back)
{
    struct scene scene;
    open_with(&scene, "");
    struct held stays = take_of(&scene, GRADE_LARGE, LARGE, A);
    for (enum grade i = 0; i < 6; i++) {
        enum grade grade = i % GRADES;
        struct held held = take_of(&scene, grade, 2 * LARGE + FEW, A);
        EXPECT_EQ(held.at, stays.at + LARGE);
        EXPECT_EQ(in_pages(&scene, grade), grade == GRADE_LARGE ? 3 * LARGE : 2 * LARGE + FEW);
        give(&scene, &held);
        DONE(cenote_pool_trim(scene.pool, 0, 0));
        EXPECT_EQ(reserved(&scene), LARGE);
        DONE(cenote_pool_check(scene.pool));
    }
    give(&scene, &stays);
    empty(&scene);
}

/* A place behind a block: the rest of a split unit, a joined one, and some slots. */
CASE(a_place_takes_free_pages_of_both_sizes)
{
    struct scene scene;
    open_with(&scene, "");
    struct held beside = take_of(&scene, GRADE_SMALL, 5 * SMALL, A), large = take_of(&scene, GRADE_LARGE, LARGE, C);
    struct held small = take_of(&scene, GRADE_SMALL, 3 * SMALL, B);
    uint64_t before = created(&scene);
    EXPECT_EQ(before, 5 + 1 + 3);
    give(&scene, &large);
    leave_free(&scene, &small);
    struct held held = take_of(&scene, GRADE_SMALL, 3 * SMALL + LARGE, A);
    EXPECT_EQ(held.at, beside.at + beside.bytes);
    EXPECT_EQ(created(&scene), before);
    held_expect(&held, held.stream);
    give(&scene, &held);
    give(&scene, &beside);
    empty(&scene);
}

/*
 * The place takes one slot of the second unit, which a large page serves as a whole. The first unit lacks as many small pages as before: too many, so
 * that it takes the other large page.
 */
CASE(a_unit_counts_for_what_the_place_lacks_in_it)
{
    struct scene scene;
    open_with(&scene, "");
    struct held stays = take_of(&scene, GRADE_LARGE, LARGE, A), units = take_of(&scene, GRADE_SMALL, 2 * LARGE, A);
    give(&scene, &units);
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* two units of small slots */
    struct held large = take_of(&scene, GRADE_LARGE, 2 * LARGE, B), small = take_of(&scene, GRADE_SMALL, 3 * SMALL, C);
    give(&scene, &large);
    leave_free(&scene, &small);
    uint64_t before = created(&scene);
    struct held held = take_of(&scene, GRADE_SMALL, LARGE + SMALL, A);
    EXPECT_EQ(held.at, units.at);
    EXPECT_EQ(created(&scene), before);
    give(&scene, &held);
    give(&scene, &stays);
    empty(&scene);
}

/* Of two units that could take the one large page, one has pages in place that the block can use: it keeps them. */
CASE(an_idle_unit_turns_before_one_loses_its_aliases)
{
    struct scene scene;
    open_with(&scene, "");
    struct held stays = take_of(&scene, GRADE_LARGE, LARGE, A), first = take_of(&scene, GRADE_SMALL, LARGE, A);
    struct held second = take_of(&scene, GRADE_SMALL, LARGE, A), small = take_of(&scene, GRADE_SMALL, 4 * SMALL, C);
    struct held large = take_of(&scene, GRADE_LARGE, LARGE, C);
    give(&scene, &first);
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* idle */
    give(&scene, &second);
    struct held elsewhere = take_of(&scene, GRADE_SMALL, 4 * SMALL, B); /* half of the second one's pages */
    give(&scene, &small);
    leave_free(&scene, &large);
    uint64_t before = created(&scene), unmapped = scene_stats(scene.pool).pages_unmapped;
    struct held held = take_of(&scene, GRADE_SMALL, 2 * LARGE, A);
    EXPECT_EQ(held.at, first.at);
    EXPECT_EQ(created(&scene), before);
    EXPECT_EQ(scene_stats(scene.pool).pages_unmapped, unmapped + 4);
    give(&scene, &held);
    give(&scene, &elsewhere);
    give(&scene, &stays);
    empty(&scene);
}

/* And a large unit of which the place takes two slots asks for two small pages, not for a unit's. */
CASE(a_large_unit_is_split_for_as_many_pages_as_the_place_lacks)
{
    struct scene scene;
    open_with(&scene, "");
    struct held stays = take_of(&scene, GRADE_LARGE, LARGE, A), large = take_of(&scene, GRADE_LARGE, LARGE, A);
    give(&scene, &large);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    struct held small = take_of(&scene, GRADE_SMALL, 2 * SMALL, C);
    leave_free(&scene, &small);
    struct held held = take_of(&scene, GRADE_LARGE, 2 * SMALL, A);
    EXPECT_EQ(held.at, stays.at + LARGE);
    EXPECT_EQ(reserved(&scene), LARGE + 2 * SMALL);
    give(&scene, &held);
    give(&scene, &stays);
    empty(&scene);
}

/* Small pages that are free count before they are mapped, whatever grade would be made. */
CASE(the_most_mappings_hold_where_small_pages_are_free)
{
    struct scene scene;
    struct sim_books books;
    open_with(&scene, "mappings:40");
    struct held small = take_of(&scene, GRADE_SMALL, 2 * LARGE, B);
    leave_free(&scene, &small);
    struct held other = take_of(&scene, GRADE_LARGE, 2 * LARGE, C);
    leave_free(&scene, &other);
    struct held held = take_of(&scene, GRADE_LARGE, 2 * LARGE, A);
    sim_books(&books);
    EXPECT(books.mappings <= 40);
    EXPECT_EQ(reserved(&scene), 2 * LARGE);
    give(&scene, &held);
    empty(&scene);
}

/* ------------------------------------------------------------------------------------------------------- imported, pinned, put back */

/* Blocks that begin and end anywhere, on pages of both sizes. */
CASE(blocks_on_both_sizes_are_imported)
{
    static const struct {
        enum grade grade;
        size_t bytes;
    } blocks[] = {{GRADE_SMALL, 5 * MIB}, {GRADE_LARGE, 10 * MIB + 512}, {GRADE_SMALL, 20 * MIB}, {GRADE_LARGE, 9 * MIB}, {GRADE_SMALL, 3 * MIB},
                  {GRADE_LARGE, 33 * MIB}, {GRADE_SMALL, 4 * MIB}};
    enum { COUNT = sizeof blocks / sizeof *blocks };
    struct pair p;
    struct held held[COUNT];
    struct sim_shape shape = shared_card();
    cenote_options options = units_options(LARGE, "");
    scene_open_with(&p.scene, &shape, &options);
    other_start(&p.other, shape_text, CENOTE_VMM);
    for (int i = 0; i < COUNT; i++)
        held[i] = take_of(&p.scene, blocks[i].grade, blocks[i].bytes, A);
    for (enum grade grade = 0; grade < GRADES; grade++)
        EXPECT(in_pages(&p.scene, grade));
    for (int i = 0; i < COUNT; i++)
        import_there(&p.other, &held[i]);
    units_grade_pages = GRADE_PAGES;
    close_pair(&p);
}

/* A block on pages of both sizes: 5 MiB behind, the rest of its unit and one slot of the unit after the next. */
static struct held take_mixed(struct scene *scene, struct held *beside)
{
    *beside = take_of(scene, GRADE_SMALL, 5 * MIB, A);
    struct held rest = take_of(scene, GRADE_SMALL, 11 * MIB, A);
    give(scene, &rest);
    struct held held = take_of(scene, GRADE_LARGE, 11 * MIB + LARGE + SMALL, A);
    EXPECT_EQ(held.at, beside->at + beside->bytes);
    for (enum grade grade = 0; grade < GRADES; grade++)
        EXPECT(in_pages(scene, grade));
    return held;
}

CASE(pins_hold_pages_of_both_sizes)
{
    struct scene scene;
    struct held beside, mixed;
    open_with(&scene, "");
    mixed = take_mixed(&scene, &beside);
    uint64_t before = reserved(&scene);
    DONE(cenote_pin(mixed.at, mixed.bytes));
    give(&scene, &mixed);
    give(&scene, &beside);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), before - 2 * SMALL); /* what lay beside it alone */
    held_expect(&mixed, mixed.stream);
    DONE(cenote_unpin(mixed.at, mixed.bytes));
    empty(&scene);
}

/* Its pages went to others, and what idle units have become since does not matter. */
CASE(a_block_is_put_back_where_it_lay)
{
    struct scene scene;
    struct held beside, mixed;
    open_with(&scene, "");
    mixed = take_mixed(&scene, &beside);
    for (uint32_t grade_pages = 0; grade_pages <= SPLIT; grade_pages += SPLIT) {
        give(&scene, &mixed);
        DONE(cenote_pool_trim(scene.pool, 0, 0));
        struct held other = take(&scene, grade_pages, 3 * LARGE, B);
        EXPECT_EQ(alloc_at(scene.pool, NULL, mixed.at, mixed.bytes, (cenote_stream)scene.stream[B]), CENOTE_INVALID);
        DONE(alloc_at(scene.pool, NULL, mixed.at, mixed.bytes, (cenote_stream)scene.stream[A]));
        mixed = held_of(mixed.at, mixed.bytes, scene.stream[A]);
        held_expect(&mixed, mixed.stream);
        give(&scene, &other);
        scene_judge(&scene);
    }
    give(&scene, &mixed);
    give(&scene, &beside);
    empty(&scene);
}

/* Kernels of another device come to what was mapped before the grant, and to what is mapped after it. */
CASE(a_granted_device_sees_pages_of_both_sizes)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = units_options(LARGE, "");
    struct held beside, mixed;
    CUcontext context;
    CUstream stream;
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    mixed = take_mixed(&scene, &beside);
    DONE(cenote_pool_grant(scene.pool, 1));
    struct held later = take_of(&scene, GRADE_LARGE, 2 * LARGE, B);
    DONE(cuCtxSynchronize());
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    held_expect(&mixed, stream);
    held_expect(&later, stream);
    DONE(cuStreamSynchronize(stream));
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxPopCurrent(NULL));
    give(&scene, &later);
    give(&scene, &mixed);
    give(&scene, &beside);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    scene_destroy_pool(&scene);
    DONE(cuDevicePrimaryCtxRelease(1));
    units_end(&scene);
}

/* The picture shows as much as is reserved, wherever pages are mapped: aliases of both sizes, too. */
CASE(the_picture_shows_pages_of_both_sizes)
{
    static cenote_piece pieces[256];
    struct scene scene;
    struct held beside, mixed;
    size_t count;
    open_with(&scene, "");
    mixed = take_mixed(&scene, &beside);
    for (int i = 0; i < 2; i++) {
        uint64_t shown = 0;
        DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 256, &count));
        for (size_t at = 0; at < count; at++)
            shown += pieces[at].size;
        EXPECT_EQ(shown, reserved(&scene));
        if (i)
            break;
        give(&scene, &mixed);
        mixed = take_of(&scene, GRADE_SMALL, 3 * LARGE, B);
    }
    give(&scene, &mixed);
    give(&scene, &beside);
    empty(&scene);
}

/* ------------------------------------------------------------------------------------------------------------ blocks that share no page */

/* Under shortage others go to any hole. A hole beside a block on a large page is none for a block that shares no page, though it is large enough. */
CASE(a_block_that_shares_no_page_goes_to_no_hole_beside_others)
{
    struct scene scene;
    cenote_group *group;
    struct held held[4];
    void *at = NULL;
    open_with(&scene, "limit:16MiB");
    DONE(cenote_group_create(scene.pool, "apart", 0, NULL, &group));
    units_grade_pages = WIDE;
    for (int i = 0; i < 4; i++) {
        DONE(group_alloc(group, FEW, 512, (cenote_stream)scene.stream[A], &at));
        held[i] = held_of(at, FEW, scene.stream[A]);
    }
    EXPECT_EQ(in_pages(&scene, GRADE_LARGE), LARGE);
    give(&scene, &held[1]);
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_WHOLE));
    EXPECT_EQ(group_alloc(group, SMALL, 512, (cenote_stream)scene.stream[A], &at), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_group_set_flags(group, 0));
    DONE(group_alloc(group, SMALL, 512, (cenote_stream)scene.stream[A], &at));
    EXPECT_EQ(at, held[1].at);
    DONE(cenote_free(at));
    for (int i = 0; i < 4; i++)
        if (i != 1)
            give(&scene, &held[i]);
    DONE(cenote_group_destroy(group));
    empty(&scene);
}

/* As long as a block is small it covers small pages; a larger one whole units, and in a private group, which has one heap, each block does. */
CASE(blocks_that_share_no_page_cover_small_ones_as_long_as_they_are_small)
{
    static const struct {
        unsigned flags;
        size_t bytes, covers;
    } blocks[] = {{0, 100, SMALL}, {0, 5 * MIB, 6 * MIB}, {0, 64 * SMALL, 64 * SMALL}, {0, 64 * SMALL + 1, 9 * LARGE},
                  {CENOTE_GROUP_PRIVATE, 100, LARGE}, {CENOTE_GROUP_PRIVATE, 17 * MIB, 2 * LARGE}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        struct scene scene;
        cenote_group *group;
        void *at[2];
        open_with(&scene, "");
        DONE(cenote_group_create(scene.pool, "apart", blocks[i].flags | CENOTE_GROUP_WHOLE, NULL, &group));
        DONE(group_alloc(group, blocks[i].bytes, 512, (cenote_stream)scene.stream[A], &at[0]));
        EXPECT_EQ(reserved(&scene), blocks[i].covers);
        EXPECT_EQ(scene_stats(scene.pool).allocated.current, blocks[i].bytes < 512 ? 512 : (blocks[i].bytes + 511) / 512 * 512);
        DONE(cenote_free(at[0]));
        DONE(cuCtxSynchronize());
        DONE(alloc_at(scene.pool, group, at[0], blocks[i].bytes, (cenote_stream)scene.stream[A]));
        if (blocks[i].bytes < LARGE) {
            DONE(group_alloc(group, blocks[i].bytes, 512, (cenote_stream)scene.stream[A], &at[1]));
            EXPECT_EQ(reserved(&scene), 2 * blocks[i].covers);
            DONE(cenote_free(at[1]));
        }
        DONE(cenote_free(at[0]));
        DONE(cenote_group_destroy(group));
        empty(&scene);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("grades", argc > 1 ? argv[1] : "", NULL, scene_after);
}
