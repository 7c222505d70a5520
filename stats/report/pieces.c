/*
 * pieces.c: the picture of a pool: what lies where in the memory it holds. For snapshots and checkpoints.
 *
 * A page counts once, where it is shown: at the slot that owns it, or at its home while no slot does. A run of neighbouring slots that are
 * shown is a segment, and the pieces of a segment tile it. A block that is still being filled is not there yet: what is shown of it is
 * free. Pages mapped nowhere, the spares, have no address: one free piece at address 0 stands for them.
 *
 * A picture is drawn in portions (look.c), region by region in the order of their numbers, from the lowest address up. After a pause it goes on at
 * the address it had come to: what is drawn already is as it was then. So a block that lives all the time is drawn once; of one that came or went
 * meanwhile a part may be drawn, as free memory, or nothing. Pieces overlap only where addresses were given back and reserved again.
 *
 * LOCKING: the pool's lock, but not in a pause.
 */
#include "stats/report/pieces.h"

#include "pool/arenas/look.h"
#include "pool/life/pool.h"

struct picture {
    const cenote_pool *pool;
    const cenote_group *group;      /* draw only what lies in it; NULL: all */
    struct sized_list *list;
    cenote_piece form;              /* what the pieces of the segment that is being drawn have in common */
    uint64_t at;                    /* so far the region is drawn */
    uint64_t end;                   /* of the segment that is being drawn, 0: none is */
    uint32_t work;                  /* of the last piece, in units of look.c */
};

#define SKIPPED_MAX 4096u          /* slots without a page, in one go */

/* `mark` of a block; 0 of what is free. */
static void draw(struct picture *p, uint64_t at, uint64_t size, uint64_t requested, uint64_t mark, enum cenote_piece_state state)
{
    if (!size)
        return;
    cenote_piece piece = p->form;
    piece.address = at;
    piece.size = size;
    piece.requested = requested;
    piece.state = state;
    piece.tag = mark_tag(mark);
    piece.site = mark_site(mark);
    piece.kind = (uint8_t)mark_kind(mark);
    piece.phase = (uint8_t)mark_phase(mark);
    piece.lent = mark & MARK_LENT ? 1 : 0;
    piece.born = mark_born(mark);
    piece.word = state == CENOTE_PIECE_LIVE ? words_of(&p->pool->words, at) : 0;
    sized_add(p->list, &piece, sizeof piece);
}

/*
 * Where a page counts. Its owner may be a slot that does not map it yet; a page that is bound to a private group may have its home where
 * it came from.
 */
static struct slot_ref shown_at(const struct pages *s, uint32_t page)
{
    const struct page *p = page_of(s, page);
    if (p->owner.region && region_of(s, p->owner.region)->page[p->owner.slot] == page)
        return p->owner;
    struct slot_ref at = p->home;
    while (p->fixed && at.region && !region_of(s, at.region)->fixed)
        at = region_of(s, at.region)->next_alias[at.slot];
    return at.region ? at : p->home;
}

static bool is_shown(const struct pages *s, const struct region *r, uint32_t slot)
{
    if (!r->page[slot] || bit_is_set(r->sole, slot))
        return r->page[slot] != 0;
    return slot_ref_is(shown_at(s, r->page[slot]), r->number, slot);
}

/* Items side by side that are free are one piece. */
static void draw_slab(struct picture *p, const struct slab *s, const struct block *b)
{
    uint64_t from = s->at;
    for (uint32_t item = 0; item < s->items; item++) {
        uint64_t at = s->at + (uint64_t)item * s->item_bytes;
        if (bit_is_set(s->free, item))
            continue;
        draw(p, from, at - from, 0, 0, CENOTE_PIECE_FREE);
        draw(p, at, s->item_bytes, s->requested[item], s->mark[item],
             bit_is_set(s->pending, item) ? CENOTE_PIECE_PENDING : CENOTE_PIECE_LIVE);
        from = at + s->item_bytes;
    }
    draw(p, from, b->at + b->size - from, 0, 0, CENOTE_PIECE_FREE);
}

/* What of the block lies in [from, to), a segment. */
static void draw_block(struct picture *p, const struct region *r, const struct block *b, uint64_t from, uint64_t to)
{
    bool whole = b->at >= from && b->at + b->size <= to;
    uint64_t at = b->at > from ? b->at : from, end = b->at + b->size < to ? b->at + b->size : to;
    uint32_t slab = whole && b->state == BLOCK_SLAB ? slab_at_address(r, b->at) : 0;
    if (slab)
        draw_slab(p, slab_of(&p->pool->store.slabs, slab), b);
    else if (whole && b->requested && (b->state == BLOCK_LIVE || b->state == BLOCK_PENDING)) /* else it waits for its pages */
        draw(p, at, end - at, b->requested, b->mark, b->state == BLOCK_LIVE ? CENOTE_PIECE_LIVE : CENOTE_PIECE_PENDING);
    else
        draw(p, at, end - at, 0, 0, CENOTE_PIECE_FREE);
}

