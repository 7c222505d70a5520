/*
 * test_group_rounds.c: a million groups come and go (`make deep`: ten million), each with a block, plain and
 * private ones in turn. What the pool keeps stays as it is after the first rounds. What a round costs is printed and not judged: that is for
 * bench/scale.
 */
#include <time.h>

#include "tests/api/scene.h"
#include "tests/rounds.h"

#define ROUNDS 1000000
#define STAGES 10

static void run(struct scene *scene, int count)
{
    unsigned failures = 0;
    for (int i = 0; i < count; i++) {
        cenote_group *group;
        void *block;
        failures += cenote_group_create(scene->pool, "round", i % 2 ? CENOTE_GROUP_PRIVATE : 0, NULL, &group) != 0;
        failures += group_alloc(group, 3 * MIB, 512, scene->stream[i % 3], &block) != 0;
        failures += cenote_free(block) != 0;
        failures += cenote_group_destroy(group) != 0;
    }
    EXPECT_EQ(failures, 0);
}

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

CASE(a_million_rounds)
{
    struct scene scene;
    int each = rounds(ROUNDS / STAGES);
    scene_open(&scene, 256 * MIB);
    run(&scene, 1000);
    cenote_stats before = scene_stats(scene.pool);
    for (int stage = 0; stage < STAGES; stage++) {
        double begin = cpu_ns();
        run(&scene, each);
        cenote_stats after = scene_stats(scene.pool);
        EXPECT_EQ(after.metadata, before.metadata);
        EXPECT_EQ(after.address_space, before.address_space);
        EXPECT_EQ(after.reserved.current, before.reserved.current);
        EXPECT_EQ(after.arenas, before.arenas);
        printf("%d rounds: %.0f ns each, %llu bytes of metadata\n", (stage + 1) * each, (cpu_ns() - begin) / each,
               (unsigned long long)after.metadata);
        fflush(stdout);
    }
    scene_close(&scene);
}

SCENES_MAIN("slow: rounds of groups")
