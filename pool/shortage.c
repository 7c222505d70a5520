/*
 * shortage.c: what the arena could not serve from pages in place. The ladder.
 *
 * A thread that gets here takes the turn: one at a time changes the mappings of a pool. It looks for a place, plans which pages go there,
 * lets go of the lock, has the driver do it, and publishes the result. When physical memory is short it climbs:
 *
 *     RUNG_BUDGET     own free pages, complete pages of other arenas while moving is within its budget, then new pages
 *     RUNG_HARVEST    any free page that may move, empty slabs, blocks whose other streams are done, free segments
 *     RUNG_CALLBACK   groups that lend; the host program may free blocks of its own (unlocked); other pools of the device give back what is free
 *     RUNG_WAIT       wait on the host, if all that is in flight would be enough, for whatever comes first, here or in another pool of the
 *                     device, until the device is done with all that was freed when the climb got here (not during a capture)
 *     then            CENOTE_OUT_OF_MEMORY, and the explanation (explain.c) once the turn is over
 *
 * This is the only place where an allocation waits for the device, and it does so only when physical memory is short (rule 16).
 *
 * Nothing is half done at any point: what a failed attempt planned is put back before the next rung. The pages it created are spares for
 * the next, and go back when the climb ends out of memory.
 *
 * LOCKING: the turn from start to end, but not across waits and functions of the program; the pool's lock only around looks and plans.
 */
#include "base/check.h"
#include "stats/account/count.h"
#include "stats/account/record.h"

#define HARVEST_GRACE_NS 100000000u /* driver time for moves that nothing has to pay for: too short to be noticed at program start */
#define SLIDES_MAX      (1u << 20) /* places taken without asking the device, after that many questions in vain */
#define ROUNDS_MAX      256        /* for one allocation: other threads may take for ever what comes back. A quarter of a second */
#define CALLBACKS_MAX   8          /* for one allocation: a program that always says it freed something must not keep us here */

enum rung { RUNG_BUDGET, RUNG_HARVEST, RUNG_CALLBACK, RUNG_WAIT };

/* One allocation on its way up. */
struct climb {
    cenote_pool          *pool;
    struct arena         *arena;
    const struct request *request;
    enum rung             rung;
    int                   callbacks;
    tick                  limit;    /* RUNG_WAIT: what is freed later is waited for in another round */
    int                   rounds;   /* of RUNG_WAIT, and waits for addresses */
    struct siblings       siblings;
    uint64_t              stir;     /* theirs when the last round began */
    uint64_t              left;     /* bytes that the driver says it has left, UINT64_MAX: not asked, or it has more */
    bool                  has_more; /* than it says */
    uint64_t              refused;  /* bytes asked for in one piece and refused, 0: none, */
    uint64_t              left_then;/* and what it said it had left */
    uint64_t              now;      /* when the attempt began, for the harvest budget */
    uint64_t              at;       /* the result */
    int                   error;
    CUresult              driver;   /* what the driver said last; sticky: the end */
};

enum step {
    STEP_DONE,          /* served, or failed for good: climb.error says */
    STEP_AGAIN,         /* something changed: look again on the same rung */
    STEP_SHORT          /* no physical memory on this rung */
};

static enum step fail(struct climb *c, int error)
{
    c->error = error;
    return STEP_DONE;
}

/* ------------------------------------------------------------------------------------------------------------------------- one attempt */

/*
 * Moving a page costs a fraction of creating one, so that moves may take as long as creations did, and beyond that their part of the
 * wall time: a program that repeats itself settles within the first, one that never does is held to the second. LOCKING: the pool's lock.
 */
static bool may_harvest(const struct climb *c)
{
    const cenote_pool *pool = c->pool;
    double budget = pool->config.options.harvest_budget;
    if (c->rung > RUNG_BUDGET || budget < 0)
        return true;
    uint64_t start = budget > 0 ? HARVEST_GRACE_NS + pool->remap.creating_ns : 0;
    return (double)pool->remap.moving_ns <= budget * (double)(c->now - pool->config.opened_ns) + (double)start;
}

