/*
 * snapshot.c: a pool at one moment, or about one moment, all layers of it.
 *
 * It is copied in portions (look.c) into memory of our own, and written without the lock. No thread has to stop: what is on its way, a page that
 * moves or leaves, is shown as what it is. If no other thread took the lock meanwhile the parts agree with each other, and the snapshot says that it
 * is of one moment. Otherwise only levels and counts, the rows of sizes, phases and kinds, steps and fences are of one moment, the last. All else is
 * of an earlier one, item by item.
 *
 * LOCKING: the pool's lock for the copy, but not in a pause. No driver call is made.
 */
#include "stats/report/snapshot.h"

#include <string.h>

#include "base/check.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "stats/report/pieces.h"
#include "stats/report/rows.h"
#include "stats/report/steps.h"

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

/* How many items of that size a list has room for. */
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

static void copy_rows(struct snapshot *s, struct look *look, enum cenote_division division, const struct arena_sums *sums)
{
    struct sized_list l = begin_list(s, PART_ROWS + division, sizeof(cenote_row));
    rows_list(look, division, sums, &l);
    listed(s, PART_ROWS + division, l.size, l.count);
}

/* What is short, and of one moment: no pause is in it. The last, so that nothing else is of a later one. */
static void copy_short(struct snapshot *s, struct look *look, const struct report_sums *sums)
{
    const cenote_pool *pool = look->pool;
    s->stats = report_stats(pool, sums);
    s->now_ns -= pool->config.opened_ns;
    s->device = pool->config.device->ordinal;
    s->provider = (int)pool->config.provider;
    s->is_default = pool->config.is_default;
    s->steps = pool->steps.count;
    s->trim_above = pool->limits.trim_above;
    s->lost = pool->life.lost;
    s->pins = pool->groups.pins;
    s->fences = pool->clock.fences;
    s->capture_count = pool->groups.capture_count;
    for (uint32_t i = 0; i < pool->groups.capture_count; i++)
        s->captures[i] = pool->groups.captures[i];
    s->records = ring_count(&pool->recorder.ring);
    s->records_lost = pool->recorder.ring.written - s->records;
    copy_rows(s, look, CENOTE_BY_CLASS, NULL);
    copy_rows(s, look, CENOTE_BY_PHASE, NULL);
    copy_rows(s, look, CENOTE_BY_KIND, NULL);
    struct sized_list l = begin_list(s, PART_STEPS, sizeof(cenote_step_note));
    steps_list(pool, &l);
    listed(s, PART_STEPS, l.size, l.count);
    begin(s, PART_SITES);
    listed(s, PART_SITES, sizeof(uint64_t), pool->config.options.sites ? bits_words(MARK_SITES_MAX + 1) : 0);
}

static void copy_pieces(struct snapshot *s, struct look *look)
{
    struct sized_list l = begin_list(s, PART_PIECES, sizeof(cenote_piece));
    pieces_draw(look, NULL, &l);
    listed(s, PART_PIECES, l.size, l.count);
}

