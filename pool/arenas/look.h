/*
 * look.h: long looks at a pool, in portions; see look.c. LOCKING: the pool's lock, which both begins take. An error:
 * the pool has ended.
 */
#ifndef CENOTE_POOL_ARENAS_LOOK_H
#define CENOTE_POOL_ARENAS_LOOK_H

#include "pool/pool.h"

struct look {
    cenote_pool *pool;
    uint32_t     work;              /* done since the lock was taken or offered, in units of some 100 ns */
    bool         is_apart;          /* other threads had the lock meanwhile: what was seen is not one moment's */
    bool         is_held;           /* by a thread with which the pool stays: another's pause is counted */
    void       (*after_pause)(struct look *look); /* unless NULL: called with the lock, before the look goes on */
};
#define PORTION 500u                /* chosen: a hold of 50 us, of the 200 that none may be longer than */

int look_begin(struct look *look, cenote_pool *pool);
void look_begin_held(struct look *look, cenote_pool *pool);    /* by a thread that has the turn, or ends the pool */
void look_end(struct look *look);
bool look_pause(struct look *look);

/*
 * So much was done. False: threads that waited for the lock had
 * it, and all may have changed, but for tables and numbers.
 */
static inline bool look_goes_on(struct look *look, uint32_t work)
{
    look->work += work;
    return look->work < lock_portion(PORTION) || look_pause(look);
}

#endif