/* The driver's part, between plan and publish. */
static CUresult run_fill(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t before = pool_now(pool);
    CUresult result = fill_create(&pool->remap.fill, pool->config.device);
    if (!result)
        watch_fill_begins(pool);
    uint64_t created = pool_now(pool);
    if (!result) {
        result = fill_map(&pool->remap.fill, pool->config.device, pool->access.list, pool->access.count);
        watch_fill_ends(pool, result);
    }
    uint64_t after = pool_now(pool);
    lock_take(&pool->lock);
    pool->remap.creating_ns += created - before;
    pool->config.hooks->created(pool, created - before, after - created);
    if (pool->remap.fill.harvests || pool->remap.fill.unmaps)
        pool->remap.moving_ns += after - created;
    return result;
}

/*
 * The place has been planned for: the driver fills it. LOCKING: the pool's lock on entry and on return; not between.
 */
static enum step fill_place(struct climb *c, const struct place *place)
{
    cenote_pool *pool = c->pool;
    uint32_t block = heap_take(&c->arena->heap, place);
    lock_give(&pool->lock);

    CUresult result = run_fill(c);
    fill_publish(&pool->remap.fill, &pool->store.pages, result);
    pool->account.stats.pages_created += pool->remap.fill.creates;
    count_reserved(pool);
    if (result == CUDA_ERROR_OUT_OF_MEMORY || pool->remap.fill.creates)
        atomic_store(&pool->config.device->is_short, result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result) {
        arena_abandon(c->arena, block);
        c->driver = result;
        return result == CUDA_ERROR_OUT_OF_MEMORY ? STEP_SHORT : STEP_DONE;
    }
    pool->account.stats.pages_harvested += pool->remap.fill.harvests;
    pool->account.stats.pages_unmapped += pool->remap.fill.unmaps;
    c->at = pool_commit(pool, c->arena, c->request, block);
    count_alloc(pool, c->arena, c->request);
    record_taken(pool, c->at, c->request, c->arena);
    return STEP_DONE;
}

/* What the driver says it has left. LOCKING: the turn. */
static void ask_what_is_left(struct climb *c)
{
    size_t left = 0, total = 0;
    c->left = c->has_more || c->pool->config.device->driver->cuMemGetInfo(&left, &total) ? UINT64_MAX : left;
}

/*
 * The driver says that it has less left than is missing. Some systems have more than they say: the driver is asked for all of it at once, so
 * that a refusal costs one call and not one for each page. It is asked again once less is missing, or more is left. LOCKING: the turn.
 */
static bool has_more(struct climb *c, uint64_t bytes)
{
    const struct driver *t = c->pool->config.device->driver;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = device_page_prop(c->pool->config.device);
    uint64_t page = 1ull << c->pool->store.pages.shift;
    bytes = (bytes + page - 1) & ~(page - 1);
    if (c->refused && bytes >= c->refused && c->left <= c->left_then)
        return false;
    CUresult result = t->cuMemCreate(&handle, bytes, &prop, 0);
    if (!result && t->cuMemRelease(handle))
        t->cuMemRelease(handle); /* it would be lost: a refusal is asked for once more */
    c->has_more = result != CUDA_ERROR_OUT_OF_MEMORY;
    c->refused = bytes;
    c->left_then = c->left;
    return c->has_more;
}

/* LOCKING: the pool's lock on entry and on return; not between. */
static enum step probe(struct climb *c, uint64_t bytes)
{
    lock_give(&c->pool->lock);
    bool more = has_more(c, bytes);
    lock_take(&c->pool->lock);
    return more ? STEP_AGAIN : STEP_SHORT;
}

/* LOCKING: the pool's lock. */
static enum step fill_from_plan(struct climb *c, const struct requester *who, const struct place *place)
{
    cenote_pool *pool = c->pool;
    struct region *r = region_of(&pool->store.pages, place->region);
    struct slots under = place->under;
    uint64_t allowance = source_allowance(pool), most = allowance < c->left ? allowance : c->left;
    switch (fill_plan(&pool->remap.fill, &pool->store.pages, who, r, under.from, under.to, may_harvest(c), most)) {
    case PLAN_READY:
        return fill_place(c, place);
    case PLAN_OVER_LIMIT:
        return allowance >> r->shift < pool->remap.fill.creates ? STEP_SHORT : probe(c, (uint64_t)pool->remap.fill.creates << r->shift);
    default:
        return fail(c, error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left to plan %llu pages",
                                 (unsigned long long)(under.to - under.from)));
    }
}

/*
 * The device was asked, and a place was there. If it is one that has slid all the same, asking did not help: a program that repeats itself
 * would ask in vain at each step.
 */
