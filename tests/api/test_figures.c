/*
 * test_figures.c: a driver whose figure of what is free is not what it gives. A request is served all the same if the memory is there: rule 12 and
 * section 6 of docs/design.md. Not: what is added up of the pool's own memory (test_sums.c).
 */
#include "driver/device.h"
#include "tests/api/units.h"

/* A driver whose figure of what is free is not what it gives. */
static struct {
    const struct driver *real;
    struct driver        liar;
    struct device       *device;
    int64_t              more;
} figure;

static CUresult say_other(size_t *left, size_t *total)
{
    CUresult result = figure.real->cuMemGetInfo(left, total);
    int64_t says = (int64_t)*left + figure.more;
    *left = says < 0 ? 0 : (size_t)says;
    return result;
}

static void begin_lying(int64_t more)
{
    int error;
    figure.device = device_open(0, &error);
    REQUIRE(figure.device);
    figure.more = more;
    figure.real = figure.device->driver;
    figure.liar = *figure.real;
    figure.liar.cuMemGetInfo = say_other;
    figure.device->driver = &figure.liar;
}

static void end_lying(void)
{
    figure.device->driver = figure.real;
    device_close(figure.device);
}

static atomic_int pages_refused;

/* Gives large pieces, and no page. */
static CUresult refuse_pages(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (bytes > 2 * MIB)
        return figure.real->cuMemCreate(handle, bytes, prop, flags);
    REQUIRE(atomic_fetch_add(&pages_refused, 1) < 1000); /* the climb would go on for ever */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* It says that one page is left, gives all that is missing in one piece, and refuses each page: that is out of memory, and not asked for ever. */
CASE(a_driver_that_gives_pieces_and_no_pages)
{
    struct scene scene;
    void *block = NULL, *none = NULL;
    scene_open(&scene, 256 * MIB);
    REQUIRE(!cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &block));
    begin_lying(-(int64_t)(256 - 100 - 4) * (int64_t)MIB);
    figure.liar.cuMemCreate = refuse_pages;
    EXPECT_EQ(cenote_alloc(scene.pool, 40 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT(pages_refused > 0);
    end_lying();
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* Some systems have more than they say. A request that was refused in one piece is tried again once less is missing, or more is left. */
CASE(a_driver_that_says_less_than_it_has)
{
    struct scene scene;
    void *block = NULL, *more = NULL, *again = NULL;
    scene_open(&scene, 256 * MIB);
    begin_lying(-64 * (int64_t)MIB);
    REQUIRE(!cenote_alloc(scene.pool, 40 * MIB, scene.stream[A], &more));
    REQUIRE(!cenote_alloc(scene.pool, 180 * MIB, scene.stream[B], &block));
    DONE(sim_launch_wait(scene.stream[B], MSEC));
    DONE(cenote_free(block));
    DONE(cenote_free(more)); /* in flight, as the other: nothing is complete when the climb begins */
    EXPECT_EQ(cenote_alloc(scene.pool, 240 * MIB, scene.stream[A], &again), CENOTE_OK);
    DONE(cenote_free(again));
    end_lying();
    scene_close(&scene);
}

static void open_with_large_pages(struct scene *scene, size_t capacity, int64_t more, const char *conf)
{
    struct sim_shape shape = scene_card(capacity);
    cenote_options options = units_options(16 * MIB, conf);
    scene_open_with(scene, &shape, &options);
    begin_lying(more);
}

/* The large page went back to make room for a small one, and the driver still says that it has nothing. */
CASE(a_driver_that_never_says_that_it_has_something)
{
    struct scene scene;
    void *block = NULL;
    open_with_large_pages(&scene, 17 * MIB, -64 * (int64_t)MIB, "order:0");
    struct held large = take(&scene, WIDE, 16 * MIB, A);
    DONE(sim_launch_wait(scene.stream[A], MSEC));
    held_give(&large); /* in flight: at first no page goes, and the driver refuses a small one */
    EXPECT_EQ(cenote_alloc(scene.pool, 256 * KIB, scene.stream[B], &block), CENOTE_OK);
    DONE(cenote_free(block));
    end_lying();
    units_end(&scene);
}

/* The same, and what went back was another pool's. */
CASE(another_pool_gives_back_and_the_driver_says_that_it_has_nothing)
{
    struct scene scene;
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    void *block = NULL, *small = NULL;
    open_with_large_pages(&scene, 17 * MIB, -64 * (int64_t)MIB, "");
    DONE(cenote_pool_create(0, &options, &other));
    REQUIRE(!cenote_alloc(other, 16 * MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    EXPECT_EQ(cenote_alloc(scene.pool, 256 * KIB, scene.stream[B], &small), CENOTE_OK);
    DONE(cenote_free(small));
    DONE(cenote_pool_destroy(other));
    end_lying();
    units_end(&scene);
}

/* The third large page is refused. The two that came are too much for what is left, and one goes for small ones. */
CASE(a_driver_that_says_more_than_it_has)
{
    struct scene scene;
    open_with_large_pages(&scene, 46 * MIB, 2 * MIB, "");
    struct held held = take(&scene, WIDE, 36 * MIB, A);
    EXPECT(reserved(&scene) <= 46 * MIB);
    give(&scene, &held);
    end_lying();
    units_end(&scene);
}

/*
 * The place lacks the page of a large unit, of which it takes 10 MiB. What is missing the driver gives in one piece, but no large page: that is found
 * after a wait. What it gave it did not refuse, and it is asked for small pages.
 */
CASE(a_driver_that_gives_what_is_missing_but_no_large_page)
{
    struct scene scene;
    open_with_large_pages(&scene, 44 * MIB, -64 * (int64_t)MIB, "order:0");
    struct held first = take(&scene, WIDE, 16 * MIB, A), gone = take(&scene, WIDE, 16 * MIB, A);
    give(&scene, &gone);
    struct held other = take(&scene, WIDE, 16 * MIB, B), small = take(&scene, SPLIT, 256 * KIB, C);
    DONE(sim_launch_wait(scene.stream[C], MSEC));
    held_give(&small);
    struct held last = take(&scene, WIDE, 10 * MIB, A);
    EXPECT(reserved(&scene) <= 44 * MIB);
    give(&scene, &last);
    give(&scene, &first);
    give(&scene, &other);
    end_lying();
    units_end(&scene);
}

/* What is missing it gives in one piece; units would take a little more, which is found at the last attempt, when large pages are free. */
CASE(a_driver_that_gives_what_is_missing_and_no_more)
{
    struct scene scene;
    struct sim_shape shape = scene_card(134 * MIB);
    cenote_options options = units_options(2 * MIB, "order:0");
    cenote_group *group = NULL;
    void *first = NULL, *block = NULL, *whole = NULL, *small = NULL, *last = NULL;
    shape.granularity = 64 * KIB;
    options.harvest_budget = 0;
    units_grade_pages = 3;
    scene_open_with(&scene, &shape, &options);
    begin_lying(-16 * (int64_t)MIB);
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group));
    REQUIRE(!cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &first));
    REQUIRE(!cenote_alloc(scene.pool, 20886224, scene.stream[A], &block));
    DONE(cenote_free(first));
    REQUIRE(!group_alloc(group, 28 * MIB, 512, scene.stream[A], &whole));
    REQUIRE(!group_alloc(group, 1, 512, scene.stream[A], &small));
    EXPECT_EQ(cenote_alloc(scene.pool, 343 * 256 * KIB, scene.stream[A], &last), CENOTE_OK); /* all that is to be had */
    DONE(cenote_free(last));
    DONE(cenote_free(small));
    DONE(cenote_free(whole));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    end_lying();
    units_end(&scene);
}

SCENES_MAIN("api: figures")
