/*
 * relay.c: a block may be in use where cenote cannot be told of it: on a stream of a context beside the primary one, or anywhere on the device.
 * An event says how far that is. cenote knows streams of primary contexts alone, so a stream of ours waits for the event on the device, and cenote is
 * told that the block is used on that one.
 *
 *     relay_open ----> cenote_use, cenote_free ----> relay_close: retired and destroyed at once; what it waits for it goes on waiting for
 *
 * Each has one use alone: two that share a stream would wait for each other's events.
 *
 * LOCKING: none.
 */
#include "plugins/preload/relay.h"

#include "plugins/preload/memory.h"

CUresult relay_open(CUevent event, CUstream *relay)
{
    const struct real *r = real();
    CUresult result = r->cuStreamCreate(relay, CU_STREAM_NON_BLOCKING);
    if (!result && (result = r->cuStreamWaitEvent(*relay, event, 0)))
        r->cuStreamDestroy_v2(*relay);
    return result;
}

/* A stream that cenote cannot be told the end of stays: its handle must not become another stream's. */
void relay_close(struct place *p, CUstream relay)
{
    if (!cenote_stream_retire(p->pool, relay))
        real()->cuStreamDestroy_v2(relay);
}

/* *event: behind what the stream was given. A default stream is the current context's. */
static CUresult mark_stream(CUstream stream, CUevent *event)
{
    const struct real *r = real();
    CUcontext context = NULL, popped;
    bool is_default = stream_is_default(stream);
    CUresult result = is_default ? CUDA_SUCCESS : r->cuStreamGetCtx(stream, &context);
    if (!result && !is_default)
        result = r->cuCtxPushCurrent_v2(context);
    if (result)
        return result;
    result = r->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    if (!result && (result = r->cuEventRecord(*event, stream)))
        r->cuEventDestroy_v2(*event);
    if (!is_default)
        r->cuCtxPopCurrent_v2(&popped);
    return result;
}

static CUresult use_behind(struct place *p, void *block, CUevent event)
{
    CUstream relay;
    struct scope scope;
    CUresult result = place_enter(p, &scope);
    if (!result && !(result = relay_open(event, &relay))) {
        result = memory_said(cenote_use(block, relay));
        relay_close(p, relay);
    }
    place_leave(&scope);
    return result;
}

CUresult relay_use(struct place *p, void *block, CUstream stream)
{
    const struct real *r = real();
    CUevent event = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    r->cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = mark_stream(stream, &event);
    if (!result) {
        result = use_behind(p, block, event);
        r->cuEventDestroy_v2(event);
    }
    r->cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}
