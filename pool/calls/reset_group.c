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

#define PORTION_OF_FREES 256u   /* blocks freed in one hold of the lock, chosen: some 50 us */

struct reset {
    cenote_group *group;
    uint32_t      region;       /* number of the region that the walk is in */
    uint64_t      at;           /* address there that it has come to; 0: the beginning */
    uint32_t      work;         /* since the lock was taken */
};

/* Ends the block there if it is live and the group's. Its uses, for pending_record. LOCKING: the pool's lock. */
static uint32_t end_at(cenote_pool *pool, struct region *r, uint64_t at)
{
    struct block_ref w = {.region = r};
    bool ends = locate_at(pool, at, &w) == FOUND_LIVE && !(*w.mark & MARK_LENT);
    return ends ? alloc_end_block(pool, &w) : 0;
}

/*
 * Frees what lies in the region from `at` on, until a block has uses, or the portion is done. *uses: of that block.
 * True: there is more. LOCKING: the pool's lock.
 */
static bool walk_region(cenote_pool *pool, struct reset *w, struct region *r, uint32_t *uses)
{
    const struct heap *heap = arena_heap(arena_of(pool, r->arena), r->heap);
    uint64_t at = w->at ? w->at : r->base;
    while (at >= r->base && at < r->top && !*uses && w->work++ < lock_portion(PORTION_OF_FREES)) {
        const struct block *b = block_of(&pool->store.blocks, heap_piece_at(heap, r, at));
        uint64_t end = b->at + b->size, next = end;
        uint32_t slab = b->state == BLOCK_SLAB ? slab_at_address(r, at) : 0;
        if (slab) /* item by item */
            next = at + slab_of(&pool->store.slabs, slab)->item_bytes;
        *uses = end_at(pool, r, at);
        at = next < end ? next : end;
    }
    w->at = at;
    return at < r->top;
}

/* The next portion of the walk. True: there is more. LOCKING: the pool's lock. */
static bool go_on(cenote_pool *pool, struct reset *w, uint32_t *uses)
{
    const struct pages *s = &pool->store.pages;
    while (w->region < s->regions.used && w->work < lock_portion(PORTION_OF_FREES) && !*uses) {
        struct region *r = region_of(s, w->region);
        bool is_ours = r && arena_of(pool, r->arena)->group == w->group->number;
        w->work++;
        if (is_ours && walk_region(pool, w, r, uses))
            continue;
        w->region++;
        w->at = 0;
    }
    return w->region < s->regions.used;
}

int cenote_group_reset(cenote_group *group)
{
    struct reset w = {.group = group, .region = 1};
    if (!group)
        return error_set(CENOTE_INVALID, 0, "the group is NULL: cenote_group_create gives one");
    cenote_pool *pool = group->pool;
    int error = pool_usable(pool);
    for (bool more = true; more && !error && !(error = pool_take_lock(pool)); w.work = 0) {
        uint32_t uses = 0;
        if (group->destroyed)
            error = error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed: no call may name it any more",
                              group->name);
        more = !error && go_on(pool, &w, &uses);
        lock_give(&pool->lock);
        if (uses)
            pending_record(pool, uses);
    }
    return error;
}
