/*
 * scene.h: a small simulated card with one pool on it, blocks that know what they hold, and what every test ends with: the card's own
 * books are empty and nothing was done that CUDA forbids.
 *
 * The card runs behind the host by `lag`, its clock stands still unless something synchronises, and work touches memory when it is
 * done, not when it is submitted. So a block handed out too early shows as contents that differ: contents are the judge of every test here.
 *
 * It is not the test harness (tests/harness.h is), and it knows no layer below the public header.
 *
 *     scene_open ----> held_take, order, ... ----> scene_close: everything synchronised, judged, and given back
 *
 * LOCKING: none; a scene belongs to the thread that opened it. Only held_*() may be called from others, each on blocks of its own.
 */
#ifndef CENOTE_TESTS_API_SCENE_H
#define CENOTE_TESTS_API_SCENE_H

#include "sim/sim.h"
#include "tests/harness.h"
#include "tests/requests.h"

#include <cenote/cenote.h>
#include <cenote/report.h>
#include <cuda.h>
#include <stdatomic.h>
#include <string.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define MSEC ((uint64_t)1000000) /* in the ns of the simulated clock */

#define DONE(call) EXPECT_EQ((int)(call), 0)       /* a cenote or CUDA call that must succeed */

enum scene_stream { A, B, C, SCENE_STREAMS };

struct scene {
    cenote_pool *pool;
    CUcontext context;
    CUstream stream[SCENE_STREAMS];   /* created, non-blocking: ordered by nothing but what a test says */
};

/* ------------------------------------------------------------------------------------------------------------- card and pool */

static inline struct sim_shape scene_card(size_t capacity)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = capacity;
    shape.context_bytes = 0;
    shape.manual_clock = true;
    return shape;
}

static inline uint64_t scene_clock(void *unused)
{
    (void)unused;
    return sim_now();
}

/*
 * Nothing depends on the host's speed: pages of 2 MiB, the simulated clock, and no budget for moving pages. A scene has streams that are neither
 * immortal nor retired, and its tests announce their captures; tests of captures that are not announced take the promise back.
 */
static inline cenote_options scene_options(void)
{
    cenote_options options;
    DONE(cenote_options_default(&options));
    options.page_mib = 2;
    options.harvest_budget = -1;
    options.clock = scene_clock;
    options.announced = 1;
    return options;
}

/* True between opening and closing: a case that REQUIRE left early leaves a pool whose card is about to vanish. */
static bool scene_is_open;

/* Stands after each case. What comes after one that broke off would say nothing. */
static inline void scene_after(void)
{
    if (!scene_is_open)
        return;
    fprintf(stderr, "the case was left half done: the ones after it do not run\n");
    CU_basic_show_failures(CU_get_failure_list());
    _Exit(1);
}

#define SCENES_MAIN(name) SUITE_MAIN_AROUND(name, NULL, scene_after)

/* For tests that make pools of their own: the card, a current context, three streams. */
static inline void scene_open_card(struct scene *scene, const struct sim_shape *shape)
{
    memset(scene, 0, sizeof *scene);
    scene_is_open = true;
    sim_reset(shape);
    DONE(cuInit(0));
    DONE(cuDevicePrimaryCtxRetain(&scene->context, 0));
    DONE(cuCtxPushCurrent(scene->context));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cuStreamCreate(&scene->stream[i], CU_STREAM_NON_BLOCKING));
}

static inline void scene_open_with(struct scene *scene, const struct sim_shape *shape, const cenote_options *options)
{
    scene_open_card(scene, shape);
    DONE(cenote_pool_create(0, options, &scene->pool));
    REQUIRE(scene->pool);
}

static inline void scene_open(struct scene *scene, size_t capacity)
{
    struct sim_shape shape = scene_card(capacity);
    cenote_options options = scene_options();
    scene_open_with(scene, &shape, &options);
}

/* Invariants hold, contents are right, CUDA's rules were kept. Everything submitted so far is done afterwards. */
static inline void scene_judge(struct scene *scene)
{
    struct sim_books books;
    DONE(cuCtxSynchronize());
    sim_books(&books);
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    if (scene->pool)
        DONE(cenote_pool_check(scene->pool));
}

/* A pool goes away and leaves nothing behind it, whatever else the card holds for the test itself. */
static inline void scene_destroy_pool(struct scene *scene)
{
    DONE(cenote_pool_check(scene->pool));
    DONE(cenote_pool_destroy(scene->pool));
    scene->pool = NULL;
}

