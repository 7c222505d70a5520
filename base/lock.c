/*
 * lock.c: opening and closing locks, and in debug builds the check of their order.
 *
 * Ranks rise strictly, so a thread holds at most one lock of a rank. That makes its locks an array of LOCK_RANKS pointers: the order
 * and the holder are both read from it, and no other thread ever looks at it.
 */
#include "base/lock.h"

void lock_open(struct lock *lock, enum lock_rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void lock_close(struct lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

#if CENOTE_DEBUG >= 1

static _Thread_local const struct lock *held[LOCK_RANKS];

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
void lock_take(struct lock *lock)
{
    CHECK(lock->rank > 0 && lock->rank < LOCK_RANKS); /* opened, or LOCK_INITIALIZER */
    CHECK(!held[lock->rank]);
    CHECK(lock_none_above(lock->rank));
    pthread_mutex_lock(&lock->mutex);
    held[lock->rank] = lock;
}

bool lock_try(struct lock *lock)
{
    CHECK(!held[lock->rank] && lock_none_above(lock->rank));
    if (pthread_mutex_trylock(&lock->mutex))
        return false;
    held[lock->rank] = lock;
    return true;
}

void lock_give(struct lock *lock)
{
    CHECK(lock_is_mine(lock));
    held[lock->rank] = NULL;
    pthread_mutex_unlock(&lock->mutex);
}

#endif
