/*
 * test_exit.c: the end of a process with blocks live and work under way, in every order in which things may go down: handlers, destructors of
 * the program and of libraries, static objects, threads. The driver goes first, as a real one does.
 *
 * At the end frees succeed, whatever else asks for memory is told CENOTE_EXITING, and no driver call is made.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "driver/driver.h"
#include "share/share.h"
#include "tests/processes/process.h"

extern int __cxa_atexit(void (*function)(void *), void *object, void *library);

static struct scene scene;
static struct held  held[6];
static cenote_group *group;
static void (*in_destructor)(void);

/* Of the program: after all handlers of atexit. */
__attribute__((destructor)) static void program_ends(void)
{
    if (in_destructor)
        in_destructor();
}

static uint64_t driver_calls(void)
{
    struct driver_tally tallies[DRIVER_CALLS];
    uint64_t calls = 0;
    driver_tallies(tallies);
    for (int call = 0; call < DRIVER_CALLS; call++)
        calls += tallies[call].calls;
    return calls;
}

/* A pool with live blocks: one plain, one in flight, one that another stream uses, one freed and pending. */
static void open_busy(void)
{
    open_mortal(&scene);
    for (int i = 0; i < 6; i++)
        held[i] = take_one(&scene, (size_t)(i + 1) * 300 * KIB);
    DONE(sim_launch_wait(scene.stream[A], 50 * MSEC));
    DONE(sim_launch_wait(scene.stream[B], 50 * MSEC));
    DONE(cenote_use(held[1].at, scene.stream[B]));
    DONE(cenote_use(held[2].at, scene.stream[B]));
    DONE(cenote_free(held[2].at));
    DONE(cenote_group_create(scene.pool, "at exit", 0, NULL, &group));
    DONE(cenote_pool_step(scene.pool));
}

/* Every question of what cenote has counted, and the calls that begin a count again. */
static void expect_counters(void)
{
    cenote_stats stats;
    cenote_row rows[64];
    cenote_step_note notes[4];
    cenote_piece pieces[64];
    size_t count;
    uint64_t bytes = 1;
    DONE(cenote_group_reserved(group, &bytes));
    EXPECT_EQ(bytes, 0);
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_GROUP, rows, 64, &count));
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    DONE(cenote_pool_steps(scene.pool, notes, 4, &count));
    EXPECT_EQ(count, 1);
    DONE(cenote_pool_reset_peaks(scene.pool));
    DONE(cenote_pool_reset_totals(scene.pool));
    DONE(cenote_pool_stats(scene.pool, &stats));
    EXPECT_EQ(stats.allocated.peak, stats.allocated.current);
    EXPECT_EQ(stats.allocated.total_in, 0);
}

/* What holds after cenote was told of the end: asked by what runs later. Failures are the status of the process. */
static void expect_end(struct held *live)
{
    void *block = NULL;
    cenote_stats stats;
    uint64_t calls = driver_calls();
    EXPECT_EQ(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block), CENOTE_EXITING);
    EXPECT(strstr(cenote_message(), "exiting"));
    EXPECT(!block);
    DONE(cenote_free(live->at));
    EXPECT(cenote_free(live->at) != CENOTE_OK); /* bookkeeping goes on */
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_EXITING);
    EXPECT_EQ(cenote_pool_step(scene.pool), CENOTE_EXITING);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_EXITING);
    DONE(cenote_pool_stats(scene.pool, &stats));
    EXPECT(stats.blocks.current < 6);
    expect_counters();
    EXPECT_EQ(driver_calls(), calls);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEINITIALIZED); /* the driver is gone indeed */
}

/* Says what has failed until now: nothing else will. */
static void end_here(void)
{
    if (failures_said())
        _exit(1);
}

static void late_handler(void)
{
    expect_end(&held[0]);
    end_here();
}

ENDS_WITH(main_returns_with_live_blocks, 0)
{
    open_busy();
}

ENDS_WITH(a_handler_from_before_the_first_call, 0)
{
    atexit(late_handler);
    open_busy();
}

