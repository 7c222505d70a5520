/*
 * lane_events.c: events on streams that end, one stream at a time:
 * a stream that stalls holds back nothing but what waits for it.
 *
 * A fence has events on streams that live as long as the program (events.c). The handle of any other stream is alive
 * only at times. Then, if something waits for the stream, its lane gets an event, which covers what was freed up to
 * now. Up to two are due: the oldest is left alone, so that it comes, and the newest is recorded anew. The last one,
 * behind which the stream gets nothing more, is recorded when it is retired (lane_ends.c). Streams of other devices
 * have that one alone.
 *
 *     owed ---lane_events_record---> due ---lane_events_query---> done: the lane's `progress` has moved
 *
 * Lanes with an event due stand in a queue. A look asks after a few of them, in turn.
 *
 * LOCKING: the pool's lock guards the queue and the events that are due. Any thread may add an event; only one that has
 * the turn takes an event out. A function expects the turn, without the pool's lock, unless it says otherwise.
 */
#include "base/check.h"
#include "pool/clock/room.h"

#define LOOKS_MAX 8u        /* lanes that a look finds not done before it gives up; the next look begins with others */

/* LOCKING: the pool's lock. */
static void put_last(struct clock *c, uint32_t number)
{
    struct lanes *l = &c->lanes;
    lane_of(c, number)->next_asking = 0;
    *(l->last_asking ? &lane_of(c, l->last_asking)->next_asking : &l->first_asking) = number;
    l->last_asking = number;
    l->asking++;
}

/* LOCKING: the pool's lock. */
static uint32_t take_first(struct clock *c)
{
    struct lanes *l = &c->lanes;
    uint32_t number = l->first_asking;
    if (number) {
        l->first_asking = lane_of(c, number)->next_asking;
        l->last_asking = l->first_asking ? l->last_asking : 0;
        l->asking--;
    }
    return number;
}

/* LOCKING: the pool's lock. */
static void add(struct clock *c, uint32_t number, CUevent event, tick covers)
{
    struct lane *lane = lane_of(c, number);
    CHECK(lane->due_count < LANE_DUE_MAX);
    lane->due[lane->due_count++] = (struct lane_event){event, covers};
    lane->asked = covers;
    if (!lane->is_asking) {
        lane->is_asking = true;
        lane_hold(c, number);
        put_last(c, number);
    }
}

/* An event of the lane says nothing: what it would have covered is owed one again. LOCKING: the pool's lock. */
static void forget_asked(struct lane *lane)
{
    lane->asked = lane->due_count ? lane->due[lane->due_count - 1].covers : lane->progress.done;
}

/*
 * An event behind all that its stream was given is with the driver. LOCKING: the pool's lock; with or without the turn.
 */
void lane_events_end(struct clock *c, uint32_t number, CUevent end)
{
    add(c, number, end, LANE_DONE);
}

/* -------------------------------------------------------------------------------------------------------- recording */

/* LOCKING: the pool's lock, too. */
static bool wants_event(struct clock *c, uint32_t number, CUstream stream)
{
    return lane_is_owed(c, number) && lane_may_be_touched(c, lane_of(c, number)) && !lanes_are_marked(c, stream);
}

