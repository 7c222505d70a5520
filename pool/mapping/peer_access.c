/*
 * peer_access.c: kernels of other devices may use a pool's memory (cenote_pool_grant).
 *
 *     vmm       each mapping says which devices may use it: fill_map applies the pool's `access` to what it maps, and
 *               what is mapped by the time of the grant gets it here, old aliases too
 *     async     the driver's pool has such a list of its own
 *     plain     memory of cuMemAlloc is opened to a whole context of the other device, which is kept for that. In a
 *               pool of pages that is done once a group is plain: a context takes memory of the other device
 *
 * Memory of a program's own source is the program's to open. A grant is for the life of the pool, or until the other
 * device is reset: another context of that device is granted anew. That of contexts lasts longer than the pool, because
 * the program may have wanted it too.
 *
 * LOCKING: the turn, so that nothing is mapped meanwhile: the next fill has the new list.
 */
#include "pool/mapping/peer_access.h"

#include "base/check.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"
#include "pool/life/turn.h"
#include "pool/provider/async.h"

/* -------------------------------------------------------------------------------------------------------------- vmm */

/* A broken slot was never of use, and one whose page sleeps gets its access when that wakes. */
static bool is_mapped(const struct pages *s, const struct region *r, uint32_t slot)
{
    return r->page[slot] && !bit_is_set(r->broken, slot) && page_of(s, r->page[slot])->wakefulness < ASLEEP;
}

/*
 * The next run of mapped slots of the region from `to` on. False: there is none. LOCKING: the turn, with which no slot
 * is mapped or unmapped; but a free takes a page that sleeps out of its slots, so that the pool's lock is taken here.
 */
static bool next_run(cenote_pool *pool, const struct region *r, uint32_t *from, uint32_t *to)
{
    const struct pages *s = &pool->store.pages;
    struct look look;
    look_begin_held(&look, pool);
    for (*from = *to; *from < r->slots && !is_mapped(s, r, *from); ++*from)
        look_goes_on(&look, 1);
    for (*to = *from; *to < r->slots && is_mapped(s, r, *to); *to += region_span(r, *to))
        look_goes_on(&look, 1);
    look_end(&look);
    return *from < r->slots;
}

static bool is_listed(const cenote_pool *pool, int ordinal)
{
    uint32_t i = 0;
    while (i < pool->access.count && pool->access.list[i].location.id != ordinal)
        i++;
    return i < pool->access.count;
}

/* Gives access to what is mapped in the regions [1, end), or as many runs of it as `most`; *runs counts them. */
static CUresult open_mappings(cenote_pool *pool, const CUmemAccessDesc *who, uint64_t most, uint64_t *runs)
{
    CUresult result = CUDA_SUCCESS;
    *runs = 0;
    for (uint32_t number = 1; !result && number < pool->store.pages.regions.used; number++) {
        const struct region *r = region_of(&pool->store.pages, number);
        if (!r || region_is_segment(r))
            continue;
        for (uint32_t from, to = 0; !result && *runs < most && next_run(pool, r, &from, &to); *runs += !result)
            result = region_grant(pool->config.device, r, from, to, who, 1);
    }
    return result;
}

/*
 * What the device had before it was reset is opened again, and stays
 * in the list: what a driver does to a mapping then is not known.
 */
static CUresult grant_vmm(cenote_pool *pool, CUmemAccessDesc who)
{
    uint64_t runs, undone;
    CUresult result = open_mappings(pool, &who, UINT64_MAX, &runs);
    pool->access.grants += !result;
    if (is_listed(pool, who.location.id))
        return result;
    if (!result) {
        pool->access.list[pool->access.count++] = who;
    } else {
        who.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        open_mappings(pool, &who, runs, &undone);
    }
    return result;
}

/* -------------------------------------------------------------------------------------------------- async and plain */

static CUresult grant_context(cenote_pool *pool, struct device *other)
{
    const struct driver *t = pool->config.device->driver;
    CUresult result = device_prepare(other);
    if (!result)
        result = t->cuCtxPushCurrent(device_context(other));
    if (result)
        return result;
    result = t->cuCtxEnablePeerAccess(device_context(pool->config.device), 0);
    device_pop_context(t);
    result = result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result;
    if (!result)
        pool->access.contexts |= 1ull << other->ordinal;
    return result;
}

