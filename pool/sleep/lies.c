/*
 * lies.c: what lies on a page: blocks, and parts of such; and whether they let it sleep. A page can sleep if every
 * block on it was named, is live and is known to no other process.
 *
 * LOCKING: the pool's lock.
 */
#include "pool/sleep/sleep.h"

/* ----------------------------------------------------------------------------------------------------------- blocks */

struct under under_of(cenote_pool *pool, uint32_t page, struct slot_ref slot)
{
    const struct region *r = region_of(&pool->store.pages, slot.region);
    uint64_t at = region_slot_at(r, slot.slot);
    return (struct under){at, at + page_of(&pool->store.pages, page)->bytes,
                          heap_piece_at(arena_heap(arena_of(pool, r->arena), r->heap), r, at)};
}

/* The next block that lies there, or of which a part does; NULL: there is none. A slab is one block. */
const struct block *under_next(cenote_pool *pool, struct under *u)
{
    while (u->piece) {
        const struct block *b = block_of(&pool->store.blocks, u->piece);
        u->piece = b->at < u->end ? b->after : 0;
        if (b->at < u->end && b->state != BLOCK_FREE)
            return b;
    }
    return NULL;
}

/* So much of the block lies there, from that address on. */
uint64_t under_bytes(const struct under *u, const struct block *b, uint64_t *from)
{
    uint64_t end = b->at + b->size < u->end ? b->at + b->size : u->end;
    *from = b->at > u->at ? b->at : u->at;
    return end - *from;
}

/*
 * For which of its slots a page sleeps and wakes: for the one under its blocks. One without a block is a graph's: then
 * for the first that its private arena maps, and its home may be in the arena from which the page once came.
 */
struct slot_ref slot_of_sleep(const struct pages *s, const struct page *p)
{
    struct slot_ref at = p->owner.region ? p->owner : p->home;
    while (p->fixed && !p->owner.region && at.region &&
           !(region_of(s, at.region)->fixed && region_of(s, at.region)->arena == p->arena))
        at = region_of(s, at.region)->next_alias[at.slot];
    return at.region ? at : p->home;
}

/* ---------------------------------------------------------------------------------------------------- may it sleep? */

/* What a group has lent is no block of the group: only a list, or the pool, names it. */
static enum lies block_lies(const struct sleepers *s, uint64_t at, uint64_t mark)
{
    bool is_lent = s->what.group && mark & MARK_LENT;
    bool is_named = s->what.blocks ? index_find(&s->names, at) != 0 : !is_lent;
    bool is_shared = index_find(&s->pool->exports.by_block, at) != 0;
    return !is_named ? LIES_OTHER : is_shared ? LIES_MIXED : LIES_NAMED;
}

/* Of two things on one page. */
static enum lies both(enum lies a, enum lies b)
{
    return a == LIES_NOTHING || a == b ? b : b == LIES_NOTHING ? a : LIES_MIXED;
}

/* Items that wait for a stream may still be in use. */
static enum lies items_lie(const struct sleepers *s, const struct slab *slab, const struct under *u)
{
    enum lies lies = LIES_NOTHING;
    for (uint32_t item = 0; item < slab->items; item++) {
        uint64_t at = slab->at + (uint64_t)item * slab->item_bytes;
        if (at + slab->item_bytes <= u->at || at >= u->end || bit_is_set(slab->free, item))
            continue;
        lies = both(lies, bit_is_set(slab->pending, item) ? LIES_OTHER : block_lies(s, at, slab->mark[item]));
    }
    return lies;
}

/* LOCKING: the pool's lock; `seen` says how much there was to look at. */
enum lies lies_there(struct sleepers *s, uint32_t page, struct slot_ref at)
{
    cenote_pool *pool = s->pool;
    const struct region *r = region_of(&pool->store.pages, at.region);
    struct under under = under_of(pool, page, at);
    enum lies lies = LIES_NOTHING;
    for (const struct block *b; lies != LIES_MIXED && (b = under_next(pool, &under));) {
        uint32_t slab = b->state == BLOCK_SLAB ? slab_at_address(r, b->at) : 0;
        s->seen += slab ? slab_of(&pool->store.slabs, slab)->items : 1;
        bool is_live = b->state == BLOCK_LIVE &&
                       block_of(&pool->store.blocks, index_find(&pool->store.by_address, b->at)) == b;
        lies = both(lies, slab    ? items_lie(s, slab_of(&pool->store.slabs, slab), &under)
                          : is_live ? block_lies(s, b->at, b->mark)
                                    : LIES_OTHER);
    }
    return lies;
}
