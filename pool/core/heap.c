/*
 * heap.c: where does a block go? Best fit by size; among the first few candidates the one that lacks the fewest pages.
 * Not which pages fill a place that lacks some (fill.c, pick.c).
 *
 * A heap is a set of regions. The pieces of a region, blocks and free ranges, tile it from its base to its top without
 * gaps, and no two free ranges touch (invariants 11 and 12). The addresses above the top of the newest region are
 * virgin: growing into them is one more candidate. In older regions the top is at the end, except in those whose
 * addresses the driver would not take back: there the top is at the base, and they wait for the next trim.
 *
 *     base                                              top             end
 *      [ live ][ free  ][ live ][ slab  ][ pending ][free ]   virgin      ]
 *
 * A range may be free although pages are missing under it: they were harvested for another range, or never mapped. Such
 * a range is a candidate, too; the caller fills it (fill.c). Slots in flight cannot be filled: the place slides past
 * them, unless the stream can be made to wait for the pages that they map (rule 1).
 *
 * A unit beyond the heap's line counts as one lacking page more than it lacks. The line is where the heap would end if
 * its blocks had always lain without gaps: as many addresses, from the oldest region on, as the most bytes that were
 * live at one time, and a little more. Pages move, so a place at the top of the heap takes no more memory than one
 * further down. Without the line the blocks of a program drift apart: there are more slots in use than pages, most
 * places lack some, and what fills one place leaves a hole in another. With it blocks come back below the line, where
 * the pages are. There is no line in segments and private arenas, whose pages do not move, nor for a requester that may
 * lie `anywhere`: while a capture is open, and under shortage.
 *
 * LOCKING: every function here expects the pool's lock. None of them calls the driver. heap_give allocates nothing.
 */
#include "pool/core/heap.h"

#include "base/check.h"

static struct block *at_number(const struct heap *h, uint32_t block) { return block_of(h->ranges.blocks, block); }

static uint64_t align_up(uint64_t at, uint64_t alignment) { return (at + alignment - 1) & ~(alignment - 1); }

void heap_open(struct heap *h, struct pages *pages, struct table *blocks, uint32_t arena, bool fixed)
{
    *h = (struct heap){.pages = pages, .arena = arena, .fixed = fixed && !BREAKS(4)};
    h->ranges.blocks = blocks;
}

/* The heap of a private group whose group is gone, and of the next one that takes it over. */
void heap_fix(struct heap *h, bool fixed)
{
    h->fixed = fixed && !BREAKS(4);
    for (uint32_t number = h->regions; number; number = region_of(h->pages, number)->next)
        region_of(h->pages, number)->fixed = h->fixed;
}

/* The slot has no page that can be used as it is. A page that the stream has only to wait for is not missing. */
static void note_lack(struct heap *h, const struct requester *who, const struct region *r, uint32_t slot, bool *blocked,
                      struct place *place)
{
    bool stays = who->orderable && pages_may_stay(h->pages, who, r, slot);
    place->missing += !stays;
    place->behind |= stays;
    *blocked = *blocked && !stays;
}

/* The first slot in the region that lies beyond the line of the heap. */
static uint32_t line_in(const struct heap *h, const struct region *r)
{
    if (h->fixed || region_is_segment(r) || h->need >= r->below + r->bytes)
        return r->slots;
    return h->need > r->below ? slots_under(r, r->base + h->need - r->below - 1, 1).to : 0;
}

/* A unit that lies beyond the line weighs as much as a page that is missing. */
static uint32_t pages_beyond(const struct heap *h, const struct region *r, struct slots under)
{
    uint32_t line = line_in(h, r), slots = under.to <= line ? 0 : under.to - (under.from > line ? under.from : line);
    return (slots + (1u << r->unit_shift) - 1) >> r->unit_shift;
}

static uint32_t cost_of(const struct place *place) { return place->missing + place->beyond; }

static enum fit fit_of(const struct place *place) { return place->missing || place->behind ? FIT_WITH_PAGES : FIT_NOW; }

/*
 * Finds the first place in [from, to) of a region in which no slot is in flight; place->missing counts the pages that
 * it lacks. Behind a slot that cannot be used now the look begins again, so that each slot is looked at once, however
 * many are in flight.
 */
