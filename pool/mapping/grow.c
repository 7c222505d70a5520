/*
 * grow.c: makes an arena grow by a region of addresses, or by a segment.
 * provider.c says where these come from, and gives them back.
 *
 * Something may have to go back first. If the pool has as many addresses as `address_ratio` allows, or the device has
 * none left, the region that was used longest ago gives up its addresses (recycle.c). Before a source is asked for a
 * segment, segments of destroyed groups go back to their sources.
 *
 * LOCKING: the turn, not the pool's lock. The thread gives the turn back around functions of the program.
 */
#include "pool/mapping/grow.h"

#include "pool/life/pool.h"
#include "pool/life/watch.h"
#include "pool/mapping/recycle.h"
#include "pool/mapping/reset.h"
#include "pool/mapping/trim.h"
#include "pool/provider/async.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"

#define REGION_SHARE       8                /* a region has this part of the device's memory:
                                               few borders, cheap addresses */
#define REGION_SLOTS_LEAST 32ull            /* and so many slots at least, on small cards
                                               and where the pool has many addresses */
#define ADDRESSES_CHEAP    8                /* chosen, times the device's memory: only pools
                                               with many streams have more addresses */
#define SEGMENT_UNIT       (2ull << 20)     /* the unit of drivers */
#define SEGMENT_MIDDLE     (20ull << 20)    /* for requests between half a unit and half of this */

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* The size of the smallest segment for the request. */
uint64_t grow_least(const cenote_pool *pool, const struct arena *a, const struct request *q)
{
    /* the driver promises no more than 512 */
    uint64_t slack = q->alignment > BLOCK_BYTES && !q->alone ? q->alignment : 0;
    uint64_t unit = provider_guards(pool, a) && pool->config.device->granularity > SEGMENT_UNIT
                        ? pool->config.device->granularity
                        : SEGMENT_UNIT;
    return round_up(q->size + slack, unit);
}

/*
 * Makes a region over addresses that the pool has already: another that
 * lies there has ended. NULL: no host memory, nothing changed.
 */
static struct region *open_region(uint64_t base, uint64_t bytes, uint32_t shift)
{
    struct region *r = addresses_new_region(), *replaced;
    if (!r)
        return NULL;
    if (region_open(r, base, bytes, shift)) {
        if (addresses_add(r, &replaced)) {
            reset_regions_are_replaced(replaced);
            return r;
        }
        region_close(r);
    }
    addresses_free_region(r);
    return NULL;
}

/* False: no host memory. LOCKING: the pool's lock. */
static bool publish_region(cenote_pool *pool, struct arena *a, uint32_t heap, struct region *r)
{
    if ((heap && !arena_open_small(a)) || !table_reserve(&pool->store.blocks, 4) ||
        !pages_add_region(&pool->store.pages, r))
        return false;
    heap_add_region(arena_heap(a, heap), r);
    atomic_store(&r->pool, pool);
    return true;
}

static int no_memory(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the books of a region");
}

/*
 * The size of a new region: usually a share of the device's memory, because a block cannot lie across the border of two
 * regions. A pool with thousands of streams would run out of addresses that way: beyond ADDRESSES_CHEAP the first
 * region of an arena is small, and each later one as large as all that the arena has.
 */
static uint64_t region_bytes(cenote_pool *pool, const struct arena *a)
{
    uint64_t page = 1ull << pool->store.pages.shifts[GRADE_LARGE], capacity = pool->config.device->capacity;
    uint64_t least = REGION_SLOTS_LEAST << pool->store.pages.shifts[GRADE_SMALL],
             habit = round_up(capacity / REGION_SHARE, page);
    lock_take(&pool->lock);
    bool cheap = pool->store.pages.addresses < ADDRESSES_CHEAP * capacity;
    uint64_t held = arena_addresses(a), bytes = cheap || held > habit ? habit : held;
    lock_give(&pool->lock);
    return round_up(bytes < least ? least : bytes, page);
}

