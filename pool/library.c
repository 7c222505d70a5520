/*
 * pool/library.c: pools come and go; which part owns what. The road of one allocation is in alloc.c.
 *
 * A pool has one device and one provider, chosen when it is made. Its structure is never unmapped, so that a call with
 * an address of a destroyed pool finds out instead of crashing; a new pool takes over the structure of one that was
 * destroyed long ago (pools.c).
 *
 *                  cenote_pool_create                     cenote_pool_destroy
 *     (not there) -------------------> open ----------------------------------> closed, reused
 *                                       | first sticky driver error
 *                                       +-----> lost: allocations fail, frees are bookkeeping, statistics stay readable
 *
 * LOCKING: the lock of the pools guards the default ones, and the making
 * of a pool. A pool's own locks are explained in docs/locks.md.
 */
#include <string.h>
#include <sys/resource.h>

#include "base/check.h"
#include "pool/arenas/idle.h"
#include "pool/calls/end_blocks.h"
#include "pool/careful.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"
#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "pool/mapping/trim.h"
#include "pool/provider/provider.h"
#include "pool/shortage/wait.h"
#include "pool/sleep/sleep.h"
#include "share/lend.h"
#include "stats/account/record.h"
#include "stats/report/board.h"
#include "stats/report/explain.h"
#include "stats/report/nvtx.h"
#include "stats/text/options.h"

#define GRADE_SHIFT      3          /* chosen, as the next: docs/history.md */
#define PAGES_PER_DEVICE 4096       /* a driver call costs by page: about this many large ones fill a device */
#define PAGE_BYTES_MAX   (32ull << 20)

static cenote_pool *defaults[DEVICES_MAX];
static uint64_t pools_made;                     /* guarded by the lock of the pools, as the default ones */

/* --------------------------------------------------------------------------------------------------------- creation */

static int choose_provider(cenote_pool *pool)
{
    const struct device *d = pool->config.device;
    pool->config.provider = (enum cenote_provider)pool->config.options.provider;
    if (pool->config.provider == CENOTE_AUTO && pool->config.options.sanitize)
        pool->config.provider = CENOTE_PLAIN;
    if (pool->config.options.sanitize && pool->config.provider != CENOTE_PLAIN)
        return error_set(CENOTE_INVALID, 0, "sanitize:1 goes with provider:plain, which auto gives then, alone");
    if (pool->config.provider == CENOTE_AUTO)
        pool->config.provider = device_has_pages(d) ? CENOTE_VMM : d->has_pools ? CENOTE_ASYNC : CENOTE_PLAIN;
    bool needs_vmm = pool->config.provider == CENOTE_VMM || pool->config.provider == CENOTE_GUARD;
    if ((needs_vmm && !device_has_pages(d)) || (pool->config.provider == CENOTE_ASYNC && !d->has_pools))
        return error_set(CENOTE_NOT_SUPPORTED, 0, "device %d has no %s; use provider:auto", d->ordinal,
                         needs_vmm ? "virtual memory management" : "memory pools");
    return CENOTE_OK;
}

static uint64_t limit_bytes(const cenote_options *options, uint64_t capacity)
{
    return options->limit <= 1 ? (uint64_t)(options->limit * (double)capacity) : (uint64_t)options->limit;
}

/* The power of two that `x` is nearest to in ratio. */
static uint64_t nearest_power(uint64_t x)
{
    uint64_t below = 1ull << (63 - __builtin_clzll(x | 1));
    return x * x >= 2 * below * below ? 2 * below : below;
}

