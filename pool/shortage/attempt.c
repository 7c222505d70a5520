/*
 * attempt.c: one attempt at a request that the arena could not serve from pages in place. Finds a place, plans which
 * pages go there, gives the lock back while the driver maps them, and publishes the result.
 *
 * It does not climb: shortage.c does, between two attempts. It does not
 * wait for memory, only for addresses, if none are left for a region.
 *
 *     place with pages      ---> served
 *     place without pages   ---> planned ---> created, mapped ---> published ---> served, or short: the climb goes on
 *       of very many slots  ---> taken ---> planned in portions ---> the same; or undone
 *     no place              ---> a region or segment is added ---> the climb tries again
 *
 * An attempt that fails undoes its plan. The pages that it created are spares
 * for the next attempt, and go back if the climb ends out of memory.
 *
 * LOCKING: the turn; the pool's lock only around looks and plans.
 */
#include "pool/shortage/attempt.h"

#include "pool/arenas/place.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"
#include "pool/life/watch.h"
#include "pool/mapping/aliases.h"
#include "pool/mapping/budget.h"
#include "pool/mapping/grow.h"
#include "pool/mapping/trim.h"
#include "pool/mapping/units.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"
#include "stats/account/record.h"

#define SLOTS_AT_ONCE   4096u      /* chosen, as the next: a place with more slots is planned
                                      in portions, which takes longer in all */
#define PAGES_AT_ONCE   1000u      /* of those, and where pages come: some 50 us */
#define SLIDES_MAX      (1u << 20) /* most places taken without a poll in between */

static enum attempt fail(struct climb *c, int error)
{
    c->error = error;
    return ATTEMPT_DONE;
}

static int no_books(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the books of a block");
}

/*
 * How much memory the driver has left: what it says, and by how much that
 * was wrong when it was last tried in this climb. LOCKING: the turn.
 */
uint64_t attempt_ask_outside(struct climb *c)
{
    size_t free = 0, total = 0;
    bool says = !c->pool->config.device->driver->cuMemGetInfo(&free, &total);
    int64_t has = (int64_t)free + c->misjudged;
    return c->outside = !says ? UINT64_MAX : has > 0 ? (uint64_t)has : 0;
}

/*
 * Bytes of new pages that come instead of moves: none under shortage, all for what is reserved ahead, which is not to
 * be taken from what was reserved before, and none beyond `most`, which can be had. LOCKING: the pool's lock.
 */
static uint64_t growth(const struct climb *c, uint64_t most)
{
    uint64_t bytes = c->rung > RUNG_BUDGET ? 0
                     : c->request->ahead   ? UINT64_MAX
                                           : budget_growth(c->pool, c->request->bytes, c->now);
    return bytes < most ? bytes : most;
}

/*
 * The stream of the arena can be made to wait, on the device, for
 * all that was freed up to here. 0: for nothing (order.c), or
 *
 *     * the arena is of a private group: its graphs may be replayed on any stream (rule 4);
 *     * with order:0, because the program uses blocks on streams that are not ordered behind their own;
 *     * with aliases:off, because a page has to leave its old slot first;
 *     * the stream has no handle: it is the default stream of a green context.
 *
 * LOCKING: the pool's lock.
 */
static tick reach(const struct climb *c)
{
    bool is_wanted = c->pool->config.options.order && !c->pool->store.pages.mapped_once;
    return is_wanted && !c->arena->is_private && !key_is_unnamed(c->arena->stream) ? order_reach(&c->pool->clock) : 0;
}

/* It waits for the pages of the fill. LOCKING: the turn. */
static CUresult order_fill(struct climb *c)
{
    tick covers = c->pool->remap.fill.behind;
    CUresult result = order_behind(&c->pool->clock, c->arena->stream, &covers);
    CHECK(covers > c->arena->ordered);
    lock_take(&c->pool->lock);
    c->arena->ordered = result ? c->arena->ordered : covers;
    c->pool->account.stats.orders += !result;
    lock_give(&c->pool->lock);
    return result;
}

