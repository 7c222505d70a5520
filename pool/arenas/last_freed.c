/*
 * last_freed.c: keeps the block that was freed last as it lies, until a
 * thread looks for free memory, or asks for a block of the same size.
 *
 * LOCKING: the pool's lock.
 */
#include "pool/arenas/last_freed.h"

/*
 * Gives the last freed block to its heap. Until then it stays in the index and over its pages, because many programs
 * ask for the same size again at once, and get the block as it lies. A thread that looks for free ranges or free pages
 * calls this first: otherwise the books are wrong by one block. LOCKING: the pool's lock.
 */
void last_freed_settle(cenote_pool *pool)
{
    uint32_t block = pool->store.last_freed_block.number;
    if (!block)
        return;
    pool->store.last_freed_block.number = 0;
    index_remove(&pool->store.by_address, block_of(&pool->store.blocks, block)->at);
    heap_give(arena_heap(pool->store.last_freed_block.arena, pool->store.last_freed_block.heap), block,
              pool->store.last_freed_block.freed);
}

/* Makes the last freed block live again, if the search would choose its place. Returns the address, or 0. */
uint64_t last_freed_reuse(cenote_pool *pool, struct arena *a, const struct request *q)
{
    uint32_t block = pool->store.last_freed_block.number;
    struct block *b = block_of(&pool->store.blocks, block);
    if (!block || b->size != q->size || pool->store.last_freed_block.arena != a || b->at & (q->alignment - 1) ||
        q->exclusive_pages)
        return 0;
    if (pool->store.last_freed_block.heap != q->heap || !heap_would_choose(arena_heap(a, q->heap), block))
        return 0;
    pool->store.last_freed_block.number = 0;
    b->state = BLOCK_LIVE;
    b->requested = q->bytes;
    b->mark = q->mark;
    return b->at;
}