/* The power of two nearest to what gives PAGES_PER_DEVICE pages, within what the device and we can do. */
static int choose_page(const cenote_pool *pool, uint32_t *shift)
{
    uint64_t least = pool->config.device->granularity ? pool->config.device->granularity : 2u << 20;
    uint64_t bytes = (uint64_t)pool->config.options.page_mib << 20;
    if (bytes && bytes < least) /* both are powers of two */
        return error_set(CENOTE_INVALID, 0, "page_mib:%u is smaller than the granularity of device %d, %llu MiB",
                         pool->config.options.page_mib, pool->config.device->ordinal,
                         (unsigned long long)(least >> 20));
    if (!bytes) {
        uint64_t most = pool->limits.bytes && pool->limits.bytes < pool->config.device->capacity
                            ? pool->limits.bytes
                            : pool->config.device->capacity;
        bytes = nearest_power(most / PAGES_PER_DEVICE);
        bytes = bytes > PAGE_BYTES_MAX ? PAGE_BYTES_MAX : bytes;
        bytes = bytes < least ? least : bytes;
    }
    *shift = 63 - (uint32_t)__builtin_clzll(bytes);
    return CENOTE_OK;
}

static void close_tables(cenote_pool *pool)
{
    record_forget(pool);
    pages_close(&pool->store.pages);
    table_close(&pool->store.blocks);
    table_close(&pool->store.slabs);
    for (uint32_t number = 1; number < pool->store.arenas.used; number++)
        arena_close_small(arena_of(pool, number));
    table_close(&pool->store.arenas);
    clock_close(&pool->clock);
    table_close(&pool->exports.table);
    table_close(&pool->words.table);
    index_close(&pool->words.by_block);
    table_close(&pool->account.by_tag);
    index_close(&pool->exports.by_block);
    index_close(&pool->lent.by_block);
    index_close(&pool->store.by_address);
    index_close(&pool->streams.by_key);
    fill_close(&pool->remap.fill);
}

/* A small page has an eighth of the size of a large one, but no less than the device's granularity. */
static void choose_small_pages(struct pages *s, uint64_t least)
{
    while (s->shifts[GRADE_SMALL] + GRADE_SHIFT > s->shifts[GRADE_LARGE] && 1ull << s->shifts[GRADE_SMALL] > least)
        s->shifts[GRADE_SMALL]--;
}

/* The addresses that tables set aside at first are no memory, but count in a limit of addresses. */
static int no_tables(void)
{
    const uint64_t bytes = BLOCKS_MAX * sizeof(struct block) + SLABS_MAX * sizeof(struct slab) +
                           LANES_MAX * sizeof(struct lane) + PAGES_MAX * sizeof(struct page) +
                           USES_MAX * sizeof(struct use); /* the large ones */
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the books of a pool");
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0,
                     "no room for the books of a pool: it sets %llu GiB of addresses aside, which are no memory, and "
                     "this process may have %llu GiB of them (RLIMIT_AS): raise the limit (ulimit -v), or limit memory "
                     "by a control group",
                     (unsigned long long)(bytes >> 30) + 1, (unsigned long long)limit.rlim_cur >> 30);
}

static int open_tables(cenote_pool *pool, uint32_t shift)
{
    if (pages_open(&pool->store.pages, shift) && table_open(&pool->store.blocks, sizeof(struct block), BLOCKS_MAX) &&
        table_open(&pool->store.slabs, sizeof(struct slab), SLABS_MAX) &&
        table_open(&pool->store.arenas, sizeof(struct arena), ARENAS_MAX) &&
        (pool->groups.table.items || table_open(&pool->groups.table, sizeof(cenote_group), GROUPS_MAX)) &&
        clock_open(&pool->clock) && table_open(&pool->exports.table, sizeof(struct export), EXPORTS_MAX) &&
        table_open(&pool->words.table, sizeof(struct word), WORDS_MAX) &&
        table_open(&pool->account.by_tag, sizeof(struct row), CENOTE_TAGS_MAX)) {
        choose_small_pages(&pool->store.pages, pool->config.device->granularity);
        pool->store.pages.mapped_once = pool->config.options.aliases == CENOTE_ALIASES_OFF;
        return CENOTE_OK;
    }
    close_tables(pool);
    return no_tables();
}

/* LOCKING: the lock of the pools. */
static void leave_device(cenote_pool *pool)
{
    pool->config.device->pools--;
    device_close(pool->config.device);
}

