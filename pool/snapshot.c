/*
 * snapshot.c: a pool at one moment, all layers of it.
 *
 * Everything is copied under one hold of the pool's lock, so that the parts agree with each other, into memory of our own; it is written
 * without the lock. Nobody has to stop: what is on its way at that moment, a page that moves or leaves, is shown as what it is.
 *
 * LOCKING: the pool's lock for the copy. No driver call is made.
 */
#include "pool/snapshot.h"

#include "base/check.h"

/* ---------------------------------------------------------------------------------------------------------------------------- the copy */

static void begin(struct snapshot *s, enum part part)
{
    s->parts[part].at = s->used;
    s->parts[part].count = 0;
}

/* The next item of the part that was begun last. NULL: no room, but it is counted. */
static void *next(struct snapshot *s, enum part part, size_t size)
{
    char *item = s->used + size <= s->room ? s->memory + s->used : NULL;
    s->used += size;
    s->parts[part].count++;
    return item;
}

/* How many items of that size there is room for, for those who fill in a list. */
static size_t room_for(const struct snapshot *s, size_t size)
{
    return s->used < s->room ? (s->room - s->used) / size : 0;
}

static void *list_of(const struct snapshot *s)
{
    return s->used < s->room ? s->memory + s->used : NULL;
}

static struct sized_list begin_list(struct snapshot *s, enum part part, size_t size)
{
    begin(s, part);
    return (struct sized_list){.items = list_of(s), .room = room_for(s, size), .size = size};
}

static void listed(struct snapshot *s, enum part part, size_t size, size_t count)
{
    s->parts[part].count = count;
    s->used += size * count;
}

static void copy_lists(struct snapshot *s, cenote_pool *pool)
{
    struct sized_list l;
    for (enum cenote_division d = CENOTE_BY_ARENA; d <= CENOTE_BY_KIND; d++) {
        l = begin_list(s, PART_ROWS + d, sizeof(cenote_row));
        rows_list(pool, d, &l, false);
        listed(s, PART_ROWS + d, l.size, l.count);
    }
    l = begin_list(s, PART_STEPS, sizeof(cenote_step_note));
    steps_list(pool, &l);
    listed(s, PART_STEPS, l.size, l.count);
    l = begin_list(s, PART_PIECES, sizeof(cenote_piece));
    pieces_draw(pool, NULL, &l);
    listed(s, PART_PIECES, l.size, l.count);
}

static void copy_arenas(struct snapshot *s, const cenote_pool *pool)
{
    begin(s, PART_GROUPS);
    for (uint32_t number = 1; number < pool->groups.used; number++) {
        const cenote_group *group = group_of(pool, number);
        cenote_group *note = group->number ? next(s, PART_GROUPS, sizeof *note) : NULL;
        if (note)
            *note = *group;
    }
    begin(s, PART_ARENAS);
    for (uint32_t number = 1; number < pool->arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        struct arena_note *note = a->number ? next(s, PART_ARENAS, sizeof *note) : NULL;
        if (note)
            *note = (struct arena_note){.number = number, .group = a->group, .visitors = a->visitors, .stream = a->stream, .live = a->live,
                                        .reserved = pieces_reserved(pool, a), .handle = a->handle, .last_freed = a->last_freed,
                                        .is_private = a->is_private, .retired = a->retired};
    }
}

/* Who owns it and when it was last freed: of a sole page its slot says so. */
static struct page_note note_of(const struct pages *p, uint32_t number)
{
    const struct page *page = page_of(p, number);
    struct page_note note = {.number = number, .maps = page->maps, .pins = page->pins, .arena = page->arena, .bytes = page->bytes,
                             .freed = page->freed, .owner = page->owner, .home = page->home, .fixed = page->fixed, .leaving = page->leaving};
    const struct region *r = page->home.region ? region_of(p, page->home.region) : NULL;
    note.sole = r && bit_is_set(r->sole, page->home.slot);
    if (note.sole) {
        note.owner = bit_is_set(r->busy, page->home.slot) ? page->home : (struct spot){0};
        note.freed = r->freed[page->home.slot];
        note.arena = r->arena;
    }
    note.complete = fence_is_done(&p->fences, note.freed);
    return note;
}

/* Numbers that were given back are those in the table's chain: a bit for each. False: no room for the bits, or the notes. */
static void copy_pages(struct snapshot *s, const struct pages *p)
{
    size_t words = bits_words(p->table.used);
    uint64_t *unused = list_of(s);
    bool fits = room_for(s, words * sizeof *unused) > 0;
    s->used += words * sizeof *unused;
    if (fits)
        bits_clear(unused, 0, p->table.used);
    for (uint32_t page = p->table.first_free; fits && page; page = *(const uint32_t *)table_at(&p->table, page))
        bit_set(unused, page);
    begin(s, PART_PAGES);
    for (uint32_t number = 1; number < p->table.used; number++) {
        struct page_note *note = !fits || bit_is_set(unused, number) ? NULL : next(s, PART_PAGES, sizeof *note);
        if (note)
            *note = note_of(p, number);
    }
    s->used += fits ? 0 : p->table.used * sizeof(struct page_note);
}

/* Live bytes lie on a page or on one that comes (invariant 2), pins on a page that stays, and a broken slot has kept its page. */
static bool is_noted(const struct region *r, uint32_t slot)
{
    return r->page[slot] || bit_is_set(r->transit, slot);
}