/* The first slot of [from, to) that is not shown. Sole ones are passed over by the word. */
static uint32_t end_of_shown(const struct pages *s, const struct region *r, uint32_t from, uint32_t to)
{
    uint32_t slot = from;
    do {
        slot = bits_next(r->sole, slot, to, false);
    } while (slot < to && is_shown(s, r, slot) && ++slot < to);
    return slot;
}

/* Draws the next part of the piece, or passes over what of it is not shown; p->at is behind that then. */
static void draw_part(struct picture *p, const struct region *r, const struct block *b)
{
    const struct pages *s = &p->pool->store.pages;
    struct slots under = slots_under(r, p->at, b->at + b->size - p->at);
    uint32_t shown = end_of_shown(s, r, under.from, under.to), slot = shown;
    if (shown > under.from) {
        uint64_t to = shown < under.to ? region_slot_at(r, shown) : b->at + b->size;
        bool is_again = p->at != p->end && p->at == p->form.segment; /* given back and taken again in a pause: drawn as it was before */
        if (p->at != p->end)
            p->form.segment = p->at;
        if (!is_again)
            draw_block(p, r, b, p->at, to);
        p->at = to;
        p->end = is_again ? 0 : to;
    } else {
        while (slot < under.to && slot < under.from + SKIPPED_MAX && !is_shown(s, r, slot))
            slot += region_span(r, slot);
        p->at = slot < under.to ? region_slot_at(r, slot) : b->at + b->size;
    }
    p->work = 1 + (slot - under.from) / 64 + (b->state == BLOCK_SLAB ? SLAB_ITEMS_MIN : 0);
}

/* Whose is it? False: not of what is drawn. */
static bool begin_region(struct picture *p, const struct region *r)
{
    const struct arena *a = arena_of(p->pool, r->arena);
    if (!r->first_block || (p->group && !(a->group && group_of(p->pool, a->group) == p->group)))
        return false;
    uint64_t segment = p->form.segment;
    p->form = (cenote_piece){.group = a->group ? group_of(p->pool, a->group) : NULL, .stream = a->handle, .stream_id = a->stream,
                             .segment = segment, .came_whole = region_is_segment(r)};
    return true;
}

static void draw_region(struct picture *p, struct look *look, uint32_t number)
{
    const struct region *r = region_of(&p->pool->store.pages, number);
    if (!r || !begin_region(p, r))
        return;
    const uint64_t base = r->base;
    uint32_t block = r->first_block;
    p->at = base;
    p->end = 0;
    while (block) {
        const struct block *b = block_of(&p->pool->store.blocks, block);
        draw_part(p, r, b);
        if (p->at >= b->at + b->size)
            block = b->after;
        if (look_goes_on(look, p->work))
            continue;
        r = region_of(&p->pool->store.pages, number);
        if (!r || r->base != base || !begin_region(p, r))
            return;
        block = heap_piece_at(arena_heap(arena_of(p->pool, r->arena), r->heap), r, p->at);
    }
}

static void draw_spares(struct picture *p)
{
    p->form = (cenote_piece){0};
    draw(p, 0, p->pool->store.pages.spare_bytes, 0, 0, CENOTE_PIECE_FREE);
}

/* Adds what lies where. LOCKING: the pool's lock. */
void pieces_draw(struct look *look, const cenote_group *group, struct sized_list *list)
{
    struct picture p = {.pool = look->pool, .group = group, .list = list};
    for (uint32_t number = 1; number < p.pool->store.pages.regions.used; number++) {
        draw_region(&p, look, number);
        look_goes_on(look, 1);
    }
    if (!group)
        draw_spares(&p);
}

static int group_is_gone(const cenote_group *group)
{
    return error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed and holds nothing any more: no call may name it", group->name);
}

int(cenote_pool_pieces)(cenote_pool *pool, cenote_group *group, cenote_piece *pieces, size_t room, size_t *count, size_t size)
{
    struct sized_list l = {.items = pieces, .room = pieces ? room : 0, .size = size};
    int error = pool_answers(pool);
    if (error || (error = sized_check(size, "cenote_piece")))
        return error;
    if (!count || (group && group->pool != pool))
        return error_set(CENOTE_INVALID, 0, count ? "the group is not of this pool" : "nowhere to put the count: the last argument is NULL");
    struct look look;
    if ((error = look_begin(&look, pool)))
        return error;
    bool is_gone = group && !group->number; /* with the last block, which another thread may free */
    if (!is_gone)
        pieces_draw(&look, group, &l);
    look_end(&look);
    if (is_gone)
        return group_is_gone(group);
    *count = l.count;
    return CENOTE_OK;
}

/* --------------------------------------------------------------------------------------------------------------------------------- sums */

#define SLOTS_AT_ONCE 1024u         /* of a region; a multiple of 64 */

