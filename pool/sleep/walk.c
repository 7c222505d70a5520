/*
 * walk.c: what pause.c and resume.c have in common: how they begin and end, the names of blocks that they are given,
 * and the walk over the pages of a pool or a group.
 *
 * LOCKING: the turn from sleepers_begin to sleepers_end; the pool's lock is taken here.
 */
#include "base/memory.h"
#include "base/sized.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/shortage/wait.h"
#include "pool/sleep/copy.h"
#include "pool/sleep/sleep.h"

/* --------------------------------------------------------------------------------------------------------- the walk */

/* LOCKING: the pool's lock. */
static bool is_of(const struct sleepers *s, const struct region *r)
{
    const struct arena *a = arena_of(s->pool, r->arena);
    return !region_is_segment(r) && (!s->what.group || (a->group && group_of(s->pool, a->group) == s->what.group));
}

#define SEEN_A_UNIT 8u  /* of work, see look.c */

/* LOCKING: the pool's lock. */
static uint32_t work_of_slot(struct sleepers *s)
{
    uint32_t work = 1 + s->seen / SEEN_A_UNIT;
    s->seen = 0;
    return work;
}

/* The next slot that is taken; region 0: there is none. `takes` changes what it takes, under the pool's lock. */
static struct slot_ref next(struct sleepers *s, sleepers_takes *takes)
{
    struct pages *pages = &s->pool->store.pages;
    struct slot_ref found = {0, 0};
    struct look look;
    look_begin_held(&look, s->pool);
    for (; !found.region && s->region < pages->regions.used;
         s->region += !found.region, s->slot = found.region ? s->slot : 0) {
        struct region *r = region_of(pages, s->region);
        for (; r && is_of(s, r) && !found.region && s->slot < r->slots; look_goes_on(&look, work_of_slot(s))) {
            uint32_t slot = s->slot;
            s->slot += region_span(r, slot);
            if (r->page[slot] && takes(s, r, slot))
                found = (struct slot_ref){r->number, slot};
        }
    }
    look_end(&look);
    return found;
}

/* LOCKING: the turn. */
static bool make_room(struct sleepers *s)
{
    if (s->count < s->most)
        return true;
    uint32_t most = 2 * s->most + 64;
    struct sleeper *bigger = memory_map(most * sizeof *bigger);
    if (!bigger)
        return false;
    for (uint32_t i = 0; i < s->count; i++)
        bigger[i] = s->list[i];
    if (s->list)
        memory_unmap(s->list, s->most * sizeof *s->list);
    s->list = bigger;
    s->most = most;
    return true;
}

/* All that is taken of what was named is in the list then, also after an error. */
int sleepers_gather(struct sleepers *s, sleepers_takes *takes)
{
    for (;;) {
        if (!make_room(s))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the list of pages that sleep or wake");
        struct slot_ref at = next(s, takes);
        if (!at.region)
            return CENOTE_OK;
        uint32_t page = region_of(&s->pool->store.pages, at.region)->page[at.slot];
        s->list[s->count++] =
            (struct sleeper){.page = page, .at = at, .copy = page_of(&s->pool->store.pages, page)->copy};
    }
}

/* Calls `each` for the slabs that lie on the page, or in part. LOCKING: the pool's lock. */
void sleepers_slabs(cenote_pool *pool, uint32_t page, void (*each)(struct slabs *s, uint32_t slab))
{
    const struct page *p = page_of(&pool->store.pages, page);
    struct slot_ref at = slot_of_sleep(&pool->store.pages, p);
    const struct region *r = region_of(&pool->store.pages, at.region);
    uint64_t from = region_slot_at(r, at.slot), to = from + p->bytes;
    uint32_t before = 0;
    for (uint64_t here = from; here < to && here < r->top; here += 1u << SLAB_GRANULE_SHIFT) {
        uint32_t slab = r->granules[region_granule(r, here)].slab;
        if (slab && slab != before)
            each(&arena_of(pool, r->arena)->slabs, slab);
        before = slab;
    }
}

/* -------------------------------------------------------------------------------------------------------- the names */

static bool is_live_here(cenote_pool *pool, const void *block)
{
    struct block_ref w = {0};
    cenote_pool *owner = locate_lock(block, &w);
    bool is_live = owner == pool && locate_at(pool, (uint64_t)(uintptr_t)block, &w) == FOUND_LIVE;
    if (owner)
        lock_give(&owner->lock);
    return is_live;
}

