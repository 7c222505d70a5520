/*
 * events.c: fences where they meet the driver: recorded, and queried
 * without waiting. What fences mean is in fence.c; wait.c waits.
 *
 * If the program has promised to announce its captures, a fence is one event over the whole context (rule 1), by
 * cuCtxRecordEvent; a driver that lacks that (before CUDA 12.5) has no fences then. Otherwise it is an event on the
 * default stream and on each stream that lives as long as the program (lanes_mark), but on no more than
 * TOUCH_STREAMS_MAX of those; any other stream has events of its lane, which are part of no fence. While an announced
 * capture is open on the device no fence is recorded or queried (rule 5): it would end the capture.
 *
 * LOCKING: the turn, for what is recorded and queried; the pool's lock only around its books.
 */
#include "base/check.h"
#include "pool/clock/room.h"

/* CUDA_ERROR_OUT_OF_MEMORY: there is no event to be had, or no room for one. LOCKING: the turn. */
static CUresult record_whole(struct clock *c)
{
    CUevent event;
    CUresult result = event_take(c, &event);
    if (!result)
        result = c->device->driver->cuCtxRecordEvent(device_context(c->device), event);
    lock_take(c->lock);
    if (!result && !fences_add(&c->fences, event, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
        event_give(c, event);
    fences_end(&c->fences, FENCE_WHOLE);
    lock_give(c->lock);
    return result;
}

/* What of its streams a fence lacks makes it weaker. LOCKING: the turn. */
static CUresult record_mark(struct clock *c, const struct mark *mark, enum fence_kind *kind)
{
    struct fences *f = &c->fences;
    CUevent event;
    CUresult result = event_take(c, &event);
    if (!result)
        result = touch_record(c->device, mark->stream, event);
    lock_take(c->lock);
    bool added = !result && fences_add(f, event, mark->lane);
    if (added && mark->lane)
        lane_asked(c, mark->lane, f->begun);
    if (event && !added)
        event_give(c, event);
    lock_give(c->lock);
    enum fence_kind weaker = added ? FENCE_OF_ALL : result == CUDA_ERROR_NOT_READY ? FENCE_OF_MOST : FENCE_OF_SOME;
    *kind = *kind < weaker ? weaker : *kind;
    return result;
}

/*
 * One event for each mark that may be touched now. A stream without
 * one is covered by a later fence. An error is sticky.
 */
static CUresult record_marks(struct clock *c)
{
    struct fences *f = &c->fences;
    CUresult result = CUDA_SUCCESS;
    enum fence_kind kind = atomic_load(&c->device->touch.is_full) ? FENCE_OF_MOST : FENCE_OF_ALL;
    lock_take(c->lock);
    uint32_t room = FENCE_PARTS_MAX - f->part_count;
    lock_give(c->lock);
    if (room < c->lanes.count)
        kind = FENCE_OF_SOME;
    for (uint32_t i = 0; i < c->lanes.count && i < room && !driver_result_is_sticky(result); i++)
        result = record_mark(c, &c->lanes.marks[i], &kind);
    lock_take(c->lock);
    fences_end(f, kind);
    lock_give(c->lock);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* Begins a fence over the context. What fences on streams have not covered is owed one, too. */
static bool begin_whole(struct clock *c, tick needed)
{
    struct fences *f = &c->fences;
    lock_take(c->lock);
    if (!f->count && f->begun == f->now && f->whole < f->now)
        needed = fences_stamp_nothing(f);
    bool begun = c->device->driver->cuCtxRecordEvent && f->begun < needed && fences_begin(f);
    lock_give(c->lock);
    return begun;
}

/*
 * Begins a fence on streams, if something was freed since the last
 * one or a stream that had no event then may have one now.
 */
static bool begin_on_streams(struct clock *c, tick needed)
{
    struct fences *f = &c->fences;
    lock_take(c->lock);
    bool room = f->part_count < FENCE_PARTS_MAX && f->count < FENCES_DUE_MAX;
    bool due = room && f->begun < needed && f->begun != f->now;
    bool was_short = !f->count && f->done < f->begun && f->done < needed; /* the last fence had no event on some */
    lock_give(c->lock);
    bool owed = room && !due && (was_short || lanes_can_help(c));
    lock_take(c->lock);
    CHECK(!f->recording); /* that has the turn */
    if (owed && f->begun == f->now)
        fences_stamp_nothing(f);
    bool begun = (due || owed) && fences_begin(f);
    tick wanted = needed < f->begun ? needed : f->begun;
    f->wanted = f->wanted < wanted ? wanted : f->wanted;
    lock_give(c->lock);
    return begun;
}

/* On each stream by itself. */
static CUresult fence_on_streams(struct clock *c, tick needed)
{
    lock_take(c->lock);
    lanes_mark(c);
    lock_give(c->lock);
    CUresult result = lane_events_record(c);
    if (!result && begin_on_streams(c, needed))
        result = record_marks(c);
    lock_take(c->lock);
    lanes_unmark(c);
    lock_give(c->lock);
    return result;
}

/*
 * Records a fence if none yet covers `needed`. A driver that refuses
 * costs nothing: the next fence covers it. LOCKING: the turn.
 */
static CUresult begin_fence(struct clock *c, tick needed)
{
    CUresult result = CUDA_SUCCESS;
    if (!touch_captures_are_announced()) {
        result = fence_on_streams(c, needed);
    } else if (begin_whole(c, needed)) {
        result = record_whole(c);
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

static bool oldest_event(struct clock *c, struct due *due)
{
    lock_take(c->lock);
    bool found = fences_oldest(&c->fences, due);
    lock_give(c->lock);
    return found;
}

/* An event is done, and its stream with what it covers. LOCKING: the turn, and the pool's lock. */
static void retire_event(struct clock *c, const struct due *due)
{
    CUevent event = fences_step(&c->fences, due);
    CHECK(event); /* no other thread has the turn */
    if (due->lane)
        lane_done(c, due->lane, due->covers);
    event_give(c, event);
    lanes_end_known(c);
}

/*
 * The event was recorded while a capture began and ended: it says nothing,
 * and its stream is owed another. LOCKING: the turn, too.
 */
static void skip_event(struct clock *c, const struct due *due)
{
    CUevent event = fences_skip(&c->fences, due);
    CHECK(event); /* no other thread has the turn */
    if (due->lane)
        lane_not_asked(c, due->lane, due->covers);
    event_drop(c, event);
}

/*
 * Retires the fences that are done. The driver's answer about the
 * first that is not; if none is due, `result`. LOCKING: the turn.
 */
static CUresult retire_fences(struct clock *c, CUresult result)
{
    struct due due;
    while (!driver_result_is_sticky(result) && oldest_event(c, &due)) {
        result = c->device->driver->cuEventQuery(due.event);
        if (!result && due.is_last)
            result = peer_fences_ask(c, due.covers);
        if (result && result != CUDA_ERROR_CAPTURED_EVENT)
            break;
        lock_take(c->lock);
        if (result)
            skip_event(c, &due);
        else
            retire_event(c, &due);
        lock_give(c->lock);
    }
    return result;
}

/* Has a lane an event of its own that is due? A thread that retires a stream adds one without the turn. */
static bool a_lane_asks(struct clock *c)
{
    lock_take(c->lock);
    bool asks = c->lanes.first_asking != 0;
    lock_give(c->lock);
    return asks;
}

/*
 * As events_poll, but returns the answer of the driver: success, not ready, or
 * a refusal to tell. Of lanes and fences the answer that can be waited for.
 */
CUresult events_query(struct clock *c, tick needed)
{
    if (clock_is_captured(c))
        return CUDA_SUCCESS;
    CUresult result = begin_fence(c, needed), ends = CUDA_SUCCESS;
    if (!driver_result_is_sticky(result) && a_lane_asks(c))
        result = ends = lane_events_query(c);
    result = retire_fences(c, result);
    return driver_result_is_sticky(result) || (result && ends != CUDA_ERROR_NOT_READY) ? result : ends;
}

/*
 * Records a fence if none covers what was freed up to `needed` (UINT64_MAX: up to now), and retires those that are
 * done. An error is sticky: the context is lost. LOCKING: the turn.
 */
CUresult events_poll(struct clock *c, tick needed)
{
    CUresult result = events_query(c, needed);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* Does memory of private groups wait for a thread's own default stream? LOCKING: the lock. */
bool events_await_replays(const struct clock *c)
{
    return c->fences.replaying && !touch_captures_are_announced();
}

/*
 * This thread may have replayed graphs on its own default stream, which no other thread can name. The stream has an
 * event from now on, also while an announced capture is open, because that event harms no capture (driver/touch.c). So
 * no later call of the thread is needed. The one exception is a capture of that very stream: its end is such a call.
 * LOCKING: the turn.
 */
void events_cover_replays(struct clock *c)
{
    if (!lane_events_record(c))
        events_poll(c, UINT64_MAX);
}

/*
 * The device is done with everything freed up to `covers`, on streams that
 * may be dead, too: fences that cover no more than that are retired.
 * LOCKING: the turn, and the pool's lock.
 */
void events_all_done(struct clock *c, tick covers)
{
    struct due due;
    fences_all_done(&c->fences, covers);
    while (fences_oldest(&c->fences, &due) && due.covers <= covers)
        retire_event(c, &due);
    for (uint32_t number = 1; c->fences.replaying && number < c->lanes.table.used; number++) {
        const struct lane *lane = lane_of(c, number);
        if (lane->users && lane->replayed && lane->replayed <= covers)
            lane_set_done(c, number, covers);
    }
    lanes_end_known(c);
}

/*
 * Records a fence over the context that covers all that was freed so far. Fences that are done make room for it. If
 * still as many are due as there can be, the newest is given up, because this one covers what it would have.
 * CUDA_ERROR_OUT_OF_MEMORY: there is no room, or no memory, for it.
 * LOCKING: the turn.
 */
static CUresult record_last(struct clock *c)
{
    struct fences *f = &c->fences;
    CUresult result = retire_fences(c, CUDA_SUCCESS);
    if (driver_result_is_sticky(result))
        return result;
    lock_take(c->lock);
    if (f->count == FENCES_DUE_MAX)
        event_give(c, fences_give_up_newest(f));
    tick covers = fences_stamp_nothing(f);
    bool begun = fences_begin(f);
    lock_give(c->lock);
    result = begun ? record_whole(c) : CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(c->lock);
    if (!result)
        c->lanes.known_from = covers;
    lock_give(c->lock);
    return result;
}

/*
 * The same where the driver has no such event: the caller has waited for the context, after the tick was stamped.
 * LOCKING: the turn; the pool's lock is taken here.
 */
void events_waited_at_last(struct clock *c, tick covers)
{
    lock_take(c->lock);
    c->lanes.known_from = covers;
    events_all_done(c, covers);
    lock_give(c->lock);
}

/*
 * The first pool without the promise to announce captures is about to open, and from now on events are recorded on
 * streams. Streams that have ended are covered by a last fence over the context, which is as harmless now as at any
 * time before. An error: that cannot be had now, and the pool must not open, for later it could end captures.
 * CUDA_ERROR_NOT_READY: a capture is open. LOCKING: `careful_lock`, and the turn.
 */
CUresult events_become_careful(struct clock *c)
{
    CUresult result = clock_is_captured(c) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    if (!result && c->device->driver->cuCtxRecordEvent)
        result = record_last(c);
    return result ? result : peer_uses_become_careful(c);
}

/* The pool is closed for calls. LOCKING: the turn. */
void events_end(struct clock *c)
{
    struct due due;
    lock_take(c->lock);
    while (fences_oldest(&c->fences, &due))
        retire_event(c, &due);
    lock_give(c->lock);
}
