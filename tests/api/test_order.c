/*
 * test_order.c: memory is short, and what is free belongs to a stream that is still at work: the stream that asks waits on the device, the host
 * does not (rule 1 of docs/design.md). And where that is not possible: there the host waits, as long as the device needs.
 *
 * The clock of the card stands still unless something synchronises, so the time that has passed is the time that the host waited.
 */
#include "driver/driver.h"
#include "pool/mapping/units.h"
#include "tests/api/scene.h"

#define CARD  (256 * MIB)
#define PIECE (100 * MIB)           /* one fits beside what is live, two do not */
#define LONG  (10 * MSEC)           /* held_linger */
#define HOUR  (3600 * 1000 * MSEC)

static struct scene scene;
static struct held  live;

static void open_with(const cenote_options *options, int devices)
{
    struct sim_shape shape = scene_card(CARD);
    shape.devices = devices;
    scene_open_with(&scene, &shape, options);
    REQUIRE(held_take(&live, scene.pool, 120 * MIB, scene.stream[C]));
}

static void open_scene(void)
{
    cenote_options options = scene_options();
    open_with(&options, 1);
}

static void close_scene(void)
{
    held_give(&live);
    scene_close(&scene);
}

/* A block that the stream is at work with for a long time is freed, and most of the free memory is its. */
static void leave_in_flight(CUstream stream, size_t bytes)
{
    struct held held;
    REQUIRE(held_take(&held, scene.pool, bytes, stream));
    held_linger(&held, stream);
    DONE(cenote_free(held.at));
}

static uint64_t orders(void)
{
    return scene_stats(scene.pool).orders;
}

/* The next request was served without the host, by so many waits on the device. */
static void expect_orders(uint64_t count, uint64_t before)
{
    EXPECT_EQ(orders() - before, count);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    EXPECT_EQ(sim_now(), 0);
}

CASE(the_stream_waits_and_the_host_does_not)
{
    struct held wanted;
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    REQUIRE(held_take(&wanted, scene.pool, PIECE, scene.stream[A]));
    expect_orders(1, 0);
    DONE(cenote_pool_check(scene.pool));
    held_give(&wanted);
    close_scene();
}

/* What is in flight are pages of 8 MiB. Under shortage places get small pages, but not where that would make the host wait. */
CASE(large_pages_in_flight_serve_as_they_are)
{
    struct held wanted;
    cenote_options options = scene_options();
    options.page_mib = 8;
    units_grade_pages = 0;
    open_with(&options, 1);
    leave_in_flight(scene.stream[B], PIECE);
    units_grade_pages = GRADE_PAGES;
    REQUIRE(held_take(&wanted, scene.pool, PIECE, scene.stream[A]));
    expect_orders(1, 0);
    DONE(cenote_pool_check(scene.pool));
    held_give(&wanted);
    close_scene();
}

/* The default streams have handles, too. */
CASE(default_streams_wait)
{
    for (int i = 0; i < 2; i++) {
        struct held wanted;
        open_scene();
        leave_in_flight(scene.stream[B], PIECE);
        REQUIRE(held_take(&wanted, scene.pool, PIECE, i ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY));
        expect_orders(1, 0);
        held_give(&wanted);
        close_scene();
    }
}

/* It goes to and fro, from one stream to the other: from the second round on its pages lie where they are wanted. */
CASE(memory_goes_round)
{
    struct held wanted;
    cenote_stats before = {0};
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    for (int i = 0; i < 8; i++) {
        CUstream stream = scene.stream[i % 2 ? B : A];
        REQUIRE(held_take(&wanted, scene.pool, PIECE, stream));
        held_linger(&wanted, stream);
        held_give(&wanted);
        if (i == 1)
            before = scene_stats(scene.pool);
    }
    cenote_stats after = scene_stats(scene.pool);
    expect_orders(8, 0);
    EXPECT_EQ(after.pages_harvested, before.pages_harvested);
    EXPECT_EQ(after.pages_unmapped, before.pages_unmapped);
    EXPECT_EQ(after.address_used, before.address_used);
    close_scene();
}

/* What was freed before the work that a stream waits for needs no other wait. */
CASE(one_wait_serves_for_all_that_it_covers)
{
    struct held one, two;
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    REQUIRE(held_take(&one, scene.pool, PIECE / 2, scene.stream[A]));
    uint64_t before = orders();
    REQUIRE(held_take(&two, scene.pool, PIECE / 2, scene.stream[A]));
    expect_orders(1, 0);
    EXPECT_EQ(before, 1);
    held_give(&one);
    held_give(&two);
    close_scene();
}

