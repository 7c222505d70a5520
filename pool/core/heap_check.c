/*
 * heap_check.c: do the invariants of a heap hold?
 *
 * A region is walked from its lowest piece up, some pieces at a time. Between two calls blocks may come and go, if the
 * caller lets go of the lock: the walk goes on at the address it had come to. Each piece is judged by itself and its
 * neighbours, so that it does not matter. The slots are judged by counting pieces: one in which the walk paused is not
 * judged.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/core/heap.h"

static struct block *at_number(const struct heap *h, uint32_t block) { return block_of(h->ranges.blocks, block); }

/* Does the index know a piece in the granule where this one begins, and none between there and the next? */
static bool is_indexed(const struct heap *h, const struct region *r, const struct block *b)
{
    uint32_t granule = region_granule(r, b->at);
    uint32_t next =
        b->after ? region_granule(r, at_number(h, b->after)->at) : (uint32_t)(r->bytes >> SLAB_GRANULE_SHIFT) + 2;
    uint32_t piece = r->granules[granule].piece;
    bool is_known = bit_is_set(r->begins, granule) && piece && region_granule(r, at_number(h, piece)->at) == granule;
    return is_known && !bits_any_set(r->begins, granule + 1, next);
}

static const char *broken_rule_of_piece(const struct heap *h, const struct region *r, uint32_t block)
{
    const struct block *b = at_number(h, block), *before = b->before ? at_number(h, b->before) : NULL;
    if (b->at != (before ? before->at + before->size : r->base) || (before ? before->after : r->first_block) != block ||
        b->region != r->number || !b->size || b->size % BLOCK_BYTES)
        return "11: the pieces of a region tile it up to its top";
    if (!b->after && (b->at + b->size != r->top || r->last_block != block))
        return "11: the pieces of a region tile it up to its top";
    bool is_free = b->state == BLOCK_FREE;
    if (is_free && before && before->state == BLOCK_FREE)
        return "12: no two free ranges touch";
    return is_indexed(h, r, b) ? NULL : "22: each granule where a piece begins knows one";
}

/*
 * Do the slots [from, to) say that so many blocks begin or end in each of them, and that they lie under live bytes or
 * not? A block may have tens of thousands of slots, with none of its edges: they are looked at by the word.
 */
static bool slots_say(const struct region *r, uint32_t from, uint32_t to, uint32_t edges, bool busy)
{
    uint32_t others = 0;
    for (uint32_t slot = from; slot < to; slot++)
        others |= r->edges[slot] ^ edges;
    return !others && (busy ? bits_all_set(r->busy, from, to) : !bits_any_set(r->busy, from, to));
}

/* All pieces of the slot have been counted. */
static bool end_slot(const struct region *r, struct heap_walk *w, uint32_t next, bool busy)
{
    bool fits = w->in_doubt || slots_say(r, w->slot, w->slot + 1, w->edges, w->edges != 0);
    w->slot = next;
    w->edges = busy;
    w->in_doubt = false;
    return fits;
}

/* Counts the piece, from w->at on, in the slots that it lies in. False: one of them says something else. */
static bool count_piece(const struct region *r, const struct block *b, struct heap_walk *w)
{
    struct slots under = slots_under(r, w->at, b->at + b->size - w->at);
    bool busy = b->state != BLOCK_FREE, fits = true;
    uint32_t second = under.from + region_span(r, under.from), last = region_first(r, under.to - 1);
    if (under.from > w->slot)
        fits = end_slot(r, w, under.from, false);
    w->in_doubt |= b->at < w->at; /* it came in a pause, and may begin in a slot before */
    w->edges += busy;
    if (last > w->slot)
        fits = end_slot(r, w, last, busy) && slots_say(r, second, last, 0, busy) && fits;
    return fits;
}

/*
 * Checks the next `most` pieces of the region and the slots under them. True: there are more. If the pool's lock was
 * let go of since the last call, the caller says so in w->in_doubt.
 */
bool heap_check(struct heap *h, const struct region *r, struct heap_walk *w, uint32_t most, const char **broken)
{
    uint32_t block = !w->at ? r->first_block : w->at < r->top ? heap_piece_at(h, r, w->at) : 0;
    if (w->at && w->at < r->top && !block)
        *broken = "22: each granule where a piece begins knows one";
    if (!r->first_block && (r->last_block || r->top != r->base ||
                            bits_any_set(r->begins, 0, (uint32_t)(r->bytes >> SLAB_GRANULE_SHIFT) + 2)))
        *broken = "11: the pieces of a region tile it up to its top";
    for (; block && most && !*broken; block = at_number(h, block)->after, most--) {
        const struct block *b = at_number(h, block);
        w->at = w->at > b->at ? w->at : b->at;
        *broken = broken_rule_of_piece(h, r, block);
        if (!*broken && !w->without_slots && !count_piece(r, b, w))
            *broken = "18: slots are busy, and count edges, as blocks lie on them";
        w->live += b->state != BLOCK_FREE ? b->size : 0;
        w->at = b->at + b->size;
    }
    if (block || *broken || w->without_slots)
        return block && !*broken;
    uint32_t slot = w->slot;
    if (!end_slot(r, w, r->slots, false) || !slots_say(r, slot + region_span(r, slot), r->slots, 0, false))
        *broken = "18: slots are busy, and count edges, as blocks lie on them";
    return false;
}

/*
 * Is the region in order beside its neighbours? The newest may grow,
 * what the others count does not change while the turn is held.
 */
const char *heap_broken_region(const struct heap *h, const struct region *r)
{
    if (r->arena != h->arena || r->heap != h->index || (h->index && (r->fixed || region_is_segment(r))))
        return "27: a region names its heap, and heaps for small blocks are neither fixed nor of segments";
    if (r->unit_shift && r->top < region_end(r) && region_slot_at(r, region_slot(r, r->top)) != r->top)
        return "30: no page reaches beyond the top";
    return r->number != h->regions && r->top != region_end(r) && r->top != r->base
               ? "13: only the newest region is partly virgin"
               : NULL;
}

static const char *broken_rule(struct heap *h, bool without_slots)
{
    const char *broken = NULL;
    uint64_t bytes = 0, used = 0, live = 0;
    bool counted = true;
    for (uint32_t number = h->regions; number && !broken; number = region_of(h->pages, number)->next) {
        const struct region *r = region_of(h->pages, number);
        struct heap_walk w = {.without_slots = without_slots};
        broken = heap_broken_region(h, r);
        if (!broken)
            heap_check(h, r, &w, UINT32_MAX, &broken);
        bytes += r->bytes;
        used += r->top - r->base;
        live += w.live;
        counted &= region_is_segment(r) || r->below + used == h->used;
    }
    return broken ? broken : bytes != h->bytes || used != h->used || !counted ? "22: a heap counts its addresses" :
           live != h->live ? "22: a heap counts the bytes of its blocks" : NULL;
}

const char *heap_broken_rule(struct heap *h)
{
    return broken_rule(h, true);
}

const char *heap_broken_cover(struct heap *h)
{
    return broken_rule(h, false);
}