/* It runs before anything is told of the end: all is as ever, up to the destruction of the pool. */
static void early_handler(void)
{
    struct held more = take_one(&scene, 5 * MIB);
    held_give(&more);
    for (int i = 0; i < 6; i++)
        if (i != 2)
            held_give(&held[i]);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    scene_close(&scene);
    end_here();
}

ENDS_WITH(a_handler_from_after_the_first_call, 0)
{
    open_busy();
    atexit(early_handler);
}

static void destructor(void)
{
    expect_end(&held[3]);
    end_here();
}

ENDS_WITH(handlers_and_a_destructor_of_the_program, 0)
{
    atexit(late_handler);
    in_destructor = destructor;
    open_busy();
}

/* What a C++ compiler makes of a static object: its destructor is registered when it is made. */
static void object_ends(void *object)
{
    expect_end(object);
    end_here();
}

static void object_ends_early(void *object)
{
    held_give(object);
    end_here();
}

ENDS_WITH(static_objects_made_before_and_after, 0)
{
    __cxa_atexit(object_ends, &held[4], NULL);
    open_busy();
    __cxa_atexit(object_ends_early, &held[5], NULL);
}

static void *load_guest(void (*at_end)(void))
{
    char path[600];
    build_folder(path);
    strcat(path, "tests/libprocesses-guest.so");
    void *guest = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void (*tell)(void (*)(void)) = NULL;
    REQUIRE(guest);
    *(void **)&tell = dlsym(guest, "guest_at_end");
    tell(at_end);
    return guest;
}

ENDS_WITH(a_library_loaded_before, 0)
{
    load_guest(destructor);
    open_busy();
}

ENDS_WITH(a_library_loaded_after, 0)
{
    open_busy();
    load_guest(destructor);
}

/* Unloaded in the middle, it is served as any other. */
static void guest_leaves(void)
{
    struct held more = take_one(&scene, MIB);
    held_give(&more);
    held_give(&held[3]);
}

ENDS_WITH(a_library_unloaded_in_the_middle, 0)
{
    open_busy();
    dlclose(load_guest(guest_leaves));
    DONE(cenote_group_destroy(group));
    for (int i = 0; i < 6; i++)
        if (i != 2 && i != 3)
            held_give(&held[i]);
    scene_close(&scene);
}

static void must_not_run(void)
{
    _exit(100);
}

/* Neither handlers nor destructors run: cenote does not know of the end, and needs not. */
ENDS_WITH(quick_exit_goes_at_once, 3)
{
    atexit(must_not_run);
    in_destructor = must_not_run;
    open_busy();
    quick_exit(failures_said() ? 1 : 3);
}

static void quick_handler(void)
{
    early_handler();
}

ENDS_WITH(a_handler_of_quick_exit, 4)
{
    open_busy();
    at_quick_exit(quick_handler);
    quick_exit(4);
}

ENDS_WITH(underscore_exit_goes_at_once, 5)
{
    atexit(must_not_run);
    open_busy();
    _exit(failures_said() ? 1 : 5);
}

/* ------------------------------------------------------------------------------------------------------------------------- threads */

static pthread_key_t key;

/* Of a thread that outlives main: cenote has heard of no end yet. */
static void thread_local_ends(void *object)
{
    struct held *mine = object;
    held_give(mine);
    struct held more = take_one(&scene, 3 * MIB);
    held_give(&more);
    end_here();
}

static void *outlive_main(void *object)
{
    usleep(20000);
    DONE(cuCtxSetCurrent(scene.context));
    pthread_setspecific(key, object);
    return NULL;
}

ENDS_WITH(a_thread_local_destructor_after_main, 0)
{
    pthread_t thread;
    atexit(late_handler);
    open_busy();
    REQUIRE(!pthread_key_create(&key, thread_local_ends));
    REQUIRE(!pthread_create(&thread, NULL, outlive_main, &held[5]));
    pthread_exit(NULL);
}

