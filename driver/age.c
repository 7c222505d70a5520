/*
 * age.c: how old is a stream that cannot be asked for its id, because it is captured? The question would end the capture.
 *
 * Drivers give ids to streams in rising order, as far as is known (docs/real-cards.md). So a stream that is made now has a greater id than every
 * stream that exists. If the handle of the captured one answers an id later that is no greater, it is the same stream still: it was there at this
 * moment, and no other had its handle meanwhile.
 *
 *     ids rise, as far as they were seen ---a stream that came later has no greater one---> ids do not rise: nothing is said any more
 *
 * LOCKING: none; not inside.
 */
#include "driver/device.h"

static _Atomic(uint64_t) newest_stream; /* the greatest id that was seen here; UINT64_MAX: ids do not rise */

/* The context is current. */
static CUresult ask_newest(const struct driver *t, unsigned long long *id)
{
    CUstream made;
    CUresult result = t->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (result)
        return result;
    result = t->cuStreamGetId(made, id);
    if (t->cuStreamDestroy(made))
        t->cuStreamDestroy(made); /* it would be lost: a refusal is asked for once more */
    return result;
}

/* That ids rise is tried each time. The context is current. */
static CUresult ask_and_compare(const struct driver *t, unsigned long long *id)
{
    unsigned long long first;
    uint64_t before = atomic_load(&newest_stream);
    CUresult result = ask_newest(t, &first);
    if (result || (result = ask_newest(t, id)))
        return result;
    bool rise = first > before && *id > first;
    while (before < (rise ? *id : UINT64_MAX) && !atomic_compare_exchange_weak(&newest_stream, &before, rise ? *id : UINT64_MAX)) {}
    return rise ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* In mode RELAXED, as inside: the thread may be capturing. */
unsigned long long device_newest_stream(struct device *d, CUstream stream)
{
    const struct driver *t = d->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext context;
    CUdevice device;
    unsigned long long id = 0;
    if (device_of_stream(d, stream, &context, &device) || t->cuThreadExchangeStreamCaptureMode(&mode))
        return 0;
    CUresult result = t->cuCtxPushCurrent(context);
    if (!result) {
        result = ask_and_compare(t, &id);
        device_pop_context(t);
    }
    t->cuThreadExchangeStreamCaptureMode(&mode);
    return result ? 0 : id;
}

/* Two captures have different numbers. A captured stream may be asked for it, in any mode (sim/entries/answers.txt). */
uint64_t device_capture_of(const struct device *d, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    const struct driver *t = d->driver;
    bool asked = t->cuStreamGetCaptureInfo_v2 && !t->cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL);
    return asked && status != CU_STREAM_CAPTURE_STATUS_NONE ? id : 0;
}
