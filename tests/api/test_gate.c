/*
 * test_gate.c: no thread waits for the device inside its gate, and a free waits for nothing (rule 12 of docs/design.md).
 *
 * In most cases one thread waits for a device that waits for the main thread: a host function stalls a stream until the main thread has freed
 * a block. A second thread begins a capture meanwhile, and the main thread frees. The driver is called through a wrapper that says when
 * the first thread waits. The same cases run a second time, in a process of their own, on a driver without cuCtxRecordEvent.
 */
#include "tests/api/scene.h"

#include <cenote/share.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pool/pool.h"

#define CARD     (128 * MIB)
#define PATIENCE 5000       /* ms after which what should have happened has not */
#define OLD_WORD "--old"

static bool old_driver;
static const struct driver *below;
static struct driver above;
static atomic_bool waiting; /* a thread waits for a device */

static void hold_up(void);

static _Thread_local bool is_refused; /* an event over the context */
static atomic_int waits_of_refused;   /* for lack of one, for the context itself */

static CUresult wait_for_context(void)
{
    atomic_store(&waiting, true);
    atomic_fetch_add(&waits_of_refused, is_refused ? 1 : 0);
    hold_up();
    return below->cuCtxSynchronize();
}

static CUresult record_over_context(CUcontext context, CUevent event)
{
    hold_up();
    return is_refused ? CUDA_ERROR_NOT_SUPPORTED : below->cuCtxRecordEvent(context, event);
}

static CUresult wait_for_event(CUevent event)
{
    atomic_store(&waiting, true);
    return below->cuEventSynchronize(event);
}

/* A pool waits by asking again and again. */
static CUresult ask(CUevent event)
{
    CUresult result = below->cuEventQuery(event);
    if (result == CUDA_ERROR_NOT_READY)
        atomic_store(&waiting, true);
    return result;
}

static const struct driver *say_who_waits(const struct driver *inner)
{
    below = inner;
    above = *inner;
    above.cuCtxSynchronize = wait_for_context;
    above.cuCtxRecordEvent = below->cuCtxRecordEvent ? record_over_context : NULL;
    above.cuEventSynchronize = wait_for_event;
    above.cuEventQuery = ask;
    return &above;
}

static void sleep_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool comes_true(atomic_bool *what)
{
    for (int i = 0; i < PATIENCE && !atomic_load(what); i++)
        sleep_a_little();
    return atomic_load(what);
}

/* The first call over the whole context of a thread that was told to is made when the main thread says so. */
static _Thread_local bool is_late;
static atomic_bool held_up, may_go;

static void hold_up(void)
{
    if (!is_late)
        return;
    is_late = false;
    atomic_store(&held_up, true);
    comes_true(&may_go);
}

/* ------------------------------------------------------------------------------------------------------------------ the stall */

struct stall {
    struct scene  scene;
    cenote_pool  *second;           /* on device 0 */
    cenote_pool  *far;              /* on device 1 */
    CUcontext     far_context;
    CUstream      far_stream[2];
    cenote_pool  *pool;             /* of the device that stalls: the capture is announced there, and the block freed */
    CUstream      capturing;        /* of that device */
    cenote_group *group;
    atomic_bool   freed, in_time, announced, inside;
    atomic_int    failed;           /* calls of the two threads */
    void         *import, *lingers; /* for the thread that waits to close or free */
    int         (*wait)(struct stall *s);
};

static void open_stall(struct stall *s)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    memset(s, 0, sizeof *s);
    shape.devices = 2;
    shape.driver_version = old_driver ? 12040 : shape.driver_version;
    scene_open_with(&s->scene, &shape, &options);
    DONE(cenote_pool_create(0, &options, &s->second));
    DONE(cenote_pool_create(1, &options, &s->far));
    DONE(cuDevicePrimaryCtxRetain(&s->far_context, 1));
    DONE(cuCtxPushCurrent(s->far_context));
    for (int i = 0; i < 2; i++)
        DONE(cuStreamCreate(&s->far_stream[i], CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    EXPECT_EQ(s->scene.pool->config.device->driver->cuCtxRecordEvent == NULL, old_driver);
    s->pool = s->scene.pool;
    s->capturing = s->scene.stream[A];
}

static void close_stall(struct stall *s)
{
    DONE(cenote_group_destroy(s->group));
    if (s->second)
        DONE(cenote_pool_destroy(s->second));
    DONE(cuCtxPushCurrent(s->far_context));
    for (int i = 0; i < 2; i++)
        DONE(cuStreamDestroy(s->far_stream[i]));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_destroy(s->far));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&s->scene);
}