static bool fits(struct heap *h, const struct requester *who, const struct region *r, uint64_t from, uint64_t to,
                 uint64_t alignment, struct place *place)
{
    uint64_t at = align_up(from, alignment);
    place->slid = false;
    while (at < to && to - at >= place->size) {
        struct slots under = slots_under(r, at, place->size);
        bool blocked = false;
        uint32_t slot = under.from;
        place->at = at;
        place->under = under;
        place->missing = 0;
        place->behind = false;
        if (bits_all_set(r->sole, under.from, under.to))
            slot = under.to;
        else
            pages_look_anew(h->pages);
        for (; slot < under.to && !blocked; slot += region_span(r, slot))
            if (pages_lack(h->pages, who, r, slot, &blocked))
                note_lack(h, who, r, slot, &blocked, place);
        if (!blocked) {
            place->region = r->number;
            place->beyond = who->anywhere ? 0 : pages_beyond(h, r, under);
            return true;
        }
        at = align_up(region_slot_at(r, slot), alignment);
        place->slid = true;
    }
    return false;
}

/* The place at the end of the newest region, in its last free range and the virgin addresses behind it. */
static bool fits_at_top(struct heap *h, const struct requester *who, uint64_t alignment, struct place *place)
{
    if (!h->regions)
        return false;
    struct region *r = region_of(h->pages, h->regions);
    bool last_is_free = r->last_block && at_number(h, r->last_block)->state == BLOCK_FREE;
    uint64_t from = last_is_free ? at_number(h, r->last_block)->at : r->top;
    if (!fits(h, who, r, from, region_end(r), alignment, place))
        return false;
    place->range = last_is_free && place->at < r->top ? r->last_block : 0;
    place->grows = place->at + place->size > r->top;
    return true;
}

/*
 * Usually the first candidate lies below the line and has all its
 * pages, each mapped once: then no page has to be looked at.
 */
static bool fits_as_it_is(const struct heap *h, uint32_t range, uint64_t alignment, struct place *place)
{
    const struct block *b = at_number(h, range);
    const struct region *r = region_of(h->pages, b->region);
    uint64_t at = align_up(b->at, alignment);
    if (at + place->size > b->at + b->size)
        return false;
    place->region = b->region;
    place->range = range;
    place->at = at;
    place->under = slots_under(r, at, place->size);
    return place->under.to <= line_in(h, r) && bits_all_set(r->sole, place->under.from, place->under.to);
}

/* Finds the candidate that costs least; `range` is the first one. */
static __attribute__((noinline)) enum fit find_best(struct heap *h, const struct requester *who, uint32_t range,
                                                    uint64_t alignment, struct place *place)
{
    struct place best = {.range = 0};
    bool found = false, in_flight = false;
    *place = (struct place){.size = place->size};
    for (int tries = 0; range && tries < HEAP_CANDIDATES; tries++, range = ranges_next(&h->ranges, range)) {
        struct block *b = at_number(h, range);
        if (!fits(h, who, region_of(h->pages, b->region), b->at, b->at + b->size, alignment, place)) {
            in_flight = true; /* or the alignment does not fit: the arena grows in either case */
            continue;
        }
        place->range = range;
        if (fit_of(place) == FIT_NOW && !place->beyond)
            return FIT_NOW;
        /*
         * The number of pages that stay is not compared: they cost neither memory nor a call. As a second measure it
         * changed one of the recorded programs, fsdp, and that either way (5 % less driver time to 2 % more, as many
         * waits); ddp, diffusion, compiled and graphs not at all.
         */
        if (!found || cost_of(place) < cost_of(&best))
            best = *place;
        found = true;
    }
    if (!fits_at_top(h, who, alignment, place) || (found && cost_of(&best) <= cost_of(place))) {
        if (!found)
            return in_flight ? FIT_IN_FLIGHT : FIT_NOT;
        *place = best;
    }
    return fit_of(place);
}

/* `size` is a multiple of 512; so is `alignment`, a power of two. Fills in the place for the first two answers. */
enum fit heap_find(struct heap *h, const struct requester *who, uint64_t size, uint64_t alignment, struct place *place)
{
    uint32_t range = ranges_at_least(&h->ranges, size);
    *place = (struct place){.size = size};
    if (range && fits_as_it_is(h, range, alignment, place))
        return FIT_NOW;
    return find_best(h, who, range, alignment, place);
}

