/*
 * shortage.c: serves what the arena cannot serve from pages in place: the shortage ladder.
 *
 * The thread takes the turn, because only one thread at a time changes the mappings of a pool. It makes an attempt
 * (attempt.c finds a place and fills it with pages). If physical memory is short, it climbs, with an attempt on each
 * rung:
 *
 *     RUNG_BUDGET     free pages of the same arena; complete pages of other
 *                     arenas, until the budget of moves is spent; new pages
 *     RUNG_HARVEST    any free page that may move, empty slabs, blocks whose other streams are done, free segments
 *     RUNG_CALLBACK   groups that lend; the host program may free blocks of its own
 *                     (unlocked); other pools of the device give back what is free
 *     RUNG_ORDER      free pages that the device is not done with: the stream waits for them on the device (order.c)
 *     RUNG_WAIT       wait on the host, if all that is in flight would be enough, for whatever comes first, here or in
 *                     another pool of the device, until the device is done with all that was freed when the climb got
 *                     here (not during a capture)
 *     RUNG_SPLIT      a block that lies on a part of a large page has small ones there (units.c); during a capture no
 *                     page goes for another, and a place begins with a large one instead
 *     RUNG_LENDERS    other processes of the user that lend memory of the card give some to the driver (share/wants.c)
 *     then            CENOTE_OUT_OF_MEMORY, and the explanation (explain.c) once the turn is over
 *
 * With CENOTE_NO_WAIT it calls no function of the program and leaves out the rungs that wait.
 *
 * An allocation waits for the device only here, when physical memory is short
 * (rule 12), and in attempt.c, when the device has no address left.
 *
 * LOCKING: the turn from start to end, but not in waits, in functions of the program, nor while other pools are looked
 * at; the pool's lock only around looks and plans.
 */
#include "pool/shortage/shortage.h"

#include "pool/arenas/place.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"
#include "pool/life/turn.h"
#include "pool/mapping/aliases.h"
#include "pool/mapping/grow.h"
#include "pool/mapping/trim.h"
#include "pool/provider/provider.h"
#include "pool/shortage/ask.h"
#include "pool/shortage/attempt.h"
#include "pool/shortage/sums.h"
#include "stats/account/count.h"

#define WANTS_MAX       8          /* chosen: questions to the processes that lend, for one allocation */

/* -------------------------------------------------------------------------------------------------------- the rungs */

/* Takes a place in a group that lends, if one has room in an arena of the same stream. */
static bool borrow(struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    for (uint32_t number = 1; number < pool->store.arenas.used && !c->at && !c->arena->group && !c->request->at;
         number++) {
        struct arena *a = arena_of(pool, number);
        if (!sums_may_lend(pool, a, c->arena) || !place_reserve_books(pool, c->request->mark))
            continue;
        struct request q = {.bytes = c->request->bytes,
                            .mark = c->request->mark | MARK_LENT,
                            .alignment = c->request->class == CLASS_NONE ? c->request->alignment : BLOCK_BYTES};
        struct requester who = place_requester(pool, a);
        who.anywhere = true;
        place_shape(pool, a, &q);
        place_try_heaps(pool, a, &who, &q, &c->at);
    }
    lock_give(&pool->lock);
    return c->at != 0;
}

/* Bytes that the pool may take from the device, by the driver's answer and the limit. LOCKING: the turn. */
static uint64_t room_outside(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t outside = attempt_ask_outside(c);
    lock_take(&pool->lock);
    uint64_t allowance = provider_allowance(pool);
    lock_give(&pool->lock);
    return outside < allowance ? outside : allowance;
}

/*
 * An arena whose memory cannot move has no use for free pages: as many bytes of them go back as the new segment lacks.
 */
static void make_way(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t room = room_outside(c), needed = grow_least(pool, c->arena, c->request);
    uint64_t reserved = pool->store.pages.reserved, missing = needed > room ? needed - room : 0;
    if (missing)
        trim_to(pool, reserved > missing ? reserved - missing : 0, UINT64_MAX);
}

