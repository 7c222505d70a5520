/*
 * units.h: what tests of pages of several sizes in one region have in common: which grade idle units become is chosen for each block.
 */
#ifndef CENOTE_TESTS_API_UNITS_H
#define CENOTE_TESTS_API_UNITS_H

#include "tests/api/scene.h"

#include "pool/mapping/units.h"
#include "pool/pool.h"

#define CARD (256 * MIB)

/* Settings of units_grade_pages for which idle units become large, or small, whatever is needed. */
enum { WIDE = 0, SPLIT = 1 << 20 };

static inline cenote_options units_options(size_t large, const char *conf)
{
    cenote_options options = scene_options();
    options.page_mib = (uint32_t)(large / MIB);
    DONE(cenote_options_parse(&options, conf));
    return options;
}

static inline void units_open(struct scene *scene, size_t large, const char *conf)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = units_options(large, conf);
    units_grade_pages = SPLIT;
    scene_open_with(scene, &shape, &options);
}

static inline void units_end(struct scene *scene)
{
    units_grade_pages = GRADE_PAGES;
    scene_close(scene);
}

static inline uint64_t reserved(const struct scene *scene) { return scene_stats(scene->pool).reserved.current; }
static inline uint64_t in_pages(const struct scene *scene, enum grade grade) { return scene->pool->store.pages.held[grade]; }
static inline uint64_t created(const struct scene *scene) { return scene_stats(scene->pool).pages_created; }

static inline struct held take(struct scene *scene, uint32_t grade_pages, size_t bytes, int stream)
{
    struct held held = {0};
    units_grade_pages = grade_pages;
    EXPECT(held_take(&held, scene->pool, bytes, scene->stream[stream]));
    return held;
}

/* The device is done with it: its pages may go anywhere. */
static inline void give(struct scene *scene, struct held *held)
{
    held_give(held);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene->pool, UINT64_MAX, 0)); /* nothing goes; the pool sees that all is done */
}

#endif
