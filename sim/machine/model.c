/*
 * model.c: the simulated machine as a whole: its lock, its start and reset, its threads, and what it says about violations.
 *
 * A violation is a use that CUDA calls undefined or refuses and that a correct program never makes. It is counted, said once on stderr
 * unless quiet, and kept for sim_last_violation(). What a correct program expects (out of memory, not ready) is none.
 *
 * This file knows no other room: hooks say what each has to do when the machine starts, a process forks or a thread ends.
 */
#include "sim/machine/model.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOST_CAPACITY (256ull << 30)    /* of memory on the host that the device may map: a large server's */
#define OFFSETS_MAX (32ull << 40)      /* of physical memory numbered: bounds the table of contents.c */
#define AREA_ALIGNMENT (1ull << 30)     /* no granularity is larger */

struct model model;

static const struct model_hooks *hooks;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_exit_key;
static _Atomic bool forked;
static _Atomic bool ended;
static _Atomic uint64_t threads_seen;
static _Thread_local struct thread this_thread;

/* A fork happens while no thread is inside the model. */
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
    hooks->fork_in_child();
    pthread_mutex_unlock(&lock);
}

/* The per-thread default stream of a thread ends with it. */
static void thread_exit(void *arg)
{
    struct thread *t = arg;
    if (atomic_load(&forked))
        return;
    pthread_mutex_lock(&lock);
    if (t->epoch == atomic_load(&model.epoch)) {
        model.books.calls += t->unlocked_calls;
        hooks->thread_ends(t->number);
    }
    pthread_mutex_unlock(&lock);
}

void model_set_hooks(const struct model_hooks *to)
{
    hooks = to;
}

void model_synchronized(void)
{
    hooks->synchronized();
}

void model_cannot_start(const char *what)
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
    while (times > 1 && times * all > OFFSETS_MAX)
        times /= 2;
    return times;
}

static uint64_t start_devices(void)
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
            model_cannot_start("no host memory");
        area += room;
    }
    return area;
}

uint64_t model_reset(const struct sim_shape *shape)
{
    model.shape = *shape;
    model.books = (struct sim_books){0};
    model.mappings_of_one = 0;
    model.cost_owed = 0;
    model.initialised = false;
    atomic_store(&forked, false);
    atomic_store(&ended, false);
    model.last_violation[0] = 0;
    atomic_fetch_add(&model.epoch, 1);
    return start_devices();
}

static void start_once(void)
{
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
    pthread_key_create(&thread_exit_key, thread_exit);
    hooks->start();
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

/* The thread is new, or the machine is. Apart from model_thread, so that each call of the driver looks for its thread once. */
static __attribute__((noinline, cold)) void meet_thread(struct thread *t, uint32_t epoch)
{
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
    t->unlocked_calls = 0;
}

struct thread *model_thread(void)
{
    struct thread *t = &this_thread;
    uint32_t epoch = atomic_load_explicit(&model.epoch, memory_order_relaxed);
    if (t->epoch != epoch)
        meet_thread(t, epoch);
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
