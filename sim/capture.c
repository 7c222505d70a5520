/*
 * capture.c: stream capture: work put on a capturing stream becomes a node of a graph instead of being done.
 *
 * Other streams join a capture by waiting for an event recorded in it, and have to be joined back before its end. To know whether they
 * are, each stream of the capture keeps, for every stream of it, how many of that one's nodes come before its own next node.
 *
 *     none ---begin---> active ---end---> none, and a graph
 *                          \---a use that CUDA forbids---> spoiled (INVALIDATED) ---end---> none, no graph, an error
 */
#include <stdlib.h>
#include <string.h>

#include "sim/stream.h"

#define CAPTURES_MOST 1024
#define PLACES_MOST 64      /* streams in one capture */

struct capture {
    uint64_t            id;
    CUstreamCaptureMode mode;
    uint64_t            thread;         /* that began it */
    bool                spoiled;
    uint32_t            graph;          /* owned until the end */
    uint32_t            places;         /* streams in it; the first began it */
    uint32_t            streams[PLACES_MOST];   /* 0: destroyed meanwhile */
    uint32_t            before[PLACES_MOST][PLACES_MOST];   /* [of this stream][nodes of that one] */
};

static struct slots captures;
static uint64_t last_id;

void captures_reset(void)
{
    if (!captures.items)
        slots_open(&captures, sizeof(struct capture), CAPTURES_MOST, SLOTS_NEWEST_FIRST);
    slots_clear(&captures);
}

static struct capture *capture_at(uint32_t number)
{
    return slots_at(&captures, number);
}

static void spoil(struct capture *c, const char *call)
{
    if (!c->spoiled)
        model_violation("%s: not allowed during stream capture: capture %llu is invalidated", call, (unsigned long long)c->id);
    c->spoiled = true;
}

/* The next open capture after `number`, 0: none. */
static uint32_t next_capture(uint32_t number)
{
    if (!captures.live_count)
        return 0;
    for (number++; number < captures.used; number++)
        if (slots_is_live(&captures, number))
            return number;
    return 0;
}

CUresult capture_forbids(const char *call)
{
    const struct thread *t = model_thread();
    CUresult result = CUDA_SUCCESS;
    if (!captures.live_count || t->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        struct capture *c = capture_at(i);
        bool mine = c->thread == t->number && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = t->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine || global) {
            spoil(c, call);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

static bool has_context(const struct capture *c, uint32_t context)
{
    for (uint32_t i = 0; i < c->places; i++)
        if (c->streams[i] && stream_at(c->streams[i])->context == context)
            return true;
    return false;
}

CUresult capture_conflict(uint32_t context, CUresult error, const char *call)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        if (has_context(capture_at(i), context)) {
            spoil(capture_at(i), call);
            result = error;
        }
    }
    return result;
}

CUresult capture_spoil(struct stream *s, CUresult error, const char *call)
{
    spoil(capture_at(s->capture), call);
    return error;
}

static bool has_blocking_stream(const struct capture *c, uint32_t context)
{
    for (uint32_t i = 0; i < c->places; i++) {
        if (!c->streams[i])
            continue;
        const struct stream *s = stream_at(c->streams[i]);
        if (s->context == context && stream_is_blocking(s))
            return true;
    }
    return false;
}