/*
 * Returns memory that is free, but not free pages yet: pending blocks whose streams are done, pages that would not
 * leave their slots, empty slabs, free segments.
 */
static void gather(struct climb *c)
{
    cenote_pool *pool = c->pool;
    pending_poll(pool);
    aliases_mend(pool);
    trim_flush(pool);
    if (c->request->no_wait)
        return;
    trim_segments(pool);
    if (pool->config.provider == CENOTE_VMM && !provider_moves_pages(pool, c->arena))
        make_way(c);
}

/*
 * Can the request be served if the device has more left? Not if the pool's own limit refuses what would have to come
 * from outside, nor if too much is live. LOCKING: none of the pool's; the turn or a pause.
 */
static bool may_others_help(const struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    bool may = !sums_are_hopeless(pool, c->arena, c->request->bytes, c->siblings.live) &&
               sums_missing(pool, c->arena, c->request->bytes) <= provider_allowance(pool);
    lock_give(&pool->lock);
    return may;
}

/*
 * Asks the program, then the other pools if they can help: without the turn, for the shortage function may free, trim,
 * or allocate. True: the program freed some.
 */
static bool ask_others(struct climb *c)
{
    cenote_pool *pool = c->pool;
    turn_leave(pool);
    bool freed = ask_to_free(pool, c->request->bytes, &c->asks), came = false;
    if ((c->driver = turn_resume(pool)))
        return false;
    turn_pause(pool);
    siblings_look(&c->siblings, pool);
    if (may_others_help(c))
        siblings_poll(&c->siblings, pool, &came); /* what they have then may still come back */
    turn_go_on(pool);
    return freed;
}

/* --------------------------------------------------------------------------------------------------------- the sums */

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
    uint64_t allowance = provider_allowance(pool), missing = sums_missing(pool, c->arena, c->request->bytes);
    lock_give(&pool->lock);
    if (provider_source(pool, c->arena))
        return missing < count_rounded(c->request->bytes) && missing <= allowance;
    if (missing > allowance)
        return false;
    return missing <= cached || missing - cached <= room ||
           (provider_moves_pages(pool, c->arena) && attempt_has_more(c, missing - cached));
}

/* -------------------------------------------------------------------------------------------------------- the climb */

struct around {
    struct sight seen;
    enum awaited here, there;   /* to wait for: in this pool, in other pools of the device */
};

/* One look at this pool, and one at the others if nothing has come back here. True: something has. */
static bool look_around(struct climb *c, struct around *a)
{
    a->here = wait_look(c->pool, c->limit, &c->driver);
    a->there = AWAIT_NOTHING;
    bool came = wait_came(c->pool, &a->seen);
    if (came || c->driver || !c->siblings.pools)
        return came;
    turn_pause(c->pool);
    a->there = siblings_poll(&c->siblings, c->pool, &came);
    turn_go_on(c->pool);
    return came;
}

static bool wait_around(struct climb *c, const struct around *a, uint32_t looks)
{
    if (a->here >= a->there || a->there == AWAIT_EVENTS)
        return wait_for_rest(c->pool, a->here >= a->there ? a->here : a->there, looks, &c->driver);
    turn_pause(c->pool);
    bool waited = siblings_wait(&c->siblings, c->pool, a->there);
    turn_go_on(c->pool);
    return waited;
}

/*
 * Waits until something has come back, if that may help. What other threads free meanwhile belongs to the next round.
 */
static bool wait_a_while(struct climb *c)
{
    struct around around = {{0}, AWAIT_NOTHING, AWAIT_NOTHING};
    uint32_t looks = 0;
    if (!may_waiting_help(c))
        return false;
    wait_came(c->pool, &around.seen);
    for (; !look_around(c, &around); looks++)
        if (c->driver || !wait_around(c, &around, looks))
            return c->driver != CUDA_SUCCESS; /* the climb ends with that error */
    if (around.here == AWAIT_NOTHING && around.there == AWAIT_NOTHING && c->rounds++ >= ROUNDS_MAX)
        return false; /* what came was freed after the round began: that could go on for ever */
    wait_count(c->pool, looks);
    gather(c);
    return true;
}

