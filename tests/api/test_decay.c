/*
 * test_decay.c: what has been free for decay_ms goes back, by the pool's own clock. Not: the background thread (test_background.c).
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD   (256 * MIB)
#define DECAY  800                  /* ms; an epoch is a hundred */
#define EPOCH  (100 * MSEC)

static void open_decaying(struct scene *scene, unsigned provider, uint64_t lag)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.decay_ms = DECAY;
    options.provider = provider;
    shape.lag = lag;
    scene_open_with(scene, &shape, &options);
    sim_advance(10 * EPOCH);
}

static uint64_t reserved(const struct scene *scene)
{
    return scene_stats(scene->pool).reserved.current;
}

static void take_and_give(struct scene *scene, size_t bytes, CUstream stream)
{
    struct held held;
    REQUIRE(held_take(&held, scene->pool, bytes, stream));
    held_give(&held);
}

/* The program steps twice an epoch for so long. */
static void steps_for(struct scene *scene, uint64_t ns)
{
    for (uint64_t spent = 0; spent < ns; spent += EPOCH / 2) {
        sim_advance(EPOCH / 2);
        DONE(cenote_pool_step(scene->pool));
    }
}

CASE(goes_back_when_its_time_has_come)
{
    struct scene scene;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 40 * MIB, scene.stream[A]);
    steps_for(&scene, DECAY * MSEC);
    EXPECT_EQ(reserved(&scene), 40 * MIB); /* the mark after its free is younger than decay_ms */
    steps_for(&scene, 2 * EPOCH);
    EXPECT_EQ(reserved(&scene), 0);
    cenote_stats s = scene_stats(scene.pool);
    EXPECT_EQ(s.decayed, 40 * MIB);
    EXPECT_EQ(s.trimmed, 40 * MIB);
    EXPECT_EQ(s.trims, 0);
    EXPECT_EQ(s.waits, 0);
    scene_close(&scene);
}

/* What was freed at different times goes at different times. */
CASE(goes_smoothly)
{
    struct scene scene;
    struct held held[8];
    open_decaying(&scene, CENOTE_VMM, 0);
    for (int i = 0; i < 8; i++)
        REQUIRE(held_take(&held[i], scene.pool, 4 * MIB, scene.stream[A]));
    for (int i = 0; i < 8; i++) {
        held_give(&held[i]);
        steps_for(&scene, EPOCH);
    }
    uint64_t before = reserved(&scene);
    EXPECT_EQ(before, 32 * MIB);
    for (int i = 0; i < 10; i++) {
        steps_for(&scene, EPOCH);
        EXPECT(before - reserved(&scene) <= 4 * MIB);
        before = reserved(&scene);
    }
    EXPECT_EQ(before, 0);
    scene_close(&scene);
}

/* What a program takes again and again never goes; what it took once does. */
CASE(what_is_used_again_stays)
{
    struct scene scene;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 60 * MIB, scene.stream[A]);
    for (int i = 0; i < 30; i++) {
        take_and_give(&scene, 20 * MIB, scene.stream[A]);
        steps_for(&scene, EPOCH);
    }
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).pages_created, 30);
    scene_close(&scene);
}

