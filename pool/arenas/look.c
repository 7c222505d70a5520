/*
 * look.c: long looks at a pool, in portions.
 *
 * A report may have a million blocks to tell of, and other threads want to allocate meanwhile. So it holds the pool's
 * lock for a portion at a time (PORTION): threads that wait for it then have it, and the look goes on. While no thread
 * waits the lock is kept, and what is seen is one moment's; a look that fits one portion always is.
 *
 * After a pause blocks, regions, arenas and groups may be others than before. Numbers of tables stay good to go on
 * from, and addresses are looked up again. The pool is the same: its end waits for looks that pause, and those that
 * have yet to pause do not, once it has begun, for there would always be one. Not: how to go on, which each look has to
 * know itself.
 *
 * LOCKING: the pool's lock from look_begin to look_end, but not in a pause.
 */
#include "pool/arenas/look.h"

#include "base/check.h"
#include "pool/arenas/last_freed.h"
#include "pool/life/pool.h"

int look_begin(struct look *look, cenote_pool *pool)
{
    *look = (struct look){.pool = pool};
    int error = pool_take_lock(pool);
    if (!error)
        last_freed_settle(pool);
    return error;
}

void look_begin_held(struct look *look, cenote_pool *pool)
{
    *look = (struct look){.pool = pool, .is_held = true};
    lock_take(&pool->lock);
    last_freed_settle(pool);
}

void look_end(struct look *look)
{
    lock_give(&look->pool->lock);
}

bool look_pause(struct look *look)
{
    cenote_pool *pool = look->pool;
    look->work = 0;
    if (!look->is_held && pool->life.ending)
        return true;
    pool->life.away += !look->is_held;
    bool passed = lock_pass(&pool->lock);
    pool->life.away -= !look->is_held;
    if (!passed)
        return true;
    CHECK(pool->life.open || look->is_held); /* invariant 31 */
    look->is_apart = true;
    last_freed_settle(pool);
    if (look->after_pause)
        look->after_pause(look);
    return false;
}
