/*
 * extend.c: a live block grows at its place.
 *
 * What it lacks is asked for as a block that has to lie just behind it (request.h: `extends`), on the same road as any
 * other: from pages in place, or by shortage.c. place_commit makes that its end. So nothing here knows pages. The
 * stream is that of the block, and is not named: nothing makes it wait, for it may have ended.
 *
 *     [ block ][ free, or virgin: taken for it ]  --->  [ block                ]
 *
 * LOCKING: as each function says.
 */
#include "pool/arenas/place.h"
#include "pool/calls/alloc.h"
#include "pool/calls/give_out.h"
#include "pool/life/pool.h"
#include "pool/life/watch.h"

/* LOCKING: the pool's lock. */
static bool sleeps(const cenote_pool *pool, const struct block_ref *w)
{
    struct slots under = slots_under(w->region, w->start, w->size);
    bool sleeps = false;
    for (uint32_t slot = under.from; slot < under.to && !sleeps; slot += region_span(w->region, slot))
        sleeps = page_of(&pool->store.pages, w->region->page[slot])->leaving;
    return sleeps;
}

/* A capture is open on the stream, and draws its memory elsewhere. LOCKING: the pool's lock. */
static bool is_captured_elsewhere(const cenote_pool *pool, const struct arena *a)
{
    for (uint32_t i = 0; i < pool->groups.capture_count; i++)
        if (pool->groups.captures[i].stream == a->stream && !a->is_private)
            return true;
    return false;
}

/* May the block grow at all? LOCKING: the pool's lock. */
static int check(const cenote_pool *pool, const struct block_ref *w, uint64_t bytes)
{
    unsigned long long has = w->requested;
    if (bytes <= w->requested)
        return error_set(CENOTE_INVALID, 0, "the block at %#llx has %llu bytes: it grows to more, not to %llu",
                         (unsigned long long)w->start, has, (unsigned long long)bytes);
    if (w->arena->retired)
        return error_set(CENOTE_INVALID, 0, "the stream or the group of the block is gone: it cannot grow");
    if (is_captured_elsewhere(pool, w->arena))
        return error_set(CENOTE_CAPTURE, 0,
                         "a capture is open on the stream of the block: it takes memory from its private group alone");
    if (index_find(&pool->exports.by_block, w->start))
        return error_set(CENOTE_BUSY | ERROR_ANSWER, 0, "the block was exported: other processes know how long it is");
    if (sleeps(pool, w))
        return error_set(CENOTE_BUSY | ERROR_ANSWER, 0, "the block sleeps: cenote_pool_resume comes first");
    return CENOTE_OK;
}

/* What the block lacks, as a request. LOCKING: the pool's lock. */
static struct request request_behind(const cenote_pool *pool, const struct block_ref *w, uint64_t bytes)
{
    struct request q = {.bytes = bytes, .alignment = BLOCK_BYTES, .at = w->start, .mark = *w->mark};
    place_shape(pool, w->arena, &q);
    q.at += w->size;
    q.size -= w->size;
    q.bytes -= w->requested;
    q.heap = w->region->heap;
    q.extends = w->block;
    return q;
}

/* LOCKING: the pool's lock, given back. */
static int extend(cenote_pool *pool, const struct block_ref *w, uint64_t bytes)
{
    struct arena *a = w->arena;
    struct request q = request_behind(pool, w, bytes);
    struct requester who = place_requester(pool, a);
    struct place place;
    uint64_t at = 0;
    a->captured |= a->is_private && !who.may_unmap;
    enum fit fit = place_reserve_books(pool, q.mark) ? place_try(pool, a, &who, &q, true, &place, &at) : FIT_WITH_PAGES;
    int error = fit == FIT_NOT ? place_refuse(&q) : CENOTE_OK;
    if (fit != FIT_NOW && !error)
        alloc_begin_slow(pool, a);
    lock_give(&pool->lock);
    return fit == FIT_NOW || error ? error : alloc_serve_slow(pool, a, &q, &at);
}

static int extended(cenote_pool *pool, void *block, uint64_t bytes, CUstream stream, bool held, int error)
{
    if (!error && watch_hears(pool, CENOTE_EXTENDED))
        watch_tell_block(pool, CENOTE_EXTENDED, block, bytes, stream);
    if (held)
        give_out(pool, &block, 1);
    return error;
}

/* A shortage function, or another thread, may have freed it meanwhile. */
static int live_or(void *block, int error)
{
    struct block_ref w = {0};
    cenote_pool *pool = error ? locate_lock(block, &w) : NULL;
    enum lookup found = pool ? locate_at(pool, (uint64_t)(uintptr_t)block, &w) : error ? FOUND_NOTHING : FOUND_LIVE;
    if (pool)
        lock_give(&pool->lock);
    return found == FOUND_LIVE ? error : locate_misuse(found, block, &w, 0);
}

int cenote_extend(void *block, size_t bytes)
{
    struct block_ref w = {0};
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = locate_lock(block, &w);
    enum lookup found = pool ? locate_at(pool, (uint64_t)(uintptr_t)block, &w) : FOUND_NOTHING;
    if (found != FOUND_LIVE) {
        if (pool)
            lock_give(&pool->lock);
        return locate_misuse(found, block, &w, 0);
    }
    CUresult lost = pool->life.lost;
    CUstream stream = w.arena->handle;
    int error = lost ? CENOTE_OK : check(pool, &w, bytes);
    bool fits = bytes <= w.size, may_grow = !w.slab && bytes <= BYTES_MAX;
    bool held = !lost && !error && w.arena->group && (may_grow || fits);
    if (held)
        *w.mark |= MARK_HELD;
    if (!lost && !error && !fits && may_grow && !(error = pool_process_usable()))
        return extended(pool, block, bytes, stream, held, live_or(block, extend(pool, &w, bytes)));
    if (!lost && !error && fits)
        place_resize(pool, &w, bytes);
    lock_give(&pool->lock);
    if (lost)
        return pool_driver_error(pool, lost, "an earlier call");
    if (error || fits)
        return extended(pool, block, bytes, stream, held, error);
    return place_refuse(&(struct request){.extends = 1, .bytes = bytes - w.requested});
}
