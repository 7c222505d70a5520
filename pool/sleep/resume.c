/*
 * resume.c: blocks wake: pages come from the driver to all their slots, and what was kept comes back to them. All or
 * nothing.
 *
 *               pages_stir           created, mapped, filled          pages_wake
 *      asleep -------------> stirring --------------------> stirring -----------> awake
 *                               | no room, or the driver refuses: all of it is undone
 *                               +----> asleep
 *
 * LOCKING: the turn, let go of in waits; the pool's lock only around looks.
 */
#include "base/check.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"
#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "pool/mapping/aliases.h"
#include "pool/mapping/trim.h"
#include "pool/provider/provider.h"
#include "pool/shortage/siblings.h"
#include "pool/shortage/wait.h"
#include "pool/sleep/copy.h"
#include "stats/account/count.h"

#define TRIES 256 /* chosen: threads of other pools may free for ever, and take what came */

/* With a list, all blocks of a page that are named wake with it, and the others too. */
static bool sleeps(struct sleepers *s, const struct region *r, uint32_t slot)
{
    struct pages *pages = &s->pool->store.pages;
    const struct page *p = page_of(pages, r->page[slot]);
    if (p->wakefulness != ASLEEP || !slot_ref_is(slot_of_sleep(pages, p), r->number, slot))
        return false;
    enum lies lies = s->what.blocks ? lies_there(s, r->page[slot], (struct slot_ref){r->number, slot}) : LIES_NAMED;
    if (lies != LIES_NAMED && lies != LIES_MIXED)
        return false;
    pages_stir(pages, r->page[slot]);
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- memory */

/* Bytes of pages that have no memory. */
static uint64_t lacking(const struct sleepers *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct page *p = page_of(&s->pool->store.pages, s->list[i].page);
        bytes += p->handle ? 0 : p->bytes;
    }
    return bytes;
}

static bool limit_allows(cenote_pool *pool, uint64_t bytes)
{
    lock_take(&pool->lock);
    uint64_t allowance = provider_allowance(pool);
    lock_give(&pool->lock);
    return bytes <= allowance;
}

