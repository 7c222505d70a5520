/*
 * clock.h: time, as a pool knows it, and all that other rooms may call of this one: is the device done with it?
 * README.md has the contract.
 *
 *     a free happens at a tick ---> waits for its arena's stream, or for those that use the block ---> it is done
 *
 * Each function lies in the file that its name begins with. The other headers of the folder are for the folder alone,
 * but for fence.h, where the books of memory read how far the device has got, and keys.h.
 *
 * LOCKING: the pool's lock guards all of it, unless a part says otherwise. A function expects the turn, without the
 * pool's lock, if nothing is said.
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

static inline struct lane *lane_of(const struct clock *c, uint32_t lane)
{
    return TABLE_AT(struct lane, &c->lanes.table, lane);
}

static inline struct use *use_of(const struct clock *c, uint32_t use)
{
    return TABLE_AT(struct use, &c->uses.table, use);
}

/*
 * Is a capture open on the device? Of a pool that ends nothing waits for captures elsewhere. LOCKING: none; inside, a
 * no stays a no.
 */
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
bool clock_synced(struct clock *c, const struct device *waited, tick covers);
void clock_end(struct clock *c);
void clock_close(struct clock *c);
uint64_t clock_bytes(const struct clock *c);

/* --- events.c */
CUresult events_poll(struct clock *c, tick needed);
CUresult events_query(struct clock *c, tick needed);
bool events_await_replays(const struct clock *c);
void events_cover_replays(struct clock *c);
void events_all_done(struct clock *c, tick covers);
CUresult events_become_careful(struct clock *c);
void events_waited_at_last(struct clock *c, tick covers);

/* --- lanes.c, lane_ends.c */
struct lanes_call lanes_call_names(uint64_t key, CUstream stream);
void lanes_call_ends(struct lanes_call outer);
uint32_t lane_find(const struct clock *c, uint64_t key, const struct device *other);
uint32_t lane_for(struct clock *c, CUstream stream, uint64_t key, struct device *other);
uint32_t lane_find_anywhere(const struct clock *c, uint64_t key);
void lanes_expect_captured(uint64_t newest_stream, uint64_t of_capture);
uint32_t lane_when_captured(const struct clock *c, uint64_t key, CUstream stream, const struct device *other);
void lane_hold(struct clock *c, uint32_t lane);
void lane_drop(struct clock *c, uint32_t lane);
void lane_join(struct clock *c, struct horizon *h, uint32_t lane, tick freed);
void lane_leave(struct clock *c, struct horizon *h);
bool lane_is_wanted(const struct clock *c, uint32_t lane);
bool lane_is_of(const struct clock *c, const struct horizon *h, tick freed);
void lane_release(struct clock *c, struct horizon *h, tick now);
void lanes_note_replays(struct clock *c);
bool lanes_are_done(const struct clock *c, tick limit);
void lane_forget_key(struct clock *c, struct lane *lane);
CUresult lane_ends_record(struct clock *c, uint32_t lane, CUstream stream);

/* --- peer_fences.c, peer_uses.c */
bool peer_fences_wait(struct clock *c, bool live);
bool peer_fences_have_context(const struct device *other);
bool peer_fences_know(const struct clock *c, const struct device *other);
void peer_fences_begin(struct clock *c, struct device *other);
bool peer_uses_are_owed(const struct clock *c, uint32_t lane);
void peer_uses_name(struct clock *c, uint32_t lane, CUstream stream);
bool peer_uses_wait(struct clock *c);

/* --- uses.c */
bool uses_enter(struct clock *c, uint32_t *uses, const struct use *block, CUstream stream, uint64_t key,
                struct device *other);
void uses_record(struct clock *c, uint32_t uses);
bool uses_begin_walk(struct clock *c, struct uses_walk *walk, uint32_t looks);
uint32_t uses_take_done(struct clock *c, struct uses_walk *walk);
void uses_end(struct clock *c, uint32_t first);

/* --- order.c */
tick order_reach(const struct clock *c);
CUresult order_behind(struct clock *c, uint64_t of, tick *freed);

/*
 * Does something wait for a call that names this stream, because a fence had no event on it? LOCKING: the pool's lock.
 */
static inline bool lane_waits_for_call(const struct clock *c, uint32_t lane)
{
    return __builtin_expect(c->fences.wanted != 0, 0) && lane_is_wanted(c, lane);
}

/* Does the pool know streams by their handles alone, from captures? LOCKING: none: a hint. */
static inline bool lanes_have_captured(const struct clock *c)
{
    return __builtin_expect(atomic_load_explicit(&c->lanes.captured, memory_order_relaxed) != 0, 0);
}

#endif