static void CUDA_CB until_freed(void *arg)
{
    struct stall *s = arg;
    atomic_store(&s->in_time, comes_true(&s->freed));
}

static void *wait_for_device_in_thread(void *arg)
{
    struct stall *s = arg;
    s->failed += s->wait(s) != CENOTE_OK;
    return NULL;
}

static void *announce(void *arg)
{
    struct stall *s = arg;
    s->failed += cenote_capture_begin(NULL, s->group, s->capturing) != CENOTE_OK;
    s->failed += cuCtxPushCurrent(device_context(s->pool->config.device)) != CUDA_SUCCESS;
    s->failed += cuStreamBeginCapture(s->capturing, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS;
    atomic_store(&s->announced, true);
    return NULL;
}

/* A reader does not get in where one waits to write. */
static bool is_queued(pthread_rwlock_t *lock)
{
    if (pthread_rwlock_tryrdlock(lock))
        return true;
    pthread_rwlock_unlock(lock);
    return false;
}

/* The announcement was made, or waits for the thread that waits. */
static bool is_under_way(struct stall *s)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (atomic_load(&s->announced) || is_queued(&s->pool->config.device->card->gate) || is_queued(&s->pool->config.device->card->quiet))
            return true;
        sleep_a_little();
    }
    return false;
}

/* Nothing that was done meanwhile has ended it. */
static void end_capture(struct stall *s)
{
    CUgraph graph = NULL;
    DONE(cuStreamEndCapture(s->capturing, &graph));
    EXPECT(graph != NULL);
    if (graph)
        DONE(cuGraphDestroy(graph));
    DONE(cenote_capture_end(NULL, s->group, s->capturing));
}

/* A block that another stream uses is freed while `thread` runs and a capture is being announced. */
static void free_meanwhile(struct stall *s, CUstream uses, void *(*thread)(void *), atomic_bool *goes_on)
{
    pthread_t waiter, announcer;
    void *block = NULL;
    DONE(cenote_group_create(s->pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &s->group));
    DONE(cenote_alloc(s->pool, MIB, s->capturing, &block));
    DONE(cenote_use(block, uses));
    REQUIRE(!pthread_create(&waiter, NULL, thread, s));
    EXPECT(comes_true(goes_on));
    REQUIRE(!pthread_create(&announcer, NULL, announce, s));
    EXPECT(is_under_way(s));
    DONE(cenote_free(block));
    atomic_store(&s->freed, true);
    pthread_join(waiter, NULL);
    pthread_join(announcer, NULL);
    EXPECT(comes_true(&s->in_time)); /* what waited may have ended before, because of the capture */
    EXPECT_EQ(s->failed, 0);
    end_capture(s);
}

/* What `wait` waits for goes on when the block is free. */
static void free_in_a_stall(struct stall *s, CUstream stalls, CUstream uses, int (*wait)(struct stall *))
{
    s->wait = wait;
    atomic_store(&waiting, false);
    DONE(cuLaunchHostFunc(stalls, until_freed, s));
    free_meanwhile(s, uses, wait_for_device_in_thread, &waiting);
}

/* ------------------------------------------------------------------------------------------------------------ threads that wait */

/* Where the capture began first the import stays open. */
static int close_import(struct stall *s)
{
    int error = cenote_import_close(s->import);
    s->import = error == CENOTE_BUSY ? s->import : NULL;
    return error == CENOTE_BUSY ? CENOTE_OK : error;
}

