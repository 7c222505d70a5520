/*
 * trim.c: memory goes back to the driver.
 *
 * Only pages and segments that are free and complete can go, because the device may still be at work on the others. No
 * function of this file waits for the device. The pages that were freed longest ago go first. A page leaves in three
 * steps; if the driver refuses one, the page stays in the pool.
 *
 *      pages_leave                each slot: unmap, unlink                release
 *    ------------> leaving -----------------------------------> nowhere --------> gone
 *                     | refused: pages_stay                        | refused: a spare
 *
 * While a capture is open nothing is unmapped or released (rule 5).
 *
 * LOCKING: the turn, let go of around functions of a source; the pool's lock only around looks.
 */
#include "pool/mapping/trim.h"

#include "pool/arenas/idle.h"
#include "pool/arenas/last_freed.h"
#include "pool/arenas/look.h"
#include "pool/life/watch.h"
#include "pool/provider/async.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"

#define BATCH    64             /* pages picked at a time where there is no host memory for more */
#define PAGES_AT_ONCE 1000u     /* looked at in one hold of the lock */
#define ORPHANS  8              /* segments of destroyed groups that go before another is taken */
#define WORK_OF_FLUSH 1u        /* of one slab, see look.c */

/* What may go. */
struct leave {
    uint64_t keep;      /* bytes that stay, at least */
    tick     latest;    /* freed then or before */
    bool     skip_sources;  /* not what functions of the program have to take back */
    bool     ends;          /* the pool has ended: no capture uses what it had */
    uint32_t only_arena;    /* 0: of all */
    uint32_t skip_shift;    /* no pages of that size; 0: of all sizes */
};

/* An arena has empty slabs. LOCKING: the pool's lock. */
static bool has_empty(const cenote_pool *pool, const struct arena *a, const cenote_group *group)
{
    return a->number && a->slabs.empty && (!group || (a->group && group_of(pool, a->group) == group));
}

/* Those of the group, or of all. By their numbers, for a slab may have left its bin after a pause. */
static void flush(cenote_pool *pool, const cenote_group *group)
{
    struct look look;
    bool any = false;
    look_begin_held(&look, pool);
    for (uint32_t number = 1; number < pool->store.arenas.used && !any; number++, look_goes_on(&look, 1))
        any = has_empty(pool, arena_of(pool, number), group);
    for (uint32_t number = 1; any && number < pool->store.slabs.used; number++, look_goes_on(&look, WORK_OF_FLUSH)) {
        const struct slab *s = slab_of(&pool->store.slabs, number);
        bool empty = s->items && s->free_items == s->items;
        struct arena *a = empty ? arena_of(pool, region_of(&pool->store.pages, s->region)->arena) : NULL;
        if (empty && has_empty(pool, a, group))
            arena_close_slab(a, number);
    }
    look_end(&look);
}

/* Empty slabs go back to their heaps, so that their pages can be free. */
void trim_flush(cenote_pool *pool)
{
    flush(pool, NULL);
}

/* Takes away the mapping at a slot that no live byte lies on. False: the driver refuses. LOCKING: the turn. */
bool trim_slot(cenote_pool *pool, struct region *r, uint32_t slot)
{
    lock_take(&pool->lock);
    bit_set(r->transit, slot);
    bool was_told = !bit_is_set(r->broken, slot); /* what a failed fill left behind was never usable */
    lock_give(&pool->lock);
    uint64_t at = region_slot_at(r, slot), bytes = region_page_bytes(r, slot);
    if (was_told)
        watch_tell(pool, CENOTE_UNMAPPING, at, bytes);
    bool done = !courier_is_stuck(&pool->courier) && region_unmap(pool->config.device, r, slot) == CUDA_SUCCESS;
    if (was_told && !done)
        watch_tell(pool, CENOTE_MAPPED, at, bytes);
    lock_take(&pool->lock);
    bit_clear(r->transit, slot);
    if (done) {
        bit_clear(r->broken, slot);
        pages_unlink(&pool->store.pages, r, slot);
        pool->account.stats.pages_unmapped++;
    }
    lock_give(&pool->lock);
    return done;
}

