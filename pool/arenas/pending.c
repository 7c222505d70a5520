/*
 * pending.c: freed blocks that other streams may still be using (rule 2): where they are, and their way back. For what
 * they wait, and when that is over, is in clock/uses.c.
 *
 *       cenote_use        cenote_free              pending_record            pending_poll: all its uses are done
 *     -----------> live -------------> detached ----------------> pending -------------------------------> in its arena
 *                            (our lock)        (driver, no lock)
 *
 * LOCKING: the pool's lock.
 */
#include "pool/arenas/pending.h"

#include "base/check.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/place.h"
#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "stats/account/count.h"

#define LOOKS_MAX 8u    /* lanes that a look in passing finds not done; the next look begins with others */

/* Notes the stream once for each block. False: no host memory. LOCKING: the pool's lock. */
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key, struct device *other)
{
    struct use block = {.at = w->start, .region = w->region->number, .lane = w->arena->horizon.lane};
    return uses_enter(&pool->clock, w->uses, &block, stream, key, other);
}

static void set_pending(cenote_pool *pool, const struct block_ref *w, bool pending)
{
    w->arena->pending += pending ? count_rounded(w->requested) : -count_rounded(w->requested);
    if (!w->slab)
        block_of(&pool->store.blocks, w->block)->state = pending ? BLOCK_PENDING : BLOCK_LIVE;
    else if (pending)
        bit_set(slab_of(&pool->store.slabs, w->slab)->pending, w->item);
    else
        bit_clear(slab_of(&pool->store.slabs, w->slab)->pending, w->item);
}

/*
 * The block is freed but not free. Its uses, for pending_record; the first of them stands for the block. Until that is
 * over, this thread is a user of the pool. LOCKING: the pool's lock.
 */
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed)
{
    set_pending(pool, w, true);
    use_of(&pool->clock, *w->uses)->freed = freed;
    pool->life.users++;
    return *w->uses;
}

/* LOCKING: none; uses_record returns with the pool's lock, which is given back here. */
void pending_record(cenote_pool *pool, uint32_t uses)
{
    uses_record(&pool->clock, uses);
    pool->life.users--;
    lock_give(&pool->lock);
}

/*
 * All uses of a block are done: it goes back to its arena. LOCKING: the pool's lock, let go of meanwhile; in a walk of
 * this thread.
 */
static void release(cenote_pool *pool, uint32_t first)
{
    const struct use *block = use_of(&pool->clock, first);
    struct block_ref w = {.region = region_of(&pool->store.pages, block->region)};
    tick freed = block->freed;
    enum lookup found = locate_at(pool, block->at, &w);
    CHECK(found == FOUND_PENDING);
    (void)found;
    uses_end(&pool->clock, first);
    set_pending(pool, &w, false);
    *w.uses = 0;
    place_give(pool, &w, freed);
}

/*
 * Says that the block is free, with the lock let go: it can be had again only once it was released. LOCKING: as for
 * release.
 */
static void tell_freed(cenote_pool *pool, const struct use *block)
{
    struct block_ref w = {.region = region_of(&pool->store.pages, block->region)};
    if (!watch_hears(pool, CENOTE_FREED))
        return;
    locate_at(pool, block->at, &w);
    lock_give(&pool->lock);
    watch_tell(pool, CENOTE_FREED, w.start, w.requested);
    lock_take(&pool->lock);
}

/* LOCKING: inside, without the pool's lock; with the turn or without. */
static void poll(cenote_pool *pool, uint32_t looks)
{
    struct uses_walk walk;
    lock_take(&pool->lock);
    if (uses_begin_walk(&pool->clock, &walk, looks))
        for (uint32_t first; (first = uses_take_done(&pool->clock, &walk)); release(pool, first))
            tell_freed(pool, use_of(&pool->clock, first));
    struct sleep_copy *gone = pages_take_copies(&pool->store.pages); /* of what was freed asleep */
    lock_give(&pool->lock);
    pages_unmap_copies(gone);
}

/*
 * Gives back the blocks whose streams are done. If another thread is polling, this does nothing, and that thread may
 * leave out lanes. LOCKING: the turn, and so inside; not the pool's lock.
 */
void pending_poll(cenote_pool *pool)
{
    CHECK(lock_is_mine(&pool->turn));
    poll(pool, UINT32_MAX);
}

/*
 * What an allocation does for pending blocks now and then: sees to it that a fence covers those that need one, if the
 * turn is free, and gives back those that are done. LOCKING: none; not inside.
 */
void pending_poll_some(cenote_pool *pool)
{
    bool entered = device_enter(pool->config.device, pool->config.generation) == CUDA_SUCCESS;
    if (entered && turn_try(pool)) {
        lock_take(&pool->lock);
        tick wanted = pool->clock.uses.fence_wanted;
        pool->pending.allocs_since_poll = 0;
        lock_give(&pool->lock);
        events_poll(&pool->clock, wanted);
        lock_give(&pool->turn);
    }
    if (entered)
        poll(pool, lock_portion(LOOKS_MAX));
    device_leave(pool->config.device);
}
