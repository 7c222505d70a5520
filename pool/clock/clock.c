/*
 * clock.c: the room as a whole: its tables are made, what is in flight can be waited for or not, and what it has goes
 * back to the driver.
 *
 * LOCKING: as each function says.
 */
#include "pool/clock/room.h"

/* The caller has set what is constant. False: no host memory, and the caller closes what was opened. LOCKING: none. */
bool clock_open(struct clock *c)
{
    return table_open(&c->uses.table, sizeof(struct use), USES_MAX) &&
           table_open(&c->lanes.table, sizeof(struct lane), LANES_MAX);
}

/*
 * The pool is closed for calls: what is due is not waited for, and all events go back to the driver. LOCKING: the turn.
 */
void clock_end(struct clock *c)
{
    events_end(c);
    lane_events_close(c);
    event_close(c);
    peer_fences_close(c);
}

/* LOCKING: none; no thread gets into the pool any more. */
void clock_close(struct clock *c)
{
    table_close(&c->uses.table);
    index_close(&c->uses.by_lane);
    table_close(&c->lanes.table);
    index_close(&c->lanes.by_key);
}

/*
 * What can still be waited for of all that was freed up to `limit`. `said`: what events_query did. LOCKING: the turn,
 * after a walk through the uses (uses_take_done).
 */
enum awaited clock_awaits(struct clock *c, tick limit, CUresult said)
{
    if (clock_is_captured(c) || peer_fences_are_barred(c))
        return AWAIT_NOTHING;
    lock_take(c->lock);
    limit = limit < c->fences.now ? limit : c->fences.now;
    bool announced = touch_captures_are_announced();
    bool in_flight = lanes_are_in_flight(c, limit) || (announced && c->fences.whole < limit);
    bool told = (c->fences.count || c->lanes.first_asking) && (!said || said == CUDA_ERROR_NOT_READY);
    enum uses_wait uses = c->uses.polling ? USES_EVENT : uses_wait_for(c, limit);
    lock_give(c->lock);
    bool event_first = uses == USES_EVENT || (uses == USES_EVENT_OF_PEER && c->grants.devices);
    /* the context waits for that event, too, and for what lies behind it: so the event comes first */
    if (in_flight && !told && !event_first)
        return announced ? AWAIT_CONTEXT : AWAIT_NOTHING;
    return in_flight || uses >= USES_EVENT_OF_PEER ? AWAIT_EVENTS : uses == USES_DEVICE ? AWAIT_PEER : AWAIT_NOTHING;
}

/*
 * The program has waited for that device as a whole, after it was told that it is `covers`. Granted devices are asked
 * where captures are announced (rule 14): then a fence covers what this wait did not. False: it was told of no such
 * tick. LOCKING: the turn, and the pool's lock.
 */
bool clock_synced(struct clock *c, const struct device *waited, tick covers)
{
    if (covers > c->fences.now)
        return false;
    if (waited != c->device) {
        peer_uses_all_done(c, waited->ordinal, covers);
        peer_fences_all_done(c, waited->ordinal, covers);
    } else if (!c->grants.devices || !touch_captures_are_announced())
        events_all_done(c, covers);
    return true;
}

/* Bytes of its tables. LOCKING: the pool's lock. */
uint64_t clock_bytes(const struct clock *c)
{
    return table_bytes(&c->uses.table) + index_bytes(&c->uses.by_lane) +
           table_bytes(&c->lanes.table) + index_bytes(&c->lanes.by_key);
}