/* If the block were free, would it begin the free range that fits its size best? */
static bool would_fit_best(const struct heap *h, uint32_t block)
{
    const struct block *b = at_number(h, block);
    uint32_t after = b->after && at_number(h, b->after)->state == BLOCK_FREE ? b->after : 0;
    uint64_t joined = b->size + (after ? at_number(h, after)->size : 0);
    uint32_t best = ranges_at_least(&h->ranges, b->size);
    if (best && best == after)
        best = ranges_next(&h->ranges, best);
    bool joins_before = b->before && at_number(h, b->before)->state == BLOCK_FREE;
    return !joins_before && (!best || at_number(h, best)->size > joined);
}

/*
 * If the block were free, would a request of its size get this place? It would if this is the best fit and lies below
 * the line: all pages are there, because the block lies on them. A program that frees a block and asks for the same
 * size at once, again and again, changes no free range meanwhile.
 */
bool heap_would_choose(struct heap *h, uint32_t block)
{
    const struct block *b = at_number(h, block);
    const struct region *r = region_of(h->pages, b->region);
    bool is_known = h->best == block && h->best_of == h->ranges.changes;
    CHECK(!is_known || would_fit_best(h, block));
    if (!is_known && !would_fit_best(h, block))
        return false;
    h->best = block;
    h->best_of = h->ranges.changes;
    return r->below + (b->at + b->size - r->base) <= h->need || region_slot(r, b->at + b->size - 1) < line_in(h, r);
}

/*
 * The block or free range that holds the address; 0: none. The index has one piece that begins in the 64 KiB around the
 * address, or in the nearest ones before that: from there it is a few steps.
 */
uint32_t heap_piece_at(const struct heap *h, const struct region *r, uint64_t at)
{
    uint32_t granule = at < r->top ? bits_last(r->begins, region_granule(r, at)) : UINT32_MAX;
    uint32_t piece = granule == UINT32_MAX ? 0 : r->granules[granule].piece;
    while (piece && at_number(h, piece)->at > at)
        piece = at_number(h, piece)->before;
    while (piece && at_number(h, piece)->at + at_number(h, piece)->size <= at)
        piece = at_number(h, piece)->after;
    return piece;
}

/*
 * As heap_find, for a block that has to begin at `at` in `r`. FIT_NOT:
 * a block lies there, or the address never belonged to this heap.
 */
enum fit heap_find_at(struct heap *h, const struct requester *who, const struct region *r, uint64_t at, uint64_t size,
                      struct place *place)
{
    bool ours = r && r->arena == h->arena && r->heap == h->index && at >= r->base && at < r->top;
    uint32_t range = ours ? heap_piece_at(h, r, at) : 0;
    const struct block *b = range ? at_number(h, range) : NULL;
    if (!b || b->state != BLOCK_FREE || b->at + b->size - at < size)
        return FIT_NOT;
    *place = (struct place){.size = size, .range = range};
    if (!fits(h, who, r, at, at + size, BLOCK_BYTES, place))
        return FIT_IN_FLIGHT;
    return fit_of(place);
}

/* As heap_find_at, just behind a block, also in virgin addresses. FIT_NOT: another is there, or the region ends. */
enum fit heap_find_behind(struct heap *h, const struct requester *who, uint32_t block, uint64_t size,
                          struct place *place)
{
    const struct block *b = at_number(h, block), *after = at_number(h, b->after);
    const struct region *r = region_of(h->pages, b->region);
    uint64_t at = b->at + b->size, end = b->after ? at + after->size : at;
    end = end == r->top ? region_end(r) : end;
    if ((b->after && after->state != BLOCK_FREE) || end - at < size)
        return FIT_NOT;
    *place = (struct place){.size = size, .range = b->after, .grows = at + size > r->top};
    return fits(h, who, r, at, at + size, BLOCK_BYTES, place) ? fit_of(place) : FIT_IN_FLIGHT;
}