CASE(an_import_is_closed)
{
    struct stall s;
    struct held held;
    cenote_share share;
    open_stall(&s);
    REQUIRE(held_take(&held, s.pool, 3 * MIB, s.scene.stream[A]));
    DONE(cenote_export(held.at, &share));
    DONE(cenote_import(&share, sizeof share, 0, &s.import));
    free_in_a_stall(&s, s.scene.stream[C], s.scene.stream[B], close_import);
    if (s.import)
        DONE(cenote_import_close(s.import));
    held_give(&held);
    close_stall(&s);
}

/* What it frees now no earlier fence covers. */
static int trim(struct stall *s)
{
    int error = cenote_free(s->lingers);
    return error ? error : cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT);
}

CASE(a_trim_waits)
{
    struct stall s;
    open_stall(&s);
    DONE(cenote_alloc(s.pool, 3 * MIB, s.scene.stream[C], &s.lingers));
    free_in_a_stall(&s, s.scene.stream[C], s.scene.stream[B], trim);
    close_stall(&s);
}

CASE(a_trim_waits_for_another_device)
{
    struct stall s;
    open_stall(&s);
    s.pool = s.far;
    s.capturing = s.far_stream[0];
    DONE(cenote_alloc(s.scene.pool, 3 * MIB, s.scene.stream[A], &s.lingers));
    DONE(cenote_use_on_device(s.lingers, 1, s.far_stream[1]));
    free_in_a_stall(&s, s.far_stream[1], s.far_stream[1], trim);
    close_stall(&s);
}

static int destroy(struct stall *s)
{
    int error = cenote_pool_destroy(s->second);
    s->second = NULL;
    return error == CENOTE_BUSY ? CENOTE_OK : error; /* the capture began first */
}

CASE(a_pool_is_destroyed)
{
    struct stall s;
    struct held held;
    open_stall(&s);
    cenote_pool *second = s.second;
    REQUIRE(held_take(&held, second, 3 * MIB, s.scene.stream[C]));
    held_give(&held);
    free_in_a_stall(&s, s.scene.stream[C], s.scene.stream[B], destroy);
    if (cenote_pool_provider(second) >= 0)
        s.second = second;
    close_stall(&s);
}

/* ----------------------------------------------------------------------------------------------------------------- what follows */

static void *stay_inside(void *arg)
{
    struct stall *s = arg;
    s->failed += device_enter(s->pool->config.device, s->pool->config.generation) != CUDA_SUCCESS;
    atomic_store(&s->inside, true);
    atomic_store(&s->in_time, comes_true(&s->freed));
    device_leave(s->pool->config.device);
    return NULL;
}

/* Whatever keeps a thread inside: a free does not queue behind the announcement that waits for it. */
CASE(a_free_passes_a_gate_that_is_being_shut)
{
    struct stall s;
    open_stall(&s);
    free_meanwhile(&s, s.scene.stream[B], stay_inside, &s.inside);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(s.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(s.pool).pending_blocks, 0);
    close_stall(&s);
}

/* The turn is free while a pool that is to be destroyed waits, so a block may come and go: it was not waited for. */
CASE(a_block_of_a_pool_that_waits_to_be_destroyed)
{
    struct stall s;
    struct held held;
    pthread_t waiter;
    open_stall(&s);
    cenote_pool *second = s.second;
    DONE(cenote_group_create(s.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &s.group));
    REQUIRE(held_take(&held, second, 3 * MIB, s.scene.stream[C]));
    held_give(&held);
    s.wait = destroy;
    atomic_store(&waiting, false);
    DONE(cuLaunchHostFunc(s.scene.stream[C], until_freed, &s));
    REQUIRE(!pthread_create(&waiter, NULL, wait_for_device_in_thread, &s));
    EXPECT(comes_true(&waiting));
    REQUIRE(held_take(&held, second, 3 * MIB, s.scene.stream[A]));
    if (!old_driver) /* or it would be waited for as well */
        held_linger(&held, s.scene.stream[A]);
    held_give(&held);
    atomic_store(&s.freed, true);
    pthread_join(waiter, NULL);
    EXPECT_EQ(s.failed, 0);
    EXPECT_EQ(cenote_pool_provider(second), CENOTE_VMM); /* it is there still */
    s.second = second;
    scene_judge(&s.scene);
    close_stall(&s);
}

