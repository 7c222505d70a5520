/*
 * report.c: what a pool says about itself: counters, and whether its invariants hold.
 *
 * Levels and counts are kept as they happen (count.h). Gauges are walked together here, when somebody asks.
 */
#include "base/check.h"
#include "pool/count.h"
#include "pool/record.h"

/* `cached` is derived: what is in was reserved or freed, what is out was allocated or given back. LOCKING: the pool's lock. */
static void derive_cached(cenote_stats *s)
{
    s->cached.current = s->reserved.current - s->allocated.current;
    s->cached.total_in = s->reserved.total_in + s->allocated.total_out;
    s->cached.total_out = s->reserved.total_out + s->allocated.total_in;
}

/* Beyond its top a region's arrays have never been touched: the system has put no memory behind them. */
static void add_region(cenote_stats *s, const struct region *r)
{
    s->address_used += r->top - r->base;
    s->metadata += (uint64_t)((double)r->metadata_bytes * (double)(r->top - r->base) / (double)r->bytes);
}

/* What regions say. In portions each is looked at in a moment of its own. */
static void sum_regions(cenote_pool *pool, cenote_stats *s, bool in_portions)
{
    struct pages_sums sums = {0};
    uint32_t work = 0;
    pages_sum_spares(&pool->pages, &sums);
    for (uint32_t number = 1; number < pool->pages.regions.used; number++) {
        const struct region *r = region_of(&pool->pages, number);
        if (r) {
            pages_sum_region(&pool->pages, r, &sums);
            add_region(s, r);
        }
        if (in_portions && !pool_pass(pool, &work, 2 + (r ? r->slots / 8 : 0)))
            break;
    }
    s->pages_owned = sums.owned;
    s->pages_free = sums.free;
    s->pages_aliased = sums.aliased;
    s->pages_frozen = sums.frozen;
    s->harvestable = sums.harvestable;
}

static void derive_gauges(cenote_pool *pool, cenote_stats *s)
{
    s->address_space = pool->pages.addresses;
    s->pending_blocks = pool->pending_count;
    s->arenas = pool->arenas.used - 1 - pool->arenas.free_count;
    s->captures = pool->capture_count;
    s->background = pool->attended;
    s->metadata = table_bytes(&pool->pages.table) + table_bytes(&pool->pages.regions) + table_bytes(&pool->blocks) +
                  table_bytes(&pool->slabs) + table_bytes(&pool->arenas) + table_bytes(&pool->groups) + table_bytes(&pool->uses) +
                  table_bytes(&pool->lines) + index_bytes(&pool->line_by_key) + index_bytes(&pool->at) + index_bytes(&pool->by_stream) +
                  table_bytes(&pool->exports) + index_bytes(&pool->exported) + sizeof *pool + pool->ring.count * RECORD_BYTES;
}

/* Of the whole process: a driver does not know pools. */
static void sum_driver_calls(uint64_t *calls, uint64_t *ns)
{
    struct driver_tally tallies[DRIVER_CALLS];
    *calls = *ns = 0;
    driver_tallies(tallies);
    for (int call = 0; call < DRIVER_CALLS; call++) {
        *calls += tallies[call].calls;
        *ns += tallies[call].ns;
    }
}

/* LOCKING: the pool's lock. */
cenote_stats report_stats(cenote_pool *pool, bool in_portions)
{
    pool_settle(pool);
    cenote_stats s = pool->stats;
    derive_cached(&s);
    derive_gauges(pool, &s);
    s.limit = pool->limit;
    sum_driver_calls(&s.driver_calls, &s.driver_ns);
    s.driver_calls -= pool->driver_calls_before;
    s.driver_ns -= pool->driver_ns_before;
    s.page_bytes = 1ull << pool->pages.shift;
    s.capacity = pool->device->capacity;
    sum_regions(pool, &s, in_portions); /* last: the lock may be let go of */
    return s;
}

int cenote_version(void)
{
    return CENOTE_VERSION;
}

int(cenote_pool_stats)(cenote_pool *pool, cenote_stats *stats, size_t size)
{
    if (pool_refuses())
        return pool_process_usable();
    int error = sized_check(size, "cenote_stats");
    if (error || !pool || !pool->open || !stats)
        return error ? error : error_set(CENOTE_INVALID, 0, "cenote_pool_stats needs an open pool and a place for the counters");
    lock_take(&pool->lock);
    cenote_stats s = report_stats(pool, true);
    lock_give(&pool->lock);
    sized_out(stats, size, &s, sizeof s);
    return CENOTE_OK;
}

int cenote_reset_peaks(cenote_pool *pool)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    lock_take(&pool->lock);
    derive_cached(&pool->stats);
#define LEVEL(name, unit, text) pool->stats.name.peak = pool->stats.name.current;
#define COUNT(name, unit, text)
#define GAUGE(name, unit, text)
#include <cenote/counters.def>
#undef LEVEL
#undef COUNT
#undef GAUGE
    rows_reset(pool, true);
    lock_give(&pool->lock);
    return CENOTE_OK;
}

int cenote_reset_totals(cenote_pool *pool)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    lock_take(&pool->lock);
    sum_driver_calls(&pool->driver_calls_before, &pool->driver_ns_before);
#define LEVEL(name, unit, text) pool->stats.name.total_in = pool->stats.name.total_out = 0;
#define COUNT(name, unit, text) pool->stats.name = 0;
#define GAUGE(name, unit, text)
#include <cenote/counters.def>
#undef LEVEL
#undef COUNT
#undef GAUGE
    rows_reset(pool, false);
    lock_give(&pool->lock);
    return CENOTE_OK;
}

/* Invariant 17: the accounting identities of docs/invariants.md. LOCKING: the pool's lock. */
static const char *broken_identity(const cenote_pool *pool)
{
    const cenote_stats *s = &pool->stats;
    if (s->reserved.current != pool->pages.reserved)
        return "17: reserved counts what the pages say";
    if (s->requested.current > s->allocated.current || s->allocated.current > s->active.current)
        return "17: requested <= allocated <= active";
    return s->active.current > s->reserved.current ? "17: active <= reserved" : NULL;
}

static const char *broken_rule(cenote_pool *pool)
{
    const char *broken = pages_broken_rule(&pool->pages);
    for (uint32_t number = 1; number < pool->arenas.used && !broken; number++) {
        struct arena *a = arena_of(pool, number);
        if (!a->number)
            continue;
        broken = heap_broken_rule(&a->heap);
        if (!broken)
            broken = heap_broken_cover(&a->heap);
        if (!broken)
            broken = slabs_broken_rule(&a->slabs);
    }
    if (!broken)
        broken = rows_broken_rule(pool);
    return broken ? broken : broken_identity(pool);
}

int cenote_pool_check(cenote_pool *pool)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    lock_take(&pool->turn); /* nothing is half done */
    lock_take(&pool->lock);
    const char *broken = broken_rule(pool);
    lock_give(&pool->lock);
    lock_give(&pool->turn);
    return broken ? error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "invariant %s", broken) : CENOTE_OK;
}