/* Reserves a region of the usual size, or as large as the device has addresses for; at least `least` bytes. */
static CUresult reserve_generously(cenote_pool *pool, const struct arena *a, uint64_t least, uint64_t *base,
                                   uint64_t *bytes)
{
    uint64_t page = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    *bytes = region_bytes(pool, a);
    *bytes = *bytes < least ? least : *bytes;
    CUresult result = region_reserve(pool->config.device, *bytes, page, base);
    while (result && *bytes > least && !driver_result_is_sticky(result)) {
        *bytes = *bytes / 2 < least ? least : round_up(*bytes / 2, page);
        result = region_reserve(pool->config.device, *bytes, page, base);
    }
    return result;
}

static int grow_region(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver)
{
    uint64_t base, bytes, least = round_up(q->size, 1ull << pool->store.pages.shifts[GRADE_LARGE]);
    lock_take(&pool->lock);
    bool many =
        pool->store.pages.addresses + least > pool->config.options.address_ratio * pool->config.device->capacity;
    lock_give(&pool->lock);
    if (many)
        recycle_oldest(pool);
    *driver = reserve_generously(pool, a, least, &base, &bytes);
    while (*driver && !driver_result_is_sticky(*driver) && recycle_oldest(pool))
        *driver = reserve_generously(pool, a, least, &base, &bytes);
    /* groups and streams that have gone left addresses, which come back with their pages */
    if (*driver && !driver_result_is_sticky(*driver)) {
        trim_to(pool, 0, UINT64_MAX);
        *driver = reserve_generously(pool, a, least, &base, &bytes);
    }
    if (driver_result_is_sticky(*driver))
        return pool_driver_error(pool, *driver, "cuMemAddressReserve");
    if (*driver)
        return error_set(CENOTE_OUT_OF_ADDRESSES, *driver, "no %llu MiB of device address space left on device %d",
                         (unsigned long long)(bytes >> 20), pool->config.device->ordinal);
    const struct pages *s = &pool->store.pages;
    struct region *r = open_region(base, bytes, s->shifts[GRADE_SMALL]);
    if (r && !q->heap)
        r->unit_shift = s->shifts[GRADE_LARGE] - s->shifts[GRADE_SMALL];
    lock_take(&pool->lock);
    bool published = r && publish_region(pool, a, q->heap, r);
    lock_give(&pool->lock);
    if (published)
        return CENOTE_OK;
    if (r) {
        addresses_remove(r);
        provider_close_region(r);
    }
    if (region_unreserve(pool->config.device, base, bytes)) /* they would be lost: a refusal is asked for once more */
        region_unreserve(pool->config.device, base, bytes);
    return no_memory();
}

static uint64_t plain_bytes(uint64_t size)
{
    if (size <= SEGMENT_UNIT / 2)
        return SEGMENT_UNIT;
    if (size < SEGMENT_MIDDLE / 2)
        return SEGMENT_MIDDLE;
    return round_up(size, SEGMENT_UNIT);
}

static uint64_t segment_bytes(cenote_pool *pool, const struct arena *a, uint64_t size)
{
    uint64_t plain = plain_bytes(size); /* for the block alone */
    return async_serves(pool, a) ? async_habit(pool, a, size, plain) : plain;
}

/* Adds the segment with its one page to the books. False: no host memory. */
static bool publish_segment(cenote_pool *pool, struct arena *a, uint64_t base, uint64_t bytes)
{
    struct region *r = open_region(base, bytes, SEGMENT_SHIFT);
    if (!r)
        return false;
    r->foreign = provider_source(pool, a) != NULL;
    lock_take(&pool->lock);
    bool published = table_reserve(&pool->store.pages.table, 1) && publish_region(pool, a, 0, r);
    if (published) {
        uint32_t page = pages_add(&pool->store.pages, 0, bytes);
        page_of(&pool->store.pages, page)->arena = a->number;
        page_of(&pool->store.pages, page)->fixed = a->is_private;
        pages_link(&pool->store.pages, page, r, 0);
        pages_settle(&pool->store.pages, page);
        pool->account.stats.pages_created++;
        count_reserved(pool);
    }
    lock_give(&pool->lock);
    if (!published) {
        addresses_remove(r);
        provider_close_region(r);
    }
    return published;
}

