/*
 * pause.c: blocks go to sleep: what lies on their pages goes to the host, and the pages to the driver.
 *
 *            pages_doze          the device is done,          unmapped everywhere,       pages_sleep
 *      awake ----------> leaving -----------------> leaving ---------------------> leaving -----------> asleep
 *                           |      it is copied                released
 *                           | no host memory, the driver refuses, a capture begins: pages_rouse
 *                           +------> awake
 *
 * All pages doze before the thread waits for the device (invariant 34): from then on no arena uses them, and what
 * was freed on them until then is covered by the wait. From doze to sleep blocks may be freed. Of a page that sleeps
 * all books stay as they are: the slots that map it, its home and its owner. resume.c has the way back.
 *
 * LOCKING: the turn, let go of in waits; the pool's lock only around looks.
 */
#include "base/check.h"
#include "pool/arenas/last_freed.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "pool/mapping/trim.h"
#include "pool/shortage/wait.h"
#include "pool/sleep/copy.h"
#include "stats/account/count.h"

/* ------------------------------------------------------------------------------------------------------------- doze */

/* A block, or a graph, comes back to the page at this slot; what is free otherwise is trimmed. */
static bool is_needed(const struct pages *s, const struct region *r, const struct page *p, uint32_t slot)
{
    bool owned = bit_is_set(r->sole, slot) ? bit_is_set(r->busy, slot) : slot_ref_is(p->owner, r->number, slot);
    return owned || (p->fixed && !p->owner.region && slot_ref_is(slot_of_sleep(s, p), r->number, slot));
}

static void close_if_empty(struct slabs *s, uint32_t slab)
{
    struct slab *here = slab_of(s->table, slab);
    if (here->free_items == here->items)
        arena_close_slab((struct arena *)(void *)((char *)s - offsetof(struct arena, slabs)), slab);
}

/* The page was named with another word than CENOTE_CONSTANT, whether it sleeps then, or did already, or stays. */
static void end_constant(struct sleepers *s, uint32_t page, enum lies lies)
{
    bool is_named = lies == LIES_NAMED || lies == LIES_MIXED || (lies == LIES_NOTHING && !s->what.blocks);
    if (is_named && s->what.contents != CENOTE_CONSTANT)
        pages_forget_constant(&s->pool->store.pages, page);
}

/* The page dozes, unless something bars that. Pinned pages stay, and those of exported blocks. */
static bool may_sleep(struct sleepers *s, const struct region *r, uint32_t slot)
{
    struct pages *pages = &s->pool->store.pages;
    uint32_t page = r->page[slot];
    struct page *p = page_of(pages, page);
    if (p->copy && is_needed(pages, r, p, slot))
        end_constant(s, page, lies_there(s, page, (struct slot_ref){r->number, slot}));
    if (p->leaving || bit_is_set(r->transit, slot) || bit_is_set(r->broken, slot) || !is_needed(pages, r, p, slot))
        return false;
    last_freed_settle(s->pool);
    sleepers_slabs(s->pool, page, close_if_empty);
    if (!is_needed(pages, r, p, slot))
        return false;
    enum lies lies = lies_there(s, page, (struct slot_ref){r->number, slot});
    bool is_named = lies == LIES_NAMED || lies == LIES_MIXED || (lies == LIES_NOTHING && !s->what.blocks);
    if (is_named && (lies == LIES_MIXED || p->pins))
        s->what.awake += p->bytes;
    if (!is_named || lies == LIES_MIXED || p->pins)
        return false;
    pages_doze(pages, page);
    sleepers_slabs(s->pool, page, slab_doze);
    return true;
}

/* The page goes on as before. What was copied for this sleep is not needed; what is of an earlier one stays with it. */
static void stay(struct sleepers *s, struct sleeper *l)
{
    cenote_pool *pool = s->pool;
    lock_take(&pool->lock);
    struct page *p = page_of(&pool->store.pages, l->page);
    bool is_new = l->copy != p->copy;
    s->what.awake += p->bytes;
    sleepers_slabs(pool, l->page, slab_wake);
    pages_rouse(&pool->store.pages, l->page);
    lock_give(&pool->lock);
    if (l->copy && is_new)
        copy_drop(l->copy);
}

/* ------------------------------------------------------------------------------------------------------------- wait */

