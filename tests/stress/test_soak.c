/*
 * test_soak.c: random programs on random cards under random settings, driver calls failing at random in some; up to 16 threads that free each
 * other's blocks, while another thread trims, checks and draws the pool beside them. Environment
 * variables: SOAK_SEED (the first), SOAK_STEPS (operations of a thread, where there are four), CENOTE_TEST_ROUNDS (more seeds: rounds.h).
 */
#include "tests/rounds.h"
#include "tests/stress/model.h"
#include "tests/stress/portions.h"
#include "tests/stress/versions.h"

#include "driver/driver.h"
#include "pool/mapping/units.h"

#include <pthread.h>

#define THREADS_MAX 16
#define SEEDS 5
#define SNAPSHOT "/dev/null"
#define HOUR (3600 * 1000 * MSEC)

struct soak {
    struct model model[THREADS_MAX];
    struct model_shelf shelf;
    CUcontext    context;
    int          threads;           /* 0: as many as the seed says, all threads together doing what four would */
    int          running;           /* of them */
    int          steps;
    bool         faults, shares_streams;
    bool         stalls;            /* one more stream waits for the program all the time, and there is memory for all that waits with it */
    CUstream     stalled;
    atomic_bool  over;              /* for the thread that looks on */
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
    static const int threads[] = {2, 3, 5, 8, THREADS_MAX};
    static const uint32_t splits[] = {0, 1, 3, 6, 128}; /* large pages: early ones, late ones, none */
    uint64_t random = seed;
    k->running = k->threads ? k->threads : threads[seed % 5];
    cenote_options options = scene_options();
    options.provider = k->stalls ? CENOTE_VMM : providers[pick(&random, 5)]; /* cuMemFree waits by itself */
    bool moves = options.provider == CENOTE_VMM;
    struct sim_shape shape = scene_card(k->stalls ? 16 * GIB : (moves ? 24 + pick(&random, 100) : 100 + pick(&random, 400)) * MIB);
    shape.lag = lags[pick(&random, 4)];
    version_set(pick(&random, 8) ? VERSION_NEWEST : 12000);
    options.page_mib = 2u << pick(&random, 5);
    units_grade_pages = splits[pick(&random, sizeof splits / sizeof *splits)];
    options.trim_every = (uint32_t)pick(&random, 4);
    options.address_ratio = 1u << pick(&random, 5);
    options.harvest_budget = (double)pick(&random, 3) / 2 - 0.5;
    portions_begin(seed);
    scene_open_with(scene, &shape, &options);
    if (k->stalls) {
        DONE(cuStreamCreate(&k->stalled, CU_STREAM_NON_BLOCKING));
        DONE(sim_launch_wait(k->stalled, HOUR));
        if (pick(&random, 2))
            DONE(cenote_stream_set_immortal(scene->pool, k->stalled));
    }
    for (int i = 0; i < k->running; i++) {
        model_open(&k->model[i], scene->pool, seed * THREADS_MAX + (uint64_t)i);
        k->model[i].alone = k->running == 1;
        k->model[i].moves = moves;
        k->model[i].faults = k->faults;
        k->model[i].stalled = k->stalled;
        if (pick(&random, 3) == 0 && !k->stalls)
            model_use_source(&k->model[i]);
        if (k->shares_streams) {
            model_share_streams(&k->model[i], scene->stream, SCENE_STREAMS);
            k->model[i].shelf = &k->shelf;
        }
    }
    if (k->running == 1 && pick(&random, 2))
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
    model_run(r->model, r->soak->running == 1 ? r->soak->steps : r->soak->steps * 4 / r->soak->running);
    if (cuCtxPopCurrent(NULL))
        r->model->failures++;
    return NULL;
}

/* Looks at everything beside the threads that allocate, and trims: this may neither hold them up nor be wrong. */
static void *look_on(void *arg)
{
    struct runner *r = arg;
    struct model *m = r->model;
    static char text[1 << 16];
    cenote_row rows[64];
    size_t count;
    uint64_t random = (uint64_t)r->soak->running;
    if (cuCtxPushCurrent(r->soak->context))
        m->failures++;
    while (!m->failures && !atomic_load(&r->soak->over)) {
        cenote_stats stats;
        uint64_t what = pick(&random, 7);
        int error = what == 0   ? cenote_pool_trim(m->pool, pick(&random, 64) * MIB, pick(&random, 4) || m->stalled ? 0 : CENOTE_TRIM_WAIT)
                    : what == 1 ? cenote_pool_check(m->pool)
                    : what == 2 ? cenote_pool_snapshot(m->pool, SNAPSHOT)
                    : what == 3 ? cenote_pool_rows(m->pool, (int)pick(&random, 3), rows, 64, &count)
                    : what == 4 ? cenote_pool_reset_peaks(m->pool)
                                : cenote_pool_stats(m->pool, &stats);
        if (what == 6)
            cenote_pool_explain(m->pool, pick(&random, 1 << 30), text, sizeof text);
        bool excused = what == 0 && r->soak->faults && (error == CENOTE_DRIVER || error == CENOTE_DEVICE_LOST);
        if (error && !excused) {
            m->failures++;
            m->what = "the thread that looks on was refused";
            snprintf(m->message, sizeof m->message, "call %llu: %s", (unsigned long long)what, cenote_message());
        }
    }
    if (cuCtxPopCurrent(NULL))
        m->failures++;
    return NULL;
}

