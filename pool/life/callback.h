/*
 * callback.h: functions of the program that a pool calls. See callback.c;
 * ask.c for the shortage function, watch.c for the watch function.
 *
 *     shortage function: set ---> runs on any number of threads ---> replaced: the calls that began before have ended
 *     watch function:    set ---> runs on one thread at a time, with `watching` ---> taken away
 *
 * OWNERS: ask.c, watch.c. LOCKING: each part says its own.
 */
#ifndef CENOTE_POOL_LIFE_CALLBACK_H
#define CENOTE_POOL_LIFE_CALLBACK_H

#include <cenote/cenote.h>

#include "base/lock.h"
#include "pool/life/life.h"

/*
 * A function of the program that runs on this thread, inside a call of cenote. Those of a group or pool are not called
 * for that again before they have returned; the watch function and the clock (`of` NULL) must not call cenote at all.
 */
struct callback {
    const void *of;
    const cenote_pool *pool;        /* that called it: it stays until it has returned */
    const struct callback *outer;
};
extern _Atomic(uint32_t) pool_strict_callbacks; /* watch functions and clocks that run, on all threads: mostly none */

void callback_begin(struct callback *c, const cenote_pool *pool, const void *of);
void callback_end(void);
bool callback_runs(const void *of);                       /* on this thread */
bool callback_is_inside(void);
bool callback_runs_for(const cenote_pool *pool);                  /* on this thread: a function that it called */

/*
 * May this thread ask no pool anything? pool_process_usable says
 * why. At exit it may: frees and questions are bookkeeping.
 */
static inline bool pool_refuses(void)
{
    return driver_is_forked() ||
           (atomic_load_explicit(&pool_strict_callbacks, memory_order_relaxed) && callback_runs(NULL));
}

/* The shortage function. LOCKING: the pool's lock; `over` is atomic and slept upon. */
struct asking;
struct ask {
    cenote_shortage_fn on_shortage;
    void          *arg;
    struct asking *running;         /* calls of it, the latest first */
    uint64_t       begun;           /* calls, in all */
    _Atomic(uint32_t) over;         /* of these, ended */
};

/* The watch functions. LOCKING: `watching` of the pool. */
#define WATCHERS_MAX 8  /* chosen: a framework, a library of its own, a tool */

struct watcher {
    cenote_watch_fn fn;
    void           *arg;
    uint32_t        changes;        /* it hears of these; 0: the place is free */
};
struct watch {
    _Atomic(uint32_t) changes;      /* of all of them; a hint without `watching` */
    struct watcher    of[WATCHERS_MAX];
};

#endif
