/*
 * spare_events.c: the pool's own events: made when none is spare, and kept until the pool goes.
 *
 * LOCKING: the pool's lock around the books; a driver call without it.
 */
#include "base/check.h"
#include "pool/clock/room.h"

/*
 * An event without timing: a spare one, or new. CUDA_ERROR_OUT_OF_MEMORY: there is none to be had, and *event is NULL;
 * any other error is sticky: the context is lost. A thread that did not get into the device's context makes none: it
 * would be of another context, and every later record of it would fail. LOCKING: inside, without the pool's lock.
 */
CUresult event_take(struct clock *c, CUevent *event)
{
    *event = NULL;
    lock_take(c->lock);
    bool make = !c->events.count && c->events.made < EVENTS_MAX;
    if (c->events.count)
        *event = c->events.spare[--c->events.count];
    c->events.made += make;
    lock_give(c->lock);
    CUresult result = make ? device_entered() : CUDA_SUCCESS;
    if (make && !result)
        result = c->device->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    if (!result)
        return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    *event = NULL;
    lock_take(c->lock);
    c->events.made--;
    lock_give(c->lock);
    return driver_result_is_sticky(result) ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Spare again. There is room for as many as event_take ever makes. LOCKING: the pool's lock. */
void event_give(struct clock *c, CUevent event)
{
    if (event) {
        CHECK(c->events.count < EVENTS_MAX);
        c->events.spare[c->events.count++] = event;
    }
}

/*
 * The driver knows nothing of it, because it was recorded while a capture
 * began and ended: the next look records another. LOCKING: as event_give.
 */
void event_drop(struct clock *c, CUevent event)
{
    event_give(c, event);
    c->events.dropped++;
}

/* LOCKING: the turn; the pool is closed for calls. */
void event_close(struct clock *c)
{
    struct events *e = &c->events;
    if (!device_is(c->device, c->generation))
        e->count = 0; /* they have ended with their context */
    while (e->count)
        c->device->driver->cuEventDestroy(e->spare[--e->count]);
}

/*
 * An event of another device, which is not kept. A refusal is asked for
 * once more: the event would be lost. LOCKING: none of the pool's.
 */
void event_end_on(struct device *other, CUevent event)
{
    if (other->driver->cuEventDestroy(event))
        other->driver->cuEventDestroy(event);
}