static void set_clock(cenote_pool *pool)
{
    struct clock *c = &pool->clock;
    c->lock = &pool->lock;
    c->device = pool->config.device;
    c->generation = pool->config.generation;
    c->others = pool->config.others;
    c->ending = &pool->life.ending;
    c->lost = &pool->life.lost;
    c->fences.arenas = &pool->store.arenas;
    pool->store.pages.fences = &c->fences;
}

static const struct pool_hooks hooks = {explain_shortage, decay_go, churn_created, board_answer, wants_ask,
                                       pause_alone};

/* `context` NULL: the device's primary one, which cenote retains. */
static int pool_init(cenote_pool *pool, int device, cenote_context context, const cenote_options *options)
{
    int error;
    uint32_t shift = 0;
    pool->config.hooks = &hooks;
    pool->config.options = *options;
    pool->config.device = context ? device_open_in(context, &error) : device_open(device, &error);
    if (!pool->config.device)
        return error;
    pool->config.device->pools++;
    pool->config.generation = atomic_load(&pool->config.device->generation);
    set_clock(pool);
    pool->access.list[pool->access.count++] = device_access(pool->config.device);
    pool->limits.bytes = limit_bytes(options, pool->config.device->capacity);
    pool->limits.trim_above = options->trim_above;
    if (!(error = choose_provider(pool)) && !(error = choose_page(pool, &shift)))
        error = open_tables(pool, shift);
    if (!error && ((error = record_open(pool)) || (error = nvtx_open(pool))))
        close_tables(pool);
    if (error)
        leave_device(pool);
    return error;
}

/* Groups that were destroyed and had memory still. LOCKING: none; no thread gets into the pool any more. */
static void forget_groups(cenote_pool *pool)
{
    for (uint32_t number = 1; number < pool->groups.table.used; number++)
        if (group_of(pool, number)->number)
            idle_forget_group(pool, group_of(pool, number));
}

/* LOCKING: the lock of the pools. */
static int create(int device, cenote_context context, const cenote_options *options, bool is_default,
                  cenote_pool **result)
{
    cenote_pool *pool = pools_take_structure(board_head());
    if (!pool)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a pool");
    int error = pool_init(pool, device, context, options);
    pool->list.reusable = error != CENOTE_OK;
    if (error)
        return error;
    pool->config.serial = ++pools_made;
    pool->config.is_default = is_default;
    board_open(pool);
    pool->life.open = true;
    *result = pool;
    return CENOTE_OK;
}

static int create_with(int device, cenote_context context, const cenote_options *options, cenote_pool **pool,
                       size_t size)
{
    cenote_options full;
    if (!pool)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the pool: the last argument is NULL");
    int error = pool_process_usable();
    if (error || (error = options_check(options, size, &full)))
        return error;
    if (!full.announced && (error = careful_begin()))
        return error;
    lock_take(&pools_lock);
    error = create(device, context, &full, false, pool);
    lock_give(&pools_lock);
    if (error && !full.announced)
        touch_be_careful(false);
    if (error)
        return error;
    (*pool)->config.opened_ns = pool_now(*pool); /* the clock may be the program's */
    background_join(*pool);
    return CENOTE_OK;
}

int(cenote_pool_create)(int device, const cenote_options *options, cenote_pool **pool, size_t size)
{
    return create_with(device, NULL, options, pool, size);
}

int(cenote_pool_create_in)(cenote_context context, const cenote_options *options, cenote_pool **pool, size_t size)
{
    if (!context)
        return error_set(CENOTE_INVALID, 0, "no context to make a pool in: the first argument is NULL");
    return create_with(-1, context, options, pool, size);
}