/* Of two streams that are at work the one is done soon, and its memory is enough: nothing waits for the other. */
CASE(a_stream_waits_for_no_more_than_it_must)
{
    struct held held, wanted;
    open_scene();
    REQUIRE(held_take(&held, scene.pool, PIECE / 2, scene.stream[B]));
    leave_in_flight(scene.stream[A], PIECE / 2);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* a fence */
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    held_give(&held);
    REQUIRE(held_take(&wanted, scene.pool, PIECE / 2, scene.stream[C]));
    expect_orders(1, 0);
    held_give(&wanted);
    DONE(cuStreamSynchronize(scene.stream[C]));
    EXPECT(sim_now() >= LONG && sim_now() < HOUR);
    close_scene();
}

/* The older of two pages is enough, and the driver has the rest: the stream does not wait for the younger. */
CASE(a_stream_waits_for_as_few_pages_as_can_be)
{
    struct held held, wanted;
    open_scene();
    REQUIRE(held_take(&held, scene.pool, 60 * MIB, scene.stream[B]));
    leave_in_flight(scene.stream[A], 40 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* a fence */
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    held_give(&held);
    REQUIRE(held_take(&wanted, scene.pool, 70 * MIB, scene.stream[C])); /* 36 MiB are left to create */
    expect_orders(1, 0);
    held_give(&wanted);
    DONE(cuStreamSynchronize(scene.stream[C]));
    EXPECT(sim_now() >= LONG && sim_now() < HOUR);
    close_scene();
}

/* The arena has free pages of its own, younger than those that are in flight: it takes them first. */
CASE(own_pages_go_before_those_in_flight)
{
    struct held own, post, held, wanted;
    open_scene();
    REQUIRE(held_take(&own, scene.pool, 40 * MIB, scene.stream[A]));
    REQUIRE(held_take(&post, scene.pool, 2 * MIB, scene.stream[A])); /* what is wanted does not fit where `own` was */
    leave_in_flight(scene.stream[B], 40 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* a fence */
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[C]));
    DONE(sim_launch_wait(scene.stream[C], HOUR));
    held_give(&held);
    held_give(&own);
    REQUIRE(held_take(&wanted, scene.pool, 80 * MIB, scene.stream[A]));
    expect_orders(1, 0);
    held_give(&wanted);
    held_give(&post);
    DONE(cuStreamSynchronize(scene.stream[A]));
    EXPECT(sim_now() >= LONG && sim_now() < HOUR);
    close_scene();
}

/* The program frees nothing when it is asked, and allocates itself, on a stream of its own: that call names another stream, and ends. */
static int allocates(cenote_pool *pool, size_t bytes, void *arg)
{
    void *block = NULL;
    (void)bytes;
    DONE(cenote_alloc(pool, 3 * MIB, *(CUstream *)arg, &block));
    DONE(cenote_free(block));
    return 0;
}

CASE(a_call_inside_the_call)
{
    struct held wanted;
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    DONE(cenote_pool_on_shortage(scene.pool, allocates, &scene.stream[C]));
    REQUIRE(held_take(&wanted, scene.pool, PIECE, scene.stream[A]));
    expect_orders(1, 0);
    held_give(&wanted);
    close_scene();
}

/* The stream waits, but then the driver does not map the pages: what was to move is where it was, and the next stream of that arena waits itself. */
CASE(an_arena_that_is_taken_over_is_not_ordered)
{
    struct held wanted;
    void *none;
    CUstream late;
    open_scene();
    REQUIRE(held_take(&wanted, scene.pool, MIB, scene.stream[A]));
    held_give(&wanted);
    leave_in_flight(scene.stream[B], PIECE);
    fault_arm("cuMemMap", 1, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(cenote_alloc(scene.pool, PIECE, scene.stream[A], &none), CENOTE_DRIVER);
    fault_disarm();
    expect_orders(1, 0);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING));
    REQUIRE(held_take(&wanted, scene.pool, PIECE, late));
    expect_orders(2, 0);
    held_give(&wanted);
    DONE(cuStreamSynchronize(late));
    DONE(cuStreamDestroy(late));
    close_scene();
}

/*
 * The same after a fill that failed at a place that had pages already, of another stream and in flight: they did not become the arena's own. The
 * first request that fails makes the stream wait, so that the second finds such a place.
 */