static void run_models(struct soak *k)
{
    pthread_t threads[THREADS_MAX], onlooker;
    struct runner runners[THREADS_MAX];
    static struct model looking;
    looking = (struct model){.pool = k->model[0].pool, .stalled = k->stalled};
    struct runner looks = {k, &looking};
    k->over = false;
    if (k->running > 1)
        DONE(pthread_create(&onlooker, NULL, look_on, &looks));
    for (int i = 0; i < k->running; i++) {
        runners[i] = (struct runner){k, &k->model[i]};
        DONE(pthread_create(&threads[i], NULL, run_model, &runners[i]));
    }
    for (int i = 0; i < k->running; i++)
        DONE(pthread_join(threads[i], NULL));
    k->over = true;
    if (k->running > 1)
        DONE(pthread_join(onlooker, NULL));
    if (looking.failures)
        fprintf(stderr, "\n%s: %s\n", looking.what, looking.message);
    EXPECT_EQ(looking.failures, 0);
}

static void run_soak(struct soak *k, uint64_t seed)
{
    struct scene scene;
    open_soak(k, &scene, seed);
    run_models(k);
    fault_disarm();
    if (k->stalls) {
        EXPECT_EQ(scene_stats(scene.pool).waits, 0); /* rule 12 */
        EXPECT(sim_now() < HOUR);
        DONE(cuStreamSynchronize(k->stalled));
    }
    EXPECT(model_clear_shelf(&k->shelf));
    for (int i = 0; i < k->running; i++) {
        model_close(&k->model[i]);
        if (k->model[i].failures)
            fprintf(stderr, "\nsoak with seed %llu: %s (model.c:%d): %s\n", (unsigned long long)seed, k->model[i].what, k->model[i].line,
                    k->model[i].message);
        EXPECT_EQ(k->model[i].failures, 0);
    }
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    if (k->stalls)
        DONE(cuStreamDestroy(k->stalled));
    scene_close(&scene);
    portions_end();
    version_set(VERSION_NEWEST);
    stop_at_failure(seed, "soak");
}

static void run_soaks(struct soak *k)
{
    uint64_t first = asked_for("SOAK_SEED", 1), runs = (uint64_t)rounds(SEEDS);
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
    portions_end();
    version_set(VERSION_NEWEST);
    stop_at_failure(seed, call);
}

/* Not events, driver's pools and the context: no driver is left to ask again. */
CASE(destruction_with_a_call_that_fails)
{
    static const char *const calls[] = {"cuCtxPushCurrent", "cuCtxSynchronize", "cuThreadExchangeStreamCaptureMode", "cuMemUnmap",
                                        "cuMemRelease", "cuMemAddressFree", "cuMemFree", "cuMemPoolTrimTo"};
    static struct soak soak = {.threads = 1, .steps = 300};
    for (uint64_t seed = asked_for("SOAK_SEED", 1), end = seed + (uint64_t)rounds(SEEDS); seed < end; seed++)
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
    portions_end();
    version_set(VERSION_NEWEST);
    stop_at_failure(seed, "context lost");
}

CASE(context_lost_at_some_call)
{
    static struct soak soak = {.threads = 1, .steps = 300, .faults = true};
    for (uint64_t seed = asked_for("SOAK_SEED", 1), end = seed + 4 * (uint64_t)rounds(SEEDS); seed < end; seed++)
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
    static struct soak soak = {0};
    run_soaks(&soak);
}

CASE(sharing_streams)
{
    static struct soak soak = {.shares_streams = true};
    run_soaks(&soak);
}

CASE(beside_a_stream_that_stalls)
{
    static struct soak soak = {.shares_streams = true, .stalls = true};
    run_soaks(&soak);
}

CASE(threads_under_faults)
{
    static struct soak soak = {.faults = true, .shares_streams = true};
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
        REQUIRE_EQ(group_alloc(group, MIB, 512, scene.stream[A], &at), 0);
        DONE(cenote_free(at));
        DONE(cenote_group_destroy(group));
    }
    scene_close(&scene);
    portions_end();
    version_set(VERSION_NEWEST);
}

SCENES_MAIN("stress: soak")