/* Until the device is done with all that was freed by now, and with what named blocks were used for. */
static int wait_until_done(cenote_pool *pool)
{
    bool all;
    CUresult result = wait_for_device(pool, true, &all);
    if (!result && !touch_captures_are_announced())
        result = wait_for_all(pool); /* which asks the streams that may be touched: the context was not waited for */
    if (result)
        return pool_driver_error(pool, result, "waiting for the device, before memory goes to sleep");
    pending_poll(pool);
    if (pool_is_capturing(pool))
        return error_set(CENOTE_CAPTURE, 0, "a capture has begun: what was to go to sleep is awake");
    return all ? CENOTE_OK :
                  error_set(CENOTE_BUSY, 0, "the device, or one with access, cannot be waited for: a capture was open");
}

/* Is the device done with what was freed on the page? With announced:0 some streams cannot be waited for. */
static bool is_done(cenote_pool *pool, const struct sleeper *l)
{
    const struct fences *f = &pool->clock.fences;
    const struct page *p = page_of(&pool->store.pages, l->page);
    const struct region *r = region_of(&pool->store.pages, l->at.region);
    struct under under = under_of(pool, l->page, l->at);
    bool done = fence_has_passed(f, p->freed, p->arena) && fence_has_passed(f, r->freed[l->at.slot], r->arena);
    for (const struct block *b; done && (b = under_next(pool, &under));)
        if (b->state == BLOCK_SLAB) /* of its items only the newest free of all is known */
            done = fence_has_passed(f, arena_of(pool, r->arena)->last_return_tick, r->arena);
    return done;
}

static void leave_out(struct sleepers *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        lock_take(&s->pool->lock);
        bool done = is_done(s->pool, &s->list[i]);
        lock_give(&s->pool->lock);
        if (done)
            s->list[count++] = s->list[i];
        else
            stay(s, &s->list[i]);
    }
    s->count = count;
}

/* ------------------------------------------------------------------------------------------------------------ leave */

/* Takes away the mappings of free ranges; those of a private arena stay, for a graph may know them. */
static void drop_aliases(cenote_pool *pool, uint32_t page)
{
    struct page *p = page_of(&pool->store.pages, page);
    for (struct slot_ref at = p->home, next; at.region && !p->fixed; at = next) {
        struct region *r = region_of(&pool->store.pages, at.region);
        next = r->next_alias[at.slot];
        if (!slot_ref_is(p->owner, at.region, at.slot) && p->maps > 1 && !bit_is_set(r->busy, at.slot))
            trim_slot(pool, r, at.slot);
    }
}

/* Of an earlier sleep, which is no more true. */
static void forget_copy(cenote_pool *pool, struct sleeper *l)
{
    if (!l->copy)
        return;
    lock_take(&pool->lock);
    page_of(&pool->store.pages, l->page)->copy = NULL;
    lock_give(&pool->lock);
    copy_drop(l->copy);
    l->copy = NULL;
}

/* The device begins to copy the page, unless that was done once for all. */
static int begin(struct sleepers *s, struct sleeper *l, uint32_t stage)
{
    cenote_pool *pool = s->pool;
    drop_aliases(pool, l->page);
    l->is_copied = l->copy && s->what.contents == CENOTE_CONSTANT && copy_is_whole(pool, l->copy, l->at);
    if (l->is_copied)
        return CENOTE_OK;
    forget_copy(pool, l);
    l->copy = copy_make(s, l->page, l->at);
    if (!l->copy)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the contents of a page");
    int error = l->copy->kept ? courier_open(pool, stage) : CENOTE_OK;
    CUresult result = error ? CUDA_SUCCESS : copy_begin(pool, l->copy, stage);
    return result ? pool_driver_error(pool, result, "copying memory to the host") : error;
}

/*
 * At all its slots. What the driver will not unmap after others is broken: the page sleeps then, but keeps its
 * memory, and that slot is tried again when it wakes.
 */
static CUresult unmap(cenote_pool *pool, const struct page *p)
{
    uint32_t gone = 0; /* of slots that were of use */
    for (struct slot_ref at = p->home; at.region; at = region_of(&pool->store.pages, at.region)->next_alias[at.slot]) {
        struct region *r = region_of(&pool->store.pages, at.region);
        bool was_told = !bit_is_set(r->broken, at.slot); /* what a refusal left behind is of no use */
        if (was_told)
            watch_tell(pool, CENOTE_UNMAPPING, region_slot_at(r, at.slot), p->bytes);
        CUresult result = region_unmap(pool->config.device, r, at.slot);
        if (result && !gone && was_told) {
            watch_tell(pool, CENOTE_MAPPED, region_slot_at(r, at.slot), p->bytes);
            return result;
        }
        lock_take(&pool->lock);
        if (result)
            bit_set(r->broken, at.slot);
        else
            bit_clear(r->broken, at.slot);
        pool->account.stats.pages_unmapped += !result;
        lock_give(&pool->lock);
        gone += was_told;
    }
    return CUDA_SUCCESS;
}

