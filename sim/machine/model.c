/*
 * model.c: the simulated machine as a whole: its lock, its start and reset, its threads, and what it says about violations.
 *
 * A violation is a use that CUDA calls undefined or refuses and that a correct program never makes. It is counted, said once on stderr
 * unless quiet, and kept for sim_last_violation(). What a correct program expects (out of memory, not ready) is none.
 */
#include "sim/machine/model.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim/graph/graph.h"
#include "sim/code/kernel.h"
#include "sim/machine/machine.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"
#include "sim/entries/start.h"

#define HOST_CAPACITY (256ull << 30)    /* of memory on the host that the device may map: a large server's */
#define OFFSETS_MOST (32ull << 40)      /* of physical memory numbered: bounds the table of contents.c */
#define AREA_ALIGNMENT (1ull << 30)     /* no granularity is larger */

struct model model;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_exit_key;
static _Atomic bool forked;
static _Atomic bool ended;
static _Atomic uint64_t threads_seen;
static _Thread_local struct thread this_thread;

/* A fork happens while nobody is inside the model. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* As with CUDA, a child is refused everything if its parent had begun to use the device; until it says sim_reset, that is. */
static void after_fork_in_child(void)
{
    atomic_store(&forked, model.initialised);
    calls_after_fork();
    pthread_mutex_unlock(&lock);
}

/* The per-thread default stream of a thread ends with it. */
static void thread_exit(void *arg)
{
    struct thread *t = arg;
    if (atomic_load(&forked))
        return;
    pthread_mutex_lock(&lock);
    if (t->epoch == atomic_load(&model.epoch))
        streams_close_thread(t->number);
    pthread_mutex_unlock(&lock);
}

static void start_failed(const char *what)
{
    fprintf(stderr, "simulated GPU: %s\n", what);
    abort();
}

/*
 * Physical memory is numbered with up to eight times the room it needs, so that it never runs out for want of contiguous numbers: a real
 * device's pages need not be neighbours.
 */
static uint64_t spread(void)
{
    uint64_t all = (uint64_t)model.shape.devices * model.shape.capacity + HOST_CAPACITY;
    uint64_t times = 8;
    while (times > 1 && times * all > OFFSETS_MOST)
        times /= 2;
    return times;
}

static void start_devices(void)
{
    uint64_t area = 0;
    for (int i = 0; i <= DEVICES_MOST; i++) {
        struct device *d = &model.devices[i];
        ranges_clear(&d->free);
        ranges_clear(&d->small);
        *d = (struct device){.free = d->free, .small = d->small, .area = area};
        if (i < model.shape.devices)
            d->capacity = model.shape.capacity;
        if (i == HOST_AREA)
            d->capacity = HOST_CAPACITY;
        uint64_t room = (spread() * d->capacity + AREA_ALIGNMENT - 1) / AREA_ALIGNMENT * AREA_ALIGNMENT;
        if (room && !ranges_give(&d->free, area, room))
            start_failed("no host memory");
        area += room;
    }
    if (!contents_reset(area))
        start_failed("no address space for the contents of device memory");
}

void model_start(const struct sim_shape *shape)
{
    machine_leave();
    model.shape = *shape;
    visible_reset();
    model.books = (struct sim_books){0};
    model.cost_owed = 0;
    model.initialised = false;
    atomic_store(&forked, false);
    atomic_store(&ended, false);
    model.last_violation[0] = 0;
    atomic_fetch_add(&model.epoch, 1);
    clock_reset();
    work_reset();
    calls_reset();
    start_devices();
    physical_reset();
    if (!virtual_reset())
        start_failed("no address space for device addresses");
    allocations_reset();
    ipc_reset();
    modules_reset();
    linkers_reset();
    graphs_reset();
    execs_reset();
    graph_memory_reset();
    objects_reset();
    captures_reset();
    events_reset();
    streams_reset();
    contexts_reset();
    pools_reset();
    entries_reset();
}

/* As at program start: what the environment says. */
void model_start_from_environment(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    const char *text = getenv("CENOTE_SIM");
    bool quiet = false;
    if (text && !shape_parse(&shape, &quiet, text))
        start_failed("CENOTE_SIM is not understood");
    model.quiet = quiet;
    model_start(&shape);
    visible_follow_environment();
}

static void start_once(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
    pthread_key_create(&thread_exit_key, thread_exit);
    model_start_from_environment();
}

void model_lock(void)
{
    pthread_once(&once, start_once);
    pthread_mutex_lock(&lock);
}

void model_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

bool model_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

CUresult model_gone(void)
{
    if (model_is_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    return atomic_load_explicit(&ended, memory_order_relaxed) ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

static void process_exits(void)
{
    atomic_store(&ended, model.shape.shuts_down);
}

bool model_watch_exit(void)
{
    static bool watches;
    watches = watches || !atexit(process_exits);
    return watches;
}

struct thread *model_thread(void)
{
    struct thread *t = &this_thread;
    uint32_t epoch = atomic_load_explicit(&model.epoch, memory_order_relaxed);
    if (t->epoch != epoch) {
        if (!t->number) {
            t->number = atomic_fetch_add(&threads_seen, 1) + 1;
            pthread_setspecific(thread_exit_key, t);
        }
        t->epoch = epoch;
        t->depth = 0;
        t->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        memset(t->own, 0, sizeof t->own);
        t->in_host_function = false;
        t->naps = 0;
    }
    return t;
}

void model_wait(pthread_cond_t *what, uint64_t ns)
{
    struct timespec t;
    if (!ns) {
        pthread_cond_wait(what, &lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &t);
    ns += (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(what, &lock, &t);
}

void model_nap(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    model_unlock();
    nanosleep(&t, NULL);
    model_lock();
}

bool model_start_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
    bool started = !pthread_create(&thread, NULL, run, argument);
    if (started)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void violation(const char *format, va_list arguments)
{
    model.books.violations++;
    vsnprintf(model.last_violation, sizeof model.last_violation, format, arguments);
    if (!model.quiet)
        fprintf(stderr, "simulated GPU: violation: %s\n", model.last_violation);
}

void model_violation(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    violation(format, arguments);
    va_end(arguments);
}

CUresult model_refuse(CUresult result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    violation(format, arguments);
    va_end(arguments);
    return result;
}

CUresult model_refuse_call(const char *call)
{
    model_lock();
    CUresult result = model_refuse(CUDA_ERROR_NOT_PERMITTED, "%s: called by a host function", call);
    model_unlock();
    return result;
}