static uint64_t release_page(cenote_pool *pool, uint32_t page)
{
    struct page *p = page_of(&pool->store.pages, page);
    uint64_t bytes = p->bytes;
    bool done = true;
    while (done && p->maps) /* which slots map a page changes with the turn alone */
        done = trim_slot(pool, region_of(&pool->store.pages, p->home.region), p->home.slot);
    done = done && pool->config.device->driver->cuMemRelease(p->handle) == CUDA_SUCCESS;
    lock_take(&pool->lock);
    if (done) {
        p->leaving = false;
        pages_remove(&pool->store.pages, page);
        pool->account.stats.pages_released++;
        count_reserved(pool);
    } else {
        pages_stay(&pool->store.pages, page);
    }
    lock_give(&pool->lock);
    return done ? bytes : 0;
}

/* A segment is its page: both go at once, or stay. */
static uint64_t release_segment(cenote_pool *pool, uint32_t page)
{
    lock_take(&pool->lock);
    struct page *p = page_of(&pool->store.pages, page);
    struct region *r = region_of(&pool->store.pages, p->home.region);
    struct heap *heap = arena_heap(arena_of(pool, r->arena), r->heap);
    uint64_t bytes = p->bytes;
    /* Another group may take the arena over soon, which has no region then. */
    r->is_sourced = provider_source(pool, arena_of(pool, r->arena)) != NULL;
    heap_remove_region(heap, r);
    atomic_store(&r->pool, NULL);
    lock_give(&pool->lock);
    bool gone = provider_give_back(pool, r);
    lock_take(&pool->lock);
    if (gone) {
        pages_unlink(&pool->store.pages, r, 0);
        pages_remove(&pool->store.pages, page);
        pages_remove_region(&pool->store.pages, r);
        pool->account.stats.pages_released++;
        count_reserved(pool);
    } else {
        pages_stay(&pool->store.pages, page);
        heap_restore_region(heap, r);
        atomic_store(&r->pool, pool);
    }
    lock_give(&pool->lock);
    if (gone)
        provider_close_region(r);
    return gone ? bytes : 0;
}

/*
 * How many pages bring `reserved` down to `keep`, at most. Of segments,
 * whose sizes differ, that many may be more than enough.
 */
static uint32_t most_leavers(cenote_pool *pool, const struct leave *leave, bool segments)
{
    lock_take(&pool->lock);
    uint64_t reserved = pool->store.pages.reserved, surplus = reserved > leave->keep ? reserved - leave->keep : 0;
    uint64_t page = 1ull << pool->store.pages.shifts[GRADE_SMALL], pages = pool->store.pages.table.used;
    uint64_t most = segments ? (surplus ? pages : 0) : (surplus + page - 1) / page;
    lock_give(&pool->lock);
    return (uint32_t)(most < pages ? most : pages);
}

/*
 * Picks the next pages to go, no more than bring `reserved` down to `keep`. They are leaving when this returns. Other
 * threads may have the lock now and then, and take pages that were picked: those stay, and are no sign that nothing
 * else may go (*taken).
 */
static uint32_t pick_leavers(cenote_pool *pool, const struct leave *leave, bool segments, struct pick *picks,
                             uint32_t most, bool *taken)
{
    struct pages *s = &pool->store.pages;
    struct picker picker = {.latest = leave->latest,
                            .segments = segments,
                            .skip_sources = leave->skip_sources,
                            .only_arena = leave->only_arena,
                            .skip_shift = leave->skip_shift,
                            .most = most,
                            .picks = picks};
    lock_take(&pool->lock);
    last_freed_settle(pool);
    while (pick_some(s, &picker, lock_portion(PAGES_AT_ONCE)))
        lock_pass(&pool->lock);
    lock_give(&pool->lock);
    pick_sort(&picker);
    lock_take(&pool->lock);
    uint32_t count = 0;
    uint64_t left = s->reserved;
    *taken = false;
    for (uint32_t i = 0; i < picker.count && left > leave->keep; i++) {
        bool may_go = pick_may_take(s, &picker, picks[i].page);
        *taken |= !may_go;
        if (may_go) {
            left -= page_of(s, picks[i].page)->bytes;
            pages_leave(s, picks[i].page);
            picks[count++] = picks[i];
        }
        if ((i + 1) % lock_portion(PAGES_AT_ONCE) == 0)
            lock_pass(&pool->lock);
    }
    lock_give(&pool->lock);
    return count;
}