/* The driver has to have all of it before anything is mapped. LOCKING: the turn. */
static CUresult create(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    CUmemAllocationProp prop = pool_page_prop(pool);
    CUmemGenericAllocationHandle handle;
    if (!limit_allows(pool, lacking(s)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < s->count; i++) {
        struct sleeper *k = &s->list[i];
        const struct page *p = page_of(&pool->store.pages, k->page);
        if (p->handle)
            continue;
        CUresult result = pool->config.device->driver->cuMemCreate(&handle, p->bytes, &prop, 0);
        if (result)
            return result;
        k->is_created = true;
        lock_take(&pool->lock);
        pages_hold(&pool->store.pages, k->page, handle);
        count_reserved(pool);
        lock_give(&pool->lock);
    }
    return CUDA_SUCCESS;
}

/*
 * What is free in this pool goes back to the device, once that is done with it, but not to sources: their functions may
 * call cenote_pool_pause, which would wait for this thread. LOCKING: the turn, let go of in the wait.
 */
static CUresult make_way(cenote_pool *pool)
{
    CUresult result = wait_for_all(pool);
    if (result)
        return result;
    pending_poll(pool);
    trim_flush(pool);
    trim_without_sources(pool, 0, UINT64_MAX);
    return CUDA_SUCCESS;
}

/*
 * Other pools of the device give back what is free there, once the device is done with some of it. False: they have
 * nothing more to give of what was free at the first call. LOCKING: the turn, let go of meanwhile.
 */
static bool others_make_way(cenote_pool *pool, struct siblings *siblings, CUresult *result)
{
    bool came = false, waits = true;
    for (uint32_t looks = 0; !came && waits && !*result && !pool_is_capturing(pool); looks++) {
        turn_pause(pool);
        enum awaited awaited = siblings_poll(siblings, pool, &came);
        waits = awaited == AWAIT_EVENTS || (!came && siblings_wait(siblings, pool, awaited));
        turn_go_on(pool);
        if (!came && awaited == AWAIT_EVENTS)
            waits = wait_for_rest(pool, awaited, looks, result);
    }
    return came;
}

/* The same, but free memory of this pool, and then of others of the device, makes way. LOCKING: as make_way. */
static CUresult create_at_last(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    struct siblings siblings = {.keeps_sources = true};
    CUresult result = create(s), failed = CUDA_SUCCESS;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (!(failed = make_way(pool)))
        result = create(s);
    for (int tries = 0; result == CUDA_ERROR_OUT_OF_MEMORY && tries < TRIES && limit_allows(pool, lacking(s)) &&
                        others_make_way(pool, &siblings, &failed);
         tries++)
        result = create(s);
    return failed ? failed : result;
}

/* The driver takes no more mappings, and old ones have gone (rule 13). LOCKING: the turn, let go of meanwhile. */
static bool has_dropped_aliases(cenote_pool *pool, CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && !wait_for_all(pool) && aliases_drop(pool);
}

/*
 * At all slots that the books name. A slot that the driver would not unmap is tried again first. LOCKING: the turn, let
 * go of meanwhile.
 */
static CUresult map(cenote_pool *pool, struct sleeper *k)
{
    const struct page *p = page_of(&pool->store.pages, k->page);
    struct device *d = pool->config.device;
    for (struct slot_ref at = p->home; at.region; at = region_of(&pool->store.pages, at.region)->next_alias[at.slot]) {
        struct region *r = region_of(&pool->store.pages, at.region);
        bool is_broken = bit_is_set(r->broken, at.slot);
        if (is_broken && pool_is_capturing(pool)) /* begun in a wait: nothing is unmapped then (rule 5) */
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        CUresult result = is_broken ? region_unmap(d, r, at.slot) : CUDA_SUCCESS;
        if (result)
            return result;
        lock_take(&pool->lock);
        bit_clear(r->broken, at.slot);
        lock_give(&pool->lock);
        do
            result = region_map(d, r, at.slot, p->handle);
        while (has_dropped_aliases(pool, result));
        if (result)
            return result;
        k->mapped++;
        do
            result =
                region_grant(d, r, at.slot, at.slot + region_span(r, at.slot), pool->access.list, pool->access.count);
        while (has_dropped_aliases(pool, result));
        watch_tell(pool, CENOTE_MAPPED, region_slot_at(r, at.slot), p->bytes);
        if (result)
            return result;
    }
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- contents */

/*
 * What was kept goes to the address at which its block lies, while the next page is mapped. LOCKING: the turn, let go
 * of in waits.
 */
static CUresult map_and_fill(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    CUresult result = CUDA_SUCCESS;
    uint32_t stage = 0;
    for (uint32_t i = 0; i < s->count && !result; i++) {
        const struct sleep_copy *copy = s->list[i].copy;
        result = map(pool, &s->list[i]);
        if (result || !copy || !copy->kept)
            continue;
        result = courier_wait(pool, stage);
        if (!result)
            result = copy_back(pool, copy, stage);
        s->what.kept += copy->kept;
        stage = (stage + 1) % STAGES;
    }
    CUresult last = courier_wait_for_all(pool);
    return result ? result : last;
}

static bool has_contents(const struct sleepers *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->list[i].copy && s->list[i].copy->kept)
            return true;
    return false;
}

/* --------------------------------------------------------------------------------------------------- all or nothing */

/*
 * What the driver will not unmap, and what the device may still be copying to, is broken: the page keeps its memory. So
 * is all while a capture is open, which has begun in a wait (rule 5).
 */
static bool unmap(cenote_pool *pool, struct sleeper *k)
{
    const struct page *p = page_of(&pool->store.pages, k->page);
    struct slot_ref at = p->home;
    bool all = true;
    for (; k->mapped; k->mapped--, at = region_of(&pool->store.pages, at.region)->next_alias[at.slot]) {
        struct region *r = region_of(&pool->store.pages, at.region);
        watch_tell(pool, CENOTE_UNMAPPING, region_slot_at(r, at.slot), p->bytes);
        bool may = !courier_is_out(pool) && !pool_is_capturing(pool);
        if (may && !region_unmap(pool->config.device, r, at.slot))
            continue;
        lock_take(&pool->lock);
        bit_set(r->broken, at.slot);
        lock_give(&pool->lock);
        all = false;
    }
    for (; at.region; at = region_of(&pool->store.pages, at.region)->next_alias[at.slot])
        all = all && !bit_is_set(region_of(&pool->store.pages, at.region)->broken, at.slot);
    return all;
}

/* All of it sleeps on. */
static void undo(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    s->what.kept = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct sleeper *k = &s->list[i];
        CUmemGenericAllocationHandle handle = page_of(&pool->store.pages, k->page)->handle;
        bool may = unmap(pool, k) && k->is_created && !pool_is_capturing(pool);
        if (!may || pool->config.device->driver->cuMemRelease(handle))
            continue;
        lock_take(&pool->lock);
        pages_hold(&pool->store.pages, k->page, 0);
        count_reserved(pool);
        lock_give(&pool->lock);
    }
}