int cenote_pool_default(int device, cenote_pool **pool)
{
    cenote_options options;
    int error = pool_process_usable();
    if (error)
        return error;
    if (!pool)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the pool: the last argument is NULL");
    if (device < 0 || device >= DEVICES_MAX)
        return error_set(CENOTE_NO_DEVICE, 0, "device %d does not exist", device);
    lock_take(&pools_lock);
    cenote_pool *made = defaults[device];
    lock_give(&pools_lock);
    if (made) {
        *pool = made;
        return CENOTE_OK;
    }
    if ((error = options_check(NULL, 0, &options)))
        return error;
    if (!options.announced && (error = careful_begin()))
        return error;
    lock_take(&pools_lock);
    bool is_new = !defaults[device];
    if (is_new && !(error = create(device, NULL, &options, true, &defaults[device])))
        /* the system's clock: CENOTE_CONF names no other */
        defaults[device]->config.opened_ns = pool_now(defaults[device]);
    if (!error)
        *pool = defaults[device];
    lock_give(&pools_lock);
    if (!options.announced && (error || !is_new))
        touch_be_careful(false);
    if (!error && is_new)
        background_join(*pool);
    return error;
}

/* ------------------------------------------------------------------------------------------------------ destruction */

static int may_be_destroyed(cenote_pool *pool)
{
    bool was_reset = pool_is_over(pool); /* then blocks and pins end with the pool: end_blocks.c */
    if (pool->config.is_default && !was_reset)
        return error_set(
            CENOTE_INVALID, 0,
            "the default pool of device %d can be destroyed only after a reset of the device; cenote_pool_trim gives "
            "its memory back",
            pool->config.device->ordinal);
    if (device_bars_end(pool->config.device))
        return error_set(CENOTE_BUSY, 0, "a capture is open on device %d: nothing may be given back meanwhile",
                         pool->config.device->ordinal);
    if (pool->groups.pins && !was_reset)
        return error_set(CENOTE_BUSY, 0, "memory of the pool is still pinned: cenote_unpin comes first");
    if (pool->life.users)
        return error_set(
            CENOTE_BUSY, 0,
            "another thread is allocating, freeing, or naming a stream: destroy the pool when that is done");
    if (pool->account.stats.blocks.current && !was_reset)
        return error_set(CENOTE_BUSY, 0,
                         "%llu block%s still live, %llu bytes: free what cenote_pool_pieces lists first",
                         (unsigned long long)pool->account.stats.blocks.current,
                         pool->account.stats.blocks.current == 1 ? " is" : "s are",
                         (unsigned long long)pool->account.stats.requested.current);
    for (uint32_t g = 1; g < pool->groups.table.used; g++)
        if (group_of(pool, g)->number && !group_of(pool, g)->destroyed)
            return error_set(CENOTE_BUSY, 0, "group \"%s\" still exists: cenote_group_destroy comes first",
                             group_of(pool, g)->name);
    return CENOTE_OK;
}

/* Everything goes back. What the driver refuses twice is left to the end of the process. LOCKING: the turn. */
static void give_everything_back(cenote_pool *pool)
{
    trim_end(pool);
    provider_close(pool);
    courier_close(pool);
    clock_end(&pool->clock);
}

/* Forgets regions that did not go back, because the context is lost or the driver refused them. */
static void forget_regions(cenote_pool *pool)
{
    for (uint32_t number = 1; number < pool->store.pages.regions.used; number++) {
        struct region *r = region_of(&pool->store.pages, number);
        if (!r)
            continue;
        addresses_remove(r);
        region_close(r);
        addresses_free_region(r);
    }
}

static int check_unused(cenote_pool *pool, tick *freed)
{
    lock_take(&pool->lock);
    int error = may_be_destroyed(pool);
    *freed = pool->clock.fences.now;
    lock_give(&pool->lock);
    return error;
}

/* Without the promise to announce captures: waits for streams, as a trim does. LOCKING: as wait_before_closing. */
static CUresult wait_for_streams(cenote_pool *pool)
{
    lock_take(&pool->turn);
    CUresult result = wait_for_all(pool);
    lock_give(&pool->turn);
    return result;
}

/*
 * Waits for the device, if the pool may be destroyed as it is: nothing is in flight of what was freed up to *freed.
 * *result: of entering the device; not zero afterwards if the context is lost and nothing can be given back. A driver
 * that refuses for another reason leaves the pool open. *whole: the whole context was waited for. LOCKING: inside, not
 * the turn.
 */
