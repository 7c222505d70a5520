/*
 * capture.c: stream capture: work put on a capturing stream becomes a node of a graph instead of being done.
 *
 * Other streams join a capture by waiting for an event recorded in it, and have to be joined back before its end. Each stream of the
 * capture keeps the nodes that its next node will wait for: its tails.
 *
 *     none ---begin---> active ---end---> none, and a graph
 *                          \---a use that CUDA forbids---> spoiled (INVALIDATED) ---end---> none, no graph, an error
 */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"

#define CAPTURES_MOST 1024
#define PLACES_MOST 64      /* streams in one capture */

struct place {
    uint32_t         stream;    /* 0: destroyed meanwhile */
    uint32_t        *tails;     /* nodes that the stream's next node will wait for; owned */
    uint32_t         count, room;
    CUgraphEdgeData *edges;     /* of them, if the program said; owned */
    CUgraphNode     *told;      /* the same as handles, for cuStreamGetCaptureInfo; owned */
    CUgraphEdgeData *told_edges;
};

struct capture {
    uint64_t            id;
    CUstreamCaptureMode mode;
    uint64_t            thread;         /* that began it */
    bool                spoiled;
    uint32_t            graph;
    bool                own;            /* the graph is the capture's until the end; else the program's */
    uint32_t            places;         /* streams in it; the first began it */
    struct place        place[PLACES_MOST];
};

static struct slots captures;
static uint64_t last_id;

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

static void free_places(struct capture *c)
{
    for (uint32_t i = 0; i < c->places; i++) {
        free(c->place[i].tails);
        free(c->place[i].edges);
        free(c->place[i].told);
        free(c->place[i].told_edges);
    }
}

static void forget_edges(struct place *p)
{
    free(p->edges);
    p->edges = NULL;
}

void captures_reset(void)
{
    if (!captures.items)
        slots_open(&captures, sizeof(struct capture), CAPTURES_MOST, SLOTS_NEWEST_FIRST);
    for (uint32_t i = next_capture(0); i; i = next_capture(i))
        free_places(capture_at(i));
    slots_clear(&captures);
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
        if (c->place[i].stream && stream_at(c->place[i].stream)->context == context)
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
        if (!c->place[i].stream)
            continue;
        const struct stream *s = stream_at(c->place[i].stream);
        if (s->context == context && stream_is_blocking(s))
            return true;
    }
    return false;
}

