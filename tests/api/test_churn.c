/*
 * test_churn.c: memory that is given back at every step and taken again costs no more than its part of the time. Calls of the simulated driver
 * take their modelled time by the simulated clock, which is the pools' too; a step takes STEP.
 */
#include "driver/nvml.h"
#include "tests/api/scene.h"

#include <unistd.h>

#define CARD (512 * MIB)
#define STEP (50 * MSEC)

static void open_thrifty(struct scene *scene, uint32_t trim_every, uint32_t decay_ms, double harvest_budget)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.charge_cost = true;
    options.harvest_budget = harvest_budget;
    options.trim_every = trim_every;
    options.decay_ms = decay_ms;
    scene_open_with(scene, &shape, &options);
}

/* A management library that lists this process and `guests` others, or has no rights. */
static unsigned guests;
static int refusal;

static int begin(void)
{
    return 0;
}

static int find_device(const char *bus, void **device)
{
    (void)bus;
    *device = NULL;
    return 0;
}

static int tell_memory(void *device, struct nvml_memory *memory)
{
    (void)device;
    (void)memory;
    return 3;
}

static int list_computing(void *device, unsigned *count, struct nvml_process *list)
{
    (void)device;
    for (unsigned i = 0; i <= guests; i++)
        list[i] = (struct nvml_process){(unsigned)getpid() + i, MIB, UINT32_MAX, UINT32_MAX};
    *count = guests + 1;
    return refusal;
}

static int list_drawing(void *device, unsigned *count, struct nvml_process *list)
{
    (void)device;
    (void)list;
    *count = 0;
    return 0;
}

static const char *put_into_words(int result)
{
    (void)result;
    return "";
}

static const struct nvml listing = {begin, find_device, tell_memory, list_computing, list_drawing, put_into_words};

static uint64_t reserved(const struct scene *scene)
{
    return scene_stats(scene->pool).reserved.current;
}

static uint64_t cost(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.cost_ns;
}

/* One step of a program that works on `bytes`, and what the driver took of it. */
static uint64_t step(struct scene *scene, size_t bytes)
{
    void *block = NULL;
    uint64_t before = cost();
    DONE(cenote_alloc(scene->pool, bytes, scene->stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_step(scene->pool));
    uint64_t spent = cost() - before;
    sim_advance(STEP);
    return spent;
}

/* A long step, a short one, and so on: each short one could give back what the next takes. */
static void expect_cheap(uint32_t trim_every, uint32_t decay_ms)
{
    struct scene scene;
    uint64_t spent = 0, most = 0;
    open_thrifty(&scene, trim_every, decay_ms, 0.01);
    step(&scene, 400 * MIB);
    for (int i = 0; i < 600; i++) {
        uint64_t of_step = step(&scene, (size_t)(i % 6 ? 20 : 400) * MIB);
        spent += of_step;
        most = of_step > most ? of_step : most;
    }
    EXPECT(spent < 600 * STEP / 100); /* 1 % of the time */
    EXPECT(most < 20 * MSEC); /* all of it at once would be 50 ms */
    EXPECT(scene_stats(scene.pool).trimmed > 0);
    scene_close(&scene);
}

CASE(trims_at_every_step_have_a_budget)
{
    expect_cheap(1, 0);
}

CASE(decay_has_a_budget)
{
    expect_cheap(0, 100);
}

/* What the next steps do not take again goes on going. */
CASE(what_nobody_misses_goes)
{
    for (int decays = 0; decays < 2; decays++) {
        struct scene scene;
        open_thrifty(&scene, !decays, decays ? 400 : 0, 0.01);
        for (int i = 0; i < 20; i++)
            step(&scene, 400 * MIB);
        EXPECT_EQ(reserved(&scene), 400 * MIB);
        for (int i = 0; i < 60; i++)
            step(&scene, 20 * MIB);
        EXPECT_EQ(reserved(&scene), 20 * MIB);
        scene_close(&scene);
    }
}

/* Without a budget everything goes at once, whatever it costs. */
CASE(no_budget_no_thrift)
{
    struct scene scene;
    open_thrifty(&scene, 1, 0, -1);
    for (int i = 0; i < 12; i++) {
        step(&scene, 400 * MIB);
        step(&scene, 20 * MIB);
        step(&scene, 20 * MIB);
        EXPECT_EQ(reserved(&scene), 20 * MIB);
    }
    scene_close(&scene);
}

/* Segments that are too small for what comes next make room for it as long as that may cost something; then they stay. */
CASE(replacing_segments_has_a_budget)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.charge_cost = true;
    options.provider = CENOTE_PLAIN;
    options.harvest_budget = 0;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 10; i++)
        step(&scene, (size_t)(20 + 4 * i) * MIB);
    EXPECT_EQ(reserved(&scene), 360 * MIB); /* all but the first */
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------- trims that say that they come often */

/* A step, and then what torch.cuda.empty_cache() asks for. */
static void step_and_empty(struct scene *scene, size_t bytes)
{
    step(scene, bytes);
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC));
}

static void open_alone(struct scene *scene)
{
    guests = 0;
    refusal = 0;
    nvml_interpose(&listing);
    open_thrifty(scene, 0, 0, 0.01);
}

static void close_alone(struct scene *scene)
{
    nvml_interpose(NULL);
    scene_close(scene);
}

