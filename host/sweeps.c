/*
 * sweeps.c: how far all streams of a device are on which a replay may run, without a call over the whole context.
 *
 * A block that a captured stream used may be read by replays of the graph on any stream, up to its free. If captures are announced, it waits for the
 * device as a whole (uses.c). With announced:0 it waits for a sweep: an event on the default stream and on each stream that the program declared
 * immortal. Replays on other streams are told with cenote_host_use. One sweep of a device is due at a time, and covers the blocks that were freed
 * before it began.
 *
 *             sweep_is_done                      all its events are done
 *     none ---------------------> due ------------------------------------> none; `done` has moved
 *       ^   a stream is captured   |  an event fell into a capture
 *       +--------------------------+---- as before, and begun anew at a later look
 *
 * LOCKING: `walking`; in the device, unless a function says otherwise. `lock` for a number alone.
 */
#include "host/host.h"

static void drop_events(struct device *d, struct sweep *s)
{
    while (s->count)
        use_event_drop(d, s->event[--s->count]);
}

/* What was due in a context that has ended says nothing of the next one. */
static struct sweep *sweep_of(struct host *h, const struct device *d, uint64_t generation)
{
    struct sweep *s = h->sweeps[d->ordinal];
    if (s->generation != generation)
        s->count = 0, s->done = 0;
    s->generation = generation;
    return s;
}

/* Without gaps, or not at all. */
static CUresult begin(struct host *h, struct device *d, struct sweep *s)
{
    if (touch_captures_are_announced() || atomic_load(&d->touch.is_full))
        return CUDA_ERROR_NOT_READY;
    lock_take(&h->lock);
    s->covers = h->freed;
    lock_give(&h->lock);
    CUresult result = touch_record_all(d, s->event, SWEEP_MAX, &s->count);
    if (result)
        drop_events(d, s);
    return result;
}

/* Asks after its events, the last one first: that is of the stream that is most likely behind. */
static CUresult look(struct device *d, struct sweep *s)
{
    while (s->count) {
        CUresult result = d->driver->cuEventQuery(s->event[s->count - 1]);
        if (result == CUDA_ERROR_CAPTURED_EVENT) /* it was recorded while a capture began and ended, and says nothing */
            drop_events(d, s);
        if (result)
            return result;
        use_event_drop(d, s->event[--s->count]);
    }
    s->done = s->covers;
    return CUDA_SUCCESS;
}

/* Is the device done with what replays may have read before the block of that use was freed? */
bool sweep_is_done(struct host *h, const struct use *u)
{
    struct device *d = u->device;
    struct sweep *s = sweep_of(h, d, u->generation);
    CUresult result = CUDA_SUCCESS;
    while (!result && s->done < u->freed)
        result = s->count || !(result = begin(h, d, s)) ? look(d, s) : result;
    return s->done >= u->freed;
}

/* The event to wait for before sweep_is_done may answer yes. NULL: none, it does or a stream is captured. */
CUevent sweep_awaits(struct host *h, const struct use *u)
{
    const struct sweep *s = h->sweeps[u->device->ordinal];
    return sweep_is_done(h, u) || !s->count ? NULL : s->event[s->count - 1];
}

/* Nothing is pending. */
void sweep_close(struct host *h, struct device *d)
{
    drop_events(d, sweep_of(h, d, host_generation(h, d)));
}
