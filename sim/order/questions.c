/*
 * questions.c: what a program may ask about a stream: its context, device, flags, priority and id. Three of these end a capture that the stream is
 * in.
 *
 * LOCKING: the model's lock, but for the id, which takes it only if a look without does not tell.
 */
#include "sim/order/stream.h"

/* Seen on an H100, driver 580.159: in every mode, whether the stream began the capture or joined it. Its context and priority may be asked for. */
static CUresult forbidden_in_capture(struct stream *s, const char *call)
{
    return s->capture ? capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call) : CUDA_SUCCESS;
}

/* The stream of a question whose answer goes to `answer`. */
static CUresult find_for(CUstream handle, const void *answer, struct stream **s)
{
    CUresult result = stream_find(handle, s);
    return !result && !answer ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult stream_context(CUstream handle, CUcontext *context)
{
    struct stream *s;
    CUresult result = find_for(handle, context, &s);
    if (!result)
        *context = slots_handle(&model.contexts, stream_part(s));
    return result;
}

/* The newer form of the same question: a green context is named apart, and its primary one as the context. */
CUresult stream_contexts(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    struct stream *s;
    CUresult result = find_for(handle, context && green ? context : NULL, &s);
    if (result)
        return result;
    *context = slots_handle(&model.contexts, s->context);
    *green = s->green ? context_at(s->green)->green : NULL;
    return CUDA_SUCCESS;
}

CUresult stream_device(CUstream handle, CUdevice *device)
{
    struct stream *s;
    CUresult result = find_for(handle, device, &s);
    if (!result)
        result = forbidden_in_capture(s, "cuStreamGetDevice");
    if (!result)
        *device = context_at(s->context)->device;
    return result;
}

CUresult stream_flags(CUstream handle, unsigned *flags)
{
    struct stream *s;
    CUresult result = find_for(handle, flags, &s);
    if (!result)
        result = forbidden_in_capture(s, "cuStreamGetFlags");
    if (!result)
        *flags = s->flags;
    return result;
}

CUresult stream_priority(CUstream handle, int *priority)
{
    struct stream *s;
    CUresult result = find_for(handle, priority, &s);
    if (!result)
        *priority = s->priority;
    return result;
}

static CUresult give_id(unsigned long long *id, uint64_t value)
{
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = value;
    return CUDA_SUCCESS;
}

/* The first question about a handle 2, a wrong handle, or while a stream is captured: with the lock. */
static CUresult stream_id_slow(CUstream handle, unsigned long long *id)
{
    struct stream *s;
    if (model_thread()->in_host_function)
        return model_refuse_call("cuStreamGetId");
    model_lock();
    CUresult result = stream_find(handle, &s);
    if (!result)
        result = forbidden_in_capture(s, "cuStreamGetId");
    if (!result)
        result = give_id(id, stream_unique(s));
    model_unlock();
    return result;
}

CUresult stream_id(CUstream handle, unsigned long long *id)
{
    uint64_t known = captures_are_open() ? 0 : stream_known_id(handle);
    return known ? give_id(id, known) : stream_id_slow(handle, id);
}
