/*
 * stream_calls.c: what a program does with streams beside putting work on them: it waits for them, lets them wait for events, has them call its
 * functions, and ends them.
 *
 * Not what a stream is (streams.c). A stream that captures can be neither waited for nor asked.
 *
 * LOCKING: the model's lock.
 */
#include <stdlib.h>

#include "sim/order/stream.h"

static void close_stream(uint32_t number)
{
    capture_drop_stream(number);
    stream_shut(number);
}

void streams_close_all(uint32_t context)
{
    for (uint32_t i = stream_next(0); i; i = stream_next(i))
        if (stream_at(i)->context == context)
            close_stream(i);
}

/* What was created in a green context that has ended, and not destroyed before, is lost. */
void streams_orphan_all(uint32_t green)
{
    for (uint32_t i = stream_next(0); i; i = stream_next(i)) {
        if (stream_at(i)->green != green || stream_at(i)->orphaned)
            continue;
        capture_drop_stream(i);
        if (stream_at(i)->kind == STREAM_LEGACY)
            stream_shut(i);
        else
            stream_orphan(i);
    }
}

void streams_close_thread(uint64_t thread)
{
    for (uint32_t i = stream_next(0); i; i = stream_next(i))
        if (stream_at(i)->kind == STREAM_PER_THREAD && stream_at(i)->thread == thread)
            close_stream(i);
}

/* Work in flight goes on and is done in its time. */
CUresult stream_destroy(CUstream handle)
{
    uint32_t number = stream_created(handle);
    if (!number)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "cuStreamDestroy: %p was destroyed or never created", (void *)handle);
    if (stream_at(number)->orphaned)
        return model_refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "cuStreamDestroy: the green context of %p was destroyed before", (void *)handle);
    if (stream_at(number)->capture)
        capture_spoil(stream_at(number), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamDestroy");
    close_stream(number);
    return CUDA_SUCCESS;
}

static CUresult refuse_while_capturing(struct stream *s, const char *call)
{
    if (s->capture)
        return capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call);
    return capture_legacy_conflict(s, call);
}

CUresult stream_synchronize(CUstream handle)
{
    struct stream *s;
    CUresult result = stream_find(handle, &s);
    if (!result)
        result = refuse_while_capturing(s, "cuStreamSynchronize");
    if (result)
        return result;
    if (!clock_go_to(stream_start(s)))
        return MODEL_AGAIN;
    model_synchronized();
    return context_at(s->context)->lost;
}

CUresult stream_query(CUstream handle)
{
    struct stream *s;
    CUresult result = stream_find(handle, &s);
    if (!result)
        result = refuse_while_capturing(s, "cuStreamQuery");
    if (result)
        return result;
    if (stream_start(s) > clock_seen() && (clock_look(), stream_start(s) > clock_seen()))
        return CUDA_ERROR_NOT_READY;
    return context_at(s->context)->lost;
}

CUresult context_synchronize(void)
{
    uint32_t number = context_top();
    CUresult result = capture_conflict(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize");
    if (result)
        return result;
    if (!clock_go_to(context_at(number)->all_done))
        return MODEL_AGAIN;
    model_synchronized();
    return context_at(context_whole(number))->lost;
}

static CUresult wait_recorded(struct stream *s, const struct event *e, CUevent handle, unsigned flags)
{
    bool external = flags & CU_EVENT_WAIT_EXTERNAL;
    if (s->capture && external) {
        struct work work = {.kind = &work_await, .name = "cuStreamWaitEvent", .number = event_number(handle)};
        return capture_add(s, &work);
    }
    if (s->capture)
        return capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "cuStreamWaitEvent");
    CUresult result = capture_legacy_conflict(s, "cuStreamWaitEvent");
    if (result)
        return result;
    if (event_is_elsewhere(e))
        return shared_event_is_done(e->shared) ? CUDA_SUCCESS : MODEL_AGAIN;
    stream_extend(s, moment_later(stream_start(s), e->done));
    return CUDA_SUCCESS;
}

CUresult stream_wait_event(CUstream handle, CUevent event, unsigned flags)
{
    struct stream *s;
    CUresult result = stream_find(handle, &s);
    const struct event *e = result ? NULL : event_find(event);
    if (!e)
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (event_is_elsewhere(e))
        return wait_recorded(s, e, event, flags);
    switch (e->state) {
    case EVENT_NEW:
        return CUDA_SUCCESS;
    case EVENT_RECORDED:
        return wait_recorded(s, e, event, flags);
    case EVENT_CAPTURED:
        break;
    }
    if (capture_has_event(e))
        return capture_wait(s, e);
    capture_refuse_event(e, "cuStreamWaitEvent");
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult stream_call(CUstream handle, CUhostFn function, void *argument)
{
    struct stream *s;
    CUresult result = stream_find(handle, &s);
    if (!result && !function)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct work work = {.kind = &work_call, .name = "cuLaunchHostFunc", .function = function, .argument = argument};
    return work_put(s, &work);
}

struct callback {
    CUstreamCallback function;
    CUstream         stream;
    void            *argument;
};

static void CUDA_CB run_callback(void *argument)
{
    struct callback c = *(struct callback *)argument;
    free(argument);
    c.function(c.stream, CUDA_SUCCESS, c.argument);
}

/* The older form of cuLaunchHostFunc. After a lost context it is not called: neither is that. */
CUresult stream_add_callback(CUstream handle, CUstreamCallback function, void *argument, unsigned flags)
{
    struct stream *s;
    CUresult result = stream_find(handle, &s);
    if (!result && (!function || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && s->capture)
        result = capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamAddCallback");
    if (result)
        return result;
    struct callback *c = malloc(sizeof *c);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct callback){function, handle, argument};
    struct work work = {.kind = &work_call, .name = "cuStreamAddCallback", .function = run_callback, .argument = c};
    result = work_put(s, &work);
    if (result)
        free(c);
    return result;
}
