/*
 * lock.h: the locks of the library, and which thread holds them. docs/locks.md says what each guards.
 *
 * Every lock has a rank; a thread takes locks in rising rank only. Debug builds check that, and lock_is_mine() lets a function
 * assert what its header comment says. LOCK_TURN, LOCK_SHARE, LOCK_CAREFUL and LOCK_BACKGROUND may be held across driver calls; no other lock
 * may, but for the loading of the driver itself, LOCK_CONTEXT where a context is made, LOCK_POOLS where devices and pools open and close, and
 * LOCK_WATCH by the program's own function.
 */
#ifndef CENOTE_BASE_LOCK_H
#define CENOTE_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

enum lock_rank {
    LOCK_CAREFUL = 1, /* the first pool with announced:0 is about to open */
    LOCK_BACKGROUND, /* where the background thread is */
    LOCK_POOLS,      /* list of pools, devices */
    LOCK_GLOBAL,     /* driver loading */
    LOCK_SHARE,      /* memory imported from other processes */
    LOCK_TURN,       /* whose turn it is to change mappings of a pool */
    LOCK_CONTEXT,    /* the making of a device's context */
    LOCK_WATCH,      /* the program's function that hears of mappings */
    LOCK_POOL,       /* a pool's structures */
    LOCK_ADDRESSES,  /* address -> region map of the process */
    LOCK_LABELS,     /* names of tags, allocation sites */
    LOCK_RANKS
};

enum lock_state { LOCK_FREE, LOCK_TAKEN, LOCK_WAITED_FOR /* taken, and a thread may sleep until it is given back */ };

/* Aligned to their size, so that those of one section lie side by side (process_forked). */
struct lock {
    _Atomic(uint32_t) state;
    _Atomic(uint32_t) waiting;      /* threads in lock_wait */
    enum lock_rank    rank;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct lock) == 16, "no more, or compilers align them to more than their size");

#define LOCK_INITIALIZER(r) {.state = LOCK_FREE, .rank = (r)}

/* In front of each lock that is a static variable: in the child of a fork it is free, for its holder may be a thread that is not there. */
#define LOCK_OF_PROCESS __attribute__((section("cenote_locks")))

void lock_open(struct lock *lock, enum lock_rank rank);
void lock_close(struct lock *lock);

/*
 * Taking and giving, inline because every allocation and every free does both. While no other thread wants the lock, taking is one atomic
 * instruction, and giving is a store between two looks at `waiting`. There is no barrier between that store and the second look: the threads that
 * wait make it (lock_wait). A thread that has to wait sleeps in the system.
 */
__attribute__((cold)) void lock_wait(struct lock *lock);
__attribute__((cold)) void lock_give_to_waiting(struct lock *lock);
bool lock_settle(struct lock *lock, int ms); /* was it free at some moment? At the end of the process its holder may want what this thread holds */
__attribute__((cold)) void lock_wake(struct lock *lock);

static inline bool lock_try_plain(struct lock *lock)
{
    uint32_t state = LOCK_FREE;
    return atomic_compare_exchange_strong_explicit(&lock->state, &state, LOCK_TAKEN, memory_order_acquire, memory_order_relaxed);
}

static inline void lock_take_plain(struct lock *lock)
{
    if (__builtin_expect(!lock_try_plain(lock), 0))
        lock_wait(lock);
}

static inline void lock_give_plain(struct lock *lock)
{
    if (__builtin_expect(atomic_load_explicit(&lock->waiting, memory_order_relaxed) != 0, 0)) {
        lock_give_to_waiting(lock);
        return;
    }
    atomic_store_explicit(&lock->state, LOCK_FREE, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order */
    if (__builtin_expect(atomic_load_explicit(&lock->waiting, memory_order_relaxed) != 0, 0))
        lock_wake(lock);
}

/*
 * For what is done in portions: if threads wait for the lock they have it now, and then it is taken again. False: no thread waited, it was kept.
 */
bool lock_pass(struct lock *lock);

#if CENOTE_DEBUG >= 1

/*
 * How much one hold of a lock does: what was chosen, or, if a test says so, less. Small programs then come through what large pools are there for,
 * and lock_pass gives the lock whether a thread waits or not. 0: as it was chosen. A test says it only while it has no pool.
 */
void lock_set_portions(uint32_t most);
uint32_t lock_portion(uint32_t chosen);

#define lock_take(lock) lock_take_in((lock), __func__)
#define lock_give(lock) lock_give_in((lock), __func__)
#define lock_try(lock)  lock_try_in((lock), __func__)      /* false: a thread has it */
void lock_take_in(struct lock *lock, const char *where);
void lock_give_in(struct lock *lock, const char *where);
bool lock_try_in(struct lock *lock, const char *where);

/*
 * How long threads keep locks of one rank, by their own processor time: other programs make it no longer. lock_pass ends a hold, whether a thread
 * waits or not. For bench/scale, one pool at a time: `rank` 0 stops it. The longest hold from and to each pair of functions since then, in `holds`.
 */
#define LOCK_HOLDS_MAX 128                  /* pairs of functions that are told apart; there are some fifty */
struct lock_hold {
    uint64_t    ns;
    const char *taken_in, *given_in;       /* functions */
};
void lock_time_holds(enum lock_rank rank);
uint32_t lock_holds(struct lock_hold holds[LOCK_HOLDS_MAX]);

bool lock_is_mine(const struct lock *lock);
bool lock_none_above(enum lock_rank rank); /* this thread holds no lock of a rank above */

#else

static inline void lock_take(struct lock *lock) { lock_take_plain(lock); }
static inline void lock_give(struct lock *lock) { lock_give_plain(lock); }
static inline bool lock_try(struct lock *lock) { return lock_try_plain(lock); }
static inline void lock_set_portions(uint32_t most) { (void)most; }
static inline uint32_t lock_portion(uint32_t chosen) { return chosen; }

/* Release builds keep no books of holders: always true. */
static inline bool lock_is_mine(const struct lock *lock) { (void)lock; return true; }
static inline bool lock_none_above(enum lock_rank rank) { (void)rank; return true; }

#endif

#endif
