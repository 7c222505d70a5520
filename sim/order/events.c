/*
 * events.c: events: points in the work of a stream or of a whole context, which are complete from a known moment on.
 *
 *     new ----record----> recorded ----record----> recorded (the new point counts)
 *      \----record on a capturing stream----> captured: it names a place in a graph and can be neither queried nor waited for on the host
 *
 * An event that other processes know (boards.c) may have been recorded by one of them since: then that record counts, not the state here.
 */
#include <stdlib.h>

#include "sim/order/stream.h"

#define EVENTS_MAX (1u << 20)
#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

static struct slots events;

void events_reset(void)
{
    if (!events.items)
        slots_open(&events, sizeof(struct event), EVENTS_MAX, SLOTS_OLDEST_FIRST);
    boards_reset();
    for (uint32_t i = 1; i < events.used; i++)
        free(((struct event *)slots_at(&events, i))->seen);
    slots_clear(&events);
}

static struct event *event_at(uint64_t number)
{
    return slots_at(&events, (uint32_t)number);
}

static void close_event(uint32_t number)
{
    struct event *e = event_at(number);
    free(e->seen);
    e->seen = NULL;
    if (e->shared)
        shared_event_close(e->shared);
    e->shared = NULL;
    slots_give(&events, number);
    model.books.events--;
}

void events_close_all(uint32_t context)
{
    for (uint32_t i = 1; i < events.used; i++)
        if (slots_is_live(&events, i) && event_at(i)->context == context)
            close_event(i);
}

uint64_t event_number(CUevent handle)
{
    return slots_number(&events, handle);
}

struct event *event_find(CUevent handle)
{
    uint32_t number = slots_number(&events, handle);
    if (number)
        return event_at(number);
    model_violation("event %p was destroyed or never created", (void *)handle);
    return NULL;
}

static void mark_recorded(struct event *e, uint64_t done)
{
    clock_submitted();
    e->state = EVENT_RECORDED;
    e->done = done;
    if (e->shared)
        shared_event_recorded(e->shared, done);
}

bool event_is_elsewhere(const struct event *e)
{
    return e->shared && e->state != EVENT_CAPTURED && shared_event_is_elsewhere(e->shared);
}

bool event_is_awaited(uint64_t number)
{
    const struct event *e = event_at(number);
    return event_is_elsewhere(e) && !shared_event_is_done(e->shared);
}

/* Also for an event that was destroyed since a graph took it: then no handle names it. */
static void record_placed(const struct work *w, uint64_t done)
{
    mark_recorded(event_at(w->number), done);
}

/* 0: there is nothing to wait for here. */
static uint64_t awaited(const struct work *w)
{
    const struct event *e = event_at(w->number);
    return e->state == EVENT_RECORDED && !event_is_elsewhere(e) ? e->done : 0;
}

const struct work_kind work_record = {.node = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .placed = record_placed};
const struct work_kind work_await = {.node = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .not_before = awaited};

CUresult event_create(CUevent *event, unsigned flags)
{
    if (!event || flags & ~(unsigned)EVENT_FLAGS || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = slots_take(&events);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event_at(number)->flags = flags;
    event_at(number)->context = context_current();
    model.books.events++;
    *event = slots_handle(&events, number);
    return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event)
{
    uint32_t number = slots_number(&events, event);
    if (!number)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventDestroy: %p was destroyed or never created", (void *)event);
    close_event(number);
    return CUDA_SUCCESS;
}

/* Without timing no call asks when exactly: then the clock need not be read. */
static void note_time(const struct event *e)
{
    if (!(e->flags & CU_EVENT_DISABLE_TIMING))
        clock_look();
}

static CUresult record(struct stream *s, struct event *e)
{
    CUresult result = capture_legacy_conflict(s, "cuEventRecord");
    if (result)
        return result;
    note_time(e);
    mark_recorded(e, work_end(s, 0, 0));
    stream_extend(s, e->done);
    return CUDA_SUCCESS;
}

CUresult event_record_with_flags(CUevent event, CUstream stream, unsigned flags)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    struct event *e = event_find(event);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->context != s->context)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord: event %p is of another context than the stream", (void *)event);
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!s->capture)
        return record(s, e);
    if (!(flags & CU_EVENT_RECORD_EXTERNAL))
        return capture_record(s, e);
    struct work work = {.kind = &work_record, .name = "cuEventRecordWithFlags", .number = event_number(event)};
    return capture_add(s, &work);
}

CUresult event_record(CUevent event, CUstream stream)
{
    return event_record_with_flags(event, stream, CU_EVENT_RECORD_DEFAULT);
}

