/*
 * test_soak.c: random programs on random cards under random settings, driver calls failing at random in some. Short by default; long as
 * environment variables say: SOAK_SEED (the first), SOAK_RUNS (how many seeds), SOAK_STEPS (operations of each thread).
 */
#include "tests/stress/model.h"

#include "driver/driver.h"

#include <pthread.h>

#define THREADS_MOST 4

struct soak {
    struct model model[THREADS_MOST];
    CUcontext    context;
    int          threads;
    int          steps;
    bool         faults, shares_streams;
};

static uint64_t asked_for(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

/* splitmix: apart from the models' own numbers. */
static uint64_t pick(uint64_t *random, uint64_t below)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static int shortage(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes;
    return model_gives_up_a_block(arg);
}

/* What comes after the first failure would say nothing. */
static void stop_at_failure(uint64_t seed, const char *what)
{
    if (!CU_get_number_of_failures())
        return;
    fprintf(stderr, "%s: failed with seed %llu\n", what, (unsigned long long)seed);
    CU_basic_show_failures(CU_get_failure_list());
    exit(1);
}

static void open_soak(struct soak *k, struct scene *scene, uint64_t seed)
{
    static const uint64_t lags[] = {0, MSEC / 5, 2 * MSEC, 20 * MSEC};
    static const enum cenote_provider providers[] = {CENOTE_VMM, CENOTE_VMM, CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN};
    uint64_t random = seed;
    cenote_options options = scene_options();
    options.provider = providers[pick(&random, 5)];
    bool moves = options.provider == CENOTE_VMM;
    struct sim_shape shape = scene_card((moves ? 24 + pick(&random, 100) : 100 + pick(&random, 400)) * MIB);
    shape.lag = lags[pick(&random, 4)];
    shape.driver_version = pick(&random, 8) ? shape.driver_version : 12000;
    options.page_mib = 2u << pick(&random, 3);
    options.trim_every = (uint32_t)pick(&random, 4);
    options.address_ratio = 1u << pick(&random, 5);
    options.harvest_budget = (double)pick(&random, 3) / 2 - 0.5;
    scene_open_with(scene, &shape, &options);
    for (int i = 0; i < k->threads; i++) {
        model_open(&k->model[i], scene->pool, seed * THREADS_MOST + (uint64_t)i);
        k->model[i].alone = k->threads == 1;
        k->model[i].moves = moves;
        k->model[i].faults = k->faults;
        if (pick(&random, 3) == 0)
            model_use_source(&k->model[i]);
        if (k->shares_streams)
            model_share_streams(&k->model[i], scene->stream, SCENE_STREAMS);
    }
    if (k->threads == 1 && pick(&random, 2))
        DONE(cenote_pool_on_shortage(scene->pool, shortage, &k->model[0]));
    k->context = scene->context;
}

struct runner {
    struct soak *soak;
    struct model *model;
};

static void *run_model(void *arg)
{
    struct runner *r = arg;
    if (cuCtxPushCurrent(r->soak->context))
        r->model->failures++;
    model_run(r->model, r->soak->steps);
    if (cuCtxPopCurrent(NULL))
        r->model->failures++;
    return NULL;
}

static void run_models(struct soak *k)
{
    pthread_t threads[THREADS_MOST];
    struct runner runners[THREADS_MOST];
    for (int i = 0; i < k->threads; i++) {
        runners[i] = (struct runner){k, &k->model[i]};
        DONE(pthread_create(&threads[i], NULL, run_model, &runners[i]));
    }
    for (int i = 0; i < k->threads; i++)
        DONE(pthread_join(threads[i], NULL));
}


static void run_soak(struct soak *k, uint64_t seed)
{
    struct scene scene;
    open_soak(k, &scene, seed);
    run_models(k);
    fault_disarm();
    for (int i = 0; i < k->threads; i++) {
        model_close(&k->model[i]);
        if (k->model[i].failures)
            fprintf(stderr, "\nsoak with seed %llu: %s (model.c:%d): %s\n", (unsigned long long)seed, k->model[i].what, k->model[i].line,
                    k->model[i].message);
        EXPECT_EQ(k->model[i].failures, 0);
    }
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
    stop_at_failure(seed, "soak");
}

static void run_soaks(struct soak *k)
{
    uint64_t first = asked_for("SOAK_SEED", 1), runs = asked_for("SOAK_RUNS", 5);
    k->steps = (int)asked_for("SOAK_STEPS", 1500);
    for (uint64_t seed = first; seed < first + runs; seed++)
        run_soak(k, seed);
}

/* A driver call of a destruction fails once. A pool that says it could not go is there and goes the next time; nothing is left. */
static void destroy_under_fault(struct soak *k, uint64_t seed, const char *call)
{
    struct scene scene;
    open_soak(k, &scene, seed);
    run_models(k);
    model_close(&k->model[0]);
    scene_judge(&scene);
    fault_arm(call, 1 + seed % 3, CUDA_ERROR_UNKNOWN, false);
    int error = cenote_pool_destroy(scene.pool);
    bool fired = fault_fired();
    fault_disarm();
    EXPECT(fired || !error);
    if (error)
        DONE(cenote_pool_destroy(scene.pool));
    scene.pool = NULL;
    scene_close(&scene);
    stop_at_failure(seed, call);
}

/* Not events, driver's pools and the context: there is nobody left to ask again. */
CASE(destruction_with_a_call_that_fails)
{
    static const char *const calls[] = {"cuCtxPushCurrent", "cuCtxSynchronize", "cuThreadExchangeStreamCaptureMode", "cuMemUnmap",
                                        "cuMemRelease", "cuMemAddressFree", "cuMemFree", "cuMemPoolTrimTo"};
    static struct soak soak = {.threads = 1, .steps = 300};
    for (uint64_t seed = asked_for("SOAK_SEED", 1), end = seed + asked_for("SOAK_RUNS", 5); seed < end; seed++)
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            destroy_under_fault(&soak, seed, calls[i]);
}

/* The context is lost at some call: everything but memory has an answer, and the pool goes away. */
static void lose_context(struct soak *k, uint64_t seed)
{
    struct scene scene;
    open_soak(k, &scene, seed);
    fault_arm(NULL, 1 + seed * 37 % 400, CUDA_ERROR_ILLEGAL_ADDRESS, true);
    k->model[0].lost = true;
    run_models(k);
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    model_let_go(&k->model[0]);
    EXPECT_EQ(k->model[0].failures, 0);
    DONE(cenote_pool_check(scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    int error = cenote_pool_destroy(scene.pool);
    EXPECT(error == CENOTE_OK || error == CENOTE_DEVICE_LOST);
    fault_disarm();
    sim_reset(NULL);
    sim_set_quiet(false);
    scene_is_open = false;
    stop_at_failure(seed, "context lost");
}

CASE(context_lost_at_some_call)
{
    static struct soak soak = {.threads = 1, .steps = 300, .faults = true};
    for (uint64_t seed = asked_for("SOAK_SEED", 1), end = seed + 4 * asked_for("SOAK_RUNS", 5); seed < end; seed++)
        lose_context(&soak, seed);
}

CASE(one_thread)
{
    static struct soak soak = {.threads = 1};
    run_soaks(&soak);
}

CASE(one_thread_with_faults)
{
    static struct soak soak = {.threads = 1, .faults = true};
    run_soaks(&soak);
}

CASE(threads)
{
    static struct soak soak = {.threads = THREADS_MOST};
    run_soaks(&soak);
}

CASE(sharing_streams)
{
    static struct soak soak = {.threads = THREADS_MOST, .shares_streams = true};
    run_soaks(&soak);
}

CASE(threads_under_faults)
{
    static struct soak soak = {.threads = THREADS_MOST, .faults = true};
    run_soaks(&soak);
}

/* Each round takes addresses of its own, and the device has them for 60 rounds. */
CASE(groups_that_come_and_go)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_options options = scene_options();
    shape.address_space = 4 * GIB;
    scene_open_with(&scene, &shape, &options);
    for (int round = 0; round < 300; round++) {
        cenote_group *group;
        void *at;
        REQUIRE_EQ(cenote_group_create(scene.pool, "short-lived", CENOTE_GROUP_PRIVATE, NULL, &group), 0);
        REQUIRE_EQ(cenote_group_alloc(group, MIB, 512, scene.stream[A], &at), 0);
        DONE(cenote_free(at));
        DONE(cenote_group_destroy(group));
    }
    scene_close(&scene);
}

SCENES_MAIN("stress: soak")