/* The driver's part, between plan and publish. LOCKING: without the pool's lock, which it has taken when it returns. */
static CUresult run_fill(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t before = pool_now(pool);
    CUmemAllocationProp prop = pool_page_prop(pool);
    CUresult result = fill_create(&pool->remap.fill, pool->config.device, &prop);
    uint64_t created = pool_now(pool), unmapped = created;
    if (!result) {
        watch_fill_begins(pool);
        result = fill_unmap(&pool->remap.fill, pool->config.device);
        unmapped = pool_now(pool);
        if (!result && pool->remap.fill.behind)
            c->no_order = result = order_fill(c);
        if (!result)
            c->no_mapping = result =
                fill_map(&pool->remap.fill, pool->config.device, pool->access.list, pool->access.count);
        watch_fill_ends(pool, result);
    }
    uint64_t after = pool_now(pool);
    lock_take(&pool->lock);
    budget_book_fill(pool, unmapped - created, after - unmapped);
    pool->config.hooks->created(pool, created - before, after - unmapped);
    return result;
}

/*
 * The driver had the pages and would not map them: it has too many
 * mappings (rule 13). LOCKING: the pool's lock, but not between.
 */
static bool has_dropped_aliases(struct climb *c)
{
    if (c->no_mapping != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    lock_give(&c->pool->lock);
    bool dropped = aliases_drop(c->pool);
    lock_take(&c->pool->lock);
    return dropped;
}

/*
 * Pages are of two sizes, and a page cannot be cut. So free pages of other sizes than the fill creates go back to the
 * driver, as many bytes as it creates; otherwise the pool would hold both. This takes driver time as moving does, and
 * is booked so. Bytes that went. LOCKING: the turn.
 */
static uint64_t exchange(cenote_pool *pool, uint64_t bytes)
{
    const struct fill *f = &pool->remap.fill;
    uint32_t shift = pool->store.pages.shifts[f->top];
    uint64_t before = pool_now(pool), gone = trim_other_size(pool, shift, bytes),
             after = gone ? pool_now(pool) : before;
    lock_take(&pool->lock);
    budget_book_move(pool, after - before);
    lock_give(&pool->lock);
    return gone;
}

/*
 * For what the fill is about to create, less what the pool grows by rather than move pages. In units of a large page:
 * one that went for a small page would be missed soon, and a program with a few small blocks would never come to rest.
 * So the pool owes less than a large page. LOCKING: the turn.
 */
static void exchange_for_fill(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t bytes = pool->remap.fill.create_bytes, page = pages_largest(&pool->store.pages);
    if (!bytes || !pages_have_sizes(&pool->store.pages))
        return;
    lock_take(&pool->lock);
    uint64_t news = growth(c, UINT64_MAX);
    lock_give(&pool->lock);
    pool->remap.owed += news < bytes ? bytes - news : 0;
    uint64_t due = pool->remap.owed & ~(page - 1);
    pool->remap.owed -= due;
    if (due)
        exchange(pool, due);
}

/* LOCKING: the pool's lock on entry and on return; not between. */
static bool has_exchanged(struct climb *c, uint64_t bytes)
{
    if (!pages_have_sizes(&c->pool->store.pages))
        return false;
    lock_give(&c->pool->lock);
    bool has = exchange(c->pool, bytes) != 0;
    lock_take(&c->pool->lock);
    return has;
}

/*
 * The driver refused pages that it said it has. From now on in this climb as much less counts as it still says, so that
 * free pages of other sizes go. True: that is news, and the next attempt differs. LOCKING: the pool's lock on entry and
 * on return; not between.
 */
static bool has_overstated(struct climb *c)
{
    bool was_known = c->overstates;
    if (c->no_mapping)
        return false;
    lock_give(&c->pool->lock);
    c->misjudged = 0;
    uint64_t says = attempt_ask_outside(c);
    c->misjudged = says == UINT64_MAX ? 0 : -(int64_t)says;
    c->overstates |= c->misjudged != 0;
    lock_take(&c->pool->lock);
    /* news once: a driver that gives all in one piece, and no page, would be asked for both for ever */
    return !was_known && c->overstates;
}

/* Takes the place. LOCKING: the pool's lock. */
static uint32_t take_place(struct climb *c, const struct place *place)
{
    return heap_take(arena_heap(c->arena, region_of(&c->pool->store.pages, place->region)->heap), place);
}

/*
 * The place has been planned for: the driver fills it. LOCKING: the pool's lock on entry and on return; not between.
 */
static enum attempt fill_place(struct climb *c, const struct place *place)
{
    cenote_pool *pool = c->pool;
    uint32_t block = pool->remap.fill.block ? pool->remap.fill.block : take_place(c, place);
    lock_give(&pool->lock);

    exchange_for_fill(c);
    c->no_mapping = CUDA_SUCCESS;
    CUresult result = run_fill(c);
    bool has_no_order = pool->remap.fill.behind && c->no_order; /* the next attempt does without */
    while (fill_publish(&pool->remap.fill, &pool->store.pages, result, lock_portion(PAGES_AT_ONCE)))
        lock_pass(&pool->lock);
    pool->account.stats.pages_created += pool->remap.fill.creates;
    count_reserved(pool);
    if (result == CUDA_ERROR_OUT_OF_MEMORY || pool->remap.fill.creates)
        atomic_store(&pool->config.device->card->is_short,
                     result == CUDA_ERROR_OUT_OF_MEMORY && !c->no_mapping && !has_no_order);
    if (result) {
        arena_abandon(c->arena, block);
        if (has_dropped_aliases(c))
            return ATTEMPT_AGAIN;
        if (has_no_order && !driver_result_is_sticky(result))
            return ATTEMPT_AGAIN;
        if (result == CUDA_ERROR_OUT_OF_MEMORY && has_overstated(c))
            return ATTEMPT_AGAIN;
        c->driver = result;
        return result == CUDA_ERROR_OUT_OF_MEMORY ? ATTEMPT_SHORT : ATTEMPT_DONE;
    }
    pool->account.stats.pages_harvested += pool->remap.fill.harvests;
    pool->account.stats.pages_unmapped += pool->remap.fill.unmaps + pool->remap.fill.leaves;
    /* other threads had the lock meanwhile, and may have taken what was reserved before */
    if (!place_reserve_books(pool, c->request->mark)) {
        arena_abandon(c->arena, block);
        return fail(c, no_books());
    }
    c->at = place_commit(pool, c->arena, c->request, block);
    return c->at ? ATTEMPT_DONE : fail(c, place_refuse(c->request));
}

/* Of the pages that are made for the request. LOCKING: the pool's lock. */
static uint32_t grade_of(const struct climb *c)
{
    const struct request *q = c->request;
    bool is_small = q->heap || c->rung > RUNG_BUDGET; /* under shortage no page is larger than what is missing */
    return is_small ? GRADE_SMALL : units_grade(c->pool, budget_need(c->pool, q->bytes));
}

/*
 * log2 of the size of the smallest pages that may come: of those that
 * would be made, or that the pool has. LOCKING: not the pool's lock.
 */
static uint32_t least_shift(const struct climb *c)
{
    const struct pages *s = &c->pool->store.pages;
    uint32_t grade = GRADE_SMALL;
    lock_take(&c->pool->lock);
    for (uint32_t made = grade_of(c); grade < made && !s->held[grade];)
        grade++;
    lock_give(&c->pool->lock);
    return s->shifts[grade];
}

/*
 * The driver says that it has less left than is missing. Some systems have more than they say: the driver is asked for
 * all of it at once, so that a refusal costs one call and not one for each page. LOCKING: the turn.
 */
bool attempt_has_more(struct climb *c, uint64_t bytes)
{
    const struct driver *t = c->pool->config.device->driver;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = pool_page_prop(c->pool);
    uint64_t page = 1ull << c->pool->store.pages.shifts[GRADE_SMALL]; /* of the smallest that may be missing */
    bytes = (bytes + page - 1) & ~(page - 1);
    CUresult result = t->cuMemCreate(&handle, bytes, &prop, 0);
    if (!result && t->cuMemRelease(handle))
        t->cuMemRelease(handle); /* it would be lost: a refusal is asked for once more */
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    /* so much is left, if no other thread or process takes it */
    c->misjudged += (int64_t)(bytes > c->outside ? bytes - c->outside : 0);
    return true;
}

/* LOCKING: the pool's lock on entry and on return; not between. */
static enum attempt probe(struct climb *c, uint64_t bytes)
{
    lock_give(&c->pool->lock);
    bool more = attempt_has_more(c, bytes);
    lock_take(&c->pool->lock);
    return more ? ATTEMPT_AGAIN : ATTEMPT_SHORT;
}

/*
 * Bytes that may be created before the stream is made to wait for memory in flight: with order:2 no more than the pool
 * needs, in whole pages, else `most`, which is all that can be had. LOCKING: the pool's lock.
 */
static uint64_t most_before_order(const struct climb *c, uint64_t news, uint64_t most)
{
    uint64_t page = 1ull << c->pool->store.pages.shifts[grade_of(c)], room = most;
    if (c->pool->config.options.order > 1 && c->rung == RUNG_BUDGET && !c->no_order)
        room = (budget_room(c->pool, c->request->bytes) + page - 1) & ~(page - 1);
    room = room > news ? room : news;
    return room < most ? room : most;
}

/*
 * May the stream be made to wait, for `bytes` that are missing and cannot be created? Pending blocks and other pools
 * may bring enough earlier than a fence, which is behind everything that the context was given. Then the host waits
 * instead, for whatever comes first. LOCKING: the pool's lock.
 */
static bool may_order(const struct climb *c, uint64_t bytes)
{
    const cenote_stats *stats = &c->pool->account.stats;
    uint64_t pending = stats->active.current - stats->allocated.current;
    return c->rung >= RUNG_ORDER && !c->no_order && pending + c->siblings.cached < bytes;
}

/* The place is to be looked for anew in any case. LOCKING: the pool's lock on entry and on return; not between. */
static void loosen(struct climb *c, const struct loosening *units)
{
    cenote_pool *pool = c->pool;
    lock_give(&pool->lock);
    uint64_t before = pool_now(pool);
    c->no_loosening = !units_loosen(pool, units);
    uint64_t after = pool_now(pool);
    lock_take(&pool->lock);
    budget_book_move(pool, after - before);
}

/* Puts back what was planned, and the place. LOCKING: the pool's lock, but not between portions. */
static void undo(struct climb *c)
{
    struct fill *f = &c->pool->remap.fill;
    while (fill_publish(f, &c->pool->store.pages, CUDA_ERROR_OUT_OF_MEMORY, lock_portion(PAGES_AT_ONCE)))
        lock_pass(&c->pool->lock);
    arena_abandon(c->arena, f->block);
    f->block = 0;
}

/*
 * As plan_at, in portions: the place is taken first, so that the lock may be let go of. Which pages move is sorted
 * without it. LOCKING: the pool's lock, but not between portions.
 */
static enum plan plan_in_portions(struct climb *c, const struct requester *who, const struct place *place,
                                  uint64_t news, uint64_t most)
{
    cenote_pool *pool = c->pool;
    struct fill *f = &pool->remap.fill;
    struct pages *s = &pool->store.pages;
    if (!fill_hold(f, s, who, region_of(s, place->region), place->under.from, place->under.to, news))
        return PLAN_NO_MEMORY;
    f->block = take_place(c, place);
    lock_pass(&pool->lock);
    for (uint32_t grade = GRADES; grade-- > 0;) {
        fill_pick(f, s, who, grade);
        while (f->lack[grade] && pick_some(s, &f->pickers[grade], lock_portion(PAGES_AT_ONCE)))
            lock_pass(&pool->lock);
        lock_give(&pool->lock);
        pick_sort(&f->pickers[grade]);
        fill_picked(f, s, grade);
        lock_take(&pool->lock);
    }
    while (f->create_bytes <= most && fill_lift(f, s, who, lock_portion(PAGES_AT_ONCE)))
        lock_pass(&pool->lock);
    bool is_over = f->create_bytes > most;
    if (!is_over && table_reserve(&s->table, f->creates))
        return PLAN_READY;
    undo(c);
    return is_over ? PLAN_OVER_LIMIT : PLAN_NO_MEMORY;
}

/* LOCKING: the pool's lock, but not between portions. */
static enum plan plan_at(struct climb *c, const struct requester *who, const struct place *place, uint64_t news,
                         uint64_t most)
{
    struct pages *s = &c->pool->store.pages;
    if (place->under.to - place->under.from > lock_portion(SLOTS_AT_ONCE))
        return plan_in_portions(c, who, place, news, most);
    return fill_plan(&c->pool->remap.fill, s, who, region_of(s, place->region), place->under.from, place->under.to,
                     news, most);
}

/*
 * Which pages go to the place. `most`: bytes that can be created. If these and free pages are not enough, and the plan
 * is not the last one, the stream may be made to wait for pages in flight: then a place is looked for anew, with them.
 * LOCKING: the pool's lock, but not between portions.
 */
static enum plan plan(struct climb *c, const struct requester *who, struct place *place, uint64_t most, bool is_last)
{
    uint64_t news = growth(c, most), before = most_before_order(c, news, most);
    struct loosening units;
    news = who->orderable ? before : news;
    if (units_choose(c->pool, who, place, grade_of(c), news, &units) && !c->no_loosening && !is_last) {
        loosen(c, &units);
        return PLAN_LOOSENED; /* other threads may have taken the place meanwhile */
    }
    enum plan plan = plan_at(c, who, place, news, is_last ? most : before);
    bool may = before < most || (may_order(c, c->pool->remap.fill.create_bytes - most) && reach(c));
    return plan == PLAN_OVER_LIMIT && !is_last && may ? PLAN_ORDER : plan;
}

/* LOCKING: the pool's lock on entry and on return; not between. */
static enum attempt fill_with_pages(struct climb *c, const struct requester *who, struct place *place, bool is_last)
{
    cenote_pool *pool = c->pool;
    uint64_t allowance = provider_allowance(pool), most = allowance < c->outside ? allowance : c->outside, lacks;
    CHECK(provider_moves_pages(pool, c->arena)); /* a segment has its memory for as long as it lives */
    switch (plan(c, who, place, most, is_last)) {
    case PLAN_READY:
        return fill_place(c, place);
    case PLAN_LOOSENED:
        return ATTEMPT_AGAIN;
    case PLAN_ORDER:
        return ATTEMPT_ORDER;
    /* pages of other sizes go back to the driver, and at last it is asked for more than it says it has */
    case PLAN_OVER_LIMIT:
        lacks = pool->remap.fill.create_bytes;
        return has_exchanged(c, lacks) ? ATTEMPT_AGAIN : allowance < lacks ? ATTEMPT_SHORT : probe(c, lacks);
    default:
        return fail(c, error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left to plan %llu pages",
                                 (unsigned long long)(place->under.to - place->under.from)));
    }
}