static void publish(struct sleepers *s, bool wakes)
{
    cenote_pool *pool = s->pool;
    struct look look;
    look_begin_held(&look, pool);
    for (uint32_t i = 0; i < s->count; i++, look_goes_on(&look, 1)) {
        struct sleeper *k = &s->list[i];
        if (wakes)
            sleepers_slabs(pool, k->page, slab_wake);
        s->what.pages += wakes && k->is_created ? page_of(&pool->store.pages, k->page)->bytes : 0;
        pool->account.stats.pages_created += wakes && k->is_created;
        pages_wake(&pool->store.pages, k->page, wakes);
    }
    look_end(&look);
    for (uint32_t i = 0; i < s->count && wakes; i++)
        if (s->list[i].copy && !s->list[i].copy->is_constant)
            copy_drop(s->list[i].copy);
}

/* While the thread waited another device was granted access, which passed over pages that were waking. */
static CUresult grant_again(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < s->count; i++) {
        struct slot_ref at = page_of(&pool->store.pages, s->list[i].page)->home;
        for (; at.region && !result; at = region_of(&pool->store.pages, at.region)->next_alias[at.slot]) {
            struct region *r = region_of(&pool->store.pages, at.region);
            result = region_grant(pool->config.device, r, at.slot, at.slot + region_span(r, at.slot), pool->access.list,
                                  pool->access.count);
        }
    }
    return result;
}

/* LOCKING: the turn. */
static CUresult bring_back(struct sleepers *s)
{
    cenote_pool *pool = s->pool;
    CUresult result = create_at_last(s);
    if (!result && pool_is_capturing(pool)) /* begun in a wait: what is mapped now could not be undone (rule 5) */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        wait_look(pool, 0, &result); /* only what is complete may make room */
    if (!result)
        aliases_make_room(pool, s->count);
    uint64_t grants = pool->access.grants;
    result = result ? result : map_and_fill(s);
    return !result && pool->access.grants != grants ? grant_again(s) : result;
}

/* LOCKING: the turn. */
static int go(struct sleepers *s, uint64_t *bytes)
{
    cenote_pool *pool = s->pool;
    CUresult result = CUDA_SUCCESS;
    int error = sleepers_gather(s, sleeps);
    *bytes = lacking(s);
    if (!error && has_contents(s))
        error = courier_open(pool, 0);
    if (!error)
        result = bring_back(s);
    if (error || result)
        undo(s);
    publish(s, !error && !result);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return CENOTE_OUT_OF_MEMORY;
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return error_set(CENOTE_CAPTURE, 0, "a capture has begun: all of it sleeps on until that has ended");
    return result ? pool_driver_error(pool, result, "waking memory") : error;
}

int(cenote_pool_resume)(cenote_pool *pool, cenote_sleep *sleep, size_t size)
{
    struct sleepers s;
    uint64_t bytes;
    int error = sleepers_begin(&s, pool, sleep, size);
    if (error)
        return error;
    error = sleepers_end(&s, go(&s, &bytes), sleep, size);
    return error == CENOTE_OUT_OF_MEMORY ? pool->config.hooks->explain(pool, bytes) : error;
}