/* What is freed from now on belongs to the next round. */
static void begin_round(struct climb *c)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    c->limit = pool->clock.fences.now;
    c->stir = siblings_stir(pool) + c->siblings.stir;
    lock_give(&pool->lock);
    c->siblings.count = 0;
}

/*
 * Other threads have taken what came back. If memory has changed hands since the last round began, here or in another
 * pool, the thread waits for that, too. The naps grow with each round, because other threads may pass memory to each
 * other for ever.
 */
static bool another_round(struct climb *c)
{
    uint64_t before = c->stir;
    bool came = false;
    if (c->rounds++ >= ROUNDS_MAX)
        return false;
    if (c->rounds > 1)
        wait_for_rest(c->pool, AWAIT_EVENTS, (uint32_t)c->rounds, &c->driver);
    if (c->siblings.pools && may_others_help(c)) {
        turn_pause(c->pool);
        siblings_poll(&c->siblings, c->pool, &came);
        turn_go_on(c->pool);
    }
    begin_round(c);
    return came || c->stir != before;
}

/* Places take pages that are smaller than what may come there; or, during a capture, begin with a large one. */
static bool may_split(const struct climb *c)
{
    return pages_have_sizes(&c->pool->store.pages) && provider_moves_pages(c->pool, c->arena);
}

/*
 * What the other processes gave is the driver's. A third process may take it: then they are asked again. True: they
 * gave some. LOCKING: the turn, let go of meanwhile, so that no process waits for one that waits for it.
 */
static bool ask_lenders(struct climb *c)
{
    cenote_pool *pool = c->pool;
    uint64_t room = room_outside(c), page = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    lock_take(&pool->lock);
    uint64_t allowance = provider_allowance(pool), missing = sums_missing(pool, c->arena, c->request->bytes) + page;
    lock_give(&pool->lock);
    if (c->driver || missing > allowance || c->lenders++ >= WANTS_MAX)
        return false;
    turn_leave(pool);
    uint64_t gave = pool->config.hooks->want(pool, missing > room ? missing - room : page, &c->patience);
    c->driver = turn_resume(pool);
    return gave && !c->driver;
}

/* The program is asked, and asked again as long as it frees something. */
static bool call_back(struct climb *c)
{
    if (borrow(c))
        return true;
    c->repeats = ask_others(c);
    if (c->repeats) {
        c->driver = events_poll(&c->pool->clock, UINT64_MAX);
        gather(c);
    }
    return true;
}

/*
 * Does the work of the rung. A hopeless request asks only the program,
 * siblings and groups that lend. False: it is in vain to try.
 */
static bool work(struct climb *c, bool hopeless)
{
    if (c->request->no_wait && c->rung > RUNG_HARVEST && c->rung != RUNG_SPLIT)
        return c->rung == RUNG_CALLBACK && !c->request->ahead && borrow(c);
    switch (c->rung) {
    case RUNG_BUDGET:
        return true;
    case RUNG_HARVEST:
        if (!hopeless)
            gather(c);
        return true;
    case RUNG_CALLBACK:
        return call_back(c);
    case RUNG_ORDER:
        begin_round(c);
        return true;
    case RUNG_WAIT:
        return c->repeats = borrow(c) || (!hopeless && (wait_a_while(c) || another_round(c)));
    case RUNG_SPLIT:
        return !hopeless && may_split(c);
    case RUNG_LENDERS:
        return c->repeats = !hopeless && ask_lenders(c);
    }
    return false;
}

