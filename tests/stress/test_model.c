/*
 * test_model.c: random programs against every provider and setting, one thread each, then several threads at once. Fixed seeds: a
 * failure repeats (with threads, as far as threads do).
 */
#include "tests/stress/model.h"

#include "pool/mapping/units.h"

#include <pthread.h>

#define CARD          (96 * MIB)
#define SEGMENTS_CARD (512 * MIB) /* each arena holds a segment of its own, which does not move */

struct setting {
    uint64_t seed;
    uint64_t lag;
    int      operations;
    enum cenote_provider provider;
    uint32_t page_mib;
    uint32_t trim_every;
    uint32_t address_ratio;
    double   harvest_budget;
    uint32_t split_pages;   /* units_grade_pages */
};

static bool unannounced;        /* the pool has the option announced:0 */

static void open_setting(struct scene *scene, const struct setting *s)
{
    struct sim_shape shape = scene_card(s->provider == CENOTE_VMM ? CARD : SEGMENTS_CARD);
    cenote_options options = scene_options();
    shape.lag = s->lag;
    options.provider = s->provider;
    options.page_mib = s->page_mib;
    options.trim_every = s->trim_every;
    options.address_ratio = s->address_ratio;
    options.harvest_budget = s->harvest_budget;
    options.announced = !unannounced;
    units_grade_pages = s->split_pages;
    scene_open_with(scene, &shape, &options);
}

static void check_model(const struct model *m, uint64_t seed)
{
    if (m->failures)
        fprintf(stderr, "\nmodel with seed %llu: %s (model.c:%d): %s\n", (unsigned long long)seed, m->what, m->line, cenote_message());
    EXPECT_EQ(m->failures, 0);
}

