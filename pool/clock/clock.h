/*
 * clock.h: time, as a pool knows it, and all that other rooms may call of this one: is the device done with it? README.md has the contract.
 *
 *     a free happens at a tick ---> waits for the stream of its arena, or for those that use the block ---> the device is done with it
 *
 * Each function lies in the file that its name begins with. The other headers of the folder are for the folder alone, but for fence.h, where the
 * books of memory read how far the device has got, and keys.h.
 *
 * LOCKING: the pool's lock guards all of it, unless a part says otherwise. A function expects the turn, without the pool's lock, if nothing is said.
 */
#ifndef CENOTE_POOL_CLOCK_CLOCK_H
#define CENOTE_POOL_CLOCK_CLOCK_H

#include "base/lock.h"
#include "pool/clock/fence.h"
#include "pool/clock/keys.h"
#include "pool/clock/lanes.h"
#include "pool/clock/peer_fences.h"
#include "pool/clock/spare_events.h"
#include "pool/clock/uses.h"

struct clock {
    /* Constant while the pool is open. */
    struct lock   *lock;            /* the pool's */
    struct device *device;
    uint64_t       generation;      /* of its context */
    _Atomic(struct device *) *others; /* by ordinal: those whose streams use blocks of the pool, or that have access */
    const _Atomic(bool) *ending;    /* the pool ends */
    const _Atomic(CUresult) *lost;  /* its context is lost: 0: no */

    struct fences  fences;
    struct lanes   lanes;
    struct uses    uses;
    struct events  events;
    struct grants  grants;
    struct immortals immortals;
};

static inline struct lane *lane_of(const struct clock *c, uint32_t lane) { return TABLE_AT(struct lane, &c->lanes.table, lane); }
static inline struct use *use_of(const struct clock *c, uint32_t use) { return TABLE_AT(struct use, &c->uses.table, use); }

/* Is a capture open on the device? Of a pool that ends nothing waits for captures elsewhere. LOCKING: none; inside, a no stays a no. */
static inline bool clock_is_captured(const struct clock *c)
{
    return device_is_captured(c->device) && (!*c->ending || device_bars_end(c->device));
}

enum awaited {                      /* what can be waited for; of several the later is waited for first */
    AWAIT_NOTHING,
    AWAIT_PEER,                     /* the whole of another device */
    AWAIT_CONTEXT,                  /* the whole context: no fence can be had */
    AWAIT_EVENTS                    /* the driver is asked again in a while */
};

bool clock_open(struct clock *c);
enum awaited clock_awaits(struct clock *c, tick limit, CUresult said);
void clock_end(struct clock *c);
void clock_close(struct clock *c);
uint64_t clock_bytes(const struct clock *c);

/* --- events.c */
CUresult events_poll(struct clock *c, tick needed);
CUresult events_query(struct clock *c, tick needed);
bool events_await_replays(struct clock *c);
void events_cover_replays(struct clock *c);
void events_all_done(struct clock *c, tick covers);
CUresult events_become_careful(struct clock *c);
void events_end(struct clock *c);

/* --- lane_ends.c */
CUresult lane_ends_record(struct clock *c, uint32_t lane, CUstream stream);

/* --- peer_fences.c, peer_uses.c */
bool peer_fences_wait(struct clock *c);
bool peer_fences_have_context(const struct device *other);
void peer_fences_all_done(struct clock *c, int ordinal, tick covers);
bool peer_fences_know(const struct clock *c, const struct device *other);
void peer_fences_begin(struct clock *c, struct device *other);
bool peer_uses_are_owed(const struct clock *c, uint32_t lane);
void peer_uses_name(struct clock *c, uint32_t lane, CUstream stream);
void peer_uses_all_done(struct clock *c, int ordinal, tick covers);
bool peer_uses_wait(struct clock *c);

/* --- order.c */
tick order_reach(const struct clock *c);
CUresult order_behind(struct clock *c, uint64_t of, tick *freed);

/* Does something wait for a call that names this stream, because a fence had no event on it? LOCKING: the pool's lock. */
static inline bool lane_waits_for_call(const struct clock *c, uint32_t lane)
{
    return __builtin_expect(c->fences.wanted != 0, 0) && lane_is_wanted(c, lane);
}

/*
 * The first use of its lane from this one on whose event covers this one: its block was freed later, and the event was recorded after that. An event
 * of a use that was freed earlier may be older than the work that this one waits for. 0: none has such an event.
 */
static inline uint32_t use_covering(const struct clock *c, uint32_t use)
{
    tick freed = use_of(c, use)->freed;
    if (lane_of(c, use_of(c, use)->lane)->has_events < freed) /* or it would be looked for among tens of thousands */
        return 0;
    while (use && (!use_of(c, use)->event || use_of(c, use)->freed < freed))
        use = use_of(c, use)->next_in_lane;
    return use;
}

/* The use has an event from now on. LOCKING: the pool's lock. */
static inline void use_got_event(const struct clock *c, const struct use *u)
{
    struct lane *lane = lane_of(c, u->lane);
    lane->has_events = lane->has_events > u->freed ? lane->has_events : u->freed;
}

/* The use of the lane that was freed last, or this one, the first, if that was later: an event on it covers both. */
static inline uint32_t use_to_cover(const struct clock *c, const struct lane *lane, uint32_t use)
{
    return use_of(c, lane->last)->freed < use_of(c, use)->freed ? use : lane->last;
}

/* LOCKING: the pool's lock. */
static inline void uses_are_done(const struct clock *c, struct lane *lane, uint32_t covering)
{
    tick freed = use_of(c, covering)->freed;
    lane->uses_done = lane->uses_done > freed ? lane->uses_done : freed;
}

/* Does the pool know streams by their handles alone, from captures? LOCKING: none: a hint. */
static inline bool lanes_have_captured(const struct clock *c)
{
    return __builtin_expect(atomic_load_explicit(&c->lanes.captured, memory_order_relaxed) != 0, 0);
}

#endif