CUresult capture_legacy_conflict(const struct stream *s, const char *call)
{
    CUresult result = CUDA_SUCCESS;
    if (s->kind != STREAM_LEGACY)
        return result;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        if (has_blocking_stream(capture_at(i), s->context)) {
            spoil(capture_at(i), call);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUresult capture_add(struct stream *s, const struct work *work)
{
    struct capture *c = capture_at(s->capture);
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!graph_append(c->graph, work))
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->before[s->place][s->place]++;
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *s, struct event *e)
{
    struct capture *c = capture_at(s->capture);
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    uint32_t *seen = malloc(sizeof c->before[0]);
    if (!seen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(seen, c->before[s->place], sizeof c->before[0]);
    free(e->seen);
    e->seen = seen;
    e->state = EVENT_CAPTURED;
    e->capture = s->capture;
    e->capture_id = c->id;
    return CUDA_SUCCESS;
}

bool capture_has_event(const struct event *e)
{
    return slots_is_live(&captures, e->capture) && capture_at(e->capture)->id == e->capture_id;
}

void capture_refuse_event(const struct event *e, const char *call)
{
    if (capture_has_event(e))
        spoil(capture_at(e->capture), call);
    else
        model_violation("%s: the event was last recorded in a capture", call);
}

static CUresult join(uint32_t number, struct stream *s)
{
    struct capture *c = capture_at(number);
    if (s->kind == STREAM_LEGACY) {
        spoil(c, "cuStreamWaitEvent on the default stream");
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (c->places == PLACES_MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->capture = number;
    s->place = c->places++;
    c->streams[s->place] = stream_number(s);
    return CUDA_SUCCESS;
}

CUresult capture_wait(struct stream *s, const struct event *e)
{
    struct capture *c = capture_at(e->capture);
    if (s->capture && s->capture != e->capture) {
        spoil(c, "cuStreamWaitEvent between two captures");
        return capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_MERGE, "cuStreamWaitEvent between two captures");
    }
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = s->capture ? CUDA_SUCCESS : join(e->capture, s);
    if (result)
        return result;
    for (uint32_t i = 0; i < c->places; i++)
        if (c->before[s->place][i] < e->seen[i])
            c->before[s->place][i] = e->seen[i];
    return CUDA_SUCCESS;
}

static CUresult open_capture(struct stream *s, CUstreamCaptureMode mode)
{
    uint32_t number = slots_take(&captures);
    uint32_t graph = number ? graph_open() : 0;
    if (!graph) {
        if (number)
            slots_give(&captures, number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct capture *c = capture_at(number);
    c->id = ++last_id;
    c->mode = mode;
    c->thread = model_thread()->number;
    c->graph = graph;
    return join(number, s);
}

CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->kind == STREAM_LEGACY)
        return model_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamBeginCapture: on the default stream");
    if (s->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamBeginCapture: the stream captures already");
    return open_capture(s, mode);
}

CUresult capture_begin_default(CUstream stream)
{
    return capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static bool is_joined(const struct capture *c)
{
    for (uint32_t i = 1; i < c->places; i++)
        if (c->before[0][i] < c->before[i][i])
            return false;
    return true;
}

static void close_capture(uint32_t number, bool keep_graph)
{
    struct capture *c = capture_at(number);
    for (uint32_t i = 0; i < c->places; i++)
        if (c->streams[i])
            stream_at(c->streams[i])->capture = 0;
    if (!keep_graph)
        graph_close(c->graph);
    slots_give(&captures, number);
}

CUresult capture_end(CUstream stream, CUgraph *graph)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (!s->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture: the stream does not capture");
    uint32_t number = s->capture;
    const struct capture *c = capture_at(number);
    if (s->place)
        return model_refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cuStreamEndCapture: the capture began on another stream");
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != model_thread()->number)
        return model_refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "cuStreamEndCapture: the capture began in another thread");
    *graph = NULL;
    if (c->spoiled)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(c))
        result = model_refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "cuStreamEndCapture: a stream of the capture was not joined back");
    else
        *graph = graph_handle(c->graph);
    close_capture(number, !result);
    return result;
}

/* A stream ends. The one that began a capture takes it along; another leaves its place empty. */
void capture_drop_stream(uint32_t number)
{
    struct stream *s = stream_at(number);
    if (!s->capture)
        return;
    capture_at(s->capture)->streams[s->place] = 0;
    if (!s->place)
        close_capture(s->capture, false);
}

static CUstreamCaptureStatus status_of(const struct stream *s)
{
    if (!s->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return capture_at(s->capture)->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = capture_legacy_conflict(s, "cuStreamIsCapturing");
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *status = status_of(s);
    return result;
}

/* Dependencies are not kept: none are told. */
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                      const CUgraphEdgeData **edges, size_t *count)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = capture_legacy_conflict(s, "cuStreamGetCaptureInfo");
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *status = status_of(s);
    bool active = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id && active)
        *id = capture_at(s->capture)->id;
    if (graph && active)
        *graph = graph_handle(capture_at(s->capture)->graph);
    if (nodes)
        *nodes = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return CUDA_SUCCESS;
}

CUresult capture_exchange_mode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread *t = model_thread();
    CUstreamCaptureMode before = t->capture_mode;
    t->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