/* Goes on to the next rung where there is something to try. False: there is none. */
static bool climb_higher(struct climb *c, bool hopeless)
{
    cenote_pool *pool = c->pool;
    lock_take(&pool->lock);
    pool->account.stats.retries += c->rung == RUNG_BUDGET;
    lock_give(&pool->lock);
    c->siblings.unmap = c->no_mapping == CUDA_ERROR_OUT_OF_MEMORY;
    do {
        if (c->rung == RUNG_LENDERS && !c->repeats)
            return false;
        c->rung += !c->repeats;
        c->repeats = false;
    } while (!work(c, hopeless));
    return true;
}

/* -------------------------------------------------------------------------------------------------- the whole climb */

/* Pages that failed attempts have created go back first, so that the explanation has the figures after that. */
static int out_of_memory(struct climb *c)
{
    lock_take(&c->pool->lock);
    c->pool->account.stats.ooms += !c->request->no_wait;
    lock_give(&c->pool->lock);
    trim_spares(c->pool);
    return CENOTE_OUT_OF_MEMORY;
}

static int climb(struct climb *c)
{
    cenote_pool *pool = c->pool;
    if (c->request->bytes > pool->config.device->capacity && !provider_source(pool, c->arena))
        return c->request->at ? place_refuse(c->request) : out_of_memory(c); /* no rung helps */
    c->driver = events_poll(&pool->clock, UINT64_MAX);
    if (!c->driver) {
        pending_poll(pool);
        if (!c->request->no_wait)
            attempt_replace_segments(c);
    }
    /* a source's function ran, and the thread did not get back into the context */
    while (!c->driver && !(c->driver = device_entered())) {
        int error = prove_pages(pool); /* the device may have been too full to try a page before */
        if (error)
            return error;
        bool hopeless = is_hopeless(c);
        bool asks_first = c->request->at && c->rung == RUNG_BUDGET; /* whether the address is free at all */
        enum attempt attempt = hopeless && !asks_first ? ATTEMPT_SHORT : attempt_serve(c);
        if (c->at || c->error)
            return c->error;
        if (attempt != ATTEMPT_SHORT)
            continue;
        c->driver = CUDA_SUCCESS;
        if (!climb_higher(c, hopeless))
            return out_of_memory(c);
        if (c->at)
            return CENOTE_OK;
    }
    return pool_driver_error(pool, c->driver, "serving an allocation");
}

/* There is none without a wait. To ask is cheap, and no mistake: nothing is explained. */
int shortage_refuse_now(const struct request *q)
{
    return error_set(CENOTE_OUT_OF_MEMORY | ERROR_ANSWER, 0,
                     "%llu bytes are not free now within the limit, and the call does not wait: free some, or allocate "
                     "without CENOTE_NO_WAIT",
                     (unsigned long long)q->bytes);
}

/* The pool has served a request, and may have grown. LOCKING: the turn. */
static void tidy(cenote_pool *pool, uint64_t before)
{
    if (pool->store.pages.reserved > before)
        trim_surplus(pool);
    pool->config.hooks->decay(pool, DECAY_IN_PASSING);
}

/* Serves a request for which pages are missing, or returns an error with its message. LOCKING: none held. */
int shortage_serve(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at)
{
    struct climb c = {.pool = pool, .arena = a, .request = q};
    if (q->no_wait || q->extends) /* who extends a block names no stream: it may have ended */
        c.no_order = CUDA_ERROR_NOT_READY;
    if (!q->no_wait)
        siblings_look(&c.siblings, pool);
    int error = q->no_wait && !q->ahead ? turn_begin_now(pool) : turn_begin(pool);
    if (error)
        return error;
    uint64_t before = pool->store.pages.reserved;
    error = climb(&c);
    if (!error && !q->no_wait)
        tidy(pool, before);
    turn_end(pool);
    *at = c.at;
    if (error == CENOTE_OUT_OF_MEMORY)
        return q->no_wait ? shortage_refuse_now(q) : pool->config.hooks->explain(pool, q->bytes);
    return error;
}