/* ------------------------------------------------------------------------------------------------ captures cease to be announced */

static cenote_pool *careful;
static atomic_bool careful_is_open;

static void *destroy_late(void *arg)
{
    is_late = true;
    return wait_for_device_in_thread(arg);
}

static void *destroy_late_without_event(void *arg)
{
    is_refused = true;
    return destroy_late(arg);
}

static void *open_careful(void *arg)
{
    struct stall *s = arg;
    cenote_options options = scene_options();
    options.announced = 0;
    s->failed += cenote_pool_create(1, &options, &careful) != CENOTE_OK;
    atomic_store(&careful_is_open, true);
    return NULL;
}

static void begin_unannounced(struct stall *s)
{
    DONE(cuCtxPushCurrent(device_context(s->pool->config.device)));
    DONE(cuStreamBeginCapture(s->capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cuCtxPopCurrent(NULL));
}

/* Opened, or queued behind the thread that is about to make a call over the context. */
static bool careful_is_under_way(struct stall *s)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (atomic_load(&careful_is_open) || is_queued(&s->pool->config.device->card->gate) || is_queued(&s->pool->config.device->card->quiet))
            return true;
        sleep_a_little();
    }
    return false;
}

static void open_careful_beside(void *(*thread)(void *))
{
    struct stall s;
    struct held held;
    pthread_t waiter, opener;
    open_stall(&s);
    cenote_pool *second = s.second;
    REQUIRE(held_take(&held, second, 3 * MIB, s.scene.stream[C]));
    held_give(&held);
    DONE(cenote_group_create(s.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &s.group));
    s.wait = destroy;
    atomic_store(&held_up, false);
    atomic_store(&may_go, false);
    atomic_store(&careful_is_open, false);
    REQUIRE(!pthread_create(&waiter, NULL, thread, &s));
    EXPECT(comes_true(&held_up));
    REQUIRE(!pthread_create(&opener, NULL, open_careful, &s));
    EXPECT(careful_is_under_way(&s));
    bool early = atomic_load(&careful_is_open);
    if (early)
        begin_unannounced(&s);
    atomic_store(&may_go, true);
    pthread_join(waiter, NULL);
    pthread_join(opener, NULL);
    EXPECT_EQ(s.failed, 0);
    if (!early)
        begin_unannounced(&s);
    CUgraph graph = NULL;
    DONE(cuStreamEndCapture(s.capturing, &graph));
    if (graph)
        DONE(cuGraphDestroy(graph));
    s.second = second != careful && cenote_pool_provider(second) >= 0 ? second : NULL; /* a new pool takes over the structure of one that went */
    DONE(cenote_pool_destroy(careful));
    close_stall(&s);
}

/* When the first pool with announced:0 is open, no thread makes a call over the context any more, also none that decided on it before. */
CASE(a_pool_opens_that_does_not_announce_captures)
{
    open_careful_beside(destroy_late);
}

/* Nor does a thread for lack of an event. On an old driver there is none at all. */
CASE(a_pool_opens_that_does_not_announce_captures_and_an_event_is_refused)
{
    open_careful_beside(destroy_late_without_event);
    EXPECT_EQ(atomic_load(&waits_of_refused), old_driver ? 1 : 0);
}

/* ------------------------------------------------------------------------------------------------------------------ old drivers */

CASE(on_a_driver_without_fences)
{
    int status = 0;
    if (old_driver) {
        EXPECT(true);
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "gate", OLD_WORD, (char *)NULL);
        _exit(127);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    old_driver = argc > 1 && strcmp(argv[1], OLD_WORD) == 0;
    driver_interpose(say_who_waits);
    return test_run("api: gate", argc > 1 && !old_driver ? argv[1] : "", NULL, scene_after);
}
