/*
 * test_line.c: a block goes to a place below the line of its heap that lacks a page, rather than to a complete one far beyond it; but not while a
 * capture is open, and not if memory is short.
 *
 * Two blocks of ten pages are freed, with walls behind them. A block of eleven fits in neither hole: it comes to lie behind all that was ever live,
 * on the pages of the first hole and one of the second. So the second hole lacks one page when that block is freed, and the place there lacks none.
 */
#include "tests/api/scene.h"

#define CARD  (4 * GIB)
#define TEN   (20 * MIB)

struct holes {
    struct held wall[2];
    char       *near, *far;
};

static void open_holes(struct scene *scene, struct holes *holes, uint64_t limit, bool pinned)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct held block[2], far;
    options.limit = limit;
    options.aliases = CENOTE_ALIASES_OFF; /* else the holes would keep their pages, too */
    scene_open_with(scene, &shape, &options);
    for (int i = 0; i < 2; i++) {
        REQUIRE(held_take(&block[i], scene->pool, TEN, scene->stream[A]));
        REQUIRE(held_take(&holes->wall[i], scene->pool, 2 * MIB, scene->stream[A]));
    }
    holes->near = block[1].at;
    held_give(&block[0]);
    held_give(&block[1]);
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&far, scene->pool, TEN + 2 * MIB, scene->stream[A]));
    holes->far = far.at;
    EXPECT(far.at > holes->wall[1].at);
    if (pinned)
        DONE(cenote_pin(far.at, far.bytes));
    held_give(&far);
    DONE(cuCtxSynchronize());
    EXPECT_EQ(scene_stats(scene->pool).reserved.current, 2 * (TEN + 2 * MIB));
}

static void close_holes(struct scene *scene, struct holes *holes)
{
    held_give(&holes->wall[0]);
    held_give(&holes->wall[1]);
    scene_close(scene);
}

CASE(a_page_moves_below_the_line)
{
    struct scene scene;
    struct holes holes;
    struct held ten;
    open_holes(&scene, &holes, 0, false);
    uint64_t moved = scene_stats(scene.pool).pages_harvested;
    REQUIRE(held_take(&ten, scene.pool, TEN, scene.stream[A]));
    EXPECT(ten.at == holes.near);
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, moved + 1);
    held_give(&ten);
    close_holes(&scene, &holes);
}

/* The driver refuses a page of a block that would be live beside more than ever was: the line does not rise for it. */
CASE(what_the_driver_refused_was_not_needed)
{
    struct scene scene;
    struct holes holes;
    struct held ten, none;
    CUdeviceptr others;
    open_holes(&scene, &holes, 0, false);
    DONE(cuMemAlloc(&others, CARD - scene_stats(scene.pool).reserved.current - 8 * MIB));
    EXPECT(!held_take(&none, scene.pool, 3 * TEN, scene.stream[A]));
    DONE(cuMemFree(others));
    REQUIRE(held_take(&ten, scene.pool, TEN, scene.stream[A]));
    EXPECT(ten.at == holes.near);
    held_give(&ten);
    close_holes(&scene, &holes);
}

CASE(while_a_capture_is_open_no_page_moves_for_it)
{
    struct scene scene;
    struct holes holes;
    struct held ten;
    open_holes(&scene, &holes, 0, false);
    uint64_t moved = scene_stats(scene.pool).pages_harvested;
    DONE(cenote_capture_begin(scene.pool, NULL, (cenote_stream)scene.stream[B]));
    REQUIRE(held_take(&ten, scene.pool, TEN, scene.stream[A]));
    EXPECT(ten.at == holes.far);
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, moved);
    DONE(cenote_capture_end(scene.pool, NULL, (cenote_stream)scene.stream[B]));
    held_give(&ten);
    close_holes(&scene, &holes);
}

/* The pages beyond the line are pinned, and the pool may create none. */
CASE(if_no_page_can_be_had_a_complete_place_serves_wherever_it_is)
{
    struct scene scene;
    struct holes holes;
    struct held ten;
    open_holes(&scene, &holes, 2 * (TEN + 2 * MIB), true);
    REQUIRE(held_take(&ten, scene.pool, TEN, scene.stream[A]));
    EXPECT(ten.at == holes.far);
    DONE(cenote_unpin(holes.far, TEN + 2 * MIB));
    held_give(&ten);
    close_holes(&scene, &holes);
}

static struct held group_take(struct scene *scene, cenote_group *group, uint64_t bytes)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, 512, (cenote_stream)scene->stream[A], &block));
    return held_of(block, bytes, scene->stream[A]);
}

/* As the last, but the holes are those of a group that lends, and a block of no group asks for memory. */
CASE(a_group_lends_a_complete_place_wherever_it_is)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_group *group;
    struct held block[2], wall[2], far, ten;
    options.limit = 2 * (TEN + 2 * MIB);
    options.aliases = CENOTE_ALIASES_OFF;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "lender", CENOTE_GROUP_LEND, NULL, &group));
    for (int i = 0; i < 2; i++) {
        block[i] = group_take(&scene, group, TEN);
        wall[i] = group_take(&scene, group, 2 * MIB);
    }
    held_give(&block[0]);
    held_give(&block[1]);
    DONE(cuCtxSynchronize());
    far = group_take(&scene, group, TEN + 2 * MIB);
    char *at = far.at;
    DONE(cenote_pin(at, far.bytes));
    held_give(&far);
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&ten, scene.pool, TEN, scene.stream[A]));
    EXPECT(ten.at == at);
    DONE(cenote_unpin(at, TEN + 2 * MIB));
    held_give(&ten);
    held_give(&wall[0]);
    held_give(&wall[1]);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

SCENES_MAIN("api: line")