static void stay(cenote_pool *pool, const struct pick *picks, uint32_t count)
{
    lock_take(&pool->lock);
    for (uint32_t i = 0; i < count; i++) {
        pages_stay(&pool->store.pages, picks[i].page);
        if ((i + 1) % lock_portion(PAGES_AT_ONCE) == 0)
            lock_pass(&pool->lock);
    }
    lock_give(&pool->lock);
}

static bool is_barred(const cenote_pool *pool, const struct leave *leave)
{
    return !leave->ends && pool_is_capturing(pool);
}

/*
 * Releases those that are leaving. False: the driver refuses,
 * or a capture has begun while a source ran; then some stay.
 */
static bool release_leavers(cenote_pool *pool, const struct leave *leave, bool segments, const struct pick *picks,
                            uint32_t count, uint64_t *sum)
{
    bool going = true;
    for (uint32_t i = 0; i < count; i++) {
        if (is_barred(pool, leave)) {
            stay(pool, picks + i, count - i);
            return false;
        }
        uint64_t bytes = segments ? release_segment(pool, picks[i].page) : release_page(pool, picks[i].page);
        going = going && bytes;
        *sum += bytes;
    }
    return going;
}

/*
 * Bytes given back. A few pages are picked at first, for mostly there are no more; then all that goes at once, because
 * each pick looks at everything. Without host memory for so many it is a few at a time.
 */
static uint64_t trim_kind(cenote_pool *pool, const struct leave *leave, bool segments)
{
    struct pick few[BATCH], *picks = few;
    uint32_t room = lock_portion(BATCH), most, count;
    uint64_t sum = 0;
    bool taken;
    while (!is_barred(pool, leave) && (most = most_leavers(pool, leave, segments)) &&
           ((count = pick_leavers(pool, leave, segments, picks, most < room ? most : room, &taken)) || taken) &&
           release_leavers(pool, leave, segments, picks, count, &sum) && (count == room || taken))
        if (picks == few && (picks = memory_map(most * sizeof *picks)))
            room = most;
        else if (!picks)
            picks = few;
    if (picks != few)
        memory_unmap(picks, room * sizeof *picks);
    return sum;
}

/* So many bytes of pages of other sizes go, if they are free and complete. Nothing during a capture. */
uint64_t trim_other_size(cenote_pool *pool, uint32_t shift, uint64_t bytes)
{
    uint64_t reserved = pool->store.pages.reserved; /* changes with the turn alone */
    return trim_kind(
        pool,
        &(struct leave){.latest = UINT64_MAX, .keep = reserved > bytes ? reserved - bytes : 0, .skip_shift = shift},
        false);
}

/* Complete free segments go back, and what the driver's pool still holds of them. Nothing during a capture. */
uint64_t trim_segments(cenote_pool *pool)
{
    if (pool_is_capturing(pool))
        return 0;
    uint64_t bytes = trim_kind(pool, &(struct leave){.latest = UINT64_MAX}, true);
    if (!pool_is_capturing(pool))
        async_trim(pool);
    return bytes;
}

