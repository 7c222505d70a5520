/*
 * siblings.c: what the other pools of a device, in whichever of its
 * contexts, can give to an allocation that is short of memory.
 *
 * Each gives back what it has free as soon as the device is done with it; if the driver takes no more mappings (rule
 * 13), old aliases as well. A pool that is short looks at all of them between two looks at itself and waits for none,
 * so that of all that may come back the first serves it (rule 12). What a sibling freed after the round began is not
 * waited for: its threads may go on for ever.
 *
 *     siblings_poll:  asked ---> more came back ---> trimmed ---> its bytes are the device's
 *                       |  nothing came: what is left to wait for?
 *
 * It is not the climb (shortage.c), and not the wait of one pool for itself (wait.c).
 *
 * LOCKING: a thread that is here holds no lock, unless a function says otherwise. It has paused (turn_pause), or, for
 * siblings_look alone, not yet taken the turn: siblings have turns of their own, and their threads may be here for this
 * pool. A pool may be destroyed meanwhile, but its structure stays (`walkers`), and turn_go_over says so.
 */
#include "pool/shortage/siblings.h"

#include "base/check.h"
#include "pool/life/pools.h"
#include "pool/life/turn.h"
#include "pool/mapping/aliases.h"
#include "pool/mapping/trim.h"
#include "pool/shortage/sums.h"

/* Bytes that a pool holds and no block has, those of pending blocks among them. */
static uint64_t cached_of(cenote_pool *pool)
{
    lock_take(&pool->lock);
    uint64_t reserved = pool->store.pages.reserved + pool->store.pages.asleep;
    uint64_t allocated = pool->account.stats.allocated.current;
    lock_give(&pool->lock);
    return reserved > allocated ? reserved - allocated : 0;
}

/* Changes whenever memory of the pool is allocated, freed, created or released. LOCKING: the pool's lock. */
uint64_t siblings_stir(const cenote_pool *pool)
{
    const cenote_stats *stats = &pool->account.stats;
    return pool->clock.fences.now + stats->allocated.total_in + stats->pages_created + stats->pages_released;
}

/* Adds up what they have. */
void siblings_look(struct siblings *s, const cenote_pool *pool)
{
    s->live = s->cached = s->stir = s->pools = 0;
    for (cenote_pool *other = NULL; (other = pool_next_on_device(pool, other));) {
        if (other == pool)
            continue;
        s->pools++;
        s->cached += cached_of(other);
        lock_take(&other->lock);
        s->live += sums_live(other);
        s->stir += siblings_stir(other);
        lock_give(&other->lock);
    }
}

/* NULL: there are too many of them. */
static struct sibling *sibling_of(struct siblings *s, cenote_pool *other)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->each[i].pool == other)
            return &s->each[i];
    if (s->count == SIBLINGS_MAX)
        return NULL;
    struct sibling *sibling = &s->each[s->count++];
    lock_take(&other->lock);
    *sibling = (struct sibling){.pool = other, .limit = other->clock.fences.now, .seen = {.moved = UINT64_MAX}};
    lock_give(&other->lock);
    return sibling;
}

/*
 * Functions of the program would be called without the turn, and
 * another context may end then: what came from them stays there.
 */
static uint64_t trim(const struct siblings *s, const cenote_pool *pool, cenote_pool *other)
{
    if (pool->config.device == other->config.device && !s->keeps_sources)
        return trim_free(other);
    trim_flush(other);
    return trim_without_sources(other, 0, UINT64_MAX);
}

static enum awaited poll(struct siblings *s, const cenote_pool *pool, cenote_pool *other, bool *came)
{
    struct sibling *sibling = sibling_of(s, other);
    CUresult result;
    if (sibling)
        sibling->awaited = AWAIT_NOTHING;
    if (!turn_go_over(pool, other))
        return AWAIT_NOTHING;
    enum awaited awaited = wait_look(other, sibling ? sibling->limit : 0, &result);
    if (!result && (!sibling || wait_came(other, &sibling->seen)))
        *came |= trim(s, pool, other) != 0;
    if (!result && s->unmap)
        *came |= aliases_drop(other);
    turn_come_back(pool, other);
    if (sibling)
        sibling->awaited = awaited;
    return awaited;
}

/*
 * What came back since the last poll goes back to the driver (`came`). Each is polled in its turn, so that pages which
 * one of its threads was creating are in its books: they were neither there nor the device's. What is left to wait for
 * of what they had freed at the first poll.
 */
enum awaited siblings_poll(struct siblings *s, const cenote_pool *pool, bool *came)
{
    enum awaited last = AWAIT_NOTHING;
    for (cenote_pool *other = NULL; (other = pool_next_on_device(pool, other));) {
        if (other == pool)
            continue;
        enum awaited awaited = poll(s, pool, other, came);
        last = awaited > last ? awaited : last;
    }
    siblings_look(s, pool);
    return last;
}

/*
 * Waits for the whole context or another device, where the last poll
 * found that this is what is left. False: that is not possible.
 */
bool siblings_wait(const struct siblings *s, const cenote_pool *pool, enum awaited awaited)
{
    bool waited = false;
    for (cenote_pool *other = NULL; (other = pool_next_on_device(pool, other));)
        for (uint32_t i = 0; i < s->count; i++) {
            CUresult result;
            if (s->each[i].pool != other || s->each[i].awaited != awaited)
                continue;
            if (other->config.device != pool->config.device || !turn_go_over(pool, other))
                continue; /* a wait lets go of the turn, and the other context may end then */
            waited |= wait_for_rest(other, awaited, 0, &result);
            turn_come_back(pool, other);
        }
    return waited;
}
