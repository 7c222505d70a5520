/*
 * lock.c: opening and closing locks, waiting for them, and in debug builds the check of their order.
 *
 * A child of a fork may go on with cenote where its parent has not touched the driver yet, so the locks of the process are free there, whichever
 * threads the parent had in short calls that need no driver. What they guard is whole: it is empty until the driver is there, or taken across the
 * fork (stats/account/labels.c).
 *
 * Ranks rise strictly, so a thread holds at most one lock of a rank. That makes its locks an array of LOCK_RANKS pointers: the order
 * and the holder are both read from it, and no other thread ever looks at it.
 */
#include "base/lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/barrier.h"

/* By the linker: where the section of the locks of the process begins and ends. */
extern struct lock locks_begin[] __asm__("__start_cenote_locks") __attribute__((weak, visibility("hidden")));
extern struct lock locks_end[] __asm__("__stop_cenote_locks") __attribute__((weak, visibility("hidden")));

static void process_forked(void)
{
    for (struct lock *lock = locks_begin; lock < locks_end; lock++) /* cppcheck-suppress comparePointers ; of one section */
        lock_open(lock, lock->rank);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, process_forked);
}

void lock_open(struct lock *lock, enum lock_rank rank)
{
    atomic_store(&lock->state, LOCK_FREE);
    atomic_store(&lock->waiting, 0);
    lock->rank = rank;
}

void lock_close(struct lock *lock)
{
    CHECK(atomic_load(&lock->state) == LOCK_FREE && !atomic_load(&lock->waiting));
    lock->rank = 0;
}

/* The caller's errno is none of our business. */
static void futex(struct lock *lock, int operation, uint32_t value, const struct timespec *most)
{
    int before = errno;
    syscall(SYS_futex, &lock->state, operation, value, most, NULL, 0);
    errno = before;
}

/*
 * A thread that gives the lock stores LOCK_FREE and then looks at `waiting`, with no barrier in between: its processor may look first. So a thread
 * that is about to sleep raises `waiting`, and then has every thread pass a barrier. A giver that passes it after its look has passed it after its
 * store as well: this thread finds the lock free. One that passes it before its look finds `waiting` raised, and wakes. Where the system has no such
 * barrier, a thread does not rely on being woken, and looks again after a millisecond.
 *
 * A thread that comes through here leaves the lock as one that is waited for: there may be others, and the next to give it wakes one of them.
 */
void lock_wait(struct lock *lock)
{
    const struct timespec a_while = {.tv_nsec = 1000000};
    atomic_fetch_add(&lock->waiting, 1);
    bool is_woken = barrier_everywhere();
    while (atomic_exchange_explicit(&lock->state, LOCK_WAITED_FOR, memory_order_acquire) != LOCK_FREE)
        futex(lock, FUTEX_WAIT_PRIVATE, LOCK_WAITED_FOR, is_woken ? NULL : &a_while);
    atomic_fetch_sub(&lock->waiting, 1);
}

void lock_wake(struct lock *lock)
{
    futex(lock, FUTEX_WAKE_PRIVATE, 1, NULL);
}

/* A thread that was woken and has not come yet is not woken again: it looks by itself. */
void lock_give_to_waiting(struct lock *lock)
{
    if (atomic_exchange_explicit(&lock->state, LOCK_FREE, memory_order_release) == LOCK_WAITED_FOR)
        lock_wake(lock);
}

bool lock_settle(struct lock *lock, int ms)
{
    for (; ms > 0; ms--) {
        if (lock_try_plain(lock)) {
            lock_give_plain(lock);
            return true;
        }
        usleep(1000);
    }
    return false;
}

#if CENOTE_DEBUG >= 1

static _Thread_local const struct lock *held[LOCK_RANKS];

static uint32_t most_of_portions;       /* 0: no test has said */

void lock_set_portions(uint32_t most)
{
    most_of_portions = most;
}

uint32_t lock_portion(uint32_t chosen)
{
    return most_of_portions && most_of_portions < chosen ? most_of_portions : chosen;
}