/* A long pause is no reason to hurry: no look saw the frees before it, so they are as old as the first look after it. */
CASE(a_late_look_is_a_first_look)
{
    struct scene scene;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    sim_advance(100 * DECAY * MSEC);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    sim_advance(DECAY * MSEC);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

/* A step gives back 32 pages at most, an allocation that had to call the driver 4, and the next goes on where it stopped. */
CASE(a_few_at_a_time)
{
    struct scene scene;
    struct held held[2];
    open_decaying(&scene, CENOTE_VMM, 0);
    REQUIRE(held_take(&held[0], scene.pool, 200 * MIB, scene.stream[A]));
    held_give(&held[0]);
    sim_advance(EPOCH); /* the allocation was a look, too */
    DONE(cenote_pool_step(scene.pool));
    DONE(cuCtxSynchronize());
    sim_advance(DECAY * MSEC);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(reserved(&scene), 136 * MIB);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(reserved(&scene), 72 * MIB);
    REQUIRE(held_take(&held[0], scene.pool, 2 * MIB, scene.stream[B])); /* moves a page to another stream: the driver is called */
    EXPECT_EQ(reserved(&scene), 64 * MIB);
    REQUIRE(held_take(&held[1], scene.pool, 2 * MIB, scene.stream[C]));
    EXPECT_EQ(reserved(&scene), 56 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* only a look */
    EXPECT_EQ(reserved(&scene), 4 * MIB);
    held_give(&held[0]);
    held_give(&held[1]);
    scene_close(&scene);
}

/* The device is behind: no thread waits, and what it still uses stays. */
CASE(nobody_waits)
{
    struct scene scene;
    struct held held;
    open_decaying(&scene, CENOTE_VMM, 0);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    DONE(sim_launch_wait(scene.stream[A], 20 * DECAY * MSEC));
    held_give(&held);
    uint64_t before = sim_now();
    for (int i = 0; i < 100; i++) {
        sim_advance(EPOCH);
        DONE(cenote_pool_step(scene.pool));
        EXPECT_EQ(sim_now(), before += EPOCH);
    }
    EXPECT_EQ(reserved(&scene), 40 * MIB);
    steps_for(&scene, 12 * DECAY * MSEC);
    EXPECT_EQ(reserved(&scene), 0);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    scene_close(&scene);
}

CASE(not_during_a_capture)
{
    struct scene scene;
    cenote_group *group;
    CUgraph graph = NULL;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 20 * MIB, scene.stream[B]);
    steps_for(&scene, EPOCH);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    steps_for(&scene, 2 * DECAY * MSEC);
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    steps_for(&scene, EPOCH);
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

/* Blocks that another stream used come back on the way, and slabs that are empty go. */
CASE(pending_blocks_and_slabs_too)
{
    struct scene scene;
    void *block;
    open_decaying(&scene, CENOTE_VMM, 0);
    DONE(cenote_alloc(scene.pool, 100, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_alloc(scene.pool, 10 * MIB, scene.stream[A], &block));
    order(scene.stream[A], scene.stream[B]);
    DONE(cenote_use(block, scene.stream[B]));
    DONE(cenote_free(block));
    steps_for(&scene, DECAY * MSEC + 3 * EPOCH);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

CASE(segments_too)
{
    static const unsigned provider[] = {CENOTE_ASYNC, CENOTE_PLAIN};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        open_decaying(&scene, provider[i], 0);
        take_and_give(&scene, 40 * MIB, scene.stream[A]);
        uint64_t before = reserved(&scene);
        EXPECT(before >= 40 * MIB);
        steps_for(&scene, DECAY * MSEC);
        EXPECT_EQ(reserved(&scene), before);
        steps_for(&scene, 2 * EPOCH);
        EXPECT_EQ(reserved(&scene), 0);
        scene_close(&scene);
    }
}

static int given;

static void *take_of_program(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream, (void)arg;
    DONE(cuMemAlloc(&at, bytes));
    return (void *)(uintptr_t)at;
}

static void give_of_program(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    DONE(cuMemFree(device_address(memory)));
    given++;
}

/* A function of the program is called when the program asks for it, and memory behind it does not keep the rest. */
CASE(functions_of_the_program_are_not_called)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    cenote_source source = {take_of_program, give_of_program, NULL};
    open_decaying(&scene, CENOTE_PLAIN, 0);
    given = 0;
    struct held held;
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    uint64_t ours = reserved(&scene);
    DONE(cenote_group_create(scene.pool, "theirs", 0, &source, &group));
    DONE(group_alloc(group, 4 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    uint64_t theirs = reserved(&scene) - ours;
    held_give(&held);
    steps_for(&scene, 2 * DECAY * MSEC);
    EXPECT_EQ(reserved(&scene), theirs);
    EXPECT_EQ(given, 0);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    EXPECT_EQ(given, 1);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* A program without steps that goes on growing on another stream drives it by itself. */
CASE(allocations_drive_it)
{
    struct scene scene;
    struct held held[40];
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 200 * MIB, scene.stream[A]);
    for (int i = 0; i < 40; i++) {
        sim_advance(EPOCH);
        REQUIRE(held_take(&held[i], scene.pool, 2 * MIB, scene.stream[B])); /* moves a page of A's, or makes one */
    }
    EXPECT_EQ(reserved(&scene), 80 * MIB);
    EXPECT(scene_stats(scene.pool).decayed >= 120 * MIB);
    for (int i = 0; i < 40; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* Side by side with steps that trim. */
CASE(with_trim_every)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.decay_ms = DECAY;
    options.trim_every = 4;
    scene_open_with(&scene, &shape, &options);
    take_and_give(&scene, 40 * MIB, scene.stream[A]);
    steps_for(&scene, 6 * EPOCH);
    EXPECT_EQ(reserved(&scene), 0);
    EXPECT_EQ(scene_stats(scene.pool).decayed, 0);
    scene_close(&scene);
}

/* A refusal keeps the page, and later it goes. */
CASE(the_driver_refuses)
{
    struct scene scene;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    steps_for(&scene, DECAY * MSEC);
    fault_arm("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, true);
    steps_for(&scene, 4 * EPOCH);
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    DONE(cenote_pool_check(scene.pool));
    fault_arm("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, true);
    steps_for(&scene, 4 * EPOCH);
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    DONE(cenote_pool_check(scene.pool));
    fault_disarm();
    steps_for(&scene, 4 * EPOCH);
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

CASE(absurd_times)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    EXPECT_EQ(cenote_options_parse(&options, "decay_ms:18446744073709551616"), CENOTE_BAD_OPTION);
    EXPECT_EQ(cenote_options_parse(&options, "decay_ms:86400001"), CENOTE_BAD_OPTION);
    EXPECT_EQ(cenote_options_parse(&options, "decay_ms:-1"), CENOTE_BAD_OPTION);
    EXPECT_EQ(cenote_options_parse(&options, "decay_ms:0.5"), CENOTE_BAD_OPTION);
    EXPECT_EQ(cenote_options_parse(&options, "background:2"), CENOTE_BAD_OPTION);
    EXPECT_EQ(cenote_options_parse(&options, "trim_every:18446744073709551617"), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_message(), "trim_every") && strstr(cenote_message(), "1000000"));
    EXPECT_EQ(options.decay_ms, 0);

    scene_open_card(&scene, &shape);
    options.decay_ms = (uint32_t)-1;
    EXPECT_EQ(cenote_pool_create(0, &options, &scene.pool), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_message(), "decay_ms"));
    options.decay_ms = 86400000;
    DONE(cenote_pool_create(0, &options, &scene.pool));
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    for (int i = 0; i < 50; i++) {
        sim_advance(3600000 * MSEC);
        DONE(cenote_pool_step(scene.pool));
    }
    EXPECT_EQ(reserved(&scene), 0);
    scene_destroy_pool(&scene);

    options.decay_ms = 1; /* an epoch is a millisecond at least */
    DONE(cenote_pool_create(0, &options, &scene.pool));
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    for (int i = 0; i < 4; i++) {
        sim_advance(MSEC);
        DONE(cenote_pool_step(scene.pool));
    }
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

static uint64_t confused_clock(void *unused)
{
    static uint64_t calls;
    (void)unused;
    return ++calls % 3 ? UINT64_MAX - calls : calls; /* goes back and forth over the whole range */
}

CASE(a_clock_that_goes_back)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.decay_ms = DECAY;
    options.clock = confused_clock;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 100; i++) {
        take_and_give(&scene, (size_t)(i % 7 + 1) * 3 * MIB, scene.stream[i % 3]);
        DONE(cenote_pool_step(scene.pool));
        DONE(cenote_pool_check(scene.pool));
    }
    scene_close(&scene);
}

CASE(keeps_above_what_is_held)
{
    struct scene scene;
    open_decaying(&scene, CENOTE_VMM, 0);
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_pool_trim(scene.pool, 20 * MIB + 1, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 20 * MIB);
    EXPECT_EQ(cenote_pool_trim(NULL, 0, 0), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_step(NULL), CENOTE_INVALID);
    scene_close(&scene);
}

SCENES_MAIN("decay")
