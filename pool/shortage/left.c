/*
 * left.c: what a pool could still hand out, for programs that decide by it what to begin: a server that admits a
 * request, say. Nothing is promised: other threads and processes take memory meanwhile.
 *
 * What the device is done with is asked only if no other thread has the turn: that one asks itself.
 *
 * LOCKING: as each function says.
 */
#include "pool/arenas/look.h"
#include "pool/arenas/pending.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/provider/provider.h"

/* LOCKING: none, not inside. */
static int ask_driver(cenote_pool *pool, size_t *left, size_t *total)
{
    struct device *d = pool->config.device;
    CUresult result = device_enter(d, pool->config.generation);
    if (!result)
        result = d->driver->cuMemGetInfo(left, total);
    if (!result && turn_try(pool)) {
        result = events_poll(&pool->clock, UINT64_MAX);
        if (!result)
            pending_poll(pool);
        lock_give(&pool->turn);
    }
    device_leave(d);
    return result ? pool_driver_error(pool, result, "asking what is left") : CENOTE_OK;
}

/*
 * Adds up the bytes of free pages and segments that may move or go; *done: of those with which the device is done. In
 * portions. LOCKING: the pool's lock.
 */
static uint64_t sum_free(struct look *look, uint64_t *done)
{
    const struct pages *s = &look->pool->store.pages;
    uint64_t free = s->spare_bytes, stays, here;
    *done = free;
    for (uint32_t number = 1; number < s->regions.used; number++) {
        const struct region *r = region_of(s, number);
        uint32_t work = r && r->is_listed ? 2 + r->slots / 64 : 1;
        if (r && r->is_listed) {
            free += pages_free(s, r, &stays, &here) - stays;
            *done += here;
        }
        look_goes_on(look, work);
    }
    return free;
}

int(cenote_pool_available)(cenote_pool *pool, cenote_available *available, size_t size)
{
    struct look look;
    size_t left = 0, total = 0;
    uint64_t done;
    int error = pool_usable(pool);
    if (error || (error = sized_check(size, "cenote_available")))
        return error;
    if (!available)
        return error_set(CENOTE_INVALID, 0, "nowhere to put what is available: the last argument is NULL");
    if (pool->life.lost)
        return pool_driver_error(pool, pool->life.lost, "an earlier call");
    if ((error = ask_driver(pool, &left, &total)) || (error = look_begin(&look, pool)))
        return error;
    uint64_t free = sum_free(&look, &done);
    const cenote_stats *s = &pool->account.stats;
    uint64_t held = pool->store.pages.reserved, allowance = provider_allowance(pool);
    uint64_t more = left < allowance ? left : allowance;
    cenote_available b = {.held = held,
                          .others = total > left + held ? total - left - held : 0,
                          .limit = pool->limits.bytes,
                          .free_now = more + done,
                          .free_later = more + free + s->active.current - s->allocated.current};
    look_end(&look);
    sized_out(available, size, &b, sizeof b);
    return CENOTE_OK;
}