static int wait_before_closing(cenote_pool *pool, tick *freed, bool *whole, CUresult *result)
{
    int error = check_unused(pool, freed);
    bool announced = touch_captures_are_announced();
    if (!error && !*result)
        *result = pool->life.lost;
    if (!error && !*result && device_context(pool->config.device) && !announced)
        *result = wait_for_streams(pool);
    if (!error && !*result && device_context(pool->config.device) && announced)
        while ((*result = device_wait(pool->config.device, whole)) == CUDA_ERROR_NOT_READY &&
               !(error = check_unused(pool, freed))) {
        }
    if (error)
        return error;
    if (*result && !pool->life.lost && !device_is_lost(pool->config.device, pool->config.generation, *result))
        return pool_driver_error(pool, *result, "waiting for the device");
    if (pool_is_over(pool))
        /* nothing runs any more, and what belongs to no context is still there to be given back */
        *result = CUDA_SUCCESS;
    return CENOTE_OK;
}

/* The device is not known to be done with what was freed. LOCKING: the pool's lock. */
static int check_done(const cenote_pool *pool, tick waited)
{
    if (lanes_are_done(&pool->clock, waited))
        return CENOTE_OK;
    return error_set(CENOTE_BUSY, 0,
                     "streams that cenote must not touch may still use what was freed: they may be destroyed, or are "
                     "being captured. "
                     "Call cenote_stream_retire for created streams before they end, cenote_stream_set_immortal for "
                     "those that do not, or leave out "
                     "the option announced:0 if the program announces all its captures");
}

/*
 * No new call gets in from here on, and none is inside: those that come back to the books are counted, and calls that
 * look at them only now find the pool closed. `waited`: for all that was freed until then. LOCKING: the turn, after
 * wait_before_closing.
 */
static int close_for_calls(cenote_pool *pool, tick waited, bool whole, CUresult result)
{
    int error = CENOTE_OK;
    bool reset = pool_is_over(pool);
    if (!result) {
        lock_take(&pool->lock);
        if (whole || reset || !device_context(pool->config.device))
            events_all_done(&pool->clock, waited);
        lock_give(&pool->lock);
        pending_poll(pool);
    }
    lock_take(&pool->lock);
    if (!result && pool->clock.uses.blocks)
        error = error_set(CENOTE_BUSY | ERROR_ANSWER, 0,
                          "%u freed blocks wait for streams that cannot be waited for now", pool->clock.uses.blocks);
    else if (!result)
        error = check_done(pool, waited);
    error = error ? error : may_be_destroyed(pool); /* other threads may have allocated meanwhile, or freed */
    if (!error && !result && pool->clock.fences.freed > waited) /* fences of the wait have ticks of their own */
        error = error_set(
            CENOTE_BUSY, 0,
            "another thread has freed a block or destroyed a group just now: destroy the pool when it is done");
    pool->life.open = error != CENOTE_OK;
    CHECK(pool->life.open || !(pool->life.away || pool->life.users)); /* invariant 31 */
    lock_give(&pool->lock);
    return error;
}

/* A thread that has pages sleep or wake waits for its copies itself, and begins more. LOCKING: as courier_wait. */
static int have_copies_back(cenote_pool *pool, bool lost)
{
    return lost || pool->courier.is_taken ? CENOTE_OK : courier_come_back(pool);
}

/*
 * Threads that have let go of the turn come back first: a trim that waits for the device, or has a function of the
 * program run, and threads of other pools. Those that allocate are no reason to wait: that is BUSY. Copies whose wait
 * the driver refused are waited for again. LOCKING: the turn, let go of meanwhile.
 */
static int wait_for_those_away(cenote_pool *pool, bool lost)
{
    tick freed;
    CUresult result;
    int error = have_copies_back(pool, lost);
    for (uint32_t looks = 0; !error && pool->life.away && !(error = check_unused(pool, &freed)); looks++) {
        wait_for_rest(pool, AWAIT_EVENTS, looks, &result);
        error = have_copies_back(pool, lost);
    }
    return error;
}

