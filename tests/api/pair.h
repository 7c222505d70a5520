/*
 * pair.h: a scene and another process on one simulated machine, and what tests of shared memory do with both.
 */
#ifndef CENOTE_TESTS_API_PAIR_H
#define CENOTE_TESTS_API_PAIR_H

#include "tests/api/other.h"

static char shape_text[128];

static inline struct sim_shape shared_card(void)
{
    struct sim_shape shape = scene_card(4 * GIB);
    snprintf(shape.machine, sizeof shape.machine, "cenote-share-%d", (int)getpid());
    snprintf(shape_text, sizeof shape_text, "capacity:4GiB,context_bytes:0,machine:%s", shape.machine);
    return shape;
}

struct pair {
    struct scene scene;
    struct other other;
};

static inline void open_pair_with(struct pair *p, unsigned provider)
{
    struct sim_shape shape = shared_card();
    cenote_options options = scene_options();
    options.provider = provider;
    scene_open_with(&p->scene, &shape, &options);
    other_start(&p->other, shape_text, provider);
}

static inline void open_pair(struct pair *p)
{
    open_pair_with(p, CENOTE_VMM);
}

static inline void close_pair(struct pair *p)
{
    EXPECT_EQ(other_ask(&p->other, BOOKS, 0).error, 0); /* violations */
    other_end(&p->other);
    scene_close(&p->scene);
}

static inline uint64_t differ(const void *at, uint64_t pattern, size_t bytes)
{
    uint64_t words = UINT64_MAX;
    DONE(differ_here((uint64_t)(uintptr_t)at, pattern, bytes, &words));
    return words;
}

static inline void fill(void *at, uint64_t pattern, size_t bytes)
{
    DONE(fill_here((uint64_t)(uintptr_t)at, pattern, bytes));
}

static inline int import(const cenote_share *share, void **at)
{
    return cenote_import(share, sizeof *share, 0, at);
}

static inline struct sim_books books(void)
{
    struct sim_books b;
    sim_books(&b);
    return b;
}

/* The other process sees what the block holds; then the block is freed. */
static inline void import_there(struct other *other, const struct held *held)
{
    cenote_share share;
    uint64_t there, words;
    DONE(cenote_export(held->at, &share));
    fill(held->at, 7, held->bytes);
    DONE(other_import(other, &share, &there));
    words = other_differ(other, there, 7, held->bytes);
    EXPECT_EQ(words, 0);
    DONE(other_close(other, there));
    DONE(cuCtxSynchronize());
    DONE(cenote_free(held->at));
}

#endif