/* After all work of a context so far. An event belongs to a whole context, so it serves all its green ones. */
CUresult event_record_all(uint32_t number, CUevent event, const char *call)
{
    CUresult result = context_usable(number);
    if (result)
        return result;
    struct event *e = event_find(event);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->context != context_whole(number))
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "%s: event %p is of another context", call, (void *)event);
    result = capture_conflict(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call);
    if (result)
        return result;
    struct context *c = context_at(number);
    if (model.shape.lag || !(e->flags & CU_EVENT_DISABLE_TIMING))
        clock_look();
    uint64_t now = clock_seen() + model.shape.lag;
    mark_recorded(e, moment_later(c->all_done, now));
    return CUDA_SUCCESS;
}

CUresult event_record_context(CUcontext context, CUevent event)
{
    return event_record_all(context ? slots_number(&model.contexts, context) : context_top(), event, "cuCtxRecordEvent");
}

/* What is put on the context from now on starts when the event is complete. */
CUresult event_await_all(uint32_t number, CUevent event, const char *call)
{
    CUresult result = context_usable(number);
    const struct event *e = result ? NULL : event_find(event);
    if (!e)
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    result = capture_conflict(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call);
    if (!result && e->state == EVENT_CAPTURED) {
        capture_refuse_event(e, call);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (result)
        return result;
    if (event_is_elsewhere(e))
        return shared_event_is_done(e->shared) ? CUDA_SUCCESS : MODEL_AGAIN;
    struct context *c = context_at(number);
    if (e->state == EVENT_RECORDED)
        c->not_before = moment_later(c->not_before, e->done);
    return CUDA_SUCCESS;
}

/* Is the last record of it, by this process, done? */
static bool is_done(const struct event *e)
{
    if (moment_by_now(e->done) > clock_seen())
        clock_look();
    return moment_by_now(e->done) <= clock_seen();
}

/* A captured event marks no moment: asking for it is an error and ends its capture badly. */
static CUresult find_recorded(CUevent event, const char *call, struct event **found)
{
    struct event *e = event_find(event);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->state == EVENT_CAPTURED) {
        capture_refuse_event(e, call);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    *found = e;
    return context_at(e->context)->lost;
}

CUresult event_query(CUevent event)
{
    struct event *e;
    CUresult result = find_recorded(event, "cuEventQuery", &e);
    if (!result && event_is_elsewhere(e))
        return shared_event_is_done(e->shared) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    if (result || e->state == EVENT_NEW)
        return result;
    if (!is_done(e) && !clock_polled(e->done))
        return CUDA_ERROR_NOT_READY;
    return context_at(e->context)->lost;
}

CUresult event_synchronize(CUevent event)
{
    struct event *e;
    CUresult result = find_recorded(event, "cuEventSynchronize", &e);
    if (!result && event_is_elsewhere(e))
        return shared_event_is_done(e->shared) ? context_at(e->context)->lost : MODEL_AGAIN;
    if (result || e->state == EVENT_NEW)
        return result;
    if (!clock_go_to(e->done))
        return MODEL_AGAIN;
    model_synchronized();
    return context_at(e->context)->lost;
}

CUresult event_elapsed(float *ms, CUevent start, CUevent end)
{
    struct event *from, *to;
    CUresult result = find_recorded(start, "cuEventElapsedTime", &from);
    if (!result)
        result = find_recorded(end, "cuEventElapsedTime", &to);
    if (result)
        return result;
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    if (from->state == EVENT_NEW || to->state == EVENT_NEW || (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (context_at(from->context)->device != context_at(to->context)->device)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime: the events are of two devices");
    if (!is_done(from) || !is_done(to))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(moment_by_now(to->done) - moment_by_now(from->done)) / 1e6);
    return CUDA_SUCCESS;
}

/* --- events of several processes */

CUresult ipc_get_event(CUipcEventHandle *handle, CUevent event)
{
    struct event *e = event_find(event);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || !(e->flags & CU_EVENT_INTERPROCESS) || (e->shared && !shared_event_is_own(e->shared)))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcGetEventHandle: %p was not created here with CU_EVENT_INTERPROCESS",
                            (void *)event);
    if (!e->shared) {
        e->shared = shared_event_new();
        if (!e->shared)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (e->state == EVENT_RECORDED)
            shared_event_recorded(e->shared, e->done);
    }
    shared_event_describe(e->shared, handle);
    return CUDA_SUCCESS;
}

CUresult ipc_open_event(CUevent *event, CUipcEventHandle handle)
{
    struct shared_event *shared;
    if (!event)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenEventHandle: there is no place for the event");
    CUresult result = shared_event_open(&handle, &shared);
    if (result)
        return result;
    result = event_create(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (result)
        shared_event_close(shared);
    else
        event_find(*event)->shared = shared;
    return result;
}