CASE(pages_of_a_block_that_never_was)
{
    struct held held, kept, wanted;
    void *none;
    CUstream late;
    open_scene();
    DONE(cenote_pool_set_limit(scene.pool, 254 * MIB));
    REQUIRE(held_take(&wanted, scene.pool, 50 * MIB, scene.stream[A]));
    held_give(&wanted);
    DONE(cuStreamSynchronize(scene.stream[A]));
    REQUIRE(held_take(&held, scene.pool, 50 * MIB, scene.stream[B])); /* the pages that A had */
    REQUIRE(held_take(&kept, scene.pool, 84 * MIB, scene.stream[B]));
    held_linger(&kept, scene.stream[B]);
    held_linger(&held, scene.stream[B]);
    DONE(cenote_free(kept.at));
    DONE(cenote_free(held.at));
    for (int i = 0; i < 2; i++) {
        fault_arm("cuMemMap", 1, CUDA_ERROR_UNKNOWN, true);
        EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[A], &none), CENOTE_DRIVER);
        fault_disarm();
    }
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_set_limit(scene.pool, 256 * MIB));
    REQUIRE(held_take(&wanted, scene.pool, 50 * MIB, late));
    held_give(&wanted);
    DONE(cuStreamSynchronize(late));
    DONE(cuStreamDestroy(late));
    close_scene();
}

/* ------------------------------------------------------------------------------------------------------------ where the host waits */

/*
 * A kernel runs until the program ends it, and so a fence over the context is never done. What is pending comes back by an event of its own, and is
 * enough: the stream is not made to wait for the fence.
 */
CASE(what_comes_by_itself_is_waited_for)
{
    struct held own, wanted;
    CUstream endless;
    open_scene();
    DONE(cuStreamCreate(&endless, CU_STREAM_NON_BLOCKING));
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    REQUIRE(held_take(&own, scene.pool, 30 * MIB, scene.stream[A]));
    DONE(sim_launch_wait(endless, HOUR));
    leave_in_flight(scene.stream[B], PIECE);
    DONE(cenote_use(own.at, scene.stream[C]));
    order(scene.stream[A], scene.stream[C]);
    held_linger(&own, scene.stream[C]);
    DONE(cenote_free(own.at));
    REQUIRE(held_take(&wanted, scene.pool, 30 * MIB, scene.stream[A]));
    EXPECT_EQ(orders(), 0);
    held_give(&wanted);
    DONE(cuStreamSynchronize(scene.stream[A]));
    EXPECT(sim_now() >= LONG && sim_now() < HOUR);
    DONE(cuStreamSynchronize(endless));
    DONE(cuStreamDestroy(endless));
    close_scene();
}

/* The host waits until the device is done: then the memory is any stream's. */
static void expect_host_waits(cenote_group *group)
{
    struct held wanted = {0};
    void *block = NULL;
    leave_in_flight(scene.stream[B], PIECE);
    uint64_t begin = sim_now();
    REQUIRE_EQ(group ? group_alloc(group, PIECE, 512, scene.stream[A], &block) : cenote_alloc(scene.pool, PIECE, scene.stream[A], &block), 0);
    EXPECT(sim_now() >= begin + LONG);
    EXPECT_EQ(orders(), 0);
    EXPECT_EQ(scene_stats(scene.pool).waits, 1);
    wanted = held_of(block, PIECE, scene.stream[A]);
    held_give(&wanted);
}

/* A graph that has the memory of a private group may be replayed on a stream that waits for nothing. */
CASE(private_groups)
{
    cenote_group *group;
    open_scene();
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    expect_host_waits(group);
    DONE(cenote_group_destroy(group));
    close_scene();
}

static void expect_host_waits_with(const cenote_options *options)
{
    open_with(options, 1);
    expect_host_waits(NULL);
    close_scene();
}

CASE(aliases_off)
{
    cenote_options options = scene_options();
    options.aliases = CENOTE_ALIASES_OFF;
    expect_host_waits_with(&options);
}

CASE(order_0)
{
    cenote_options options = scene_options();
    options.order = 0;
    expect_host_waits_with(&options);
}

/* ------------------------------------------------------------------------------------------------------ order:2, while memory is left */

#define SMALL (30 * MIB)            /* three fit beside what is live */

static void open_eager(cenote_options options)
{
    options.order = 2;
    open_with(&options, 1);
}

/* Memory of one stream is in flight, and another asks for so much, which the device has. Bytes that the pool grew by. */
static uint64_t grown_for(size_t bytes, cenote_group *group, struct held *wanted)
{
    uint64_t before = scene_stats(scene.pool).reserved.current;
    void *block;
    REQUIRE_EQ(group ? group_alloc(group, bytes, 512, scene.stream[A], &block) : cenote_alloc(scene.pool, bytes, scene.stream[A], &block), 0);
    *wanted = held_of(block, bytes, scene.stream[A]);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    EXPECT_EQ(sim_now(), 0);
    return scene_stats(scene.pool).reserved.current - before;
}

CASE(order_2_before_the_pool_grows)
{
    struct held wanted;
    open_eager(scene_options());
    leave_in_flight(scene.stream[B], SMALL);
    EXPECT_EQ(grown_for(SMALL, NULL, &wanted), 0);
    EXPECT_EQ(orders(), 1);
    held_give(&wanted);
    close_scene();
}