/*
 * The thread polled the device, and then found a place. If the place has slid all the same, polling did not help: poll
 * less often, and double the gap each time, because a program that repeats itself would poll in vain at each step.
 */
static void note_poll(struct arena *a, const struct place *place)
{
    a->slides_allowed = !place->slid ? 0
                        : a->slides_allowed < SLIDES_MAX ? 2 * a->slides_allowed + 1
                        : a->slides_allowed;
    a->slides_left = a->slides_allowed;
}

/* The arena needs more addresses, or another segment. LOCKING: the pool's lock on entry and on return; not between. */
static enum attempt grow(struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_give(&pool->lock);
    int error = grow_arena(pool, c->arena, c->request, &c->driver);
    bool exhausted = error == CENOTE_OUT_OF_ADDRESSES && c->driver == CUDA_ERROR_OUT_OF_MEMORY;
    bool waits = exhausted && !c->request->no_wait && c->rounds++ < ROUNDS_MAX,
         again = waits && wait_for_progress(pool, UINT64_MAX, &c->driver);
    if (waits && c->driver)
        error = pool_driver_error(pool, c->driver, "waiting for addresses");
    lock_take(&pool->lock);
    if (again)
        return ATTEMPT_AGAIN;
    if (error == CENOTE_OUT_OF_MEMORY)
        return ATTEMPT_SHORT;
    return error ? fail(c, error) : ATTEMPT_AGAIN;
}

