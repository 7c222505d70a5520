/*
 * report.c: what a pool says about itself: counters. Whether its invariants hold: check.c.
 *
 * Levels and counts are kept as they happen (count.h), and told as of one moment. Gauges are walked together here, when a caller asks, in portions
 * (look.c).
 */
#include "stats/report/report.h"

#include "base/check.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"
#include "pool/mapping/budget.h"
#include "stats/account/record.h"
#include "stats/report/rows.h"

/* `cached` is derived: what is in was reserved or freed, what is out was allocated or given back. LOCKING: the pool's lock. */
static void derive_cached(cenote_stats *s, uint64_t asleep)
{
    s->cached.current = s->reserved.current + asleep - s->allocated.current;
    s->cached.total_in = s->reserved.total_in + s->allocated.total_out;
    s->cached.total_out = s->reserved.total_out + s->allocated.total_in;
}

/* Beyond its top a region's arrays have never been touched: the system has put no memory behind them. */
static void add_region(struct report_sums *s, const struct region *r)
{
    s->address_used += r->top - r->base;
    s->metadata += (uint64_t)((double)r->metadata_bytes * (double)(r->top - r->base) / (double)r->bytes);
}

#define SLOTS_AT_ONCE 1024u         /* of a region */

/* Each region, or so many slots of it, is looked at in a moment of its own. */
static void sum_region(struct look *look, uint32_t number, struct report_sums *s)
{
    struct pages *pages = &look->pool->store.pages;
    const struct region *r = region_of(pages, number);
    if (r)
        add_region(s, r);
    for (uint32_t from = 0, to; r && from < r->slots; from = to) {
        to = r->slots - from < SLOTS_AT_ONCE ? r->slots : from + SLOTS_AT_ONCE;
        pages_sum_slots(pages, r, from, to, &s->pages);
        if (!look_goes_on(look, 2 + (to - from) / 8))
            r = region_of(pages, number);
    }
}

/* In portions. LOCKING: the pool's lock. */
struct report_sums report_sum(struct look *look)
{
    struct report_sums sums = {0};
    pages_sum_spares(&look->pool->store.pages, &sums.pages);
    for (uint32_t number = 1; number < look->pool->store.pages.regions.used; number++) {
        sum_region(look, number, &sums);
        look_goes_on(look, 1);
    }
    return sums;
}

/* Known once a page was tried, and nothing where memory does not come in pages. */
static void derive_page_kind(const cenote_pool *pool, cenote_stats *s)
{
    const struct device *d = pool->config.device;
    bool is_known = device_knows_pages(d, pool_wants_fabric(pool)) && device_has_pages(d);
    bool has_pages = pool->config.provider == CENOTE_VMM || pool->config.provider == CENOTE_GUARD;
    CUmemAllocationProp prop = pool_page_prop(pool);
    s->page_handles = is_known && has_pages ? (uint64_t)prop.requestedHandleTypes : 0;
    s->page_rdma = is_known && has_pages && prop.allocFlags.gpuDirectRDMACapable;
}

static void derive_gauges(const cenote_pool *pool, cenote_stats *s)
{
    s->address_space = pool->store.pages.addresses;
    s->pending_blocks = pool->clock.uses.blocks;
    s->arenas = pool->store.arenas.used - 1 - pool->store.arenas.free_count;
    s->captures = pool->groups.capture_count;
    s->background = pool->list.attended;
    derive_page_kind(pool, s);
    s->metadata = table_bytes(&pool->store.pages.table) + table_bytes(&pool->store.pages.regions) + table_bytes(&pool->store.blocks) +
                  table_bytes(&pool->store.slabs) + table_bytes(&pool->store.arenas) + index_bytes(&pool->store.by_address) +
                  table_bytes(&pool->groups.table) + index_bytes(&pool->streams.by_key) + clock_bytes(&pool->clock) +
                  table_bytes(&pool->exports.table) + index_bytes(&pool->exports.by_block) +
                  table_bytes(&pool->words.table) + index_bytes(&pool->words.by_block) +
                  index_bytes(&pool->lent.by_block) + sizeof *pool +
                  ring_count(&pool->recorder.ring) * RECORD_BYTES;
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

/* Levels and counts are of this moment. LOCKING: the pool's lock. */
cenote_stats report_stats(const cenote_pool *pool, const struct report_sums *sums)
{
    cenote_stats s = pool->account.stats;
    derive_cached(&s, pool->store.pages.asleep);
    derive_gauges(pool, &s);
    s.limit = pool->limits.bytes;
    sum_driver_calls(&s.driver_calls, &s.driver_ns);
    s.driver_calls -= pool->report.driver_calls_before;
    s.driver_ns -= pool->report.driver_ns_before;
    s.page_bytes = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    s.capacity = pool->config.device->capacity;
    s.asleep = pool->store.pages.asleep;
    s.address_used = sums->address_used;
    s.metadata += sums->metadata;
    s.pages_owned = sums->pages.owned;
    s.pages_free = sums->pages.free;
    s.pages_aliased = sums->pages.aliased;
    s.pages_frozen = sums->pages.frozen;
    s.harvestable = sums->pages.harvestable;
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
    if (error || !pool || !pool->life.open || !stats)
        return error ? error : error_set(CENOTE_INVALID, 0, "cenote_pool_stats needs an open pool and a place for the counters");
    struct look look;
    if ((error = look_begin(&look, pool)))
        return error;
    struct report_sums sums = {0};
    if (size > CENOTE_STATS_COUNTED) /* the sums are what takes long, and none of them comes before */
        sums = report_sum(&look);
    cenote_stats s = report_stats(pool, &sums);
    look_end(&look);
    sized_out(stats, size, &s, sizeof s);
    return CENOTE_OK;
}

int cenote_pool_reset_peaks(cenote_pool *pool)
{
    int error = pool_answers(pool);
    if (error)
        return error;
    struct look look;
    if ((error = look_begin(&look, pool)))
        return error;
    derive_cached(&pool->account.stats, pool->store.pages.asleep);
    budget_remember(pool);
#define CENOTE_LEVEL(name, unit, text) pool->account.stats.name.peak = pool->account.stats.name.current;
#define CENOTE_COUNT(name, unit, text)
#define CENOTE_GAUGE(name, unit, text)
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    rows_reset(&look, true);
    look_end(&look);
    return CENOTE_OK;
}

int cenote_pool_reset_totals(cenote_pool *pool)
{
    int error = pool_answers(pool);
    if (error)
        return error;
    struct look look;
    if ((error = look_begin(&look, pool)))
        return error;
    sum_driver_calls(&pool->report.driver_calls_before, &pool->report.driver_ns_before);
#define CENOTE_LEVEL(name, unit, text) pool->account.stats.name.total_in = pool->account.stats.name.total_out = 0;
#define CENOTE_COUNT(name, unit, text) pool->account.stats.name = 0;
#define CENOTE_GAUGE(name, unit, text)
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    rows_reset(&look, false);
    look_end(&look);
    return CENOTE_OK;
}