static void copy_slots(struct snapshot *s, const struct region *r)
{
    for (uint32_t slot = 0; slot < r->slots && (!slot || region_slot_at(r, slot) < r->top); slot++) {
        struct slot_note *note = is_noted(r, slot) ? next(s, PART_SLOTS, sizeof *note) : NULL;
        if (note)
            *note = (struct slot_note){.slot = slot, .page = r->page[slot], .edges = r->edges[slot], .pins = r->pins[slot],
                                       .freed = r->freed[slot], .sole = bit_is_set(r->sole, slot), .home = bit_is_set(r->home, slot),
                                       .busy = bit_is_set(r->busy, slot), .transit = bit_is_set(r->transit, slot),
                                       .broken = bit_is_set(r->broken, slot)};
    }
}

static void copy_regions(struct snapshot *s, const struct pages *p)
{
    begin(s, PART_REGIONS);
    for (uint32_t number = 1; number < p->regions.used; number++) {
        const struct region *r = region_of(p, number);
        struct region_note *note = r ? next(s, PART_REGIONS, sizeof *note) : NULL;
        if (note)
            *note = (struct region_note){.number = number, .arena = r->arena, .slots = r->slots, .base = r->base, .bytes = r->bytes,
                                         .top = r->top, .fixed = r->fixed, .is_segment = region_is_segment(r)};
    }
    begin(s, PART_SLOTS);
    for (uint32_t number = 1, i = 0; number < p->regions.used; number++) {
        const struct region *r = region_of(p, number);
        size_t before = s->parts[PART_SLOTS].count;
        if (!r)
            continue;
        copy_slots(s, r);
        if (s->used <= s->room)
            ((struct region_note *)(void *)(s->memory + s->parts[PART_REGIONS].at))[i].noted = (uint32_t)(s->parts[PART_SLOTS].count - before);
        i++;
    }
}

/* The streams that freed blocks wait for. Blocks whose events are still being recorded are in no line yet. */
static void copy_pending(struct snapshot *s, cenote_pool *pool)
{
    begin(s, PART_WAITS);
    for (uint32_t number = pool->lines_first; number; number = line_of(pool, number)->next) {
        for (uint32_t use = line_of(pool, number)->first; use; use = use_of(pool, use)->next_in_line) {
            const struct use *u = use_of(pool, use);
            const struct line *line = line_of(pool, u->line);
            struct where w = {.region = addresses_find_for_certain(u->at)};
            pool_locate(pool, u->at, &w);
            struct wait_note *note = next(s, PART_WAITS, sizeof *note);
            if (note)
                *note = (struct wait_note){.at = u->at, .requested = w.requested, .stream = line->key, .handle = line->stream, .freed = u->freed,
                                           .device = line->other ? line->other->ordinal : pool->device->ordinal,
                                           .has_event = !line->other && u->event, .needs_fence = !line->other && !u->event};
        }
    }
}

/* LOCKING: the pool's lock. */
static void copy(struct snapshot *s, cenote_pool *pool)
{
    s->used = 0;
    s->stats = report_stats(pool, false);
    s->steps = pool->steps;
    s->trim_above = pool->trim_above;
    s->lost = pool->lost;
    s->pins = pool->pins;
    s->fences = pool->pages.fences;
    s->capture_count = pool->capture_count;
    for (uint32_t i = 0; i < pool->capture_count; i++)
        s->captures[i] = pool->captures[i];
    s->records = pool->ring.count;
    s->records_lost = pool->ring.lost;
    copy_lists(s, pool);
    copy_arenas(s, pool);
    copy_pages(s, &pool->pages);
    copy_regions(s, &pool->pages);
    copy_pending(s, pool);
    begin(s, PART_SITES);
    listed(s, PART_SITES, sizeof(uint64_t), pool->options.sites ? bits_words(MARK_SITES_MOST + 1) : 0);
}

/* LOCKING: none; the copy is ours. */
static void note_sites(struct snapshot *s)
{
    uint64_t *sites = (uint64_t *)(void *)(s->memory + s->parts[PART_SITES].at);
    if (!s->parts[PART_SITES].count)
        return;
    bits_clear(sites, 0, MARK_SITES_MOST + 1);
    for (size_t i = 0; i < s->parts[PART_PIECES].count; i++)
        bit_set(sites, PART_AT(cenote_piece, s, PART_PIECES)[i].site);
}

static int take(struct snapshot *s, cenote_pool *pool)
{
    size_t needed = 1 << 20;
    while (!s->memory || needed > s->room) {
        if (!memory_make_room((void **)&s->memory, &s->room, needed))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a snapshot of %zu bytes", needed);
        s->now_ns = pool_now(pool) - pool->opened_ns;
        lock_take(&pool->lock);
        copy(s, pool);
        lock_give(&pool->lock);
        needed = s->used;
    }
    note_sites(s);
    return CENOTE_OK;
}

int cenote_snapshot(cenote_pool *pool, const char *path)
{
    struct snapshot s = {0};
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!path || !*path)
        return error_set(CENOTE_INVALID, 0, "a snapshot needs the name of a file");
    error = take(&s, pool);
    struct file *file = error ? NULL : file_create(path);
    if (file)
        snapshot_write(&s, pool, file);
    if (!error && (!file || !file_finish(file)))
        error = file_error(path);
    memory_unmap(s.memory, s.room);
    return error;
}
