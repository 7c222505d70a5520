/*
 * wait.c: waits for all that a device was given: by one event over its context, by the driver's own wait for the context, or by an event on each
 * stream that may be touched. device.h says when which is allowed.
 *
 * LOCKING: the caller is inside; the gate is open while a thread waits (device_wait_begin).
 */
#include "driver/device.h"

/*
 * For lack of an event, if captures are announced. It would end a capture, so none begins meanwhile. CUDA_ERROR_NOT_READY: not now, a capture is
 * open, or captures are not announced any more. LOCKING: the gate is open.
 */
CUresult device_wait_for_context(struct device *d)
{
    pthread_rwlock_rdlock(&d->card->quiet);
    bool harmless = !device_bars_end(d) && touch_captures_are_announced();
    CUresult result = harmless ? d->driver->cuCtxSynchronize() : CUDA_ERROR_NOT_READY;
    pthread_rwlock_unlock(&d->card->quiet);
    return result;
}

/*
 * The same although captures are not announced any more: for the thread that has said so just now, before the first
 * that is not can begin. *whole: the context was waited for. LOCKING: inside, with no lock but `careful_lock`.
 */
CUresult device_wait_at_last(struct device *d, bool *whole)
{
    device_wait_begin(d);
    pthread_rwlock_rdlock(&d->card->quiet);
    CUresult result = device_is_captured(d) ? CUDA_ERROR_NOT_READY : d->driver->cuCtxSynchronize();
    pthread_rwlock_unlock(&d->card->quiet);
    device_wait_end(d);
    *whole = !result;
    return result;
}

/* Waits for each event, with the gate open, and destroys it. */
static CUresult wait_for_events(struct device *d, CUresult result, const CUevent *events, uint32_t count)
{
    const struct driver *t = d->driver;
    device_wait_begin(d);
    for (uint32_t i = 0; i < count && !result; i++)
        result = t->cuEventSynchronize(events[i]);
    device_wait_end(d);
    for (uint32_t i = 0; i < count; i++)
        if (t->cuEventDestroy(events[i]))
            t->cuEventDestroy(events[i]); /* it would be lost: a refusal is asked for once more */
    return result;
}

static CUresult wait_for_streams(struct device *d)
{
    CUevent events[TOUCH_STREAMS_MAX + 1];
    uint32_t count;
    CUresult result = touch_record_all(d, events, TOUCH_STREAMS_MAX + 1, &count);
    return wait_for_events(d, result, events, count);
}

/* By an event, or without one. CUDA_ERROR_NOT_READY: as device_wait_for_context. */
static CUresult wait_for_whole(struct device *d)
{
    const struct driver *t = d->driver;
    CUevent event = NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (t->cuCtxRecordEvent && !(result = t->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)))
        result = t->cuCtxRecordEvent(device_context(d), event);
    if (!driver_result_is_sticky(result)) {
        device_wait_begin(d);
        result = result ? device_wait_for_context(d) : t->cuEventSynchronize(event);
        device_wait_end(d);
    }
    if (event && t->cuEventDestroy(event))
        t->cuEventDestroy(event); /* it would be lost: a refusal is asked for once more */
    return result;
}

/* While a thread waits, the first pool without the promise to announce captures may open. */
CUresult device_wait(struct device *d, bool *whole)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    *whole = false;
    if (device_bars_end(d))
        return CUDA_ERROR_NOT_READY;
    if (touch_captures_are_announced()) {
        result = wait_for_whole(d);
        *whole = result != CUDA_ERROR_NOT_READY;
    }
    return *whole || device_bars_end(d) ? result : wait_for_streams(d);
}