/*
 * At last, where no large page may go for the small ones that a place lacks: it begins where a large page does, and so
 * lacks none of these in front. LOCKING: the pool's lock.
 */
static struct request begun_by_large(const struct climb *c, const struct requester *who)
{
    struct request q = *c->request;
    uint64_t page = pages_largest(&c->pool->store.pages);
    if (c->rung >= RUNG_SPLIT && !who->may_unmap && !q.heap && !q.at && q.alignment < page)
        q.alignment = page;
    return q;
}

/* A place, with pages in flight that stay where they are if there is one. LOCKING: the pool's lock. */
static enum fit find(struct climb *c, struct requester *who, struct place *place)
{
    tick orderable = who->orderable;
    struct request q = begun_by_large(c, who);
    enum fit fit = place_try(c->pool, c->arena, who, &q, true, place, &c->at);
    if (!orderable || fit == FIT_NOW || fit == FIT_WITH_PAGES)
        return fit;
    /* it begins at pages that stay, of which another slot is in flight: there is one without them */
    who->orderable = 0;
    fit = place_try(c->pool, c->arena, who, &q, true, place, &c->at);
    who->orderable = orderable;
    return fit;
}

/*
 * Finds a place, and fills it. `orderable`: the stream can be made to
 * wait for memory in flight that was freed up to there; 0: it is not.
 * LOCKING: the pool's lock on entry and on return.
 */
