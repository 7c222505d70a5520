/*
 * graphs.c: graphs of captured work, and their replay.
 *
 * A graph is a list of work in the order of its capture, which respects every dependency; parallel branches run one after the other.
 * Nothing is looked up before a replay runs: what was unmapped or given away since the capture shows then.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/stream.h"

#define GRAPHS_MOST 65536

static struct slots graphs;     /* CUgraph */
static struct slots execs;      /* CUgraphExec: the same structure */

static struct graph *at(const struct slots *kind, uint32_t number)
{
    return slots_at(kind, number);
}

static void clear(struct slots *kind)
{
    if (!kind->items)
        slots_open(kind, sizeof(struct graph), GRAPHS_MOST, SLOTS_OLDEST_FIRST);
    for (uint32_t i = 1; i < kind->used; i++)
        free(at(kind, i)->nodes);
    slots_clear(kind);
}

void graphs_reset(void)
{
    clear(&graphs);
    clear(&execs);
}

static void close_one(struct slots *kind, uint32_t number)
{
    free(at(kind, number)->nodes);
    at(kind, number)->nodes = NULL;
    slots_give(kind, number);
}

uint32_t graph_open(void)
{
    return slots_take(&graphs);
}

void graph_close(uint32_t number)
{
    close_one(&graphs, number);
}

CUgraph graph_handle(uint32_t number)
{
    return slots_handle(&graphs, number);
}

bool graph_append(uint32_t number, const struct work *work)
{
    struct graph *g = at(&graphs, number);
    if (g->count == g->room) {
        uint32_t room = g->room ? 2 * g->room : 16;
        struct work *nodes = realloc(g->nodes, room * sizeof *nodes);
        if (!nodes)
            return false;
        g->nodes = nodes;
        g->room = room;
    }
    g->nodes[g->count++] = *work;
    return true;
}

CUresult graph_create(CUgraph *graph, unsigned flags)
{
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = graph_open();
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *graph = graph_handle(number);
    return CUDA_SUCCESS;
}

static uint32_t find(const struct slots *kind, const void *handle, const char *call)
{
    uint32_t number = slots_number(kind, handle);
    if (!number)
        model_violation("%s: %p was destroyed or never created", call, handle);
    return number;
}

CUresult graph_destroy(CUgraph graph)
{
    uint32_t number = find(&graphs, graph, "cuGraphDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    graph_close(number);
    return CUDA_SUCCESS;
}

/* Nodes have no handles here: they are counted, not named. */
CUresult graph_count_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    uint32_t number = find(&graphs, graph, "cuGraphGetNodes");
    if (!number || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes)
        return CUDA_ERROR_NOT_SUPPORTED;
    *count = at(&graphs, number)->count;
    return CUDA_SUCCESS;
}

CUresult graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    uint32_t number = find(&graphs, graph, "cuGraphInstantiate");
    if (!number || !exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(unsigned long long)(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
        return CUDA_ERROR_NOT_SUPPORTED;
    const struct graph *g = at(&graphs, number);
    size_t bytes = g->count * sizeof *g->nodes;
    struct work *nodes = malloc(bytes + 1);
    uint32_t taken = nodes ? slots_take(&execs) : 0;
    if (!taken) {
        free(nodes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes)
        memcpy(nodes, g->nodes, bytes);
    *at(&execs, taken) = (struct graph){.nodes = nodes, .count = g->count, .room = g->count};
    *exec = slots_handle(&execs, taken);
    return CUDA_SUCCESS;
}

CUresult graph_exec_destroy(CUgraphExec exec)
{
    uint32_t number = find(&execs, exec, "cuGraphExecDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    close_one(&execs, number);
    return CUDA_SUCCESS;
}

CUresult graph_upload(CUgraphExec exec, CUstream stream)
{
    struct stream *s;
    uint32_t number = find(&execs, exec, "cuGraphUpload");
    return number ? stream_find(stream, &s) : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_launch(CUgraphExec exec, CUstream stream)
{
    struct stream *s;
    uint32_t number = find(&execs, exec, "cuGraphLaunch");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_find(stream, &s);
    const struct graph *g = at(&execs, number);
    for (uint32_t i = 0; i < g->count && !result; i++)
        result = work_put(s, &g->nodes[i]);
    return result;
}