static int refuse_ours(uint64_t at)
{
    return error_set(CENOTE_INVALID, 0,
                     "the source of the group gave memory at %#llx that cenote has already, in a block of its "
                     "own or by an earlier take: have it take from elsewhere",
                     (unsigned long long)at);
}

static int refuse_alignment(const cenote_pool *pool, const struct arena *a, uint64_t at, uint64_t alignment)
{
    return error_set(CENOTE_INVALID, 0, "%s gave memory at %#llx, which is not aligned to %llu%s",
                     provider_source(pool, a) ? "the source of the group" : "the driver", (unsigned long long)at,
                     (unsigned long long)alignment,
                     alignment > BLOCK_BYTES ? ": a block that has memory of its own begins where that does" : "");
}

/*
 * Takes a segment of that size, from the provider or the source
 * of the arena, within the limit. *driver as for grow_segment.
 */
static int try_segment(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t bytes, CUresult *driver)
{
    uint64_t alignment = q->alone ? q->alignment : BLOCK_BYTES;
    CUdeviceptr at = 0;
    lock_take(&pool->lock);
    bool room = provider_allowance(pool) >= bytes;
    uint64_t promised = room ? bytes : 0; /* the thread may give the turn back, and others ask for the same allowance */
    pool->limits.promised += promised;
    lock_give(&pool->lock);
    *driver = room ? provider_take(pool, a, bytes, &at) : CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&pool->lock);
    pool->limits.promised -= promised;
    lock_give(&pool->lock);
    /* an address names one block */
    bool is_ours = !*driver && provider_source(pool, a) && !reset_addresses_are_free(at, bytes);
    bool usable = !*driver && !is_ours && !(at % alignment);
    if (usable)
        watch_tell(pool, CENOTE_MAPPED, at, bytes);
    if (usable && publish_segment(pool, a, at, bytes))
        return CENOTE_OK;
    if (usable)
        watch_tell(pool, CENOTE_UNMAPPING, at, bytes);
    if (!*driver) {
        if (!provider_give_segment(pool, a, provider_source(pool, a), at, bytes)) /* it would be lost, too */
            provider_give_segment(pool, a, provider_source(pool, a), at, bytes);
        return is_ours ? refuse_ours(at) : at % alignment ? refuse_alignment(pool, a, at, alignment) : no_memory();
    }
    return *driver == CUDA_ERROR_OUT_OF_MEMORY ? CENOTE_OUT_OF_MEMORY
           : pool_driver_error(pool, *driver, "taking a segment");
}

/*
 * Takes a segment of the usual size or, if there is no room for that, as large as the request needs. *driver is
 * CUDA_ERROR_OUT_OF_MEMORY if the ladder may help: neither fits into the driver's memory or the limit.
 */
static int grow_segment(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver)
{
    uint64_t least = grow_least(pool, a, q),
             habit = q->alone || q->at_segment_end ? least : segment_bytes(pool, a, q->size);
    int error = try_segment(pool, a, q, habit > least ? habit : least, driver);
    return error == CENOTE_OUT_OF_MEMORY && habit > least ? try_segment(pool, a, q, least, driver) : error;
}

/* Adds a region or a segment that is large enough for the request. */
int grow_arena(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver)
{
    *driver = CUDA_SUCCESS;
    const cenote_source *source = provider_source(pool, a);
    if (source && callback_runs(source))
        return error_set(CENOTE_INVALID, 0,
                         "the take function of group \"%s\" allocates from its own group: have it take from elsewhere",
                         group_of(pool, a->group)->name);
    if (source && q->no_wait)
        return CENOTE_OUT_OF_MEMORY;
    if (source)
        trim_orphans(pool);
    return provider_moves_pages(pool, a) ? grow_region(pool, a, q, driver) : grow_segment(pool, a, q, driver);
}
