/*
 * test_sleep_long.c: memory sleeps and wakes beside threads that allocate, thousands of times, and at random.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/api/sleeps.h"
#include "tests/rounds.h"

/* ------------------------------------------------------------------------------------------------------------ beside others */

#define ROUNDS 30
#define BATCHES 3     /* of a neighbour in each round */

/* A thread that allocates, uses and frees, in the very arenas in which others sleep. */
struct neighbour {
    cenote_group *group;
    CUstream stream;
    uint64_t seed;
    atomic_int *round;  /* ROUNDS: stop */
};

static void *come_and_go(void *arg)
{
    const struct neighbour *n = arg;
    uint64_t seed = n->seed;
    for (int i = 0; *n->round < ROUNDS; i++) {
        while (*n->round < i / BATCHES && *n->round < ROUNDS)
            sched_yield();
        struct held held[4];
        int count = 0;
        for (; count < 4; count++) {
            void *block;
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t bytes = seed >> 40 & 1 ? 1 + (seed >> 41) % (40 * KIB) : 1 + (seed >> 41) % (300 * KIB);
            if (group_alloc(n->group, bytes, 1, n->stream, &block))
                break;
            held[count] = held_of(block, bytes, n->stream);
        }
        while (count--)
            held_give(&held[count]);
    }
    return NULL;
}

/* What was freed on a page before it dozed may still be in use when the pause begins: by the card, whose books say so. */
CASE(beside_threads)
{
    struct scene scene;
    struct held held[BLOCKS];
    const void *names[BLOCKS];
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_group *group;
    pthread_t threads[2];
    atomic_int round = 0;
    uint64_t slept = 0;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "both", 0, NULL, &group));
    for (int i = 0; i < BLOCKS; i++) {
        void *block;
        DONE(group_alloc(group, sizes[i], 1, scene.stream[i % 2], &block));
        held[i] = held_of(block, sizes[i], scene.stream[i % 2]);
        names[i] = block;
    }
    struct neighbour neighbours[2] = {{group, scene.stream[A], 1, &round}, {group, scene.stream[B], 2, &round}};
    for (int i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, &neighbours[i]));
    for (; round < ROUNDS; round++) {
        cenote_sleep sleep = {.blocks = names, .count = BLOCKS};
        DONE(cenote_pool_pause(scene.pool, &sleep));
        slept += sleep.pages;
        DONE(cenote_pool_resume(scene.pool, &sleep));
        for (int i = 0; i < BLOCKS; i++)
            held_expect(&held[i], held[i].stream);
    }
    for (int i = 0; i < 2; i++)
        DONE(pthread_join(threads[i], NULL));
    EXPECT(slept > 0);
    for (int i = 0; i < BLOCKS; i++)
        held_give(&held[i]);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

struct sleeper {
    cenote_pool *pool;
    cenote_group *group;
    CUstream stream;
};

static void *sleep_and_wake(void *arg)
{
    const struct sleeper *s = arg;
    void *block;
    DONE(group_alloc(s->group, 5 * MIB, 1, s->stream, &block));
    struct held held = held_of(block, 5 * MIB, s->stream);
    for (int round = 0; round < ROUNDS; round++) {
        DONE(pause_of(s->pool, s->group, CENOTE_KEEP, NULL));
        DONE(resume_of(s->pool, s->group, NULL));
        held_expect(&held, s->stream);
    }
    held_give(&held);
    return NULL;
}

/* Two threads have two groups sleep and wake: one after the other has the stages of the copies. */
CASE(two_sleep_at_a_time)
{
    struct scene scene;
    struct sleeper sleepers[2];
    pthread_t threads[2];
    scene_open(&scene, CARD);
    for (int i = 0; i < 2; i++) {
        sleepers[i] = (struct sleeper){.pool = scene.pool, .stream = scene.stream[i]};
        DONE(cenote_group_create(scene.pool, "sleeper", 0, NULL, &sleepers[i].group));
        REQUIRE(!pthread_create(&threads[i], NULL, sleep_and_wake, &sleepers[i]));
    }
    for (int i = 0; i < 2; i++)
        DONE(pthread_join(threads[i], NULL));
    for (int i = 0; i < 2; i++)
        DONE(cenote_group_destroy(sleepers[i].group));
    scene_close(&scene);
}

