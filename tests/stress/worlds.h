/*
 * worlds.h: what a program of test_worlds.c has: contexts with their pools and streams, threads with their blocks, a driver that refuses calls, and
 * words for what failed.
 *
 * LOCKING: the shelf and the pools have locks of their own; a place is constant while threads run, but for its pool; all else is its thread's.
 */
#ifndef CENOTE_TESTS_STRESS_WORLDS_H
#define CENOTE_TESTS_STRESS_WORLDS_H

#include "tests/api/scene.h"
#include "tests/patience.h"
#include "tests/rounds.h"
#include "tests/stress/portions.h"
#include "tests/stress/versions.h"

#include "driver/driver.h"
#include "pool/mapping/units.h"

#include <pthread.h>
#include <sched.h>

#define DEVICES 2
#define PLACES  (2 * DEVICES)   /* contexts: of each device the primary one, and one of the program's own */
#define THREADS 4
#define BLOCKS  24              /* of a thread */
#define LIVES   4               /* threads one after the other */
#define STEPS   250

/* SHARED: other threads may have its blocks. CAPTURED: now and then. BRIEF: another one takes its place. PART: of a green context. */
enum kind { SHARED, CAPTURED, BRIEF, PART, LEGACY, OF_THREAD, KINDS };

struct block {
    struct held held;
    int place, kind;
};

struct place {
    int          device;
    bool         is_primary, announced;
    CUcontext    context;
    cenote_options options;
    cenote_pool *_Atomic pool;      /* NULL: it has ended */
    atomic_bool  is_ending;         /* threads give their blocks back, one after the other */
    atomic_uint  callers;           /* threads in a call that names it */
    CUstream     stream[THREADS][KINDS];
};

struct worker {
    int          number;
    uint64_t     random;
    struct block block[BLOCKS];
};

static struct world {
    struct place    place[PLACES];
    CUgreenCtx      green[DEVICES];
    struct worker   worker[THREADS];
    struct block    shelf[16];      /* what threads give each other */
    pthread_mutex_t shelf_lock, pools_lock;
    int             threads, steps;
    bool            captures, peers;
    int             version;        /* of the driver */
    bool            must_retire;    /* streams that end: it has no ids, or a pool is not told of captures */
    bool            refuses;        /* the driver does, now and then */
    atomic_uint     served, refused, late, ended, captured, naps;
    atomic_int      failures;
    char            why[300];
} world = {.shelf_lock = PTHREAD_MUTEX_INITIALIZER, .pools_lock = PTHREAD_MUTEX_INITIALIZER};

static bool must(bool fine, const char *what, int line)
{
    if (!fine && atomic_fetch_add(&world.failures, 1) == 0)
        snprintf(world.why, sizeof world.why, "line %d: %s: %s", line, what, cenote_message());
    return fine;
}
#define MUST(x) must((x), #x, __LINE__)

/* Also an answer that is none: the cards are small, and a call may come when the pool has ended. */
static bool may(int error, int place, int line)
{
    bool has_ended = error == CENOTE_INVALID && !atomic_load(&world.place[place].pool);
    world.refused += error == CENOTE_OUT_OF_MEMORY;
    world.late += has_ended;
    bool is_refused = world.refuses && (error == CENOTE_DRIVER || error == CENOTE_OUT_OF_ADDRESSES);
    must(!error || error == CENOTE_OUT_OF_MEMORY || has_ended || is_refused, cenote_error_name(error), line);
    return !error;
}
#define MAY(x) may((x), place, __LINE__)

static uint64_t pick(uint64_t *random, uint64_t below)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

/* --- every so many calls the driver refuses one, whichever it is */

static struct {
    const struct driver *below;
    struct driver    above;
    _Atomic uint64_t every, calls;  /* 0: none */
} refusing;

static CUresult refusal(void)
{
    static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED};
    uint64_t every = atomic_load(&refusing.every), call = every ? atomic_fetch_add(&refusing.calls, 1) : 0;
    return every && call % every == every - 1 ? errors[call / every % 4] : CUDA_SUCCESS;
}

#define DRIVER(need, time, name, version, parameters, arguments)      \
    static CUresult now_and_then_##name parameters                    \
    {                                                                 \
        CUresult result = refusal();                                  \
        return result ? result : refusing.below->name arguments;      \
    }
#include "driver/driver.def"
#undef DRIVER

static const struct driver *now_and_then(const struct driver *driver)
{
    refusing.below = driver;
#define DRIVER(need, time, name, version, parameters, arguments) refusing.above.name = driver->name ? now_and_then_##name : NULL;
#include "driver/driver.def"
#undef DRIVER
    return &refusing.above;
}

static void enter(int place)
{
    MUST(cuCtxSetCurrent(world.place[place].context) == CUDA_SUCCESS);
}

static CUstream stream_of(const struct worker *w, int place, int kind)
{
    return kind == LEGACY ? NULL : kind == OF_THREAD ? CU_STREAM_PER_THREAD : world.place[place].stream[w->number][kind];
}

/* NULL: it has ended. Until leave_pool no other pool takes over its structure. */
static cenote_pool *enter_pool(int place)
{
    atomic_fetch_add(&world.place[place].callers, 1);
    cenote_pool *pool = atomic_load(&world.place[place].pool);
    if (!pool)
        atomic_fetch_sub(&world.place[place].callers, 1);
    return pool;
}

static void leave_pool(int place)
{
    atomic_fetch_sub(&world.place[place].callers, 1);
}

/* While a capture is open, which goes on: a pool with any provider. NULL: a capture is open, and this one would be the first that hears of none. */
static cenote_pool *begin_beside(struct worker *w, const struct place *p)
{
    cenote_pool *pool = NULL;
    cenote_options options = p->options;
    options.provider = (uint32_t)pick(&w->random, CENOTE_GUARD + 1);
    int error = p->is_primary ? cenote_pool_create(p->device, &options, &pool) : cenote_pool_create_in(p->context, &options, &pool);
    MUST(!error || error == CENOTE_BUSY);
    return pool;
}

typedef CUresult (*launch_fn)(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes);

static void launch(const struct held *held, launch_fn work, CUstream stream)
{
    size_t words = held->bytes & ~(size_t)7;
    for (size_t from = 0; from < words; from += MIB)
        MUST(work(stream, device_address(held->at + from), held->pattern + from, words - from < 4 * KIB ? words - from : 4 * KIB) == CUDA_SUCCESS);
}

static void follow(CUstream before, CUstream after, int place_before, int place_after)
{
    CUevent event;
    enter(place_before);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS && cuEventRecord(event, before) == CUDA_SUCCESS);
    enter(place_after);
    MUST(cuStreamWaitEvent(after, event, 0) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS);
}

#endif