CASE(often_is_everything_until_it_is_a_habit)
{
    struct scene scene;
    open_alone(&scene);
    int everything = 0;
    uint64_t before = 0;
    for (int i = 0; i < 400; i++) {
        if (i == 40)
            before = cost();
        step_and_empty(&scene, 400 * MIB);
        everything += reserved(&scene) == 0;
        EXPECT(i >= 8 || !reserved(&scene));
    }
    EXPECT(everything >= 8 && everything < 40);
    EXPECT(cost() - before < 360 * STEP / 100);

    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* without the flag the trim gives back what was asked for */
    EXPECT_EQ(reserved(&scene), 0);
    close_alone(&scene);
}

/* Becomes a habit, so that the next one would give back nothing. */
static void make_it_a_habit(struct scene *scene)
{
    for (int i = 0; i < 100 && !reserved(scene); i++)
        step_and_empty(scene, 400 * MIB);
    EXPECT_EQ(reserved(scene), 400 * MIB);
}

/* A habit keeps what each step takes again, and nothing else. */
CASE(what_a_habit_does_not_use_goes)
{
    struct scene scene;
    void *block = NULL;
    open_alone(&scene);
    make_it_a_habit(&scene);
    for (int i = 0; i < 8; i++) {
        EXPECT_EQ(reserved(&scene), 400 * MIB); /* the 300 others were used by one of the last eight */
        step_and_empty(&scene, 100 * MIB);
    }
    step_and_empty(&scene, 100 * MIB);
    EXPECT_EQ(reserved(&scene), 100 * MIB);
    DONE(cenote_alloc(scene.pool, 60 * MIB, scene.stream[A], &block));
    step_and_empty(&scene, 100 * MIB);
    EXPECT(reserved(&scene) >= 160 * MIB); /* what is live stays where it is */
    DONE(cenote_free(block));
    close_alone(&scene);
}

CASE(others_need_the_memory)
{
    struct scene scene;
    open_alone(&scene);
    make_it_a_habit(&scene);
    sim_set_foreign(0, 80 * MIB); /* less than an eighth of the card is left */
    step_and_empty(&scene, 400 * MIB);
    EXPECT_EQ(reserved(&scene), 0);
    sim_set_foreign(0, 0);
    close_alone(&scene);
}

CASE(another_process_may_need_the_memory)
{
    struct scene scene;
    open_alone(&scene);
    make_it_a_habit(&scene);
    guests = 1;
    step_and_empty(&scene, 400 * MIB);
    EXPECT_EQ(reserved(&scene), 0);
    guests = 0;
    step_and_empty(&scene, 400 * MIB);
    EXPECT_EQ(reserved(&scene), 400 * MIB);
    refusal = 4; /* NVML cannot tell */
    step_and_empty(&scene, 400 * MIB);
    EXPECT_EQ(reserved(&scene), 0);
    close_alone(&scene);
}

/* A look releases what a trim without a habit would have released; what was freed later stays, and so does what was not deferred. */
CASE(what_is_owed_goes_when_somebody_looks)
{
    struct scene scene;
    void *block = NULL;
    open_alone(&scene);
    make_it_a_habit(&scene);
    DONE(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_DEFERRED));
    EXPECT_EQ(reserved(&scene), 100 * MIB);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_DEFERRED));
    EXPECT_EQ(reserved(&scene), 100 * MIB);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_PERIODIC | CENOTE_TRIM_DEFERRED), CENOTE_INVALID);
    close_alone(&scene);
}

/* It is still deferred when the capture is over. */
CASE(what_is_owed_waits_for_a_capture)
{
    struct scene scene;
    open_alone(&scene);
    make_it_a_habit(&scene);
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_DEFERRED));
    EXPECT_EQ(reserved(&scene), 400 * MIB);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_DEFERRED));
    EXPECT_EQ(reserved(&scene), 0);
    close_alone(&scene);
}

/* What a trim gave back is regretted once, when it is taken again, and not for whatever is taken later. */
CASE(nothing_is_regretted_twice)
{
    struct scene scene;
    open_alone(&scene);
    step_and_empty(&scene, 200 * MIB);
    for (int i = 0; i < 20; i++) {
        step(&scene, 200 * MIB);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* asked for: not counted as churn */
    }
    for (int i = 0; i < 12; i++) {
        step_and_empty(&scene, 20 * MIB);
        EXPECT_EQ(reserved(&scene), 0);
    }
    close_alone(&scene);
}

CASE(after_a_pause_it_is_no_habit)
{
    struct scene scene;
    open_alone(&scene);
    make_it_a_habit(&scene);
    sim_advance(11000 * MSEC);
    step_and_empty(&scene, 400 * MIB);
    EXPECT_EQ(reserved(&scene), 0);
    close_alone(&scene);
}

/* Memory that is not taken again is never kept. */
CASE(what_shrinks_is_no_habit)
{
    struct scene scene;
    open_alone(&scene);
    for (size_t bytes = 400 * MIB; bytes; bytes -= 10 * MIB) {
        void *block;
        DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &block));
        DONE(cenote_free(block));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC));
        EXPECT_EQ(reserved(&scene), 0);
        sim_advance(STEP);
    }
    close_alone(&scene);
}

CASE(without_a_budget_often_means_nothing)
{
    struct scene scene;
    open_thrifty(&scene, 0, 0, -1);
    for (int i = 0; i < 50; i++) {
        step_and_empty(&scene, 400 * MIB);
        EXPECT_EQ(reserved(&scene), 0);
    }
    scene_close(&scene);
}

SCENES_MAIN("regret")