/* In memory of the snapshot, which keeps them no longer than this. */
static struct arena_sums sum_arenas(struct snapshot *s, struct look *look)
{
    struct arena_sums sums = {.of_arena = list_of(s), .arenas = look->pool->store.arenas.used};
    size_t size = sums.arenas * sizeof *sums.of_arena;
    sums.arenas = room_for(s, sizeof *sums.of_arena) >= sums.arenas ? sums.arenas : 0;
    /* There is memory, for memory_make_room, of another file, has made room: NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    memset(sums.of_arena, 0, sums.arenas * sizeof *sums.of_arena);
    s->used += size;
    pieces_sum(look, &sums);
    return sums;
}

static void copy_groups(struct snapshot *s, struct look *look)
{
    const cenote_pool *pool = look->pool;
    begin(s, PART_GROUPS);
    for (uint32_t number = 1; number < pool->groups.table.used; number++, look_goes_on(look, 1)) {
        const cenote_group *group = group_of(pool, number);
        cenote_group *copy = group->number ? next(s, PART_GROUPS, sizeof *copy) : NULL;
        if (copy)
            *copy = *group;
    }
}

static void copy_arenas(struct snapshot *s, struct look *look, const struct arena_sums *sums)
{
    const cenote_pool *pool = look->pool;
    begin(s, PART_ARENAS);
    for (uint32_t number = 1; number < pool->store.arenas.used; number++, look_goes_on(look, 1)) {
        const struct arena *a = arena_of(pool, number);
        struct arena_copy *copy = a->number ? next(s, PART_ARENAS, sizeof *copy) : NULL;
        if (copy)
            *copy = (struct arena_copy){.number = number, .group = a->group, .slow_path_users = a->slow_path_users, .stream = a->stream,
                                        .blocks = a->blocks, .reserved = sum_of_arena(sums, number), .handle = a->handle,
                                        .last_return_tick = a->last_return_tick, .is_private = a->is_private, .retired = a->retired};
    }
}

/* The slot of a sole page says which slot owns it and when it was last freed. */
static struct page_copy copy_of(const struct pages *p, uint32_t number)
{
    const struct page *page = page_of(p, number);
    struct page_copy copy = {.number = number, .maps = page->maps, .pins = page->pins, .arena = page->arena, .bytes = page->bytes,
                             .freed = page->freed, .owner = page->owner, .home = page->home, .fixed = page->fixed, .leaving = page->leaving};
    const struct region *r = page->home.region ? region_of(p, page->home.region) : NULL;
    copy.sole = r && bit_is_set(r->sole, page->home.slot);
    if (copy.sole) {
        copy.owner = bit_is_set(r->busy, page->home.slot) ? page->home : (struct slot_ref){0};
        copy.freed = r->freed[page->home.slot];
        copy.arena = r->arena;
    }
    copy.complete = fence_has_passed(p->fences, copy.freed, copy.arena);
    return copy;
}

static void copy_pages(struct snapshot *s, struct look *look)
{
    const struct pages *p = &look->pool->store.pages;
    begin(s, PART_PAGES);
    for (uint32_t number = 1; number < p->table.used; number++, look_goes_on(look, 1)) {
        struct page_copy *copy = page_of(p, number)->bytes ? next(s, PART_PAGES, sizeof *copy) : NULL;
        if (copy)
            *copy = copy_of(p, number);
    }
}

/* Live bytes lie on a page or on one that comes (invariant 2), pins on a page that stays, and a broken slot has kept its page. */
static bool is_copied(const struct region *r, uint32_t slot)
{
    return r->page[slot] || bit_is_set(r->transit, slot);
}

static void copy_slot(struct snapshot *s, const struct region *r, uint32_t slot)
{
    struct slot_copy *copy = next(s, PART_SLOTS, sizeof *copy);
    if (copy)
        *copy = (struct slot_copy){.slot = slot, .page = r->page[slot], .edges = r->edges[slot], .pins = r->pins[slot], .freed = r->freed[slot],
                                   .sole = bit_is_set(r->sole, slot), .home = bit_is_set(r->home, slot), .busy = bit_is_set(r->busy, slot),
                                   .transit = bit_is_set(r->transit, slot), .broken = bit_is_set(r->broken, slot)};
}

/* How many of the region were copied. After a pause it may be gone. */
static uint32_t copy_slots(struct snapshot *s, struct look *look, uint32_t number)
{
    const struct pages *p = &look->pool->store.pages;
    const struct region *r = region_of(p, number);
    const uint64_t base = r->base;
    size_t before = s->parts[PART_SLOTS].count;
    for (uint32_t slot = 0; r && slot < r->slots && (!slot || region_slot_at(r, slot) < r->top); slot++) {
        bool copied = is_copied(r, slot);
        if (copied)
            copy_slot(s, r, slot);
        if (!look_goes_on(look, copied || slot % 64 == 0))
            r = !region_of(p, number) || region_of(p, number)->base != base ? NULL : region_of(p, number);
    }
    return (uint32_t)(s->parts[PART_SLOTS].count - before);
}

/* A copy for each number that there is, in front of all slots: regions that come meanwhile are not copied. */
static void copy_regions(struct snapshot *s, struct look *look)
{
    const struct pages *p = &look->pool->store.pages;
    const uint32_t numbers = p->regions.used;
    begin(s, PART_REGIONS);
    struct region_copy *copies = room_for(s, sizeof *copies) >= numbers ? list_of(s) : NULL;
    s->used += numbers * sizeof *copies;
    begin(s, PART_SLOTS);
    for (uint32_t number = 1; number < numbers; number++, look_goes_on(look, 1)) {
        const struct region *r = region_of(p, number);
        if (!r)
            continue;
        struct region_copy copy = {.number = number, .arena = r->arena, .slots = r->slots, .base = r->base, .bytes = r->bytes, .top = r->top,
                                   .fixed = r->fixed, .is_segment = region_is_segment(r)};
        copy.copied = copy_slots(s, look, number);
        if (copies)
            copies[s->parts[PART_REGIONS].count] = copy;
        s->parts[PART_REGIONS].count++;
    }
}

/*
 * The streams that freed blocks wait for. By number, as lanes may be others after a pause. Blocks whose events are still being recorded wait in no
 * lane yet.
 */
static void copy_pending(struct snapshot *s, struct look *look)
{
    cenote_pool *pool = look->pool;
    begin(s, PART_WAITS);
    for (uint32_t use = 1; use < pool->clock.uses.table.used; use++, look_goes_on(look, 1)) {
        const struct use *u = use_of(&pool->clock, use);
        if (!u->waits)
            continue;
        const struct lane *lane = lane_of(&pool->clock, u->lane);
        struct block_ref w = {.region = region_of(&pool->store.pages, u->region)};
        locate_at(pool, u->at, &w);
        struct wait_copy *copy = next(s, PART_WAITS, sizeof *copy);
        if (copy)
            *copy = (struct wait_copy){.at = u->at, .requested = w.requested, .stream = lane->key, .handle = lane->stream, .freed = u->freed,
                                       .device = lane->other ? lane->other->ordinal : pool->config.device->ordinal,
                                       .has_event = !lane->other && u->event, .needs_fence = !lane->other && !u->event};
    }
}

/* LOCKING: the pool's lock. */
static void copy(struct snapshot *s, struct look *look)
{
    s->used = 0;
    struct report_sums gauges = report_sum(look);
    struct arena_sums sums = sum_arenas(s, look);
    copy_rows(s, look, CENOTE_BY_ARENA, &sums);
    copy_rows(s, look, CENOTE_BY_GROUP, &sums);
    copy_groups(s, look);
    copy_arenas(s, look, &sums);
    copy_pieces(s, look);
    copy_rows(s, look, CENOTE_BY_TAG, NULL); /* those of all pieces */
    copy_pages(s, look);
    copy_regions(s, look);
    copy_pending(s, look);
    copy_short(s, look, &gauges);
    s->is_one_moment = !look->is_apart;
}

/* LOCKING: none; the copy is ours. */
static void copy_sites(struct snapshot *s)
{
    uint64_t *sites = (uint64_t *)(void *)(s->memory + s->parts[PART_SITES].at);
    if (!s->parts[PART_SITES].count)
        return;
    bits_clear(sites, 0, MARK_SITES_MAX + 1);
    for (size_t i = 0; i < s->parts[PART_PIECES].count; i++)
        bit_set(sites, PART_AT(cenote_piece, s, PART_PIECES)[i].site);
}

static int take(struct snapshot *s, cenote_pool *pool)
{
    size_t needed = 1 << 20;
    while (!s->memory || needed > s->room) {
        if (!memory_make_room((void **)&s->memory, &s->room, needed))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a snapshot of %zu bytes", needed);
        s->now_ns = pool_now(pool); /* by a function of the program, perhaps: with no lock */
        struct look look;
        int error = look_begin(&look, pool);
        if (error)
            return error;
        copy(s, &look);
        look_end(&look);
        needed = s->used;
    }
    copy_sites(s);
    return CENOTE_OK;
}

int cenote_pool_snapshot(cenote_pool *pool, const char *path)
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