/* Pages mapped nowhere go back: an allocation that failed has no use for those it had created. */
void trim_spares(cenote_pool *pool)
{
    while (!pool_is_capturing(pool)) {
        lock_take(&pool->lock);
        uint32_t page = pool->store.pages.spare;
        if (page && !fence_has_passed(&pool->clock.fences, page_of(&pool->store.pages, page)->freed,
                                      page_of(&pool->store.pages, page)->arena))
            page = 0;
        if (page)
            pages_leave(&pool->store.pages, page);
        lock_give(&pool->lock);
        if (!page || !release_page(pool, page))
            return;
    }
}

/*
 * A region that holds nothing leaves its heap, and comes back if the driver
 * will not have its addresses. True: they are gone. LOCKING: the turn.
 */
bool trim_region(cenote_pool *pool, uint32_t number)
{
    lock_take(&pool->lock);
    struct region *r = region_of(&pool->store.pages, number);
    struct heap *heap = r ? arena_heap(arena_of(pool, r->arena), r->heap) : NULL;
    bool empty = r && !r->fixed && !region_is_segment(r) && heap_region_is_empty(heap, r);
    if (empty) {
        heap_remove_region(heap, r);
        atomic_store(&r->pool, NULL); /* an address in it belongs to no pool */
    }
    lock_give(&pool->lock);
    if (!empty)
        return false;
    bool gone = provider_give_back(pool, r);
    lock_take(&pool->lock);
    if (gone) {
        pages_remove_region(&pool->store.pages, r);
    } else {
        heap_restore_region(heap, r);
        atomic_store(&r->pool, pool);
    }
    lock_give(&pool->lock);
    if (gone)
        provider_close_region(r);
    return gone;
}

/* A segment of the arena that may go, leaving; 0: none. LOCKING: the pool's lock. */
static uint32_t leave_segment(cenote_pool *pool, const struct arena *a)
{
    for (uint32_t number = a->heap.regions; number; number = region_of(&pool->store.pages, number)->next) {
        const struct region *r = region_of(&pool->store.pages, number);
        struct page *p = page_of(&pool->store.pages, r->page[0]);
        bool owned = bit_is_set(r->sole, 0) ? bit_is_set(r->busy, 0) : p->owner.region != 0;
        if (!r->page[0] || owned || p->leaving || p->pins ||
            !fence_has_passed(&pool->clock.fences, bit_is_set(r->sole, 0) ? r->freed[0] : p->freed, r->arena))
            continue;
        pages_leave(&pool->store.pages, r->page[0]);
        return r->page[0];
    }
    return 0;
}

/*
 * What destroyed groups hold of their own sources serves no other group:
 * some of it goes back before another source is asked for memory.
 * LOCKING: the turn, which is let go of around the sources.
 */
void trim_orphans(cenote_pool *pool)
{
    for (int looks = 0; looks < ORPHANS; looks++) {
        uint32_t page = 0;
        lock_take(&pool->lock);
        last_freed_settle(pool);
        struct arena *a = pool_is_capturing(pool) ? NULL : idle_take_orphan(pool);
        if (a && !(page = leave_segment(pool, a)) && !arena_has_regions(a))
            idle_forget(pool, a);
        else if (a)
            idle_enter(pool, a); /* there may be more */
        lock_give(&pool->lock);
        if (!a || (page && !release_segment(pool, page)))
            return;
    }
}

/* LOCKING: as for trim_to. */
static uint64_t trim_what(cenote_pool *pool, const struct leave *leave)
{
    if (is_barred(pool, leave))
        return 0;
    uint64_t bytes = trim_kind(pool, leave, true);
    if (is_barred(pool, leave)) /* begun while a source had a segment back */
        return bytes;
    bytes += trim_kind(pool, leave, false);
    if (leave->skip_sources && !leave->ends && !bytes) /* nothing has become empty */
        return 0;
    for (uint32_t number = 1; number < pool->store.pages.regions.used; number++)
        trim_region(pool, number);
    async_trim(pool);
    idle_forget_empty(pool);
    return bytes;
}

/*
 * Gives back pages and segments freed at `latest` or before until `keep` bytes are held. Bytes given back.
 * LOCKING: the turn, after events_poll.
 */
