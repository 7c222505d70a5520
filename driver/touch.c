/*
 * touch.c: events on the streams of a device that do no harm to captures of others.
 *
 * Libraries capture streams without a word to cenote. cuCtxRecordEvent and cuCtxSynchronize invalidate every capture of the context, and no
 * question to the driver tells beforehand whether there is one on a stream that cenote does not know. So neither is called
 * while a pool is open whose program captures unannounced (option announced:0): then events are recorded on streams, one by one.
 *
 * An event on a stream that is being captured marks a place in the graph and no moment, and a question about it invalidates the capture. So
 * the stream is asked before and after: an event is believed only if the stream was not captured at either time. A capture that begins between
 * the first question and the event, and lasts, is found by the second; one that begins and ends between them leaves an event about which the
 * driver answers with an error, when there is no capture any more that the question could harm.
 *
 * The default stream is never touched: it waits for all blocking streams, and an event on it invalidates their captures. A stream of
 * cenote's own stands in for it. It is a blocking one, so it waits for whatever the default stream has been given; no other stream waits for it,
 * but the default one for the event.
 *
 * Streams that live as long as the program are added and never taken out, until the device is closed.
 *
 * LOCKING: none; touch_record, touch_record_end and touch_record_all inside, in the context of the device.
 */
#include "driver/touch.h"

#include "base/check.h"
#include "driver/device.h"

static atomic_uint careful_pools;

void touch_be_careful(bool begins)
{
    atomic_fetch_add(&careful_pools, begins ? 1u : -1u);
}

bool touch_captures_are_announced(void)
{
    return atomic_load(&careful_pools) == 0;
}

void touch_add(struct device *d, CUstream stream, uint64_t key)
{
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX; i++) {
        CUstream there = NULL;
        if (atomic_compare_exchange_strong(&d->touch.stream[i].handle, &there, stream) || there == stream) {
            atomic_store(&d->touch.stream[i].key, key);
            return;
        }
    }
    atomic_store(&d->touch.is_full, true);
}

/* Was it added? */
bool touch_has(const struct device *d, CUstream stream)
{
    uint32_t i = 0;
    CUstream there = NULL;
    while (i < TOUCH_STREAMS_MAX && (there = atomic_load(&d->touch.stream[i].handle)) && there != stream)
        i++;
    return i < TOUCH_STREAMS_MAX && there;
}

/* What was added ends with the device's last pool: the streams may end with the context then. */
void touch_close(struct device *d)
{
    CUstream behind = atomic_exchange(&d->touch.behind_default, NULL);
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX && atomic_load(&d->touch.stream[i].handle); i++) {
        atomic_store(&d->touch.stream[i].handle, NULL);
        atomic_store(&d->touch.stream[i].key, 0); /* the next stream of this place is not taken for the old one, until its own key is there */
    }
    atomic_store(&d->touch.is_full, false);
    if (!behind || !atomic_load(&d->generation) || driver_is_exiting() || driver_is_forked() || d->driver->cuCtxPushCurrent(device_context(d)))
        return;
    if (d->driver->cuStreamDestroy(behind)) /* it would be lost: a refusal is asked for once more */
        d->driver->cuStreamDestroy(behind);
    device_pop_context(d->driver);
}

static CUresult find_behind_default(struct device *d, CUstream *stream)
{
    CUstream there = NULL;
    if ((*stream = atomic_load(&d->touch.behind_default)))
        return CUDA_SUCCESS;
    CUresult result = d->driver->cuStreamCreate(stream, CU_STREAM_DEFAULT);
    if (!result && !atomic_compare_exchange_strong(&d->touch.behind_default, &there, *stream)) {
        d->driver->cuStreamDestroy(*stream); /* another thread has made one meanwhile */
        *stream = there;
    }
    return result;
}

/* CUDA_ERROR_NOT_READY: it is. */
static CUresult check_not_captured(struct device *d, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (BREAKS(5))
        return CUDA_SUCCESS;
    if (!d->driver->cuStreamIsCapturing)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = d->driver->cuStreamIsCapturing(stream, &status);
    return !result && status != CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_ERROR_NOT_READY : result;
}

/* LOCKING: inside. */
bool touch_is_captured(struct device *d, CUstream stream)
{
    return stream && stream != CU_STREAM_LEGACY && check_not_captured(d, stream) != CUDA_SUCCESS;
}

/*
 * Records the event behind what the stream was given so far. The stream is alive. CUDA_ERROR_NOT_READY: it is being captured, or was a
 * moment ago, and the event says nothing: it must not be asked after before it is recorded anew.
 */
CUresult touch_record(struct device *d, CUstream stream, CUevent event)
{
    bool is_default = !stream || stream == CU_STREAM_LEGACY;
    CUresult result = is_default ? find_behind_default(d, &stream) : check_not_captured(d, stream);
    if (!result)
        result = d->driver->cuEventRecord(event, stream);
    return result || is_default ? result : check_not_captured(d, stream);
}

#define TRIES 8 /* chosen: captures of a moment in a row, one behind the other */

/*
 * The same for an event that cannot be recorded again, because the stream is about to end: the driver is asked at once whether the event says
 * anything. No capture is open in which it could lie, so that the question harms none.
 */
CUresult touch_record_end(struct device *d, CUstream stream, CUevent event)
{
    CUresult result = CUDA_ERROR_CAPTURED_EVENT;
    for (int tries = 0; tries < TRIES && result == CUDA_ERROR_CAPTURED_EVENT; tries++) {
        result = touch_record(d, stream, event);
        if (result)
            return result;
        result = d->driver->cuEventQuery(event);
    }
    if (result == CUDA_ERROR_CAPTURED_EVENT)
        return CUDA_ERROR_NOT_READY;
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/*
 * Events of its own behind what the default stream and the streams that were added have been given so far. *count: how many there are,
 * also after an error. CUDA_ERROR_NOT_READY: one of the streams is being captured.
 */
CUresult touch_record_all(struct device *d, CUevent *events, uint32_t room, uint32_t *count)
{
    CUresult result = CUDA_SUCCESS;
    *count = 0;
    for (uint32_t i = 0; !result && i <= TOUCH_STREAMS_MAX && *count < room; i++) {
        CUstream stream = i ? atomic_load(&d->touch.stream[i - 1].handle) : NULL;
        if (i && !stream)
            break;
        result = d->driver->cuEventCreate(&events[*count], CU_EVENT_DISABLE_TIMING);
        if (!result) {
            ++*count;
            result = touch_record(d, stream, events[*count - 1]);
        }
    }
    return result;
}
