/* hazards.h: the sequences of hazards.def as functions, and what they share. See capture.c, fences.c, pages.c and devices.c. */
#ifndef CENOTE_TESTS_HAZARD_HAZARDS_H
#define CENOTE_TESTS_HAZARD_HAZARDS_H

#include "tests/api/scene.h"

#include <pthread.h>
#include <semaphore.h>

#define HAZARD(name) void hazard_##name(void);
#define HAZARD_ENDS HAZARD
#define HAZARD_NEW HAZARD
#include "tests/hazard/hazards.def"
#undef HAZARD
#undef HAZARD_ENDS
#undef HAZARD_NEW

extern bool hazards_are_announced; /* the program has promised to announce its captures; without that its streams are immortal */

/* A card that runs 1 ms behind, with the pool and the streams of scene.h. */
static inline void hazard_open(struct scene *scene, size_t capacity)
{
    struct sim_shape shape = scene_card(capacity);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    options.announced = hazards_are_announced;
    scene_open_with(scene, &shape, &options);
    for (int i = 0; i < SCENE_STREAMS && !hazards_are_announced; i++)
        DONE(cenote_stream_set_immortal(scene->pool, scene->stream[i]));
}

/*
 * A hole of three slots whose pages lie under a live block behind it too: `hole` was freed, `wide` did not fit there and took its pages
 * along; between them `kept` is live. The slots of the hole are aliases now.
 */
struct aliases {
    struct held hole, kept, wide;
};

static inline void aliases_make(struct aliases *aliases, cenote_pool *pool, CUstream stream)
{
    REQUIRE(held_take(&aliases->hole, pool, 6 * MIB, stream));
    REQUIRE(held_take(&aliases->kept, pool, 2 * MIB, stream));
    held_give(&aliases->hole);
    REQUIRE(held_take(&aliases->wide, pool, 10 * MIB, stream));
    EXPECT(scene_stats(pool).pages_aliased >= 3);
    DONE(cuStreamSynchronize(stream));
}

/* No block is live: any stream can have the whole card, and what it finds there is its own. */
static inline void hazard_whole_card(struct scene *scene, size_t capacity, CUstream stream)
{
    struct hoard hoard;
    hoard_take(&hoard, scene->pool, 2 * MIB, stream);
    EXPECT_EQ(hoard.bytes, capacity);
    hoard_give(&hoard);
    scene_judge(scene);
}

#endif
