/*
 * locate.c: finds the pool and the block of an address, and makes the error for an address that is no live block.
 *
 * LOCKING: the pool's lock, which locate_lock takes.
 */
#include "pool/arenas/locate.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "stats/account/count.h"

static enum lookup locate_item(cenote_pool *pool, uint64_t at, struct block_ref *w)
{
    struct slab *s = slab_of(&pool->store.slabs, w->slab);
    w->block = s->block;
    w->item = (uint32_t)(at - s->at) / s->item_bytes;
    w->start = s->at + (uint64_t)w->item * s->item_bytes;
    w->size = s->item_bytes;
    w->requested = s->requested[w->item];
    w->uses = &s->uses[w->item];
    w->mark = &s->mark[w->item];
    if (bit_is_set(s->free, w->item))
        return FOUND_FREE;
    return bit_is_set(s->pending, w->item) ? FOUND_PENDING : w->start != at ? FOUND_INSIDE : FOUND_LIVE;
}

static void describe_block(cenote_pool *pool, struct block_ref *w, uint32_t block)
{
    struct block *b = block_of(&pool->store.blocks, block);
    w->block = block;
    w->start = b->at;
    w->size = b->size;
    w->requested = b->requested;
    w->uses = &b->uses;
    w->mark = &b->mark;
}

/* No block begins there: is the address inside one? */
static enum lookup locate_inside(cenote_pool *pool, uint64_t at, struct block_ref *w)
{
    uint32_t block = heap_piece_at(arena_heap(w->arena, w->region->heap), w->region, at);
    if (!block)
        return FOUND_NOTHING;
    describe_block(pool, w, block);
    uint8_t state = block_of(&pool->store.blocks, block)->state;
    if (state == BLOCK_LIVE && index_find(&pool->store.by_address, w->start) != block)
        return FOUND_FREE; /* it waits for its pages: place_commit hands it out */
    return state == BLOCK_LIVE ? FOUND_INSIDE : state == BLOCK_PENDING ? FOUND_PENDING : FOUND_FREE;
}

/* Finds what lies at the address, which belongs to a region of this pool. LOCKING: the pool's lock. */
enum lookup locate_at(cenote_pool *pool, uint64_t at, struct block_ref *w)
{
    w->arena = arena_of(pool, w->region->arena);
    w->item = 0;
    w->slab = slab_at_address(w->region, at);
    if (w->slab) {
        const struct slab *s = slab_of(&pool->store.slabs, w->slab);
        CHECK(at >= s->at); /* a slab begins with its granule */
        if (at < s->at + (uint64_t)s->items * s->item_bytes)
            return locate_item(pool, at, w);
        w->slab = 0;
    }
    uint32_t block = at % BLOCK_BYTES ? 0 : index_find(&pool->store.by_address, at);
    if (!block)
        return locate_inside(pool, at, w);
    describe_block(pool, w, block);
    uint8_t state = block_of(&pool->store.blocks, block)->state;
    return state == BLOCK_LIVE ? FOUND_LIVE : state == BLOCK_PENDING ? FOUND_PENDING : FOUND_FREE;
}

/* Does the address lie in memory of this pool? LOCKING: the pool's lock. */
bool locate_in(const cenote_pool *pool, uint64_t at, struct block_ref *w)
{
    *w = (struct block_ref){.region = addresses_find(at)};
    return w->region && atomic_load(&w->region->pool) == pool && at >= w->region->base && at < region_end(w->region);
}

/* Takes the lock of the region's pool, if address and region still belong to it. */
static cenote_pool *lock_pool(struct region *r, uint64_t at)
{
    cenote_pool *pool = r ? atomic_load(&r->pool) : NULL;
    if (!pool)
        return NULL;
    lock_take(&pool->lock);
    if (pool->life.open && atomic_load(&r->pool) == pool && at >= r->base && at < region_end(r))
        return pool;
    lock_give(&pool->lock);
    return NULL;
}

/*
 * The pool of an address, with its lock taken, or NULL. Looks without a
 * lock first, and with the lock of the addresses if that found nothing.
 */
cenote_pool *locate_lock(const void *address, struct block_ref *w)
{
    uint64_t at = (uint64_t)(uintptr_t)address;
    w->region = addresses_find(at);
    cenote_pool *pool = lock_pool(w->region, at);
    if (pool)
        return pool;
    w->region = addresses_find_for_certain(at);
    return lock_pool(w->region, at);
}

/* Sets the error for an address that is no live block. `answer`: ERROR_ANSWER, or 0 if it is a mistake. */
int locate_misuse(enum lookup found, const void *address, const struct block_ref *w, int answer)
{
    unsigned long long size = w->requested, start = w->start;
    switch (found) {
    case FOUND_PENDING:
        return error_set(CENOTE_DOUBLE_FREE | answer, 0,
                         "%p (%llu bytes) was freed already and waits for the streams it was used on; free it once",
                         address, size);
    case FOUND_INSIDE:
        return error_set(CENOTE_INTERIOR | answer, 0,
                         "%p lies %llu bytes inside the block at %#llx of %llu bytes; give its start", address,
                         (unsigned long long)(uintptr_t)address - start, start, size);
    case FOUND_FREE:
        return error_set(
            CENOTE_DOUBLE_FREE | answer, 0,
            "%p is not live: it was freed already, or is no block's; free a block once and keep no pointer to it",
            address);
    default:
        return error_set(CENOTE_NOT_OURS | answer, 0,
                         "%p was not handed out by cenote; look for another allocator's memory or a stale pointer",
                         address);
    }
}

int locate_find(const void *address, cenote_block *block, int answer)
{
    struct block_ref w = {0};
    if (!address || !block)
        return error_set(CENOTE_INVALID, 0, !address ? "the address is NULL: give one inside a block" :
                         "nowhere to put the answer: the last argument is NULL");
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = locate_lock(address, &w);
    enum lookup found = pool ? locate_at(pool, (uint64_t)(uintptr_t)address, &w) : FOUND_NOTHING;
    bool live = found == FOUND_LIVE || found == FOUND_INSIDE;
    if (live)
        *block = (cenote_block){.start = (void *)(uintptr_t)w.start,
                                .requested = w.requested,
                                .size = w.size,
                                .pool = pool,
                                .group = w.arena->group ? group_of(pool, w.arena->group) : NULL,
                                .stream_id = w.arena->stream,
                                .stream = w.arena->handle,
                                .word = words_of(&pool->words, w.start),
                                .used = *w.uses ? use_of(&pool->clock, *w.uses)->left : 0};
    if (pool)
        lock_give(&pool->lock);
    return live ? CENOTE_OK : locate_misuse(found, address, &w, answer);
}

int(cenote_find)(const void *address, cenote_block *block, size_t size)
{
    cenote_block found;
    int error = sized_check(size, "cenote_block");
    if (error || (error = locate_find(address, block ? &found : NULL, ERROR_ANSWER)))
        return error;
    sized_out(block, size, &found, sizeof found);
    return CENOTE_OK;
}