static void note_question(struct arena *a, const struct place *place)
{
    a->skip_length = !place->slid ? 0 : a->skip_length < SLIDES_MAX ? 2 * a->skip_length + 1 : a->skip_length;
    a->skips_left = a->skip_length;
}

/* LOCKING: the pool's lock on entry and on return. */
static enum step place_and_fill(struct climb *c)
{
    cenote_pool *pool = c->pool;
    struct place place = {0};
    struct requester who = pool_requester(pool, c->arena);
    if (!pool_reserve_books(pool, c->request->mark))
        return fail(c, error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the books of a block"));
    enum fit fit = pool_try(pool, c->arena, &who, c->request, true, &place, &c->at);
    if (fit == FIT_NOW) {
        note_question(c->arena, &place);
        return STEP_DONE;
    }
    if (fit == FIT_WITH_PAGES)
        return fill_from_plan(c, &who, &place);
    if (c->request->at)
        return fail(c, fit == FIT_IN_FLIGHT ?
                    error_set(CENOTE_BUSY | ERROR_ANSWER, 0, "the device is not done with what lay at %#llx: wait for its streams and ask again",
                              (unsigned long long)c->request->at) :
                    error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "%llu bytes at %#llx are not free memory of this stream and group",
                              (unsigned long long)c->request->bytes, (unsigned long long)c->request->at));

    lock_give(&pool->lock);
    int error = source_grow(pool, c->arena, c->request, &c->driver);
    bool exhausted = error == CENOTE_OUT_OF_ADDRESSES && c->driver == CUDA_ERROR_OUT_OF_MEMORY;
    bool again = exhausted && c->rounds++ < ROUNDS_MAX && wait_for_progress(pool, UINT64_MAX, &c->driver);
    lock_take(&pool->lock);
    if (again)
        return STEP_AGAIN;
    if (error == CENOTE_OUT_OF_MEMORY)
        return STEP_SHORT;
    return error ? fail(c, error) : STEP_AGAIN;
}

/* -------------------------------------------------------------------------------------------------------------------------- the rungs */

/* A group that lends may have a place for it, in the order of the same stream. */
static bool borrow(struct climb *c)
{
    cenote_pool *pool = c->pool;
    struct place place;
    lock_take(&pool->lock);
    for (uint32_t number = 1; number < pool->store.arenas.used && !c->at && !c->arena->group && !c->request->at; number++) {
        struct arena *a = arena_of(pool, number);
        if (!sums_may_lend(pool, a, c->arena) || !pool_reserve_books(pool, c->request->mark))
            continue;
        struct request q = {.bytes = c->request->bytes,
                            .mark = c->request->mark | MARK_LENT,
                            .alignment = c->request->class == CLASS_NONE ? c->request->alignment : BLOCK_BYTES};
        struct requester who = pool_requester(pool, a);
        pool_shape(pool, a, &q);
        pool_try(pool, a, &who, &q, true, &place, &c->at);
    }
    lock_give(&pool->lock);
    return c->at != 0;
}

/* Bytes that the pool may take of the device, as far as can be said. LOCKING: the turn. */
static uint64_t room_outside(struct climb *c)
{
    cenote_pool *pool = c->pool;
    ask_what_is_left(c);
    lock_take(&pool->lock);
    uint64_t allowance = source_allowance(pool);
    lock_give(&pool->lock);
    return c->left < allowance ? c->left : allowance;
}

/* Pages are of no use to a source, but they stand before it: as many as it lacks go. */
static void make_way(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t room = room_outside(c), needed = source_least(pool, c->arena, c->request);
    uint64_t reserved = pool->store.pages.reserved, missing = needed > room ? needed - room : 0;
    if (missing)
        trim_to(pool, reserved > missing ? reserved - missing : 0, UINT64_MAX);
}

/* What is free but not where the picker looks comes back: empty slabs, blocks that waited, segments. */
static void gather(struct climb *c)
{
    cenote_pool *pool = c->pool;
    pending_poll(pool);
    trim_flush(pool);
    trim_segments(pool);
    if (pool->config.provider == CENOTE_VMM && !source_moves_pages(pool, c->arena))
        make_way(c);
}