/* Finds the end of the newest segment, if no block has been in it. FIT_NOT: another segment is needed. */
enum fit heap_find_last(struct heap *h, uint64_t size, uint64_t alignment, struct place *place)
{
    const struct region *r = h->regions ? region_of(h->pages, h->regions) : NULL;
    *place = (struct place){.size = size, .under = {0, 1}};
    if (!r || r->freed[0] || at_number(h, r->first_block)->state != BLOCK_FREE || r->first_block != r->last_block ||
        r->bytes < size)
        return FIT_NOT;
    place->region = r->number;
    place->range = r->first_block;
    place->at = (region_end(r) - size) & ~(alignment - 1);
    return place->at >= r->base ? FIT_NOW : FIT_NOT;
}

/*
 * Finds the smallest empty segment that is large enough, for a block that shares its segment with no other: the place
 * is all of it. `at`: the address at which it has to begin; 0: any. FIT_NOT: another segment is needed.
 */
enum fit heap_find_alone(struct heap *h, const struct requester *who, uint64_t at, uint64_t size, uint64_t alignment,
                         struct place *place)
{
    for (uint32_t range = ranges_at_least(&h->ranges, size); range; range = ranges_next(&h->ranges, range)) {
        const struct block *b = at_number(h, range);
        struct region *r = region_of(h->pages, b->region);
        *place = (struct place){.size = b->size, .range = range};
        if (b->size == r->bytes && (at ? at == b->at : b->at % alignment == 0) &&
            fits(h, who, r, b->at, b->at + b->size, BLOCK_BYTES, place))
            return FIT_NOW;
    }
    return FIT_NOT;
}

/* ----------------------------------------------------------------------------------------------- pieces of a region */

/* The index of pieces by address: each granule in which pieces begin has one of them. */
static void note_piece(struct region *r, uint32_t block, uint64_t at)
{
    uint32_t granule = region_granule(r, at);
    r->granules[granule].piece = block;
    bit_set(r->begins, granule);
}

static bool begins_in(const struct heap *h, const struct region *r, uint32_t block, uint32_t granule)
{
    return block && region_granule(r, at_number(h, block)->at) == granule;
}

/* The piece does not begin there any more; a neighbour may begin in the same granule. */
static void forget_piece(struct heap *h, struct region *r, uint32_t block)
{
    const struct block *b = at_number(h, block);
    uint32_t granule = region_granule(r, b->at);
    if (r->granules[granule].piece != block)
        return;
    uint32_t other = begins_in(h, r, b->after, granule) ? b->after
                     : begins_in(h, r, b->before, granule) ? b->before
                     : 0;
    r->granules[granule].piece = other;
    if (!other)
        bit_clear(r->begins, granule);
}

/* Changes the extent of a free range. */
static void resize(struct heap *h, struct region *r, uint32_t range, uint64_t at, uint64_t size)
{
    bool moves = at_number(h, range)->at != at;
    if (moves)
        forget_piece(h, r, range);
    ranges_resize(&h->ranges, range, at, size);
    if (moves)
        note_piece(r, range, at);
}

static void set_top(struct heap *h, struct region *r, uint64_t top)
{
    h->used += top - r->top;
    r->top = top;
}

/*
 * Adds a piece behind `before` (0: as the first of the region).
 * The table has room: callers of heap_take have reserved it.
 */
static uint32_t insert_after(struct heap *h, struct region *r, uint32_t before, uint64_t at, uint64_t size)
{
    uint32_t block = table_take(h->ranges.blocks);
    CHECK(block);
    struct block *b = at_number(h, block);
    b->at = at;
    b->size = size;
    b->region = r->number;
    b->state = BLOCK_FREE;
    b->before = before;
    b->after = before ? at_number(h, before)->after : r->first_block;
    *(before ? &at_number(h, before)->after : &r->first_block) = block;
    *(b->after ? &at_number(h, b->after)->before : &r->last_block) = block;
    note_piece(r, block, at);
    return block;
}

static void remove_piece(struct heap *h, struct region *r, uint32_t block)
{
    struct block *b = at_number(h, block);
    forget_piece(h, r, block);
    *(b->before ? &at_number(h, b->before)->after : &r->first_block) = b->after;
    *(b->after ? &at_number(h, b->after)->before : &r->last_block) = b->before;
    table_give(h->ranges.blocks, block);
}

/*
 * Moves the top so that the place lies below it, to the end of
 * its last page: what is left of that is a free range at once.
 */