/* One thread ends the pool: from here on others that would are told. It goes on, or life.ending is taken back. */
static int begin_to_end(cenote_pool *pool)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if (callback_runs_for(pool))
        return error_set(CENOTE_BUSY, 0,
                         "a function that the pool has called runs still: destroy the pool when it has returned");
    if (atomic_exchange(&pool->life.ending, true))
        return error_set(CENOTE_BUSY, 0, "another thread is destroying the pool");
    return CENOTE_OK;
}

int cenote_pool_destroy(cenote_pool *pool)
{
    int error = begin_to_end(pool);
    if (error)
        return error;
    tick waited;
    if (!device_lives(pool->config.device, pool->config.generation) && !check_unused(pool, &waited))
        end_blocks(pool);
    if (!peer_fences_wait(&pool->clock, false)) {
        atomic_store(&pool->life.ending, false);
        return error_set(
            CENOTE_BUSY, 0,
            "kernels of a device with access to the pool's memory may still use it, and cannot be waited for "
            "while a capture is open there");
    }
    peer_uses_wait(&pool->clock);
    bool attended = background_leave(pool);
    bool whole = false;
    CUresult result = device_enter_as_it_is(pool->config.device, pool->config.generation);
    error = wait_before_closing(pool, &waited, &whole, &result);
    lock_take(&pool->turn);
    error = error ? error : wait_for_those_away(pool, result != CUDA_SUCCESS);
    error = error ? error : close_for_calls(pool, waited, whole, result);
    if (!error && !result)
        give_everything_back(pool);
    turn_end(pool);
    if (error && attended)
        background_join(pool);
    if (error) {
        atomic_store(&pool->life.ending, false);
        return error;
    }
    board_close(pool);
    record_close(pool);
    watch_end(pool);
    nvtx_close(pool);
    sleepers_pool_ends(pool);
    lend_pool_ends(pool);
    share_end_imports(pool);
    share_settle();
    forget_regions(pool);
    forget_groups(pool);
    lock_take(&pools_lock);
    if (pool->config.is_default)
        defaults[pool->config.device->ordinal] = NULL;
    close_tables(pool);
    for (int ordinal = 0; ordinal < DEVICES_MAX; ordinal++)
        if (pool->config.others[ordinal])
            device_close(pool->config.others[ordinal]);
    leave_device(pool);
    if (!pool->config.options.announced)
        touch_be_careful(false);
    struct card *card = pool->config.device->card; /* a device that is closed may be opened as another one */
    pools_give_structure(pool);
    lock_give(&pools_lock);
    device_let_leave(card); /* calls that came too late were in its context, which its caller may end now */
    return CENOTE_OK;
}

/* ------------------------------------------------------------------------------------------------------ small verbs */

int cenote_pool_provider(const cenote_pool *pool)
{
    return pool && pool->life.open ? (int)pool->config.provider : -1;
}

int cenote_pool_set_limit(cenote_pool *pool, uint64_t bytes)
{
    int error = pool_usable(pool);
    if (error || (error = pool_take_lock(pool)))
        return error;
    pool->limits.bytes = pool->account.stats.limit = bytes;
    lock_give(&pool->lock);
    return bytes ? cenote_pool_trim(pool, bytes, 0) : CENOTE_OK;
}

int cenote_pool_set_trim_above(cenote_pool *pool, double part)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!(part >= 0 && part <= 1))
        return error_set(CENOTE_INVALID, 0, "trim_above is a part from 0 to 1, not %g", part);
    if ((error = pool_take_lock(pool)))
        return error;
    pool->limits.trim_above = part;
    lock_give(&pool->lock);
    return CENOTE_OK;
}

int cenote_pool_device(const cenote_pool *pool)
{
    return pool && pool->life.open ? pool->config.device->ordinal : -1;
}