static inline void scene_close(struct scene *scene)
{
    struct sim_books books;
    scene_judge(scene);
    if (scene->pool)
        scene_destroy_pool(scene);
    for (int i = 0; i < SCENE_STREAMS; i++)
        if (scene->stream[i])
            DONE(cuStreamDestroy(scene->stream[i]));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(0));

    sim_books(&books);
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(books.reserved, 0);
    EXPECT_EQ(books.handles, 0);
    EXPECT_EQ(books.mappings, 0);
    EXPECT_EQ(books.reservations, 0);
    EXPECT_EQ(books.allocations, 0);
    EXPECT_EQ(books.pools, 0);
    EXPECT_EQ(books.events, 0);
    EXPECT_EQ(books.streams, 0);
    EXPECT_EQ(books.contexts, 0);
    EXPECT_EQ(books.violations, 0);
    scene_is_open = false;
}

static inline cenote_stats scene_stats(cenote_pool *pool)
{
    cenote_stats stats;
    DONE(cenote_pool_stats(pool, &stats));
    return stats;
}

/* ----------------------------------------------------------------------------------------------------- blocks with contents */

struct held {
    char    *at;
    size_t   bytes;
    uint64_t pattern;   /* no two blocks have the same */
    CUstream stream;    /* whose order it lives in */
};

static inline CUdeviceptr device_address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

/* Functions of a source that takes from the driver. NULL where the card has no more. */
static inline void *take_source(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream, (void)arg;
    return cuMemAlloc(&at, bytes) ? NULL : (void *)(uintptr_t)at;
}

static inline void give_source(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    DONE(cuMemFree(device_address(memory)));
}

/* The contents differ from MiB to MiB: memory that lies under a block twice shows too. */
static inline void held_launch(const struct held *held, CUresult (*work)(CUstream, CUdeviceptr, uint64_t, size_t), CUstream stream)
{
    size_t words = held->bytes & ~(size_t)7;
    for (size_t from = 0; from < words; from += MIB)
        DONE(work(stream, device_address(held->at + from), held->pattern + from, words - from < MIB ? words - from : MIB));
}

/* Takes over a block and writes its contents. */
static inline struct held held_of(void *block, size_t bytes, CUstream stream)
{
    static _Atomic uint64_t serial;
    struct held held = {block, bytes, (atomic_fetch_add(&serial, 1) + 1) * 0x9e3779b97f4a7c15u, stream};
    held_launch(&held, sim_launch_fill, stream);
    return held;
}

/* False, and nothing in `held`, when the pool has no memory for it. */
static inline bool held_take(struct held *held, cenote_pool *pool, size_t bytes, CUstream stream)
{
    void *block = NULL;
    int error = cenote_alloc(pool, bytes, stream, &block);
    memset(held, 0, sizeof *held);
    if (error) {
        EXPECT_EQ(error, CENOTE_OUT_OF_MEMORY);
        return false;
    }
    *held = held_of(block, bytes, stream);
    return true;
}

/* The contents are still there when `stream` gets to it. */
static inline void held_expect(const struct held *held, CUstream stream)
{
    held_launch(held, sim_launch_expect, stream);
}

/* Checked on its own stream as the last thing before it is free. The address stays in it, for another look. */
static inline void held_give(struct held *held)
{
    held_expect(held, held->stream);
    DONE(cenote_free(held->at));
}

/* The device is busy with the block for a long time and looks at its contents at the very end. */
static inline void held_linger(const struct held *held, CUstream stream)
{
    DONE(sim_launch_wait(stream, 10 * MSEC));
    held_expect(held, stream);
}

static inline bool held_overlap(const struct held *x, const struct held *y)
{
    return x->at < y->at + y->bytes && y->at < x->at + x->bytes;
}

/* -------------------------------------------------------------------------------------------- everything that is to be had */

#define HOARD_MAX 512

struct hoard {
    struct held held[HOARD_MAX];
    int    count;
    size_t bytes;
};

static inline void hoard_take(struct hoard *hoard, cenote_pool *pool, size_t each, CUstream stream)
{
    hoard->count = 0;
    hoard->bytes = 0;
    while (hoard->count < HOARD_MAX && held_take(&hoard->held[hoard->count], pool, each, stream)) {
        hoard->count++;
        hoard->bytes += each;
    }
    EXPECT(hoard->count < HOARD_MAX);
}

static inline void hoard_give(struct hoard *hoard)
{
    for (int i = 0; i < hoard->count; i++)
        held_give(&hoard->held[i]);
    hoard->count = 0;
}

/* ------------------------------------------------------------------------------------------------------------ stream order */

/* What `after` does from now on comes after what `before` has been given so far. */
static inline void order(CUstream before, CUstream after)
{
    CUevent event;
    DONE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DONE(cuEventRecord(event, before));
    DONE(cuStreamWaitEvent(after, event, 0));
    DONE(cuEventDestroy(event));
}

#endif
