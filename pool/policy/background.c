/*
 * background.c: one thread for the process looks after all pools that have `background` and decay_ms, so that what has
 * decayed goes back also while the program does nothing. What it does is in decay.c; blocks that wait for other streams
 * are looked at on the way.
 *
 *     no thread --- first such pool ---> it sleeps, looks, sleeps --- the process begins to exit ---> it sleeps
 *
 * A fork has none. The thread is nice, and while it looks after a pool it is on the processors near that pool's device,
 * as far as the process may use those. It runs code of this library for good, which stays loaded (driver/loader.c). Of
 * the program's functions it calls the watch function and the clock. If there can be no thread the pool works without,
 * and its counter `background` is 0.
 *
 * LOCKING: `tending` is held while the thread is at one pool, also across driver
 * calls. A thread that takes it knows that the background thread is at none.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/exits.h"
#include "base/thread.h"
#include "driver/near.h"
#include "pool/life/pools.h"

#define NICENESS      10            /* chosen: it gets a tenth of a busy processor, so
                                       that a lock it holds is given back soon */
#define BREATH_NS     1000000u      /* between two batches of one pool: others may have the turn */

static LOCK_OF_PROCESS struct lock tending = LOCK_INITIALIZER(LOCK_BACKGROUND);
static bool runs;                   /* guarded by `tending` */
static atomic_bool ended;           /* the process exits */
static _Atomic(uint32_t) calls;     /* one more whenever the thread is to look at once */

/* ------------------------------------------------------------------------------------------------------- the thread */

/* Where the thread may be, and for each device where it should be. Its own. */
static struct {
    cpu_set_t allowed, near[DEVICES_MAX];
    bool      known[DEVICES_MAX];
    int       device;               /* it is near this one; -1: none yet */
} place;

static void settle_down(void)
{
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    if (sched_getaffinity(0, sizeof place.allowed, &place.allowed))
        CPU_ZERO(&place.allowed);
    place.device = -1;
}

/* Where nothing is known of the device, or nothing near it may be used, it goes wherever the program may. */
static void move_near(const struct device *d)
{
    cpu_set_t *near = &place.near[d->ordinal];
    if (place.device == d->ordinal)
        return;
    if (!place.known[d->ordinal] && near_processors(d, near))
        CPU_AND(near, near, &place.allowed);
    place.known[d->ordinal] = true;
    place.device = d->ordinal;
    sched_setaffinity(0, sizeof *near, CPU_COUNT(near) ? near : &place.allowed);
}

/* When it should be looked at again, in ns. LOCKING: `tending`. */
static uint64_t tend(cenote_pool *pool)
{
    if (!pool->list.attended || atomic_load(&ended) || driver_is_exiting())
        return UINT64_MAX;
    move_near(pool->config.device);
    return decay_tend(pool, DECAY_BATCH) ? BREATH_NS : decay_epoch(pool);
}

static void sleep_for(uint64_t ns, uint32_t seen)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    syscall(SYS_futex, &calls, FUTEX_WAIT_PRIVATE, seen, ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

static void *look_after_pools(void *unused)
{
    settle_down();
    for (;;) {
        uint32_t seen = atomic_load(&calls);
        uint64_t pause = UINT64_MAX;
        for (cenote_pool *pool = NULL; (pool = pool_next_on_device(NULL, pool));) {
            lock_take(&tending);
            uint64_t ns = tend(pool);
            lock_give(&tending);
            pause = ns < pause ? ns : pause;
        }
        sleep_for(pause, seen);
    }
    return unused;
}

/* -------------------------------------------------------------------------------------------- its beginning and end */

/*
 * No driver call from here on (rule 10). It is not waited for for ever: what it does may hang, and may be what exits.
 */
static void process_exits(void)
{
    if (driver_is_forked())
        return;
    atomic_store(&ended, true);
    lock_settle(&tending, EXIT_PATIENCE);
}

/* LOCKING: `tending`. */
static bool start(void)
{
    static bool is_watching; /* over failed starts too: handlers cannot be taken back */
    is_watching = is_watching || exits_call(process_exits);
    errno = is_watching ? 0 : ENOMEM;
    return is_watching && thread_start("cenote", look_after_pools);
}

/* The pool was opened, or stays open. LOCKING: none. */
void background_join(cenote_pool *pool)
{
    if (!pool->config.options.background || !pool->config.options.decay_ms)
        return;
    lock_take(&tending);
    runs = runs || start();
    pool->list.attended = runs;
    if (!runs)
        error_set(CENOTE_OUT_OF_HOST_MEMORY, 0,
                  "no background thread (%s): free pages go back as the program allocates, steps and trims",
                  strerror(errno));
    lock_give(&tending);
    atomic_fetch_add(&calls, 1);
    syscall(SYS_futex, &calls, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/*
 * The pool is about to go. When this returns the thread is not there
 * and does not come back. True: it was looked after. LOCKING: none.
 */
bool background_leave(cenote_pool *pool)
{
    lock_take(&tending);
    bool was = atomic_exchange(&pool->list.attended, false);
    lock_give(&tending);
    return was;
}