/* A pool of pages gets memory of cuMemAlloc too: devices that may use the pool may use that. LOCKING: the turn. */
static CUresult grant_contexts(cenote_pool *pool)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t missing = pool->clock.grants.devices & ~pool->access.contexts;
    for (int ordinal = 0; !result && missing >> ordinal; ordinal++) {
        struct device *other = atomic_load(&pool->config.others[ordinal]);
        if (missing >> ordinal & 1 && device_lives(other, pool->clock.grants.fence[ordinal].generation))
            result = grant_context(pool, other);
    }
    return result;
}

/* An async pool has plain segments too. */
static CUresult grant_segments(cenote_pool *pool, struct device *other, CUmemAccessDesc who)
{
    CUresult result = pool->config.provider == CENOTE_ASYNC ? async_set_access(pool, who) : CUDA_SUCCESS;
    if (result)
        return result;
    result = grant_context(pool, other);
    if (result && pool->config.provider == CENOTE_ASYNC) {
        who.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        async_set_access(pool, who);
    }
    return result;
}

static CUresult grant_pages(cenote_pool *pool, struct device *other, CUmemAccessDesc who)
{
    lock_take(&pool->lock);
    bool has_plain = pool->groups.has_plain;
    lock_give(&pool->lock);
    CUresult result = has_plain ? grant_context(pool, other) : CUDA_SUCCESS;
    return result ? result : grant_vmm(pool, who);
}

/* ---------------------------------------------------------------------------------------------------------- the API */

static int check_reach(const cenote_pool *pool, const struct device *other)
{
    int can = 0;
    const struct device *d = pool->config.device;
    if (other == d)
        return error_set(CENOTE_INVALID, 0, "device %d has access to its own memory", d->ordinal);
    CUresult result = d->driver->cuDeviceCanAccessPeer(&can, other->handle, d->handle);
    if (result || !can)
        return error_set(result ? CENOTE_DRIVER : CENOTE_NOT_SUPPORTED, result,
                         "device %d cannot reach the memory of device %d%s%s", other->ordinal, d->ordinal,
                         result ? ": " : "", result ? driver_result_name(result) : "");
    return CENOTE_OK;
}

static int grant(cenote_pool *pool, struct device *other)
{
    CUmemAccessDesc who = device_access(other);
    if (pool->config.provider == CENOTE_GUARD)
        return error_set(CENOTE_NOT_SUPPORTED, 0, "provider guard gives other devices no access: use another one");
    int error = pool->life.lost ? pool_driver_error(pool, pool->life.lost, "an earlier call") : turn_begin(pool);
    if (error)
        return error;
    CUresult result = CUDA_SUCCESS;
    bool is_new = !peer_fences_know(&pool->clock, other);
    if (is_new)
        pool->access.contexts &= ~(1ull << other->ordinal);
    if (is_new)
        result = pool->config.provider == CENOTE_VMM ? grant_pages(pool, other, who) : grant_segments(pool, other, who);
    if (is_new && !result)
        peer_fences_begin(&pool->clock, other);
    turn_end(pool);
    return result ? pool_driver_error_of_any(pool, result, "giving another device access") : CENOTE_OK;
}

/*
 * A group will be plain; `has_plain` says so already, so that a later grant opens contexts itself. LOCKING: none held.
 */
int peer_access_open_contexts(cenote_pool *pool)
{
    int error = turn_take(pool); /* no grant is under way */
    if (error)
        return error;
    bool missing = pool->config.provider == CENOTE_VMM && pool->clock.grants.devices & ~pool->access.contexts;
    lock_give(&pool->turn);
    error = missing ? turn_begin(pool) : CENOTE_OK;
    if (error || !missing)
        return error;
    CUresult result = grant_contexts(pool);
    turn_end(pool);
    return result ? pool_driver_error_of_any(pool, result, "giving another device access") : CENOTE_OK;
}

int cenote_pool_grant(cenote_pool *pool, int device)
{
    struct device *other;
    int error = pool_usable(pool);
    if (error || (error = pool_other_device(pool, device, &other)) || (error = check_reach(pool, other)))
        return error;
    return grant(pool, other);
}