/* `call` NULL: it only asks, which spoils no capture. */
static CUresult legacy_conflict(const struct stream *s, const char *call)
{
    CUresult result = CUDA_SUCCESS;
    if (s->kind != STREAM_LEGACY)
        return result;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        if (has_blocking_stream(capture_at(i), s->context)) {
            if (call)
                spoil(capture_at(i), call);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUresult capture_legacy_conflict(const struct stream *s, const char *call)
{
    return legacy_conflict(s, call);
}

static bool room_for(struct place *p, size_t count)
{
    if (count <= p->room)
        return true;
    uint32_t room = p->room ? 2 * p->room : 4;
    while (room < count)
        room *= 2;
    uint32_t *tails = realloc(p->tails, room * sizeof *tails);
    if (!tails)
        return false;
    p->tails = tails;
    p->room = room;
    return true;
}

static bool set_tails(struct place *p, const uint32_t *nodes, size_t count)
{
    if (!room_for(p, count))
        return false;
    if (count)
        memcpy(p->tails, nodes, count * sizeof *nodes);
    p->count = (uint32_t)count;
    return true;
}

static bool add_tails(struct place *p, const uint32_t *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t k = 0;
        while (k < p->count && p->tails[k] != nodes[i])
            k++;
        if (k < p->count)
            continue;
        if (!room_for(p, p->count + 1))
            return false;
        p->tails[p->count++] = nodes[i];
    }
    return true;
}

uint32_t capture_graph(const struct stream *s, const uint32_t **tails, uint32_t *count)
{
    const struct capture *c = capture_at(s->capture);
    const struct place *p = &c->place[s->place];
    *tails = p->tails;
    *count = p->count;
    return c->spoiled ? 0 : c->graph;
}

CUresult capture_add_node(struct stream *s, struct node *n, uint32_t *added)
{
    struct capture *c = capture_at(s->capture);
    struct place *p = &c->place[s->place];
    if (c->spoiled) {
        node_abandon(n);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *added = node_enter(c->graph, n, p->tails, p->edges, p->count);
    forget_edges(p);
    return *added && set_tails(p, added, 1) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_add(struct stream *s, const struct work *work)
{
    static const CUgraphNodeType types[] = {
        [WORK_WAIT] = CU_GRAPH_NODE_TYPE_KERNEL, [WORK_TOUCH] = CU_GRAPH_NODE_TYPE_KERNEL, [WORK_FILL] = CU_GRAPH_NODE_TYPE_MEMSET,
        [WORK_EXPECT] = CU_GRAPH_NODE_TYPE_KERNEL, [WORK_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY, [WORK_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [WORK_CALL] = CU_GRAPH_NODE_TYPE_HOST, [WORK_GIVE] = CU_GRAPH_NODE_TYPE_EMPTY, [WORK_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [WORK_AWAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    };
    uint32_t added;
    struct node n = {.type = types[work->kind], .work = *work};
    return capture_add_node(s, &n, &added);
}

CUresult capture_record(struct stream *s, struct event *e)
{
    struct capture *c = capture_at(s->capture);
    const struct place *p = &c->place[s->place];
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    uint32_t *seen = malloc((p->count + 1) * sizeof *seen);
    if (!seen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    seen[0] = p->count;
    if (p->count)
        memcpy(seen + 1, p->tails, p->count * sizeof *seen);
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
    c->place[s->place] = (struct place){.stream = stream_number(s)};
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
    forget_edges(&c->place[s->place]);
    return add_tails(&c->place[s->place], e->seen + 1, e->seen[0]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_capture(struct stream *s, CUstreamCaptureMode mode, uint32_t graph)
{
    uint32_t number = slots_take(&captures);
    uint32_t grows = number && !graph ? graph_open() : graph;
    if (!number || !grows) {
        if (number)
            slots_give(&captures, number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct capture *c = capture_at(number);
    c->id = ++last_id;
    c->mode = mode;
    c->thread = model_thread()->number;
    c->graph = grows;
    c->own = !graph;
    graph_at(grows)->capture = number;
    return join(number, s);
}

static CUresult begin(CUstream stream, CUstreamCaptureMode mode, uint32_t graph, struct stream **s)
{
    CUresult result = stream_find(stream, s);
    if (result)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if ((*s)->kind == STREAM_LEGACY)
        return model_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamBeginCapture: on the default stream");
    if ((*s)->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamBeginCapture: the stream captures already");
    return open_capture(*s, mode, graph);
}

CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
    struct stream *s;
    return begin(stream, mode, 0, &s);
}

CUresult capture_begin_default(CUstream stream)
{
    return capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Edge data for tails that the program names: kept until the next node. */
static bool keep_edges(struct place *p, const CUgraphEdgeData *edges, size_t count)
{
    forget_edges(p);
    p->edges = edges && count ? malloc(count * sizeof *edges) : NULL;
    if (p->edges)
        memcpy(p->edges, edges, count * sizeof *edges);
    return p->edges || !edges || !count;
}

CUresult capture_begin_to(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
                          CUstreamCaptureMode mode)
{
    struct stream *s;
    uint32_t *numbers, number = graph_find(graph, "cuStreamBeginCaptureToGraph");
    if (!number || graph_at(number)->capture)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_nodes_of(number, nodes, count, &numbers);
    if (!result)
        result = begin(stream, mode, number, &s);
    if (!result) {
        struct place *p = &capture_at(s->capture)->place[s->place];
        if (!set_tails(p, numbers, count) || !keep_edges(p, edges, count))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(numbers);
    return result;
}

CUresult capture_update(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (!s->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamUpdateCaptureDependencies: the stream does not capture");
    struct capture *c = capture_at(s->capture);
    struct place *p = &c->place[s->place];
    uint32_t *numbers;
    if (c->spoiled || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return c->spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_INVALID_VALUE;
    result = graph_nodes_of(c->graph, nodes, count, &numbers);
    if (result)
        return result;
    bool kept;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        kept = set_tails(p, numbers, count) && keep_edges(p, edges, count);
    else
        kept = add_tails(p, numbers, count) && keep_edges(p, NULL, 0);
    free(numbers);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* All that any stream of it has done comes before what its first stream has done last. */
static bool is_joined(const struct capture *c)
{
    bool joined = true;
    for (uint32_t i = 1; i < c->places && joined; i++)
        joined = graph_reaches(c->graph, c->place[0].tails, c->place[0].count, c->place[i].tails, c->place[i].count);
    return joined;
}

static void close_capture(uint32_t number, bool keep_graph)
{
    struct capture *c = capture_at(number);
    for (uint32_t i = 0; i < c->places; i++)
        if (c->place[i].stream)
            stream_at(c->place[i].stream)->capture = 0;
    graph_at(c->graph)->capture = 0;
    if (!keep_graph && c->own)
        graph_close(c->graph);
    free_places(c);
    slots_give(&captures, number);
}

CUresult capture_end(CUstream stream, CUgraph *graph)
{
    struct stream *s;
    CUgraph unasked;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (!s->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture: the stream does not capture");
    uint32_t number = s->capture;
    const struct capture *c = capture_at(number);
    if (!graph && c->own) /* into a graph of the program's own, PyTorch asks for none: the bodies of conditional nodes */
        return CUDA_ERROR_INVALID_VALUE;
    graph = graph ? graph : &unasked;
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
    capture_at(s->capture)->place[s->place].stream = 0;
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
        result = legacy_conflict(s, NULL);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *status = status_of(s);
    return result;
}

/* The tails of a stream as handles, valid until it is asked again, or the capture ends. */
static bool tell_tails(struct place *p)
{
    CUgraphNode *told = realloc(p->told, (p->count + 1) * sizeof *told);
    if (told)
        p->told = told;
    CUgraphEdgeData *edges = realloc(p->told_edges, (p->count + 1) * sizeof *edges);
    if (edges)
        p->told_edges = edges;
    for (uint32_t i = 0; told && edges && i < p->count; i++) {
        told[i] = node_handle(p->tails[i]);
        edges[i] = p->edges ? p->edges[i] : (CUgraphEdgeData){0};
    }
    return told && edges;
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                      const CUgraphEdgeData **edges, size_t *count)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = legacy_conflict(s, NULL);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *status = status_of(s);
    if (nodes)
        *nodes = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    const struct capture *c = capture_at(s->capture);
    struct place *p = &capture_at(s->capture)->place[s->place];
    if (!tell_tails(p))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (id)
        *id = c->id;
    if (graph)
        *graph = graph_handle(c->graph);
    if (nodes)
        *nodes = p->told;
    if (edges)
        *edges = p->told_edges;
    if (count)
        *count = p->count;
    return nodes && !edges && p->edges ? CUDA_ERROR_LOSSY_QUERY : CUDA_SUCCESS;
}

CUresult capture_exchange_mode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread *t = model_thread();
    CUstreamCaptureMode before = t->capture_mode;
    clock_submitted(); /* libraries set it when they begin something else */
    t->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