uint64_t trim_to(cenote_pool *pool, uint64_t keep, tick latest)
{
    return trim_what(pool, &(struct leave){.keep = keep, .latest = latest});
}

/*
 * The same of what came from the driver: the turn is kept, and
 * no function of the program called but its watch function.
 */
uint64_t trim_without_sources(cenote_pool *pool, uint64_t keep, tick latest)
{
    return trim_what(pool, &(struct leave){.keep = keep, .latest = latest, .skip_sources = true});
}

/*
 * All goes: nothing is live and nothing is in flight. What the driver refuses is asked for once more. Sources come
 * last, for while they run other threads may begin captures: nothing is left for the driver then, and what is the
 * program's goes back all the same. LOCKING: the turn, let go of around the sources.
 */
void trim_end(cenote_pool *pool)
{
    const struct leave from_driver = {.latest = UINT64_MAX, .skip_sources = true, .ends = true};
    const struct leave sourced = {.latest = UINT64_MAX, .ends = true};
    trim_flush(pool);
    for (int tries = 0; tries < 2 && (pool->store.pages.reserved || pool->store.pages.addresses); tries++)
        trim_what(pool, &from_driver);
    trim_kind(pool, &sourced, true);
}

/*
 * The pool has grown: what is held above trim_above goes as far as it
 * is free and complete. Nothing is waited for. LOCKING: the turn.
 */
void trim_surplus(cenote_pool *pool)
{
    lock_take(&pool->lock);
    uint64_t most = pool->limits.bytes ? pool->limits.bytes : pool->config.device->capacity;
    uint64_t keep = pool->limits.trim_above > 0 ? (uint64_t)(pool->limits.trim_above * (double)most) : UINT64_MAX;
    bool surplus = pool->store.pages.reserved > keep;
    lock_give(&pool->lock);
    if (!surplus || events_poll(&pool->clock, UINT64_MAX))
        return;
    uint64_t bytes = trim_to(pool, keep, UINT64_MAX);
    lock_take(&pool->lock);
    pool->account.stats.trimmed += bytes;
    lock_give(&pool->lock);
}

/* One trim. Bytes given back. LOCKING: the turn, after events_poll and pending_poll. */
uint64_t trim_once(cenote_pool *pool, uint64_t keep, tick latest)
{
    trim_flush(pool);
    uint64_t bytes = trim_to(pool, keep, latest);
    lock_take(&pool->lock);
    pool->account.stats.trims++;
    pool->account.stats.trimmed += bytes;
    lock_give(&pool->lock);
    return bytes;
}

/* All that is free and complete. Bytes given back. LOCKING: as for trim_once. */
uint64_t trim_free(cenote_pool *pool)
{
    return trim_once(pool, 0, UINT64_MAX);
}

/* An arena of the group that comes after this one by number; 0: none does. LOCKING: the pool's lock. */
static uint32_t next_arena(const cenote_pool *pool, const cenote_group *group, uint32_t after)
{
    uint32_t next = 0;
    for (uint32_t number = group->first_arena; number; number = arena_of(pool, number)->next_of_group)
        if (number > after && (!next || number < next))
            next = number;
    return next;
}

/* What is free and complete in the arenas of the group. LOCKING: as for trim_once. */
void trim_group(cenote_pool *pool, const cenote_group *group)
{
    uint64_t bytes = 0;
    flush(pool, group);
    for (uint32_t number = 0;;) {
        lock_take(&pool->lock);
        number = group->destroyed ? 0 : next_arena(pool, group, number); /* the turn was let go of for its source */
        if (!number)
            pool->account.stats.trimmed += bytes;
        lock_give(&pool->lock);
        if (!number)
            break;
        struct leave leave = {.latest = UINT64_MAX, .only_arena = number};
        bytes += trim_kind(pool, &leave, true) + trim_kind(pool, &leave, false);
    }
    if (bytes && !pool_is_capturing(pool))
        async_trim(pool);
}
