/*
 * nodes.c: what nodes do: made from the program's description of them, and changed by it.
 *
 * Every kind goes through CUgraphNodeParams, the description that covers all; the older calls of one kind fill it in.
 *
 * Conditions are not evaluated, since the kernels that would set them do nothing: a node of a condition replays its first body once,
 * whatever its kind.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/code/kernel.h"
#include "sim/graph/graph.h"
#include "sim/memory/memory.h"
#include "sim/memory/region.h"

#define BODIES_MAX 65536

static CUresult read_kernel(const CUDA_KERNEL_NODE_PARAMS_v3 *p, struct work *w)
{
    uint32_t function = function_find(p->func ? (const void *)p->func : (const void *)p->kern, "kernel node");
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch l = {{p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, false};
    CUresult result = p->kernelParams && p->extra ? CUDA_ERROR_INVALID_VALUE : kernel_check(function, 0, &l);
    *w = (struct work){.kind = &work_kernel, .name = "kernel node", .number = function, .shared = l.shared};
    memcpy(w->grid, l.grid, sizeof w->grid);
    memcpy(w->block, l.block, sizeof w->block);
    return result;
}

static CUresult read_event(CUevent event, const struct work_kind *kind, struct work *w)
{
    if (!event_find(event))
        return CUDA_ERROR_INVALID_HANDLE;
    *w = (struct work){.kind = kind, .name = "event node", .number = event_number(event), .argument = event};
    return CUDA_SUCCESS;
}

CUresult node_read(const CUgraphNodeParams *p, struct node *n)
{
    n->type = p->type;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return read_kernel(&p->kernel, &n->work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return region_copy(&p->memcpy.copyParams, "memcpy node", &n->work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return region_fill(&p->memset, "memset node", &n->work);
    case CU_GRAPH_NODE_TYPE_HOST:
        n->work = (struct work){.kind = &work_call, .name = "host node", .function = p->host.fn, .argument = p->host.userData};
        return p->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return read_event(p->eventWait.event, &work_await, &n->work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return read_event(p->eventRecord.event, &work_record, &n->work);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        n->work = (struct work){.kind = &work_wait, .name = "empty node"};
        return CUDA_SUCCESS;
    default:
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "nodes of type %d are not simulated, or not here", (int)p->type);
    }
}

/* One graph inside a node, which owns it from now on. */
static bool add_child(struct node *n, uint32_t graph)
{
    uint32_t *child = realloc(n->child, (n->children + 1) * sizeof *child);
    if (child)
        n->child = child;
    CUgraph *told = realloc(n->told, (n->children + 1) * sizeof *told);
    if (told)
        n->told = told;
    if (!child || !told)
        return false;
    n->child[n->children] = graph;
    n->told[n->children++] = graph_handle(graph);
    return true;
}

static bool is_inside(uint32_t graph, uint32_t other)
{
    while (graph && graph != other)
        graph = graph_at(graph)->parent ? node_at(graph_at(graph)->parent)->graph : 0;
    return graph;
}

static bool is_moved(const CUDA_CHILD_GRAPH_NODE_PARAMS *p)
{
#if CUDA_VERSION >= 12090
    return p->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
#else
    (void)p;
    return false;
#endif
}