/* The turn is let go of: the callback may free, trim, or allocate. */
static bool ask_others(struct climb *c)
{
    cenote_pool *pool = c->pool;
    turn_end(pool);
    bool freed = c->callbacks++ < CALLBACKS_MAX && ask_to_free(pool, c->request->bytes), came = false;
    if ((c->driver = turn_resume(pool)))
        return false;
    turn_pause(pool);
    siblings_visit(&c->siblings, pool, &came);
    turn_go_on(pool);
    return freed;
}

/* ---------------------------------------------------------------------------------------------------------------------------- the sums */

/* LOCKING: the turn. */
static bool is_hopeless(const struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    bool hopeless = sums_are_hopeless(pool, c->arena, c->request->bytes, c->siblings.live);
    lock_give(&pool->lock);
    return hopeless;
}

/* A source has refused and does not say by how much: anything that comes back may help. LOCKING: the turn. */
static bool may_waiting_help(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t cached = c->siblings.cached, room = room_outside(c);
    lock_take(&pool->lock);
    uint64_t allowance = source_allowance(pool), missing = sums_missing(pool, c->arena, c->request->bytes);
    lock_give(&pool->lock);
    if (source_is_foreign(pool, c->arena))
        return missing < count_rounded(c->request->bytes) && missing <= allowance;
    if (missing > allowance)
        return false;
    return missing <= cached || missing - cached <= room || (source_moves_pages(pool, c->arena) && has_more(c, missing - cached));
}

/* --------------------------------------------------------------------------------------------------------------------------- the climb */

struct around {
    struct sight seen;
    enum left here, there;  /* to wait for: in this pool, in other pools of the device */
};

/* One look at this pool, and one at the others if nothing has come back here. True: something has. */
static bool look_around(struct climb *c, struct around *a)
{
    a->here = wait_look(c->pool, c->limit, &c->driver);
    a->there = LEFT_NOTHING;
    bool came = wait_came(c->pool, &a->seen);
    if (came || c->driver || !c->siblings.pools)
        return came;
    turn_pause(c->pool);
    a->there = siblings_visit(&c->siblings, c->pool, &came);
    turn_go_on(c->pool);
    return came;
}

static bool wait_around(struct climb *c, const struct around *a, uint32_t looks)
{
    if (a->here >= a->there || a->there == LEFT_EVENTS)
        return wait_for_left(c->pool, a->here >= a->there ? a->here : a->there, looks, &c->driver);
    turn_pause(c->pool);
    bool waited = siblings_wait(&c->siblings, c->pool, a->there);
    turn_go_on(c->pool);
    return waited;
}

/* Waits for what may help, as long as something may. What other threads free meanwhile is for another round. */
static bool wait_a_while(struct climb *c)
{
    struct around around = {{0}, LEFT_NOTHING, LEFT_NOTHING};
    uint32_t looks = 0;
    if (!may_waiting_help(c))
        return false;
    wait_came(c->pool, &around.seen);
    for (; !look_around(c, &around); looks++)
        if (c->driver || !wait_around(c, &around, looks))
            return c->driver != CUDA_SUCCESS; /* the climb ends with that error */
    if (around.here == LEFT_NOTHING && around.there == LEFT_NOTHING && c->rounds++ >= ROUNDS_MAX)
        return false; /* what came was freed after the round began, and so it may go on for ever */
    wait_count(c->pool, looks);
    gather(c);
    return true;
}

/* What is freed from now on is for another round. */
static void begin_round(struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    c->limit = pool->store.pages.fences.now;
    c->stir = siblings_stir(pool) + c->siblings.stir;
    lock_give(&pool->lock);
    c->rung = RUNG_WAIT;
    c->siblings.count = 0;
}

/*
 * Other threads have taken what came back, but since the last round began memory has gone from one hand to another, here or in another pool:
 * that is waited for, too. The longer it takes the longer are the naps: another thread may keep what it has in turn for ever.
 */
static bool another_round(struct climb *c)
{
    uint64_t before = c->stir;
    bool came = false;
    if (c->rounds++ >= ROUNDS_MAX)
        return false;
    if (c->rounds > 1)
        wait_for_left(c->pool, LEFT_EVENTS, (uint32_t)c->rounds, &c->driver);
    if (c->siblings.pools) {
        turn_pause(c->pool);
        siblings_visit(&c->siblings, c->pool, &came);
        turn_go_on(c->pool);
    }
    begin_round(c);
    return came || c->stir != before;
}