CASE(order_1_lets_the_pool_grow)
{
    struct held wanted;
    open_scene();
    leave_in_flight(scene.stream[B], SMALL);
    EXPECT(grown_for(SMALL, NULL, &wanted) >= SMALL);
    EXPECT_EQ(orders(), 0);
    held_give(&wanted);
    close_scene();
}

/* What has never been live at one time is new memory, and only the rest is worth a wait. */
CASE(order_2_takes_what_the_program_needs)
{
    struct held wanted;
    open_eager(scene_options());
    leave_in_flight(scene.stream[B], SMALL);
    uint64_t grown = grown_for(2 * SMALL, NULL, &wanted);
    EXPECT(grown >= SMALL && grown < SMALL + SMALL / 2);
    EXPECT_EQ(orders(), 1);
    held_give(&wanted);
    close_scene();
}

/* A block that is pending is as good as live: memory for the next one is no waste, and no stream waits for it. */
CASE(order_2_and_pending_blocks)
{
    struct held pending, wanted;
    open_eager(scene_options());
    REQUIRE(held_take(&pending, scene.pool, SMALL, scene.stream[B]));
    held_linger(&pending, scene.stream[C]);
    DONE(cenote_use(pending.at, scene.stream[C]));
    DONE(cenote_free(pending.at));
    leave_in_flight(scene.stream[B], SMALL / 2);
    EXPECT(grown_for(SMALL / 3, NULL, &wanted) >= SMALL / 3);
    EXPECT_EQ(orders(), 0);
    held_give(&wanted);
    close_scene();
}

/* Where a stream cannot wait, the pool grows, and the host does not wait for what is in flight. */
CASE(order_2_where_the_stream_cannot_wait)
{
    cenote_group *group;
    struct held wanted;
    open_eager(scene_options());
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    leave_in_flight(scene.stream[B], SMALL);
    EXPECT(grown_for(SMALL, group, &wanted) >= SMALL);
    EXPECT_EQ(orders(), 0);
    EXPECT_EQ(scene_stats(scene.pool).retries, 0); /* memory is not short */
    held_give(&wanted);
    DONE(cenote_group_destroy(group));
    close_scene();
}

CASE(order_2_and_a_driver_that_refuses)
{
    struct held wanted;
    open_eager(scene_options());
    leave_in_flight(scene.stream[B], SMALL);
    fault_arm("cuStreamWaitEvent", 1, CUDA_ERROR_NOT_SUPPORTED, true);
    EXPECT(grown_for(SMALL, NULL, &wanted) >= SMALL);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    EXPECT_EQ(orders(), 0);
    held_give(&wanted);
    close_scene();
}

/* ------------------------------------------------------------------------------------------------------------------------------------ */

CASE(captures_that_are_not_announced)
{
    cenote_options options = scene_options();
    options.announced = 0;
    open_with(&options, 1);
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
    expect_host_waits(NULL);
    close_scene();
}

/* The fence says nothing of the other device, whose kernels may touch the memory. */
CASE(granted_devices)
{
    cenote_options options = scene_options();
    open_with(&options, 2);
    DONE(cenote_pool_grant(scene.pool, 1));
    expect_host_waits(NULL);
    close_scene();
}

/* The context is lost when the stream is to wait: the request fails with that, and is not made again. */
CASE(a_context_that_is_lost)
{
    void *none;
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    fault_arm("cuStreamWaitEvent", 1, CUDA_ERROR_ILLEGAL_ADDRESS, true);
    EXPECT_EQ(cenote_alloc(scene.pool, PIECE, scene.stream[A], &none), CENOTE_DEVICE_LOST);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    DONE(cenote_free(live.at));
    DONE(cenote_pool_destroy(scene.pool));
    sim_reset(NULL);
    scene_is_open = false;
}

CASE(a_driver_that_refuses)
{
    open_scene();
    fault_arm("cuStreamWaitEvent", 1, CUDA_ERROR_NOT_SUPPORTED, true);
    expect_host_waits(NULL);
    EXPECT_EQ(fault_fired(), 1); /* it is asked once for each request */
    fault_disarm();
    close_scene();
}

/* While a capture is open no stream is made to wait, and the host does not wait: the request fails. */
CASE(an_open_capture)
{
    cenote_group *group;
    CUgraph graph = NULL;
    void *none;
    struct held wanted;
    open_scene();
    leave_in_flight(scene.stream[B], PIECE);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
    DONE(cuStreamBeginCapture(scene.stream[C], CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cenote_alloc(scene.pool, PIECE, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    expect_orders(0, 0);
    DONE(cuStreamEndCapture(scene.stream[C], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    REQUIRE(held_take(&wanted, scene.pool, PIECE, scene.stream[A]));
    expect_orders(1, 0);
    held_give(&wanted);
    close_scene();
}

SCENES_MAIN("api: order")
