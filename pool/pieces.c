/*
 * pieces.c: the picture of a pool: what lies where in the memory it holds. For snapshots and checkpoints.
 *
 * A page counts once, where it is shown: at the slot that owns it, or at its home while nobody does. A run of neighbouring slots that are
 * shown is a segment, and the pieces of a segment tile it. A block that is still being filled is not there yet: what is shown of it is
 * free. Pages mapped nowhere, the spares, have no address: one free piece at address 0 stands for them.
 *
 * LOCKING: the pool's lock from start to end, so that the picture is one moment's.
 */
#include "pool/pool.h"

struct picture {
    struct sized_list *list;
    cenote_piece form;              /* what the pieces of the segment that is being drawn have in common */
};

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
    piece.born = mark_born(mark);
    sized_add(p->list, &piece, sizeof piece);
}

/*
 * Where a page counts. Its owner may be a slot that does not map it yet; a page that is bound to a private group may have its home where
 * it came from.
 */
static struct spot shown_at(const struct pages *s, uint32_t page)
{
    const struct page *p = page_of(s, page);
    if (p->owner.region && region_of(s, p->owner.region)->page[p->owner.slot] == page)
        return p->owner;
    struct spot at = p->home;
    while (p->fixed && at.region && !region_of(s, at.region)->fixed)
        at = region_of(s, at.region)->next_alias[at.slot];
    return at.region ? at : p->home;
}

static bool is_shown(const struct pages *s, const struct region *r, uint32_t slot)
{
    if (!r->page[slot] || bit_is_set(r->sole, slot))
        return r->page[slot] != 0;
    return spot_is(shown_at(s, r->page[slot]), r->number, slot);
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
static void draw_block(struct picture *p, const cenote_pool *pool, const struct region *r, const struct block *b, uint64_t from, uint64_t to)
{
    bool whole = b->at >= from && b->at + b->size <= to;
    uint64_t at = b->at > from ? b->at : from, end = b->at + b->size < to ? b->at + b->size : to;
    uint32_t slab = whole && b->state == BLOCK_SLAB ? slab_at_address(r, b->at) : 0;
    if (slab)
        draw_slab(p, slab_of(&pool->slabs, slab), b);
    else if (whole && (b->state == BLOCK_LIVE || b->state == BLOCK_PENDING))
        draw(p, at, end - at, b->requested, b->mark, b->state == BLOCK_LIVE ? CENOTE_PIECE_LIVE : CENOTE_PIECE_PENDING);
    else
        draw(p, at, end - at, 0, 0, CENOTE_PIECE_FREE);
}

static void draw_region(struct picture *p, const cenote_pool *pool, const struct region *r)
{
    const struct pages *s = &pool->pages;
    uint32_t block = r->first_block;
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        uint32_t first = slot;
        while (slot < r->slots && is_shown(s, r, slot))
            slot++;
        if (slot == first)
            continue;
        uint64_t from = region_slot_at(r, first), to = slot < r->slots ? region_slot_at(r, slot) : region_end(r);
        p->form.segment = from;
        for (; block && block_of(&pool->blocks, block)->at < to; block = block_of(&pool->blocks, block)->after) {
            const struct block *b = block_of(&pool->blocks, block);
            if (b->at + b->size > from)
                draw_block(p, pool, r, b, from, to);
            if (b->at + b->size > to)
                break; /* the next segment may have a part of it too */
        }
    }
}

static void draw_spares(struct picture *p, const cenote_pool *pool)
{
    uint64_t bytes = 0;
    for (uint32_t page = pool->pages.spare; page; page = page_of(&pool->pages, page)->next_spare)
        bytes += page_of(&pool->pages, page)->bytes;
    p->form = (cenote_piece){0};
    draw(p, 0, bytes, 0, 0, CENOTE_PIECE_FREE);
}

/* Adds what lies where. LOCKING: the pool's lock. */
void pieces_draw(cenote_pool *pool, cenote_group *group, struct sized_list *list)
{
    struct picture p = {.list = list};
    pool_settle(pool);
    for (uint32_t number = 1; number < pool->arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        if (!a->number || (group && a->group != group->number))
            continue;
        p.form = (cenote_piece){.group = a->group ? group_of(pool, a->group) : NULL, .stream = a->handle, .stream_id = a->stream};
        for (uint32_t region = a->heap.regions; region; region = region_of(&pool->pages, region)->next)
            draw_region(&p, pool, region_of(&pool->pages, region));
    }
    if (!group)
        draw_spares(&p, pool);
}

static int group_is_gone(const cenote_group *group)
{
    return error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed and holds nothing any more: no call may name it", group->name);
}

int(cenote_pieces)(cenote_pool *pool, cenote_group *group, cenote_piece *pieces, size_t room, size_t *count, size_t size)
{
    struct sized_list l = {.items = pieces, .room = pieces ? room : 0, .size = size};
    int error = pool_usable(pool);
    if (error || (error = sized_check(size, "cenote_piece")))
        return error;
    if (!count || (group && group->pool != pool))
        return error_set(CENOTE_INVALID, 0, count ? "the group is not of this pool" : "nowhere to put the count: the last argument is NULL");
    if (group && !group->number)
        return group_is_gone(group);
    lock_take(&pool->lock);
    pieces_draw(pool, group, &l);
    lock_give(&pool->lock);
    *count = l.count;
    return CENOTE_OK;
}

static uint64_t shown_bytes(const struct pages *s, const struct region *r)
{
    uint64_t sum = 0, sole = 0;
    for (uint32_t word = 0; word < bits_words(r->slots); word++)
        sole += (uint64_t)__builtin_popcountll(r->sole[word]);
    for (uint32_t slot = 0; (slot = bits_next(r->sole, slot, r->slots, false)) < r->slots && (!slot || region_slot_at(r, slot) < r->top); slot++)
        sum += is_shown(s, r, slot) ? page_of(s, r->page[slot])->bytes : 0;
    return sum + sole * (region_is_segment(r) ? r->bytes : 1ull << r->shift);
}

/* Bytes of physical memory that lie in the arena. LOCKING: the pool's lock. */
uint64_t pieces_reserved(const cenote_pool *pool, const struct arena *a)
{
    uint64_t sum = 0;
    for (uint32_t region = a->heap.regions; region; region = region_of(&pool->pages, region)->next)
        sum += shown_bytes(&pool->pages, region_of(&pool->pages, region));
    return sum;
}

int cenote_group_reserved(cenote_group *group, uint64_t *bytes)
{
    if (!group || !bytes)
        return error_set(CENOTE_INVALID, 0, "cenote_group_reserved needs a group and a place for the answer");
    cenote_pool *pool = group->pool;
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!group->number)
        return group_is_gone(group);
    *bytes = 0;
    lock_take(&pool->lock);
    for (uint32_t number = group->first_arena; number; number = arena_of(pool, number)->next_of_group)
        *bytes += pieces_reserved(pool, arena_of(pool, number));
    lock_give(&pool->lock);
    return CENOTE_OK;
}