static enum attempt place_and_fill(struct climb *c, tick orderable, bool is_last)
{
    cenote_pool *pool = c->pool;
    struct place place = {0};
    struct requester who = place_requester(pool, c->arena);
    who.anywhere |= c->rung > RUNG_BUDGET;
    who.splits = c->rung >= RUNG_SPLIT;
    who.may_unmap &= !courier_is_stuck(&pool->courier);
    who.orderable = orderable;
    if (!place_reserve_books(pool, c->request->mark))
        return fail(c, no_books());
    enum fit fit = find(c, &who, &place);
    if (fit == FIT_NOW) {
        note_poll(c->arena, &place);
        return ATTEMPT_DONE;
    }
    bool any_hole = c->rung > RUNG_BUDGET && !c->request->exclusive_pages && !c->request->extends && !c->request->ahead;
    if (any_hole && c->arena->small && place_try_heaps(pool, c->arena, &who, c->request, &c->at))
        return ATTEMPT_DONE;
    if (fit == FIT_WITH_PAGES)
        return fill_with_pages(c, &who, &place, is_last);
    if (c->request->at)
        return fail(c, place_refuse_now(pool, c->arena, c->request, fit == FIT_IN_FLIGHT));
    return grow(c);
}

/*
 * If pages cannot move: free segments, all too small for the request,
 * go back before another is taken, within the budget of moves.
 */