static uint32_t grow_top(struct heap *h, struct region *r, const struct place *place)
{
    uint64_t top = region_is_segment(r) ? region_end(r) : r->base + ((uint64_t)place->under.to << r->shift);
    uint32_t range = place->range;
    if (!range && r->last_block && at_number(h, r->last_block)->state == BLOCK_FREE)
        range = r->last_block; /* the place begins above the top: the free range below it reaches up to it */
    if (range) {
        ranges_resize(&h->ranges, range, at_number(h, range)->at, top - at_number(h, range)->at);
    } else {
        range = insert_after(h, r, r->last_block, r->top, top - r->top);
        ranges_add(&h->ranges, range);
    }
    set_top(h, r, top);
    return range;
}

/*
 * Cuts the place out of its free range, as a live block. fill.c adds
 * the pages that it lacks. Needs at most three table items.
 */
uint32_t heap_take(struct heap *h, const struct place *place)
{
    struct region *r = region_of(h->pages, place->region);
    uint32_t range = place->grows ? grow_top(h, r, place) : place->range, block = range;
    struct block *b = at_number(h, range);
    uint64_t from = b->at, to = b->at + b->size, end = place->at + place->size;
    CHECK(b->state == BLOCK_FREE && from <= place->at && end <= to);

    if (from < place->at) { /* the range keeps the front */
        block = insert_after(h, r, range, place->at, place->size);
        ranges_resize(&h->ranges, range, from, place->at - from);
        if (end < to)
            ranges_add(&h->ranges, insert_after(h, r, block, end, to - end));
    } else if (end < to) { /* it keeps the rest */
        block = insert_after(h, r, b->before, place->at, place->size);
        resize(h, r, range, end, to - end);
    } else {
        ranges_remove(&h->ranges, range);
    }
    at_number(h, block)->state = BLOCK_LIVE;
    at_number(h, block)->requested = 0; /* until arena_commit: reports show it as free */
    at_number(h, block)->uses = 0;
    h->live += at_number(h, block)->size;
    pages_own(h->pages, r, place->under.from, place->under.to);
    if (r->fixed)
        pages_fix(h->pages, r, place->under.from, place->under.to);
    CHECK_SLOW(!heap_broken_rule(h));
    return block;
}

/*
 * A block that heap_take took has its pages. Before that the driver
 * may refuse, and what the program never had it did not need.
 */
void heap_keep(struct heap *h)
{
    h->need = h->live > h->need ? h->live : h->need;
}

/* The block that lies behind this one, and has been taken for it, becomes its end. */
void heap_join(struct heap *h, uint32_t block)
{
    struct block *b = at_number(h, block), *end = at_number(h, b->after);
    struct region *r = region_of(h->pages, b->region);
    struct slots under = slots_under(r, b->at, b->size), behind = slots_under(r, end->at, end->size);
    CHECK(end->state == BLOCK_LIVE && end->at == b->at + b->size);
    pages_join(r, under.from, under.to, behind.from, behind.to);
    b->size += end->size;
    remove_piece(h, r, b->after);
    CHECK_SLOW(!heap_broken_rule(h));
}

/* Makes the bytes of the block a free range, joined with free neighbours. Its pages have been disowned. */
void heap_give_back(struct heap *h, uint32_t block)
{
    struct block *b = at_number(h, block);
    struct region *r = region_of(h->pages, b->region);
    h->live -= b->size;
    uint32_t before = b->before && at_number(h, b->before)->state == BLOCK_FREE ? b->before : 0;
    uint32_t after = b->after && at_number(h, b->after)->state == BLOCK_FREE ? b->after : 0;
    CHECK(b->state != BLOCK_FREE);
    if (before) {
        uint64_t size = at_number(h, before)->size + b->size;
        if (after) {
            size += at_number(h, after)->size;
            ranges_remove(&h->ranges, after);
            remove_piece(h, r, after);
        }
        ranges_resize(&h->ranges, before, at_number(h, before)->at, size);
        remove_piece(h, r, block);
    } else if (after) {
        resize(h, r, after, b->at, b->size + at_number(h, after)->size);
        remove_piece(h, r, block);
    } else {
        b->state = BLOCK_FREE;
        ranges_add(&h->ranges, block);
    }
    CHECK_SLOW(!heap_broken_rule(h));
}

