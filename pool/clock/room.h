/*
 * room.h: what the files of the room call of each other. Other rooms call what clock.h has.
 *
 * LOCKING: as each function says.
 */
#ifndef CENOTE_POOL_CLOCK_ROOM_H
#define CENOTE_POOL_CLOCK_ROOM_H

#include "pool/clock/clock.h"

/* --- events.c */
void events_end(struct clock *c);

/* --- lanes.c */
bool lane_may_be_touched(struct clock *c, const struct lane *lane);
CUresult lane_record(const struct clock *c, const struct lane *lane, CUevent event);
bool lane_is_owed(const struct clock *c, uint32_t lane);
void lanes_mark(struct clock *c);
void lanes_unmark(struct clock *c);
bool lanes_are_marked(const struct clock *c, CUstream stream);
bool lanes_named(uint64_t *key, CUstream *stream);
bool lanes_can_help(struct clock *c);
void lane_set_done(struct clock *c, uint32_t lane, tick covers);
void lane_asked(struct clock *c, uint32_t lane, tick covers);
void lane_done(struct clock *c, uint32_t lane, tick covers);
void lane_not_asked(struct clock *c, uint32_t lane, tick covers);
bool lanes_are_in_flight(const struct clock *c, tick limit);
void lanes_end_known(struct clock *c);

/* --- lane_events.c */
void lane_events_end(struct clock *c, uint32_t lane, CUevent end);
void lane_events_close(struct clock *c);
CUresult lane_events_record(struct clock *c);
CUresult lane_events_query(struct clock *c);

/* --- spare_events.c */
CUresult event_take(struct clock *c, CUevent *event);
void event_give(struct clock *c, CUevent event);
void event_drop(struct clock *c, CUevent event);
void event_close(struct clock *c);
void event_end_on(struct device *other, CUevent event);

/* --- uses.c */
enum uses_wait uses_wait_for(const struct clock *c, tick limit);

/* --- peer_uses.c */
void peer_uses_record(struct clock *c, struct use *u);
bool peer_uses_is_done(struct clock *c, uint32_t use);
bool peer_uses_wait_for(struct device *other, uint64_t generation);
void peer_uses_all_done(struct clock *c, int ordinal, tick covers);
CUresult peer_uses_end(const struct lane *lane, CUstream stream, CUevent *end);
CUresult peer_uses_become_careful(struct clock *c);

/* --- peer_fences.c */
bool peer_fences_are_barred(const struct clock *c);
void peer_fences_all_done(struct clock *c, int ordinal, tick covers);
void peer_fences_close(struct clock *c);
CUresult peer_fences_ask(struct clock *c, tick covers);

/*
 * The first use of its lane from this one on whose event covers this one: its block was freed later, and the event was
 * recorded after that. An event of a use that was freed earlier may be older than the work that this one waits for. 0:
 * none has such an event.
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

#endif
