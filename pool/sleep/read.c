/*
 * read.c: gives the host what was kept of a block that sleeps.
 *
 * LOCKING: the turn, so that no page wakes meanwhile; the pool's lock only around looks. The caller's block lives, so
 * that none of its pages goes.
 */
#include "base/sized.h"
#include "pool/arenas/locate.h"
#include "pool/life/turn.h"
#include "pool/sleep/copy.h"
#include "pool/sleep/sleep.h"

/* The copy of the page at that address, and where the page ends; NULL: it is awake. */
static const struct sleep_copy *copy_at(cenote_pool *pool, const struct region *r, uint64_t at, uint64_t *end)
{
    lock_take(&pool->lock);
    uint32_t slot = region_slot(r, at), number = r->page[slot];
    const struct page *p = number ? page_of(&pool->store.pages, number) : NULL;
    *end = p ? region_slot_at(r, slot) + p->bytes : at;
    const struct sleep_copy *copy = p && p->wakefulness >= ASLEEP ? p->copy : NULL;
    lock_give(&pool->lock);
    return copy;
}

/* LOCKING: the turn. */
static int read_all(cenote_pool *pool, uint64_t at, char *to, uint64_t bytes)
{
    const struct region *r = addresses_find(at);
    for (uint64_t from = at, end, part; from < at + bytes; from += part) {
        const struct sleep_copy *copy = copy_at(pool, r, from, &end);
        part = (end < at + bytes ? end : at + bytes) - from;
        if (!copy || !copy_read(copy, from, to + (from - at), part))
            return error_set(CENOTE_INVALID, 0, "%#llx is awake, or its contents were discarded: read it on the device",
                             (unsigned long long)from);
    }
    return CENOTE_OK;
}

int cenote_block_read_asleep(const void *from, void *to, size_t bytes)
{
    cenote_block block;
    uint64_t at = (uint64_t)(uintptr_t)from;
    int error = locate_find(from, &block, 0);
    if (error)
        return error;
    uint64_t left = (uint64_t)(uintptr_t)block.start + block.size - at;
    if (!to || bytes > left)
        return error_set(CENOTE_INVALID, 0,
                         "give a place for the bytes, and no more than the %llu that the block has from there on",
                         (unsigned long long)left);
    if ((error = turn_take(block.pool))) /* the host has it, also after a reset of the device */
        return error;
    error = read_all(block.pool, at, to, bytes);
    lock_give(&block.pool->turn);
    return error;
}