static bool is_broken_anywhere(const struct pages *s, const struct page *p)
{
    for (struct slot_ref at = p->home; at.region; at = region_of(s, at.region)->next_alias[at.slot])
        if (bit_is_set(region_of(s, at.region)->broken, at.slot))
            return true;
    return false;
}

/* The copy is whole: the page goes to the driver. */
static int leave(struct sleepers *s, struct sleeper *l, uint32_t stage)
{
    cenote_pool *pool = s->pool;
    struct page *page = page_of(&pool->store.pages, l->page);
    if (!l->is_copied)
        copy_end(pool, l->copy, stage);
    CUresult result = unmap(pool, page);
    if (result)
        return pool_driver_error(pool, result, "unmapping memory that goes to sleep");
    bool is_broken = is_broken_anywhere(&pool->store.pages, page);
    result = is_broken ? CUDA_SUCCESS : pool->config.device->driver->cuMemRelease(page->handle);
    bool released = !is_broken && !result;
    lock_take(&pool->lock);
    s->what.pages += released ? page->bytes : 0;
    s->what.kept += l->is_copied ? 0 : l->copy->kept;
    s->what.discarded += l->copy->discarded;
    pool->account.stats.pages_released += released;
    if (released)
        pages_hold(&pool->store.pages, l->page, 0);
    pages_sleep(&pool->store.pages, l->page, l->copy);
    count_reserved(pool);
    lock_give(&pool->lock);
    l->page = 0;
    return released ? CENOTE_OK : pool_driver_error(pool, result ? result : CUDA_ERROR_UNKNOWN,
                                                    "giving back memory that sleeps");
}

/* The page that was begun by that stage is copied, and goes. LOCKING: the turn, let go of meanwhile. */
static int finish(struct sleepers *s, struct sleeper *l, uint32_t stage)
{
    cenote_pool *pool = s->pool;
    CUresult result = courier_wait(pool, stage);
    if (result)
        return pool_driver_error(pool, result, "copying memory to the host");
    if (pool_is_capturing(pool)) /* nothing is unmapped then (rule 5) */
        return error_set(CENOTE_CAPTURE, 0, "a capture has begun: what has not gone to sleep by now is awake");
    return leave(s, l, stage);
}

/*
 * One page goes while the device copies the next. After an error the others stay, and the device has none of them any
 * more. LOCKING: the turn, let go of meanwhile.
 */
static int put_to_sleep(struct sleepers *s)
{
    int error = CENOTE_OK;
    for (uint32_t i = 0; i <= s->count && !error; i++) {
        error = i < s->count ? begin(s, &s->list[i], i % STAGES) : CENOTE_OK;
        int late = i ? finish(s, &s->list[i - 1], (i - 1) % STAGES) : CENOTE_OK;
        error = error ? error : late;
    }
    CUresult result = courier_wait_for_all(s->pool);
    return error || !result ? error : pool_driver_error(s->pool, result, "copying memory to the host");
}

/* LOCKING: the turn. */
static int go(struct sleepers *s, bool asks_sources)
{
    cenote_pool *pool = s->pool;
    int error = wait_until_done(pool); /* what waits for a stream comes back, as far as it can */
    error = error ? error : sleepers_gather(s, may_sleep);
    if (!error && s->count)
        error = wait_until_done(pool);
    if (!error)
        leave_out(s);
    error = error ? error : put_to_sleep(s);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->list[i].page)
            stay(s, &s->list[i]);
    sleepers_give_courier(s); /* a source that has memory back may pause or resume as well */
    if (error || pool_is_capturing(pool))
        return error;
    if (asks_sources)
        trim_free(pool);
    else
        trim_without_sources(pool, 0, UINT64_MAX);
    return CENOTE_OK;
}

int(cenote_pool_pause)(cenote_pool *pool, cenote_sleep *sleep, size_t size)
{
    struct sleepers s;
    int error = sleepers_begin(&s, pool, sleep, size);
    return error ? error : sleepers_end(&s, go(&s, true), sleep, size);
}

/* On a thread of ours, which has no context of the program's: no function of it is called that takes memory back. */
int pause_alone(cenote_pool *pool, cenote_sleep *sleep)
{
    struct sleepers s;
    int error = sleepers_begin(&s, pool, sleep, sizeof *sleep);
    return error ? error : sleepers_end(&s, go(&s, false), sleep, sizeof *sleep);
}
