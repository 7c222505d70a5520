/*
 * look.c: long looks at a pool, in portions.
 *
 * A report may have a million blocks to tell of, and other threads want to allocate meanwhile. So it holds the pool's lock for a portion at a
 * time (PORTION): threads that wait for it then have it, and the look goes on. While no thread waits the lock is kept, and what is seen is one
 * moment's; a look that fits one portion always is.
 *
 * After a pause blocks, regions, arenas and groups may be others than before. Numbers of tables stay good to go on from, and addresses are looked
 * up again. Not: how to go on, which each look has to know itself.
 *
 * LOCKING: the pool's lock from look_begin to look_end, but not in a pause.
 */
#include "pool/arenas/look.h"

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

int look_end(struct look *look)
{
    lock_give(&look->pool->lock);
    return look->is_over ? error_set(CENOTE_INVALID, 0, "the pool was destroyed while it was looked at") : CENOTE_OK;
}

bool look_pause(struct look *look)
{
    cenote_pool *pool = look->pool;
    look->work = 0;
    if (!lock_pass(&pool->lock))
        return true;
    look->is_apart = true;
    look->is_over = !look->is_held && !atomic_load(&pool->life.open);
    if (!look->is_over)
        last_freed_settle(pool);
    if (!look->is_over && look->after_pause)
        look->after_pause(look);
    return false;
}