/* LOCKING: the pool's lock, too: let go of for the driver. */
static CUresult record(struct clock *c, uint32_t number, CUstream stream)
{
    struct lane *lane = lane_of(c, number);
    tick covers = c->fences.now;
    CUevent event = lane->due_count == LANE_DUE_MAX - 1 ? lane->due[--lane->due_count].event : NULL;
    lane_hold(c, number);
    lock_give(c->lock);
    CUresult result = event ? CUDA_SUCCESS : event_take(c, &event);
    if (!result)
        result = touch_record(c->device, stream, event);
    lock_take(c->lock);
    if (!result && !lane->ended) {
        add(c, number, event, covers);
    } else {
        event_give(c, event);
        forget_asked(lane);
    }
    lane_drop(c, number);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* Records an event on each stream that is known to be alive now and that something waits for. An error is sticky. */
CUresult lane_events_record(struct clock *c)
{
    CUresult result = CUDA_SUCCESS;
    CUstream stream;
    uint64_t key;
    lock_take(c->lock);
    uint32_t lane = lane_find(c, key_of_thread(), NULL);
    if (wants_event(c, lane, CU_STREAM_PER_THREAD))
        result = record(c, lane, CU_STREAM_PER_THREAD);
    if (!result && lanes_named(&key, &stream) && wants_event(c, lane = lane_find(c, key, NULL), stream))
        result = record(c, lane, stream);
    lane = !result && lanes_named(&key, &stream) ? lane_find(c, key_while_captured(stream), NULL) : 0;
    if (lane_is_owed(c, lane) && lane_may_be_touched(c, lane_of(c, lane))) /* no mark is of this lane */
        result = record(c, lane, stream);
    for (lane = 1; !result && !c->device->driver->cuStreamGetId && lane < c->lanes.table.used; lane++)
        if (lane_of(c, lane)->users && !lane_of(c, lane)->other && wants_event(c, lane, lane_of(c, lane)->stream))
            result = record(c, lane, lane_of(c, lane)->stream);
    lock_give(c->lock);
    return result;
}

/* ----------------------------------------------------------------------------------------------------------- asking */

/* The oldest event of the lane is not due any more. LOCKING: the pool's lock. */
static struct lane_event take_oldest(struct lane *lane)
{
    struct lane_event oldest = lane->due[0];
    lane->due_count--;
    for (uint32_t i = 0; i < lane->due_count; i++)
        lane->due[i] = lane->due[i + 1];
    return oldest;
}

static bool look_at_oldest(struct clock *c, const struct lane *lane, struct lane_event *oldest)
{
    lock_take(c->lock);
    bool has_one = lane->due_count;
    *oldest = lane->due[0];
    lock_give(c->lock);
    return has_one;
}

/*
 * The driver's answer about the first of its events that is not done.
 * An event that fell into a capture of a moment says nothing.
 */
static CUresult query(struct clock *c, uint32_t number)
{
    struct lane *lane = lane_of(c, number);
    struct lane_event oldest;
    while (look_at_oldest(c, lane, &oldest)) { /* other threads add to them, and take none away */
        CUresult result = c->device->driver->cuEventQuery(oldest.event);
        bool says_nothing = result == CUDA_ERROR_CAPTURED_EVENT && oldest.covers != LANE_DONE;
        if (result && !says_nothing)
            return result;
        lock_take(c->lock);
        if (says_nothing) {
            event_drop(c, take_oldest(lane).event);
            forget_asked(lane);
        } else {
            event_give(c, take_oldest(lane).event);
            lane_set_done(c, number, oldest.covers);
        }
        lock_give(c->lock);
    }
    return CUDA_SUCCESS;
}

/* Asks after the event behind the end of a stream of that device, and ends it if it is done, or will never be. */
static CUresult ask_end(const struct lane *lane, CUevent end)
{
    struct device *other = lane->other;
    CUresult result = device_visit(other, lane->generation);
    if (result)
        return result;
    result = device_is_captured(other) ? CUDA_ERROR_NOT_SUPPORTED : other->driver->cuEventQuery(end);
    if (!result || driver_result_is_sticky(result))
        event_end_on(other, end);
    device_visit_end(other);
    return result;
}

/*
 * As query, for a stream of another device, which has that one event. While a capture is open there the driver is not
 * asked. A context that is lost, or was reset with its events, does no work any more.
 */
static CUresult query_end(struct clock *c, uint32_t number)
{
    struct lane *lane = lane_of(c, number);
    CUresult result = ask_end(lane, lane->due[0].event);
    lock_take(c->lock);
    lane->end_is_near = result == CUDA_ERROR_NOT_READY;
    if (!result || device_is_lost(lane->other, lane->generation, result)) {
        take_oldest(lane);
        lane_set_done(c, number, LANE_DONE);
    }
    lock_give(c->lock);
    return result == CUDA_ERROR_NOT_READY ? result : CUDA_SUCCESS;
}

/*
 * Asks the driver after the lanes with an event due. Not ready: it may come to one of them. LOCKING: the turn; inside.
 */
CUresult lane_events_query(struct clock *c)
{
    CUresult answer = CUDA_SUCCESS;
    lock_take(c->lock);
    uint32_t left = c->lanes.asking;
    for (uint32_t looks = lock_portion(LOOKS_MAX); left && looks && !driver_result_is_sticky(answer); left--) {
        uint32_t number = take_first(c);
        lock_give(c->lock);
        CUresult result = lane_of(c, number)->other ? query_end(c, number) : query(c, number);
        lock_take(c->lock);
        looks -= result == CUDA_ERROR_NOT_READY;
        if (result && (answer != CUDA_ERROR_NOT_READY || driver_result_is_sticky(result)))
            answer = result;
        if (lane_of(c, number)->due_count) {
            put_last(c, number);
            continue;
        }
        lane_of(c, number)->is_asking = false;
        lane_drop(c, number);
    }
    lock_give(c->lock);
    return answer;
}

/* The pool is closed for calls: what is due is not waited for. */
void lane_events_close(struct clock *c)
{
    uint32_t number;
    lock_take(c->lock);
    while ((number = take_first(c))) {
        struct lane *lane = lane_of(c, number);
        struct device *other = lane->other;
        bool is_over = lane_is_over(lane);
        CUevent end = other ? take_oldest(lane).event : NULL;
        while (lane->due_count)
            event_give(c, take_oldest(lane).event);
        lane->is_asking = false;
        lane_drop(c, number);
        lock_give(c->lock);
        if (other && !is_over)
            event_end_on(other, end);
        lock_take(c->lock);
    }
    lock_give(c->lock);
}