static void run_setting(const struct setting *s)
{
    static struct model model;
    struct scene scene;
    open_setting(&scene, s);
    model_open(&model, scene.pool, s->seed);
    model.alone = true;
    model.tells = unannounced;
    model.moves = s->provider == CENOTE_VMM;
    model_run(&model, s->operations);
    model_close(&model);
    check_model(&model, s->seed);
    EXPECT(model.allocations > model.refused);
    EXPECT(model.extensions);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

static void run_settings(const struct setting *settings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        run_setting(&settings[i]);
}

CASE(one_thread_on_pages)
{
    static const struct setting settings[] = {
        {1, 0, 6000, CENOTE_VMM, 2, 0, 4, -1, 128},          {2, MSEC / 5, 6000, CENOTE_VMM, 2, 0, 4, -1, 128},
        {3, 2 * MSEC, 6000, CENOTE_VMM, 2, 0, 4, -1, 128},   {4, 20 * MSEC, 6000, CENOTE_VMM, 2, 3, 2, -1, 128},
        {5, 2 * MSEC, 6000, CENOTE_VMM, 4, 0, 8, 0.01, 128}, {6, 2 * MSEC, 6000, CENOTE_VMM, 2, 2, 1, 0.5, 128},
        {7, 2 * MSEC, 6000, CENOTE_VMM, 8, 0, 64, 0, 128},   {8, MSEC / 2, 6000, CENOTE_VMM, 2, 1, 4, -1, 128},
        {9, 2 * MSEC, 6000, CENOTE_VMM, 8, 0, 4, -1, 128}, {10, MSEC, 6000, CENOTE_VMM, 8, 3, 4, -1, 3},
        {11, MSEC, 6000, CENOTE_VMM, 16, 2, 2, 0.5, 1},      {15, MSEC, 6000, CENOTE_VMM, 16, 0, 4, -1, 3},
        {16, MSEC, 6000, CENOTE_VMM, 32, 0, 4, -1, 2},       {17, 2 * MSEC, 6000, CENOTE_VMM, 32, 1, 2, 0.01, 1},
    };
    run_settings(settings, sizeof settings / sizeof settings[0]);
}

CASE(one_thread_on_segments)
{
    static const struct setting settings[] = {
        {11, 0, 6000, CENOTE_ASYNC, 2, 0, 4, -1, 128},
        {12, 2 * MSEC, 6000, CENOTE_ASYNC, 2, 3, 4, -1, 128},
        {13, 0, 6000, CENOTE_PLAIN, 2, 0, 4, -1, 128},
        {14, 2 * MSEC, 6000, CENOTE_PLAIN, 2, 3, 4, -1, 128},
    };
    run_settings(settings, sizeof settings / sizeof settings[0]);
}

/* ------------------------------------------------------------------------------------------------------------- threads */

#define THREADS 4

struct runner {
    struct model model;
    CUcontext    context;
    int          operations;
};

static void *run_model(void *arg)
{
    struct runner *r = arg;
    if (cuCtxPushCurrent(r->context))
        r->model.failures++;
    model_run(&r->model, r->operations);
    if (cuCtxPopCurrent(NULL))
        r->model.failures++;
    return NULL;
}

static void run_threads(const struct setting *s, bool shared_streams)
{
    static struct runner runners[THREADS];
    pthread_t threads[THREADS];
    struct scene scene;
    open_setting(&scene, s);
    for (int i = 0; i < THREADS; i++) {
        model_open(&runners[i].model, scene.pool, s->seed + (uint64_t)i);
        runners[i].model.moves = s->provider == CENOTE_VMM;
        runners[i].context = scene.context;
        runners[i].operations = s->operations;
        runners[i].model.tells = unannounced;
        if (shared_streams)
            model_share_streams(&runners[i].model, scene.stream, SCENE_STREAMS);
    }
    for (int i = 0; shared_streams && unannounced && i < SCENE_STREAMS; i++)
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
    for (int i = 0; i < THREADS; i++)
        DONE(pthread_create(&threads[i], NULL, run_model, &runners[i]));
    for (int i = 0; i < THREADS; i++)
        DONE(pthread_join(threads[i], NULL));
    for (int i = 0; i < THREADS; i++) {
        model_close(&runners[i].model);
        check_model(&runners[i].model, s->seed + (uint64_t)i);
    }
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

CASE(threads_with_streams_of_their_own)
{
    static const struct setting settings[] = {
        {21, 0, 2000, CENOTE_VMM, 2, 0, 4, -1, 128},
        {31, MSEC, 2000, CENOTE_VMM, 2, 2, 4, -1, 128},
        {36, MSEC, 2000, CENOTE_VMM, 8, 2, 4, -1, 3},
        {41, MSEC, 2000, CENOTE_PLAIN, 2, 0, 4, -1, 128},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        run_threads(&settings[i], false);
}

CASE(threads_that_share_streams)
{
    static const struct setting settings[] = {
        {51, 0, 2000, CENOTE_VMM, 2, 0, 4, -1, 128},
        {61, MSEC, 2000, CENOTE_VMM, 2, 2, 4, -1, 128},
        {66, MSEC, 2000, CENOTE_VMM, 8, 2, 4, -1, 3},
        {67, MSEC, 2000, CENOTE_VMM, 32, 2, 4, -1, 1},
        {71, MSEC, 2000, CENOTE_ASYNC, 2, 0, 4, -1, 128},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        run_threads(&settings[i], true);
}

/* The same for a program that does not announce its captures. It names or retires each stream, so that all memory comes back. */
CASE(unannounced)
{
    static const struct setting alone[] = {
        {81, 0, 4000, CENOTE_VMM, 2, 0, 4, -1, 128},
        {82, 2 * MSEC, 4000, CENOTE_VMM, 2, 0, 4, -1, 128},
        {83, 20 * MSEC, 4000, CENOTE_VMM, 4, 3, 2, 0.5, 3},
        {84, 2 * MSEC, 4000, CENOTE_PLAIN, 2, 3, 4, -1, 128},
    };
    static const struct setting threads[] = {
        {85, 0, 1500, CENOTE_VMM, 2, 0, 4, -1, 128},
        {95, MSEC, 1500, CENOTE_VMM, 2, 2, 4, -1, 128},
    };
    unannounced = true;
    run_settings(alone, sizeof alone / sizeof alone[0]);
    for (int shared = 0; shared < 2; shared++)
        for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++)
            run_threads(&threads[i], shared);
    unannounced = false;
}

SCENES_MAIN("stress: random programs")