static atomic_int timed_rank;
static struct lock_hold longest[LOCK_HOLDS_MAX]; /* of each pair; changed with the lock held */
static uint32_t longest_count;
static _Thread_local struct {
    uint64_t    since;              /* 0: not timed */
    const char *taken_in;
} timed;

void lock_time_holds(enum lock_rank rank)
{
    longest_count = 0;
    atomic_store(&timed_rank, (int)rank);
}

uint32_t lock_holds(struct lock_hold holds[LOCK_HOLDS_MAX])
{
    memcpy(holds, longest, sizeof longest);
    return longest_count;
}

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void hold_begins(const struct lock *lock, const char *where)
{
    if (lock->rank == (enum lock_rank)atomic_load_explicit(&timed_rank, memory_order_relaxed)) {
        timed.since = processor_ns();
        timed.taken_in = where;
    }
}

static void hold_ends(const struct lock *lock, const char *where)
{
    if (!timed.since || lock->rank != (enum lock_rank)atomic_load_explicit(&timed_rank, memory_order_relaxed))
        return;
    uint64_t ns = processor_ns() - timed.since;
    timed.since = 0;
    uint32_t i = 0;
    while (i < longest_count && (longest[i].taken_in != timed.taken_in || longest[i].given_in != where))
        i++;
    CHECK(i < LOCK_HOLDS_MAX);
    if (i == longest_count)
        longest[longest_count++] = (struct lock_hold){ns, timed.taken_in, where};
    longest[i].ns = ns > longest[i].ns ? ns : longest[i].ns;
}

/* This thread holds no lock of a rank above. */
bool lock_none_above(enum lock_rank rank)
{
    for (int above = (int)rank + 1; above < LOCK_RANKS; above++)
        if (held[above])
            return false;
    return true;
}

bool lock_is_mine(const struct lock *lock)
{
    return held[lock->rank] == lock;
}

/* The order is checked first: a wrong order has to show where it is, not as a deadlock somewhere else. */
void lock_take_in(struct lock *lock, const char *where)
{
    CHECK(lock->rank > 0 && lock->rank < LOCK_RANKS); /* opened, or LOCK_INITIALIZER */
    CHECK(!held[lock->rank]);
    CHECK(lock_none_above(lock->rank));
    lock_take_plain(lock);
    held[lock->rank] = lock;
    hold_begins(lock, where);
}

bool lock_try_in(struct lock *lock, const char *where)
{
    CHECK(!held[lock->rank] && lock_none_above(lock->rank));
    if (!lock_try_plain(lock))
        return false;
    held[lock->rank] = lock;
    hold_begins(lock, where);
    return true;
}

void lock_give_in(struct lock *lock, const char *where)
{
    CHECK(lock_is_mine(lock));
    hold_ends(lock, where);
    held[lock->rank] = NULL;
    lock_give_plain(lock);
}

/* No thread waits, but in a test with small portions others may come in between. */
static bool lets_others_in(struct lock *lock, const char *where)
{
    if (!most_of_portions)
        return false;
    lock_give_in(lock, where);
    sched_yield();
    lock_take_in(lock, where);
    return true;
}

/* A hold ends where others could have had the lock. */
static const char *offer_begins(const struct lock *lock, const char *where)
{
    const char *taken_in = timed.taken_in;
    hold_ends(lock, where);
    return taken_in;
}

#else

static const char *offer_begins(const struct lock *lock, const char *where) { (void)lock; return where; }
static void hold_begins(const struct lock *lock, const char *where) { (void)lock; (void)where; }
static bool lets_others_in(struct lock *lock, const char *where) { (void)lock; (void)where; return false; }

#endif

/* A thread that was woken needs a moment to take it: giving alone would have us take it again before. */
bool lock_pass(struct lock *lock)
{
    const char *taken_in = offer_begins(lock, __func__);
    bool passes = atomic_load_explicit(&lock->waiting, memory_order_relaxed) != 0;
    if (passes) {
        int before = errno;
        lock_give(lock);
        nanosleep(&(struct timespec){.tv_nsec = 1}, NULL);
        lock_take(lock);
        errno = before;
    } else {
        passes = lets_others_in(lock, __func__);
    }
    hold_begins(lock, taken_in);
    return passes;
}
