/*
 * churn.c: what it costs that memory was given back which is taken again soon after, and what that comes to.
 *
 * A page costs the driver a fifth of a millisecond to make, whatever its size. A program that trims at each step, by
 * trim_every, decay_ms or cenote_pool_trim with CENOTE_TRIM_PERIODIC, would pay that for each page the next step takes
 * again. So it is counted: a page made while some that such trims gave back are missing is one of those, and making it,
 * mapping it and its way back to the driver are regretted. That may take half of harvest_budget of the time.
 *
 *     trim_every, decay_ms    give back as many pages as the budget could pay for if all were
 *                             taken again: pages that no allocation takes again go on leaving
 *     CENOTE_TRIM_PERIODIC    gives everything back, as any other trim does; but where such trims follow each other
 *                             like steps do, are regretted beyond the budget and a tenth of a second, and no other
 *                             process is on the device, of which a part is free, it gives back only what no block has
 *                             lain on during the last eight of them, and defers the rest
 *     CENOTE_TRIM_DEFERRED    gives back what was deferred: the program looks
 *
 * A trim that says none of that gives back what it is asked for. So do shortages.
 *
 * LOCKING: the turn guards it.
 */
#include "base/check.h"
#include "driver/nvml.h"
#include "pool/life/pool.h"
#include "pool/pool.h"

#define GRACE_NS     100000000u     /* chosen, as for harvesting: no user notices it at program start */
#define OFTEN_NS     10000000000u   /* chosen: steps are shorter */
#define DEVICE_SHARE 8              /* chosen: so much of the device is left to other allocators
                                       of this process, or everything goes */

/* Pages have gone because of a trim that comes again and again: those that went since `released` of them had. */
void churn_given(cenote_pool *pool, uint64_t released, uint64_t ns)
{
    struct churn *r = &pool->policy.churn;
    uint64_t pages = pool->account.stats.pages_released - released;
    if (!pages)
        return;
    r->given += pages;
    r->give_ns = ns / pages;
}

/* The fill has made pages, if any. */
void churn_created(cenote_pool *pool, uint64_t creating_ns, uint64_t mapping_ns)
{
    struct churn *r = &pool->policy.churn;
    const struct fill *f = &pool->remap.fill;
    if (!f->creates)
        return;
    uint64_t again = f->creates < r->given ? f->creates : r->given;
    r->create_ns = creating_ns / f->creates + mapping_ns / f->count;
    r->ns += again * (r->create_ns + r->give_ns);
    r->given -= again;
}

/* What the budget and `grace` have left, in bytes of pages that may be taken again. */
static uint64_t left_for(const cenote_pool *pool, uint64_t grace)
{
    const struct churn *r = &pool->policy.churn;
    double budget = pool->config.options.harvest_budget / 2;
    uint64_t each = r->create_ns + r->give_ns;
    if (budget < 0 || !each)
        return UINT64_MAX;
    double left = (double)grace + budget * (double)(pool_now(pool) - pool->config.opened_ns) - (double)r->ns;
    uint64_t pages = left > 0 ? (uint64_t)(left / (double)each) : 0, page = pages_largest(&pool->store.pages);
    return pages > UINT64_MAX / page ? UINT64_MAX : pages * page;
}

/* Bytes that a periodic trim may give back. */
uint64_t churn_allowance(const cenote_pool *pool)
{
    return left_for(pool, 0);
}

/* A trim that says it comes often is here: up to which free the one so many before it saw. */
tick churn_trim_came(cenote_pool *pool)
{
    struct churn *r = &pool->policy.churn;
    tick *slot = &r->trims[r->trims_seen++ % OFTEN_LEAST], before = *slot;
    lock_take(&pool->lock);
    *slot = pool->clock.fences.now;
    lock_give(&pool->lock);
    return before;
}

/*
 * No other process has memory of the device, and a part of it is free.
 * If NVML cannot tell, assume another process has memory here.
 */
static bool has_the_device(const cenote_pool *pool)
{
    struct nvml_process list[NVML_MAX];
    unsigned count = 0;
    size_t left = 0, total = 0;
    return !pool->config.device->driver->cuMemGetInfo(&left, &total) && left >= total / DEVICE_SHARE &&
           !nvml_processes(pool->config.device->driver, pool->config.device->ordinal, list, &count) && count == 1;
}

/* A trim has come that says it comes often: is it to leave what the last step used? What it leaves is deferred. */
bool churn_forbids(cenote_pool *pool)
{
    struct churn *r = &pool->policy.churn;
    uint64_t now = pool_now(pool);
    r->often = r->asked_ns && now - r->asked_ns <= OFTEN_NS ? r->often + 1 : 0;
    r->asked_ns = now;
    bool forbids =
        r->often >= OFTEN_LEAST && left_for(pool, GRACE_NS) < pages_largest(&pool->store.pages) && has_the_device(pool);
    lock_take(&pool->lock);
    tick deferred = forbids ? pool->clock.fences.now : 0;
    lock_give(&pool->lock);
    atomic_store(&r->deferred, deferred);
    return forbids;
}
