/*
 * reset_group.c: all blocks of a group are freed at once, as cenote_free frees each.
 *
 * The walk goes over the regions of the pool by number, and over the pieces of each by address, in portions: after a
 * pause a piece is looked up again where the walk stopped. A region with a live block stays where it is, so that every
 * block that is live all the time is found.
 *
 * LOCKING: as each function says. Blocks that other streams use have their events recorded without the lock.
 */
#include "pool/arenas/pending.h"
#include "pool/calls/alloc.h"
#include "pool/life/pool.h"
#include "pool/life/watch.h"

#define PORTION_OF_FREES 256u   /* blocks freed in one hold of the lock, chosen: some 50 us */

struct reset {
    cenote_group *group;
    uint32_t      region;       /* number of the region that the walk is in */
    uint64_t      at;           /* address there that it has come to; 0: the beginning */
    uint32_t      work;         /* since the lock was taken */
    uint32_t      uses;         /* of the block that was ended last, for pending_record; 0: none */
    bool          is_watched;   /* each ENDED is told of at once: a portion ends with the first block */
    uint64_t      ended, bytes; /* that block */
};

/* Ends the block there if it is live and the group's. LOCKING: the pool's lock. */
static void end_at(cenote_pool *pool, struct reset *w, struct region *r, uint64_t at)
{
    struct block_ref b = {.region = r};
    if (locate_at(pool, at, &b) != FOUND_LIVE || *b.mark & (MARK_LENT | MARK_HELD))
        return;
    w->uses = alloc_end_block(pool, &b);
    w->ended = w->is_watched ? at : 0;
    w->bytes = b.requested;
}

/* What the caller does without the lock comes first, or the portion is done. */
static bool stops(const struct reset *w)
{
    return w->uses || w->ended || w->work >= lock_portion(PORTION_OF_FREES);
}

/*
 * Frees what lies in the region from `at` on, until it stops; from its beginning, if another region has the number by
 * now. True: there is more. LOCKING: the pool's lock.
 */
static bool walk_region(cenote_pool *pool, struct reset *w, struct region *r)
{
    const struct heap *heap = arena_heap(arena_of(pool, r->arena), r->heap);
    uint64_t at = w->at >= r->base && w->at < r->top ? w->at : r->base;
    while (at < r->top && !stops(w)) {
        w->work++;
        const struct block *b = block_of(&pool->store.blocks, heap_piece_at(heap, r, at));
        uint64_t end = b->at + b->size, next = end;
        uint32_t slab = b->state == BLOCK_SLAB ? slab_at_address(r, at) : 0;
        if (slab) /* item by item */
            next = at + slab_of(&pool->store.slabs, slab)->item_bytes;
        end_at(pool, w, r, at);
        at = next < end ? next : end;
    }
    w->at = at;
    return at < r->top;
}

/* The next portion of the walk. True: there is more. LOCKING: the pool's lock. */
static bool go_on(cenote_pool *pool, struct reset *w)
{
    const struct pages *s = &pool->store.pages;
    while (w->region < s->regions.used && !stops(w)) {
        struct region *r = region_of(s, w->region);
        bool is_ours = r && arena_of(pool, r->arena)->group == w->group->number;
        if (is_ours && walk_region(pool, w, r))
            continue;
        w->work++;
        w->region++;
        w->at = 0;
    }
    return w->region < s->regions.used;
}

/* LOCKING: none. */
static int free_some(cenote_pool *pool, struct reset *w, bool *more)
{
    w->work = w->uses = 0;
    w->ended = 0;
    if ((w->is_watched = watch_hears(pool, CENOTE_ENDED)))
        lock_take(&pool->watching);
    int error = pool_take_lock(pool);
    bool is_held = !error;
    if (is_held && w->group->destroyed)
        error = error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed: no call may name it any more",
                          w->group->name);
    *more = !error && go_on(pool, w);
    if (is_held)
        lock_give(&pool->lock);
    if (w->ended)
        watch_tell_ended(pool, w->ended, w->bytes);
    else if (w->is_watched)
        lock_give(&pool->watching);
    if (w->uses)
        pending_record(pool, w->uses);
    return error;
}

int cenote_group_reset(cenote_group *group)
{
    struct reset w = {.group = group, .region = 1};
    if (!group)
        return error_set(CENOTE_INVALID, 0, "the group is NULL: cenote_group_create gives one");
    int error = pool_usable(group->pool);
    for (bool more = true; more && !error;)
        error = free_some(group->pool, &w, &more);
    return error;
}