/* ----------------------------------------------------------------------------------------------------------------- for ever */

/* Of the host. A sanitizer keeps what was unmapped for a while: there it says nothing. */
static long resident_pages(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident;
#endif
}

/* Counters, host memory and the card are as before, whatever sleeps, however often. */
CASE(thousands_of_cycles_are_flat)
{
    struct scene scene;
    struct held held[6];
    uint64_t metadata = 0, before;
    long resident = 0;
    int cycles = rounds(1000);
    scene_open(&scene, CARD);
    for (int i = 0; i < 6; i++)
        REQUIRE(held_take(&held[i], scene.pool, sizes[i], scene.stream[A]));
    before = used();
    for (int i = 0; i < cycles; i++) {
        DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
        DONE(resume_of(scene.pool, NULL, NULL));
        if (i == cycles / 10) {
            metadata = scene_stats(scene.pool).metadata;
            resident = resident_pages();
        }
    }
    EXPECT_EQ(scene_stats(scene.pool).metadata, metadata);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 6);
    EXPECT_EQ(scene_stats(scene.pool).asleep, 0);
    EXPECT_EQ(used(), before);
    EXPECT(resident_pages() <= resident + cycles / 20); /* a page of the host in twenty cycles would be a leak */
    for (int i = 0; i < 6; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- at random */

#define MANY 120

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* A program whose groups sleep and wake as they like. Contents and the books are the judges; each block wakes before it is read. */
static void play(uint64_t seed, unsigned steps)
{
    struct scene scene;
    static struct held held[MANY];
    static int group_of[MANY];
    cenote_group *groups[3] = {NULL};
    bool asleep[4] = {false};   /* the last: what is of no group; with that all of the pool sleeps or wakes */
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = seed % 3 * MSEC;
    options.page_mib = seed % 2 ? 2 : 8;
    state = seed * 0x9e3779b97f4a7c15u | 1;
    memset(held, 0, sizeof held);
    scene_open_with(&scene, &shape, &options);
    for (int g = 0; g < 3; g++)
        DONE(cenote_group_create(scene.pool, "sleeper", g == 2 ? CENOTE_GROUP_PRIVATE : 0, NULL, &groups[g]));
    for (unsigned step = 0; step < steps; step++) {
        int i = (int)draw(MANY), g = (int)draw(4);
        void *block = NULL;
        if (draw(12) == 0) {
            bool wakes = asleep[g] || (g == 3 && (asleep[0] || asleep[1] || asleep[2]));
            cenote_group *group = g < 3 ? groups[g] : NULL;
            int error = wakes ? resume_of(scene.pool, group, NULL) : pause_of(scene.pool, group, draw(2) ? CENOTE_KEEP : CENOTE_CONSTANT, NULL);
            EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_MEMORY);
            for (int other = g < 3 ? g : 0; !error && other <= g; other++)
                asleep[other] = !wakes;
        } else if (held[i].at) {
            if (!asleep[group_of[i]])
                held_expect(&held[i], held[i].stream);
            DONE(cenote_free(held[i].at));
            held[i].at = NULL;
        } else if (!asleep[g]) {
            size_t bytes = draw(3) ? 1 + draw(20 * KIB) : 1 + draw(3 * MIB);
            CUstream stream = scene.stream[draw(2)];
            int error = g < 3 ? group_alloc(groups[g], bytes, 1, stream, &block) : cenote_alloc(scene.pool, bytes, stream, &block);
            EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_MEMORY);
            group_of[i] = g;
            if (!error)
                held[i] = held_of(block, bytes, stream);
        }
        if (step % 16 == 0)
            DONE(cenote_pool_check(scene.pool));
    }
    for (int i = 0; i < MANY; i++)
        if (held[i].at)
            DONE(cenote_free(held[i].at));
    for (int g = 0; g < 3; g++)
        DONE(cenote_group_destroy(groups[g]));
    scene_close(&scene);
}

CASE(at_random)
{
    const char *seed = getenv("SLEEP_SEED");
    for (uint64_t s = seed ? strtoull(seed, NULL, 10) : 1, last = seed ? s : 40; s <= last; s++)
        play(s, 1500);
}

SCENES_MAIN("sleep_long")
