/*
 * recording.c: captured work becomes nodes of a graph: the calls that begin and end a capture, and those that ask for its graph.
 *
 * Which streams capture, and what that forbids, is in order/capture.c. This is the target that it hands the work to.
 *
 * LOCKING: the model's lock.
 */
#include <stdlib.h>

#include "sim/graph/graph.h"

uint32_t capture_graph(const struct stream *s, const uint32_t **tails, uint32_t *count)
{
    const struct capture *c = capture_at(s->capture);
    const struct capture_place *p = &c->place[s->place];
    *tails = p->tails;
    *count = p->count;
    return c->spoiled ? 0 : c->graph;
}

CUresult capture_add_node(struct stream *s, struct node *n, uint32_t *added)
{
    struct capture *c = capture_at(s->capture);
    struct capture_place *p = &c->place[s->place];
    if (c->spoiled) {
        node_abandon(n);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *added = node_enter(c->graph, n, p->tails, p->edges, p->count);
    capture_forget_edges(p);
    return *added && capture_set_tails(p, added, 1) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add(struct stream *s, const struct work *work)
{
    uint32_t added;
    struct node n = {.type = work->kind->node, .work = *work};
    return capture_add_node(s, &n, &added);
}

static void closed(uint32_t graph, bool keep)
{
    graph_at(graph)->capture = 0;
    if (!keep)
        graph_close(graph);
}

static const struct capture_target target = {.add = add, .closed = closed};

/* `graph` 0: a new one. */
static CUresult open_capture(struct stream *s, CUstreamCaptureMode mode, uint32_t graph)
{
    uint32_t grows = graph ? graph : graph_open();
    if (!grows)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = capture_open(s, mode, &target, grows, !graph);
    if (!result)
        graph_at(grows)->capture = s->capture;
    else if (!graph)
        graph_close(grows);
    return result;
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
        struct capture_place *p = &capture_at(s->capture)->place[s->place];
        if (!capture_set_tails(p, numbers, count) || !capture_keep_edges(p, edges, count))
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
    struct capture_place *p = &c->place[s->place];
    uint32_t *numbers;
    if (c->spoiled || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return c->spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_INVALID_VALUE;
    result = graph_nodes_of(c->graph, nodes, count, &numbers);
    if (result)
        return result;
    bool kept;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        kept = capture_set_tails(p, numbers, count) && capture_keep_edges(p, edges, count);
    else
        kept = capture_add_tails(p, numbers, count) && capture_keep_edges(p, NULL, 0);
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
    capture_close(number, !result);
    return result;
}

/* The tails of a stream as handles, valid until it is asked again, or the capture ends. */
static bool tell_tails(struct capture_place *p)
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
        result = capture_forbids_legacy(s);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *status = capture_status_of(s);
    if (nodes)
        *nodes = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    const struct capture *c = capture_at(s->capture);
    struct capture_place *p = &capture_at(s->capture)->place[s->place];
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