static int read_names(struct sleepers *s)
{
    if (!s->what.blocks)
        return CENOTE_OK;
    if (!index_reserve(&s->names, (uint32_t)s->what.count))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a list of %llu blocks",
                         (unsigned long long)s->what.count);
    for (uint64_t i = 0; i < s->what.count; i++) {
        if (!is_live_here(s->pool, s->what.blocks[i]))
            return error_set(CENOTE_NOT_OURS, 0,
                             "%p, number %llu of the list, is not the start of a live block of the pool",
                             s->what.blocks[i], (unsigned long long)i);
        uint64_t at = (uint64_t)(uintptr_t)s->what.blocks[i];
        if (!index_find(&s->names, at))
            index_add(&s->names, at, 1);
    }
    return CENOTE_OK;
}

/* ------------------------------------------------------------------------------------------- the beginning, the end */

static int check(const struct sleepers *s)
{
    const cenote_group *group = s->what.group;
    if (group && group->pool != s->pool)
        return error_set(CENOTE_INVALID, 0, "the group is of another pool: give one of this pool, or NULL");
    if (s->what.contents > CENOTE_CONSTANT || s->what.unused)
        return error_set(CENOTE_INVALID, 0,
                         "contents are CENOTE_KEEP, CENOTE_DISCARD, CENOTE_DISCARD_ALL or CENOTE_CONSTANT, not %u",
                         s->what.contents);
    if ((s->what.count && !s->what.blocks) || s->what.count > UINT32_MAX)
        return error_set(CENOTE_INVALID, 0, "`count` is %llu, and `blocks` names no such list: give both, or neither",
                         (unsigned long long)s->what.count);
    return CENOTE_OK;
}

static int check_now(struct sleepers *s)
{
    if (s->what.group && s->what.group->destroyed)
        return error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed: no call may name it any more",
                         s->what.group->name);
    if (pool_is_capturing(s->pool))
        return error_set(CENOTE_CAPTURE, 0,
                         "a capture is open on the device: memory sleeps and wakes before it begins, or after it ends");
    return read_names(s);
}

/* LOCKING: the turn, let go of while another thread has pages of the pool sleep or wake. */
static int begin(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    CUresult result = CUDA_SUCCESS;
    for (uint32_t looks = 0; pool->courier.is_taken; looks++)
        wait_for_rest(pool, AWAIT_EVENTS, looks, &result);
    pool->courier.is_taken = true;
    int error = courier_come_back(pool);
    error = error ? error : check_now(s);
    pool->courier.is_taken = s->has_courier = !error;
    return error;
}

/* Nothing is asleep in part, and no copy is under way. The next thread may come. LOCKING: the turn. */
void sleepers_give_courier(struct sleepers *s)
{
    if (s->has_courier)
        s->pool->courier.is_taken = s->has_courier = false;
}

static void forget(struct sleepers *s)
{
    if (s->list)
        memory_unmap(s->list, s->most * sizeof *s->list);
    index_close(&s->names);
    copy_drop_all(s->pool);
}

/* The thread has the turn then, and the courier; or there is an error. */
int sleepers_begin(struct sleepers *s, cenote_pool *pool, const cenote_sleep *sleep, size_t size)
{
    *s = (struct sleepers){.pool = pool, .region = 1};
    int error = pool_usable(pool);
    if (!error && sleep)
        error = sized_in(&s->what, sizeof s->what, sleep, size, "cenote_sleep");
    if (error || (error = check(s)))
        return error;
    s->what.pages = s->what.kept = s->what.discarded = s->what.awake = 0;
    s->began_ns = pool_now(pool);
    if ((error = turn_begin(pool)))
        return error;
    if ((error = begin(s))) {
        turn_end(pool);
        forget(s);
    }
    return error;
}

/* Gives the turn back, and tells what was done. */
int sleepers_end(struct sleepers *s, int error, cenote_sleep *sleep, size_t size)
{
    s->what.ns = pool_now(s->pool) - s->began_ns; /* as long as the pool, and its clock, are there for certain */
    sleepers_give_courier(s);
    turn_end(s->pool);
    forget(s);
    if (sleep)
        sized_out(sleep, size, &s->what, sizeof s->what);
    return error;
}

/* The pool has ended: what slept then does not wake. LOCKING: none, for no thread is in the pool. */
void sleepers_pool_ends(cenote_pool *pool)
{
    struct pages *pages = &pool->store.pages;
    copy_drop_all(pool);
    for (uint32_t number = 1; number < pages->table.used; number++)
        if (page_of(pages, number)->bytes && page_of(pages, number)->copy)
            copy_drop(page_of(pages, number)->copy);
}
