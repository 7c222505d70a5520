/*
 * questions.c: what a program may ask about a stream: its context, device, flags, priority and id. Three of these end a capture that the stream is
 * in.
 *
 * LOCKING: the model's lock, but for the id, which takes it only if a look without does not tell.
 */
#include "sim/order/stream.h"

/*
 * Seen on an H100, driver 580.159: in every mode, whether the stream began the capture or joined it. Its context and priority may be asked for. NULL
 * for `call`: such a question.
 */
static CUresult check_capture(struct stream *s, const char *call)
{
    return call && s->capture ? capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call) : CUDA_SUCCESS;
}

/* The stream of a question whose answer goes to `answer`. */
static CUresult find_for(CUstream handle, const void *answer, const char *call, struct stream **s)
{
    CUresult result = stream_find(handle, s);
    return result ? result : answer ? check_capture(*s, call) : CUDA_ERROR_INVALID_VALUE;
}

CUresult stream_context(CUstream handle, CUcontext *context)
{
    struct stream *s;
    CUresult result = find_for(handle, context, NULL, &s);
    if (!result)
        *context = slots_handle(&model.contexts, stream_part(s));
    return result;
}

/* The newer form of the same question: a green context is named apart, and its primary one as the context. */
CUresult stream_contexts(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    struct stream *s;
    CUresult result = find_for(handle, context && green ? context : NULL, NULL, &s);
    if (result)
        return result;
    *context = slots_handle(&model.contexts, s->context);
    *green = s->green ? context_at(s->green)->green : NULL;
    return CUDA_SUCCESS;
}

CUresult stream_device(CUstream handle, CUdevice *device)
{
    struct stream *s;
    CUresult result = find_for(handle, device, "cuStreamGetDevice", &s);
    if (!result)
        *device = context_at(s->context)->device;
    return result;
}

CUresult stream_flags(CUstream handle, unsigned *flags)
{
    struct stream *s;
    CUresult result = find_for(handle, flags, "cuStreamGetFlags", &s);
    if (!result)
        *flags = s->flags;
    return result;
}

CUresult stream_priority(CUstream handle, int *priority)
{
    struct stream *s;
    CUresult result = find_for(handle, priority, NULL, &s);
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
        result = check_capture(s, "cuStreamGetId");
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