/* One rung up, and what belongs to it; where it is hopeless only the program is asked. False: there is none left. */
static bool climb_higher(struct climb *c, bool hopeless)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    pool->account.stats.retries += c->rung == RUNG_BUDGET;
    lock_give(&pool->lock);
    switch (c->rung) {
    case RUNG_BUDGET:
        c->rung = RUNG_HARVEST;
        if (!hopeless)
            gather(c);
        return true;
    case RUNG_HARVEST:
        c->rung = RUNG_CALLBACK;
        if (!borrow(c) && ask_others(c)) {
            c->rung = RUNG_HARVEST; /* and once more up from there */
            c->driver = wait_poll(pool, UINT64_MAX);
            gather(c);
        }
        return true;
    case RUNG_CALLBACK:
        begin_round(c);
        return climb_higher(c, hopeless);
    default:
        return borrow(c) || (!hopeless && (wait_a_while(c) || another_round(c)));
    }
}

/* Free segments, all too small for the request, go back before another is taken, within the budget: harvest where pages cannot move. */
static void replace_segments(struct climb *c)
{
    cenote_pool *pool = c->pool;
    if (source_moves_pages(pool, c->arena))
        return;
    uint64_t before = c->now = pool_now(pool);
    lock_take(&pool->lock);
    bool may = may_harvest(c) || source_guards(pool, c->arena);
    lock_give(&pool->lock);
    if (!may)
        return;
    trim_flush(pool);
    trim_segments(pool);
    uint64_t after = pool_now(pool);
    lock_take(&pool->lock);
    pool->remap.moving_ns += after - before;
    lock_give(&pool->lock);
}

/* --------------------------------------------------------------------------------------------------------------------- the whole climb */

/*
 * Looks for a place and fills it. What the driver has left is asked first where it may be too little, so that pages are not created in vain
 * one by one.
 */
static enum step attempt(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t held = pool->store.pages.reserved, more = pool->config.device->capacity > held ? pool->config.device->capacity - held : 0;
    c->left = UINT64_MAX;
    if ((atomic_load(&pool->config.device->is_short) || c->request->size > more / 2) && source_moves_pages(pool, c->arena))
        ask_what_is_left(c);
    c->now = pool_now(pool);
    lock_take(&pool->lock);
    enum step step = place_and_fill(c);
    lock_give(&pool->lock);
    return step;
}

/* What was created in vain goes back first, so that the explanation has the figures of afterwards. */
static int out_of_memory(struct climb *c)
{
    lock_take(&c->pool->lock);
    c->pool->account.stats.ooms++;
    lock_give(&c->pool->lock);
    trim_spares(c->pool);
    return CENOTE_OUT_OF_MEMORY;
}

static int climb(struct climb *c)
{
    cenote_pool *pool = c->pool;
    if (c->request->bytes > pool->config.device->capacity && !source_is_foreign(pool, c->arena))
        return out_of_memory(c); /* no rung helps */
    c->driver = wait_poll(pool, UINT64_MAX);
    if (!c->driver) {
        pending_poll(pool);
        replace_segments(c);
    }
    while (!c->driver) {
        bool hopeless = is_hopeless(c);
        enum step step = hopeless ? STEP_SHORT : attempt(c);
        if (c->at || c->error)
            return c->error;
        if (step != STEP_SHORT)
            continue;
        c->driver = CUDA_SUCCESS;
        if (!climb_higher(c, hopeless))
            return out_of_memory(c);
        if (c->at)
            return CENOTE_OK;
    }
    return pool_driver_error(pool, c->driver, "serving an allocation");
}

/* Serves what the arena could not, or says why it cannot be. LOCKING: none held. */
int shortage_serve(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at)
{
    struct climb c = {.pool = pool, .arena = a, .request = q};
    siblings_look(&c.siblings, pool);
    int error = turn_begin(pool);
    if (error)
        return error;
    uint64_t before = pool->store.pages.reserved;
    error = climb(&c);
    if (!error && pool->store.pages.reserved > before)
        trim_surplus(pool);
    if (!error)
        pool->config.hooks->decay(pool, DECAY_IN_PASSING);
    turn_end(pool);
    *at = c.at;
    return error == CENOTE_OUT_OF_MEMORY ? pool->config.hooks->explain(pool, q->bytes) : error;
}