void attempt_replace_segments(struct climb *c)
{
    cenote_pool *pool = c->pool;
    if (provider_moves_pages(pool, c->arena))
        return;
    uint64_t before = c->now = pool_now(pool);
    lock_take(&pool->lock);
    bool may = growth(c, UINT64_MAX) < c->request->bytes || provider_guards(pool, c->arena);
    lock_give(&pool->lock);
    if (!may)
        return;
    trim_flush(pool);
    trim_segments(pool);
    uint64_t after = pool_now(pool);
    lock_take(&pool->lock);
    budget_book_move(pool, after - before);
    lock_give(&pool->lock);
}

/*
 * Finds a place and fills it. If the device may have too little memory left, the driver is asked first, so that no
 * pages are created in vain one by one. A climb asks at each further attempt, whatever the pool holds by then: pages go
 * back meanwhile, and the last refusal ends the climb, so it has to come from a plan that knew what is left. A place is
 * looked for again where a plan says so: once mappings have gone, or to have memory in flight from the second look on.
 */
enum attempt attempt_serve(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t held = pool->store.pages.reserved,
             more = pool->config.device->capacity > held ? pool->config.device->capacity - held : 0;
    bool may_lack =
        c->rung > RUNG_BUDGET || atomic_load(&pool->config.device->card->is_short) || c->request->size > more / 2;
    c->outside = UINT64_MAX;
    if (may_lack && provider_moves_pages(pool, c->arena))
        attempt_ask_outside(c);
    if (provider_moves_pages(pool, c->arena)) {
        uint64_t units = (c->request->size >> pool->store.pages.shifts[GRADE_LARGE]) + 2,
                 slots = units << (pool->store.pages.shifts[GRADE_LARGE] - pool->store.pages.shifts[GRADE_SMALL]);
        aliases_make_room(pool, (c->request->size >> least_shift(c)) + 2); /* at both edges it may touch one more */
        /* not under the pool's lock; if that fails, the plan does */
        fill_make_room(&pool->remap.fill, slots < UINT32_MAX / 2 ? (uint32_t)slots : 0);
    }
    c->now = pool_now(pool);
    lock_take(&pool->lock);
    enum attempt attempt = place_and_fill(c, 0, false);
    if (attempt == ATTEMPT_ORDER)
        attempt = place_and_fill(c, reach(c), true);
    lock_give(&pool->lock);
    return attempt;
}
