/*
 * lock.h: the two locks of a pool, and who holds them. docs/locks.md says what each guards.
 *
 * Every lock has a rank; a thread takes locks in rising rank only. Debug builds check that, and lock_is_mine() lets a function
 * assert what its header comment says. LOCK_TURN and LOCK_SHARE may be held across driver calls; no other lock may, but for the loading
 * of the driver itself, LOCK_POOLS where devices and pools open and close, and LOCK_WATCH by the program's own function.
 */
#ifndef CENOTE_BASE_LOCK_H
#define CENOTE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>

#include "base/check.h"

enum lock_rank {
    LOCK_POOLS = 1,  /* list of pools, devices */
    LOCK_GLOBAL,     /* driver loading */
    LOCK_SHARE,      /* memory imported from other processes */
    LOCK_TURN,       /* whose turn it is to change mappings of a pool */
    LOCK_WATCH,      /* the program's function that hears of mappings */
    LOCK_POOL,       /* a pool's structures */
    LOCK_ADDRESSES,  /* address -> region map of the process */
    LOCK_RANKS
};

struct lock {
    pthread_mutex_t mutex;
    enum lock_rank  rank;
};

#define LOCK_INITIALIZER(r) {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = (r)}

void lock_open(struct lock *lock, enum lock_rank rank);
void lock_close(struct lock *lock);

#if CENOTE_DEBUG >= 1

void lock_take(struct lock *lock);
void lock_give(struct lock *lock);
bool lock_try(struct lock *lock);          /* false: somebody has it */
bool lock_is_mine(const struct lock *lock);
bool lock_none_above(enum lock_rank rank); /* this thread holds no lock of a rank above */

#else

/* Inline because every allocation takes and gives a lock. */
static inline void lock_take(struct lock *lock) { pthread_mutex_lock(&lock->mutex); }
static inline void lock_give(struct lock *lock) { pthread_mutex_unlock(&lock->mutex); }
static inline bool lock_try(struct lock *lock) { return pthread_mutex_trylock(&lock->mutex) == 0; }

/* Release builds keep no books of who holds what: always true. */
static inline bool lock_is_mine(const struct lock *lock) { (void)lock; return true; }
static inline bool lock_none_above(enum lock_rank rank) { (void)rank; return true; }

#endif

#endif