/* In SLOTS_AT_ONCE slots from this one on. */
static uint64_t shown_bytes(const struct pages *s, const struct region *r, uint32_t from)
{
    uint32_t to = r->slots - from < SLOTS_AT_ONCE ? r->slots : from + SLOTS_AT_ONCE;
    uint64_t sum = 0, sole = 0;
    for (uint32_t word = from / 64; word < bits_words(to); word++)
        sole += (uint64_t)__builtin_popcountll(r->sole[word] & r->home[word]);
    for (uint32_t slot = from; r->unit_shift && slot < to; slot += region_span(r, slot))
        sole += bit_is_set(r->sole, slot) && bit_is_set(r->home, slot) ? region_span(r, slot) - 1 : 0;
    for (uint32_t slot = from; (slot = bits_next(r->sole, slot, to, false)) < to && region_slot_at(r, slot) < r->top; slot++)
        sum += is_shown(s, r, slot) ? page_of(s, r->page[slot])->bytes : 0;
    return sum + sole * (region_is_segment(r) ? r->bytes : 1ull << r->shift);
}

#define WORK_OF_SLOTS 10u           /* SLOTS_AT_ONCE of them, see look.c */

/* Adds what lies in the region: to each arena's sum, or, of the group alone, to the total. */
static void sum_region(struct look *look, uint32_t number, uint32_t group, struct arena_sums *sums, uint64_t *total)
{
    const cenote_pool *pool = look->pool;
    const struct region *r = region_of(&pool->store.pages, number);
    for (uint32_t from = 0; r && from < r->slots && region_slot_at(r, from) < r->top; from += SLOTS_AT_ONCE) {
        if (group ? arena_of(pool, r->arena)->group == group : r->arena < sums->arenas)
            *(group ? total : &sums->of_arena[r->arena]) += shown_bytes(&pool->store.pages, r, from);
        if (!look_goes_on(look, r->slots - from < SLOTS_AT_ONCE ? 2 : WORK_OF_SLOTS))
            r = region_of(&pool->store.pages, number);
    }
}

static void sum_regions(struct look *look, uint32_t group, struct arena_sums *sums, uint64_t *total)
{
    for (uint32_t number = 1; number < look->pool->store.pages.regions.used; number++) {
        sum_region(look, number, group, sums, total);
        look_goes_on(look, 1);
    }
}

/* Room for the sums of the arenas that there are; of a pool that has ended there are none. False: no host memory. LOCKING: not the pool's lock. */
bool pieces_sums_open(struct arena_sums *sums, cenote_pool *pool)
{
    lock_take(&pool->lock);
    *sums = (struct arena_sums){.arenas = pool->life.open ? pool->store.arenas.used : 0};
    lock_give(&pool->lock);
    if (!sums->arenas)
        return true;
    sums->of_arena = memory_map(sums->arenas * sizeof *sums->of_arena);
    if (!sums->of_arena)
        sums->arenas = 0;
    return sums->of_arena != NULL;
}

void pieces_sums_close(struct arena_sums *sums)
{
    memory_unmap(sums->of_arena, sums->arenas * sizeof *sums->of_arena);
}

/* Fills in the sums, which are 0. Each region is looked at in a moment of its own. LOCKING: the pool's lock. */
void pieces_sum(struct look *look, struct arena_sums *sums)
{
    sum_regions(look, 0, sums, NULL);
}

static bool sum_heap(struct look *look, const struct heap *h, uint64_t *sum)
{
    const struct region *r;
    for (uint32_t region = h->regions; region; region = r->next) {
        r = region_of(h->pages, region);
        for (uint32_t from = 0; from < r->slots && region_slot_at(r, from) < r->top; from += SLOTS_AT_ONCE) {
            *sum += shown_bytes(h->pages, r, from);
            look->work += 2 + WORK_OF_SLOTS * (r->slots - from >= SLOTS_AT_ONCE);
            if (look->work >= lock_portion(PORTION))
                return false;
        }
    }
    return true;
}

/* As the group hangs together. False: there is so much of it that this has to be done in portions. LOCKING: the pool's lock. */
static bool sum_group(struct look *look, const cenote_group *group, uint64_t *sum)
{
    const cenote_pool *pool = look->pool;
    for (uint32_t number = group->first_arena; number; number = arena_of(pool, number)->next_of_group)
        for (uint32_t heap = 0; heap < arena_heaps(arena_of(pool, number)); heap++)
            if (!sum_heap(look, arena_heap(arena_of(pool, number), heap), sum))
                return false;
    return true;
}

int cenote_group_reserved(cenote_group *group, uint64_t *bytes)
{
    if (!group || !bytes)
        return error_set(CENOTE_INVALID, 0, "cenote_group_reserved needs a group and a place for the answer");
    cenote_pool *pool = group->pool;
    int error = pool_answers(pool);
    if (error)
        return error;
    struct look look;
    uint64_t sum = 0;
    if ((error = look_begin(&look, pool)))
        return error;
    uint32_t number = group->number; /* as in cenote_pool_pieces; later it may be another group's, which adds what lies there then */
    if (number && !sum_group(&look, group, &sum)) {
        sum = 0;
        sum_regions(&look, number, NULL, &sum);
    }
    look_end(&look);
    if (!number)
        return group_is_gone(group);
    *bytes = sum;
    return CENOTE_OK;
}