static CUresult read_child(uint32_t graph, const CUDA_CHILD_GRAPH_NODE_PARAMS *p, struct node *n)
{
    uint32_t child = graph_find(p->graph, "child graph node");
    if (!child || is_inside(graph, child) || graph_at(child)->capture)
        return CUDA_ERROR_INVALID_VALUE;
    bool move = is_moved(p);
    if (move && graph_at(child)->parent)
        return CUDA_ERROR_INVALID_VALUE;
    if (!move && graph_has_memory(child))
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "child graph node: the graph has nodes of memory and is not moved");
    uint32_t own = move ? child : graph_copy(child, false);
    if (!own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (add_child(n, own))
        return CUDA_SUCCESS;
    if (!move)
        graph_close(own);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult read_condition(uint32_t graph, CUDA_CONDITIONAL_NODE_PARAMS *p, struct node *n)
{
    unsigned most = p->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : p->type == CU_GRAPH_COND_TYPE_IF ? 2 : BODIES_MAX;
    if ((unsigned)p->type > 2 || !p->size || p->size > most)
        return CUDA_ERROR_INVALID_VALUE;
    if (!condition_take(p->handle, graph_at(graph)))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "conditional node: the handle is not of this graph, or taken");
    n->condition = p->handle;
    n->condition_type = p->type;
    for (unsigned i = 0; i < p->size; i++) {
        uint32_t body = graph_open();
        if (!body || !add_child(n, body)) {
            if (body)
                graph_close(body);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    p->phGraph_out = n->told;
    return CUDA_SUCCESS;
}

static CUresult read_alloc(uint32_t graph, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *p, const uint32_t *before, size_t count, struct node *n)
{
    int area;
    const CUmemPoolProps *pool = &p->poolProps;
    if (!model.shape.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !location_area(&pool->location, &area) || area == HOST_AREA ||
        pool->handleTypes != CU_MEM_HANDLE_TYPE_NONE || (p->accessDescCount && !p->accessDescs))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "allocation node: the properties name no memory of a device");
    CUresult result = graph_memory_new(graph_at(graph), area, p->bytesize, graph_chain_after(before, count), &n->memory);
    if (!result)
        p->dptr = graph_memory_address(n->memory);
    return result;
}

static CUresult read_free(CUdeviceptr at, struct node *n)
{
    uint32_t memory = graph_memory_at(at);
    if (!memory)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "free node: 0x%llx is not memory of a graph, or freed already",
                            (unsigned long long)at);
    n->memory = memory;
    graph_memory_hold(memory);
    return CUDA_SUCCESS;
}

static CUresult read_any(uint32_t graph, CUgraphNodeParams *p, const uint32_t *before, size_t count, struct node *n)
{
    *n = (struct node){.type = p->type, .work = {.kind = &work_wait, .name = "node"}};
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return read_child(graph, &p->graph, n);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return read_condition(graph, &p->conditional, n);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return read_alloc(graph, &p->alloc, before, count, n);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return read_free(p->free.dptr, n);
    default:
        return node_read(p, n);
    }
}

/* Also a graph that was moved in: the node had it already. */
void node_abandon(struct node *n)
{
    for (uint32_t i = 0; i < n->children; i++)
        graph_close(n->child[i]);
    free(n->child);
    free(n->told);
    if (n->memory)
        graph_memory_drop(n->memory);
}

uint32_t node_enter(uint32_t graph, struct node *n, const uint32_t *before, const CUgraphEdgeData *edges, size_t count)
{
    uint32_t number = graph_add(graph, n, before, edges, count);
    if (!number)
        node_abandon(n);
    else if (n->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        graph_memory_freed_in(graph_at(graph), n->memory, node_at(number)->chain);
    return number;
}

CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count,
                  CUgraphNodeParams *params)
{
    struct node n;
    uint32_t *numbers, number = graph_find(graph, "cuGraphAddNode");
    if (!number || !node || !params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_nodes_of(number, before, count, &numbers);
    if (result)
        return result;
    result = read_any(number, params, numbers, count, &n);
    uint32_t added = result ? 0 : node_enter(number, &n, numbers, edges, count);
    if (result)
        node_abandon(&n);
    free(numbers);
    if (!added)
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    *node = node_handle(added);
    return CUDA_SUCCESS;
}

CUresult node_add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child)
{
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    all.graph.graph = child;
    return node_add(node, graph, before, NULL, count, &all);
}

CUresult node_add_empty(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count)
{
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return node_add(node, graph, before, NULL, count, &all);
}

CUresult node_add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *p)
{
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    all.alloc.poolProps = p->poolProps;
    all.alloc.accessDescs = p->accessDescs;
    all.alloc.accessDescCount = p->accessDescCount;
    all.alloc.bytesize = p->bytesize;
    CUresult result = node_add(node, graph, before, NULL, count, &all);
    p->dptr = result ? 0 : all.alloc.dptr;
    return result;
}

CUresult node_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr at)
{
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    all.free.dptr = at;
    return node_add(node, graph, before, NULL, count, &all);
}

CUresult node_set(CUgraphNode node, const CUgraphNodeParams *params)
{
    struct node changed;
    uint32_t number = node_find(node, "cuGraphNodeSetParams");
    if (!number || !params || params->type != node_at(number)->type)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = node_read(params, &changed);
    if (!result)
        node_at(number)->work = changed.work;
    return result;
}
