/*
 * test_budget.c: what moving pages may cost, and what comes of it. Calls of the simulated driver take their time by the prices of cards on
 * which a move costs as much as a creation.
 */
#include "tests/api/scene.h"

#define CARD     (8 * GIB)
#define STEP     (50 * MSEC)
#define STEPS    10000
#define OF_STEP  60            /* blocks that a step takes */
#define LIVE     150           /* blocks at most */

static void open_with(struct scene *scene, double harvest_budget, uint64_t limit)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.charge_cost = true;
    strcpy(shape.prices, "h100");
    options.harvest_budget = harvest_budget;
    options.limit = limit;
    scene_open_with(scene, &shape, &options);
}

static void open_dear(struct scene *scene)
{
    open_with(scene, 0.01, 0);
}

static uint64_t random_state;

static uint32_t random_below(uint32_t end)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % end);
}

/* From 256 KiB to 64 MiB, each doubling as often as another. */
static size_t random_size(void)
{
    size_t least = 256 * KIB << random_below(8);
    return least + random_below((uint32_t)least);
}

struct blocks {
    void    *at[LIVE];
    uint32_t count;
};

static void give_one(struct blocks *b, uint32_t i)
{
    DONE(cenote_free(b->at[i]));
    b->at[i] = b->at[--b->count];
}

static void give_all(struct blocks *b)
{
    while (b->count)
        give_one(b, b->count - 1);
}

/* Blocks that outlive steps come and go in no order. */
static void step(struct scene *scene, struct blocks *b)
{
    for (int i = 0; i < OF_STEP; i++) {
        if (b->count == LIVE || (b->count && random_below(10) < 3))
            give_one(b, random_below(b->count));
        if (cenote_alloc(scene->pool, random_size(), scene->stream[A], &b->at[b->count]) == CENOTE_OK)
            b->count++;
    }
    sim_advance(STEP);
}

/* What the driver took, but for the pages that are there. */
static uint64_t moving_ns(const struct scene *scene)
{
    struct sim_books books;
    sim_books(&books);
    uint64_t page = sim_price("h100", "cuMemCreate") + sim_price("h100", "cuMemMap") + sim_price("h100", "cuMemSetAccess");
    return books.cost_ns - scene_stats(scene->pool).pages_created * page;
}

static double waste(const struct scene *scene)
{
    cenote_stats stats = scene_stats(scene->pool);
    return (double)stats.reserved.peak / (double)stats.allocated.peak - 1;
}

CASE(sizes_that_never_repeat_cost_little_time_and_little_memory)
{
    struct scene scene;
    struct blocks blocks = {.count = 0};
    random_state = 1;
    open_dear(&scene);
    for (int i = 0; i < STEPS; i++)
        step(&scene, &blocks);
    EXPECT(waste(&scene) < 0.05);
    EXPECT(moving_ns(&scene) < STEPS * STEP / 100);
    EXPECT_EQ(scene_stats(scene.pool).ooms, 0);
    give_all(&blocks);
    scene_close(&scene);
}

/* Moves do not go round: a program whose steps are alike comes to need none, and no new page either. */
CASE(steps_that_are_alike_come_to_move_nothing)
{
    struct scene scene;
    struct blocks blocks = {.count = 0};
    cenote_stats before = {0}, after = {0};
    open_dear(&scene);
    for (int i = 0; i < 40; i++) {
        before = scene_stats(scene.pool);
        random_state = 2;
        step(&scene, &blocks);
        step(&scene, &blocks);
        step(&scene, &blocks);
        give_all(&blocks);
        after = scene_stats(scene.pool);
    }
    EXPECT(after.pages_harvested > 0);
    EXPECT_EQ(after.pages_created, before.pages_created);
    EXPECT_EQ(after.pages_harvested, before.pages_harvested);
    EXPECT_EQ(after.pages_unmapped, before.pages_unmapped);
    EXPECT(waste(&scene) < 0.05);
    scene_close(&scene);
}

/* The budget is used up, and no page can be created: pages move, and no allocation takes that for a shortage. */
CASE(at_the_limit_pages_move_without_a_climb)
{
    struct scene scene;
    void *small[32], *large[8];
    open_with(&scene, 0, 64 * MIB);
    for (int i = 0; i < 32; i++)
        DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &small[i]));
    for (int i = 0; i < 32; i += 2)
        DONE(cenote_free(small[i]));
    for (int i = 0; i < 8; i++)
        DONE(cenote_alloc(scene.pool, 4 * MIB, scene.stream[A], &large[i]));
    EXPECT(scene_stats(scene.pool).pages_harvested >= 8);
    EXPECT_EQ(scene_stats(scene.pool).retries, 0);
    for (int i = 0; i < 8; i++)
        DONE(cenote_free(large[i]));
    for (int i = 1; i < 32; i += 2)
        DONE(cenote_free(small[i]));
    scene_close(&scene);
}

SUITE_MAIN_AROUND("budget", NULL, scene_after)