static void *come_and_go(void *number)
{
    cenote_stats stats;
    CUstream stream = scene.stream[(uintptr_t)number % SCENE_STREAMS];
    cuCtxSetCurrent(scene.context);
    for (unsigned i = 0;; i++) {
        void *block = NULL;
        int error = cenote_alloc(scene.pool, (1 + i % 97) * 100 * KIB, stream, &block);
        if (!error && i % 5 == 0)
            cenote_use(block, scene.stream[(i / 5) % SCENE_STREAMS]);
        if (!error)
            error = cenote_free(block);
        if (i % 50 == 0)
            cenote_pool_trim(scene.pool, 0, 0);
        if (i % 31 == 0)
            cenote_pool_stats(scene.pool, &stats);
        if (error && error != CENOTE_OUT_OF_MEMORY && error != CENOTE_EXITING && error != CENOTE_DEVICE_LOST && error != CENOTE_DRIVER) {
            fprintf(stderr, "%s\n", cenote_message());
            _exit(2);
        }
    }
    return NULL;
}

static unsigned pause_us;

static void *leave(void *unused)
{
    usleep(pause_us);
    exit(7);
    return unused;
}

/* Handlers take their time, while the others go on. */
static void slow_handler(void)
{
    usleep(3000);
    DONE(cenote_free(held[0].at));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_EXITING);
    end_here();
}

static void a_crowd(void)
{
    pthread_t threads[4];
    atexit(slow_handler);
    open_busy();
    for (uintptr_t i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, (void *)i));
    REQUIRE(!pthread_create(&threads[3], NULL, leave, NULL));
    pthread_join(threads[0], NULL);
}

/* exit by one thread, with others inside cenote and the driver. */
CASE(exit_by_one_of_many_threads)
{
    for (int i = 0; i < 25; i++) {
        pause_us = (unsigned)i * 217;
        EXPECT_EQ(status_of(a_crowd), 7);
    }
}

/* ------------------------------------------------------------------------------------------------- exit from functions that cenote calls */

static int exit_on_shortage(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes, (void)arg;
    exit(8);
}

ENDS_WITH(exit_from_a_shortage_function, 8)
{
    void *block;
    atexit(late_handler);
    open_busy();
    DONE(cenote_pool_on_shortage(scene.pool, exit_on_shortage, NULL));
    cenote_alloc(scene.pool, 2 * CARD / 3, scene.stream[A], &block);
    cenote_alloc(scene.pool, 2 * CARD / 3, scene.stream[A], &block);
}

static void exit_on_watch(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
    exit(9);
}

static void exit_watching(void)
{
    void *block;
    open_mortal(&scene);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, exit_on_watch, NULL));
    cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block);
}

ENDS_WITH(exit_from_a_watch_function, 9)
{
    exit_watching();
}

ENDS_WITH(exit_from_a_watch_function_while_tracing, 9)
{
    setenv("CENOTE_TRACE", "/dev/null", 1);
    exit_watching();
}

/* As a handler of a signal that came in the middle of a call. */
ENDS_WITH(exit_inside_a_call_while_tracing, 9)
{
    setenv("CENOTE_TRACE", "/dev/null", 1);
    open_mortal(&scene);
    alarm(patience(5)); /* a mutant waits for ever */
    lock_take_plain(&scene.pool->lock); /* not as one of this thread's: debug builds would say so instead of waiting */
    exit(9);
}

static struct share_message asked;
static atomic_int asker;

static void *ask(void *unused)
{
    struct share_reply reply;
    int file;
    atomic_store(&asker, gettid());
    share_ask(&asked, 0, &reply, &file);
    return unused;
}

/* The thread that answers wants the turn, which the function's caller has. */
static void exit_when_asked(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    pthread_t thread;
    struct wait wait = {0};
    REQUIRE(!pthread_create(&thread, NULL, ask, NULL));
    while (!atomic_load(&asker) && wait_on(&wait))
        ;
    EXPECT(wait_until_asleep(atomic_load(&asker)));
    exit_on_watch(pool, notice, arg);
}

ENDS_WITH(exit_from_a_watch_function_while_an_importer_asks, 9)
{
    cenote_share share;
    void *block;
    open_busy();
    DONE(cenote_export(held[0].at, &share));
    memcpy(&asked, &share, sizeof asked);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, exit_when_asked, NULL));
    cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block);
}

PROCESSES_MAIN("exit")