/* Never fails and allocates nothing (rule 7). */
void heap_give(struct heap *h, uint32_t block, tick freed)
{
    struct block *b = at_number(h, block);
    struct region *r = region_of(h->pages, b->region);
    struct slots under = slots_under(r, b->at, b->size);
    pages_disown(h->pages, r, under.from, under.to, freed);
    heap_give_back(h, block);
}

/* ---------------------------------------------------------------------------------------------------------- regions */

/*
 * Makes the addresses above the top an ordinary free range, because
 * another region is the newest now. Needs one table item.
 */
static void close_top(struct heap *h, struct region *r)
{
    if (r->top == region_end(r))
        return;
    struct block *last = r->last_block ? at_number(h, r->last_block) : NULL;
    if (last && last->state == BLOCK_FREE) {
        ranges_resize(&h->ranges, r->last_block, last->at, region_end(r) - last->at);
    } else {
        ranges_add(&h->ranges, insert_after(h, r, r->last_block, r->top, region_end(r) - r->top));
    }
    set_top(h, r, region_end(r));
}

/*
 * How many addresses are in use in the regions that are older than each:
 * all, or none in those that wait for a trim. Segments have no line.
 */
static void count_below(struct heap *h)
{
    uint64_t below = h->used;
    for (uint32_t number = h->regions; number; number = region_of(h->pages, number)->next) {
        struct region *r = region_of(h->pages, number);
        below -= r->top - r->base;
        r->below = below;
    }
}

/* Adds the region to the heap behind `before`; 0: as the newest. */
static void join(struct heap *h, struct region *r, uint32_t before)
{
    uint32_t *link = before ? &region_of(h->pages, before)->next : &h->regions;
    r->before = before;
    r->next = *link;
    *link = r->number;
    if (r->next)
        region_of(h->pages, r->next)->before = r->number;
    h->bytes += r->bytes;
    if (!region_is_segment(r))
        count_below(h);
}

/* Adds a region, which has its number, as the newest. */
void heap_add_region(struct heap *h, struct region *r)
{
    if (h->regions)
        close_top(h, region_of(h->pages, h->regions));
    r->arena = h->arena;
    r->heap = h->index;
    r->fixed = h->fixed;
    join(h, r, 0);
    if (region_is_segment(r))
        close_top(h, r); /* a segment is mapped as a whole, so that no address is virgin */
}

bool heap_region_has_block(const struct heap *h, const struct region *r)
{
    return r->first_block && (r->first_block != r->last_block || at_number(h, r->first_block)->state != BLOCK_FREE);
}

/* Does no block lie in the region, and is no page mapped in it? */
bool heap_region_is_empty(const struct heap *h, const struct region *r)
{
    if (heap_region_has_block(h, r))
        return false;
    for (uint32_t slot = 0; slot < r->slots; slot++)
        if (r->page[slot] || r->pins[slot] || bit_is_set(r->transit, slot))
            return false;
    return true;
}

/* Takes an empty region out of the heap. The caller gives its addresses back. */
void heap_remove_region(struct heap *h, struct region *r)
{
    CHECK(region_is_segment(r) || heap_region_is_empty(h, r)); /* a segment leaves with its page */
    if (r->first_block) {
        ranges_remove(&h->ranges, r->first_block);
        remove_piece(h, r, r->first_block);
    }
    r->first_block = r->last_block = 0;
    *(r->before ? &region_of(h->pages, r->before)->next : &h->regions) = r->next;
    if (r->next)
        region_of(h->pages, r->next)->before = r->before;
    h->bytes -= r->bytes;
    set_top(h, r, r->base);
    if (!region_is_segment(r))
        count_below(h);
}

/*
 * Puts back a region that heap_remove_region took out, all of it virgin: as the newest, unless the newest has virgin
 * addresses itself. Needs no table item, because all of the region lies above its top.
 */
void heap_restore_region(struct heap *h, struct region *r)
{
    uint32_t before = h->regions;
    if (before && region_of(h->pages, before)->top == region_end(region_of(h->pages, before)))
        before = 0;
    while (before && region_of(h->pages, before)->next)
        before = region_of(h->pages, before)->next;
    join(h, r, before);
    r->fixed = h->fixed;
    if (region_is_segment(r) && table_reserve(h->ranges.blocks, 1))
        close_top(h, r); /* all of it is there; without host memory it waits until it is the newest */
}
