/*
 * updates.c: changes of what an exec replays: the work of one node, or of all after a graph of the same form.
 *
 * Nodes are paired in the order of their creation. An update that is refused changes nothing.
 */
#include "sim/code/kernel.h"
#include "sim/graph/graph.h"
#include "sim/memory/memory.h"

static uint32_t find_copy(uint32_t graph, uint64_t origin)
{
    const struct graph *g = graph_at(graph);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct node *n = node_at(g->nodes[i]);
        if (n->origin == origin)
            return g->nodes[i];
        for (uint32_t k = 0; k < n->children; k++) {
            uint32_t found = find_copy(n->child[k], origin);
            if (found)
                return found;
        }
    }
    return 0;
}

uint32_t exec_node(CUgraphExec exec, CUgraphNode original, const char *call)
{
    uint32_t number = exec_find(exec, call), node = node_find(original, call);
    uint32_t found = number && node ? find_copy(exec_graph(number), node_at(node)->id) : 0;
    if (number && node && !found)
        model_violation("%s: the graph was instantiated without node %p", call, (void *)original);
    return found;
}

/* A copy may not change between host and device, or between one row and many. */
static bool is_alike(const struct work *a, const struct work *b)
{
    return virtual_is_device_address(a->to) == virtual_is_device_address(b->to) && (a->rows > 1) == (b->rows > 1) &&
           (a->kind != &work_copy || virtual_is_device_address(a->from) == virtual_is_device_address(b->from));
}

static CUgraphExecUpdateResult compare_work(const struct node *old, const struct node *n)
{
    switch (n->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        if (old->work.number != n->work.number && !function_is_alike((uint32_t)old->work.number, (uint32_t)n->work.number))
            return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return is_alike(&old->work, &n->work) ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if (!is_alike(&old->work, &n->work) || (n->work.rows > 1 && (n->work.rows != old->work.rows || n->work.bytes != old->work.bytes)))
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return old->memory == n->memory ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        if (old->condition_type != n->condition_type || old->children != n->children)
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    default:
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    }
}

static bool same_edges(const struct node *old, const struct node *n, CUgraphExecUpdateResultInfo *info)
{
    for (uint32_t i = 0; i < n->before.count; i++) {
        const struct edge *a = i < old->before.count ? &old->before.list[i] : NULL, *b = &n->before.list[i];
        bool same = a && node_at(a->node)->index == node_at(b->node)->index && a->data.type == b->data.type &&
                    a->data.from_port == b->data.from_port && a->data.to_port == b->data.to_port;
        if (same)
            continue;
        info->errorFromNode = node_handle(b->node);
        return false;
    }
    return old->before.count == n->before.count;
}

static bool compare(uint32_t own, uint32_t graph, CUgraphExecUpdateResultInfo *info)
{
    const struct graph *old = graph_at(own), *g = graph_at(graph);
    for (uint32_t i = 0; i < g->count && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        const struct node *n = node_at(g->nodes[i]), *o = i < old->count ? node_at(old->nodes[i]) : NULL;
        info->errorNode = node_handle(g->nodes[i]);
        info->errorFromNode = NULL;
        if (!o || !same_edges(o, n, info))
            info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        else if (o->type != n->type)
            info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        else
            info->result = compare_work(o, n);
        for (uint32_t k = 0; k < n->children && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; k++)
            compare(o->child[k], n->child[k], info);
    }
    if (info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS && old->count != g->count) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        info->errorNode = info->errorFromNode = NULL;
    }
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* The forms are the same. */
static bool take_over(uint32_t own, uint32_t graph)
{
    struct graph *old = graph_at(own);
    bool taken = true;
    for (uint32_t i = 0; i < old->count; i++) {
        struct node *o = node_at(old->nodes[i]);
        const struct node *n = node_at(graph_at(graph)->nodes[i]);
        o->work = n->work;
        o->origin = n->id;
        for (uint32_t k = 0; k < o->children; k++)
            taken &= take_over(o->child[k], n->child[k]);
    }
    objects_release_all(old);
    return taken && objects_copy(graph_at(graph), old);
}

CUresult exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    uint32_t number = exec_find(exec, "cuGraphExecUpdate"), other = graph_find(graph, "cuGraphExecUpdate");
    if (!number || !other || !info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    if (!compare(exec_graph(number), other, info))
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    info->errorNode = info->errorFromNode = NULL;
    return take_over(exec_graph(number), other) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult exec_update_1(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit, CUgraphExecUpdateResult *result)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult error = exec_update(exec, graph, &info);
    if (culprit)
        *culprit = info.errorNode;
    if (result)
        *result = info.result;
    return error;
}

CUresult exec_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params)
{
    struct node changed = {0};
    uint32_t own = exec_node(exec, node, "cuGraphExecNodeSetParams");
    if (!own || !params || params->type != node_at(own)->type)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = node_read(params, &changed);
    if (!result && compare_work(node_at(own), &changed) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        node_at(own)->work = changed.work;
    return result;
}

CUresult exec_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    static const char call[] = "cuGraphExecChildGraphNodeSetParams";
    uint32_t own = exec_node(exec, node, call), graph = graph_find(child, call);
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    if (!own || !graph || node_at(own)->type != CU_GRAPH_NODE_TYPE_GRAPH || !compare(node_at(own)->child[0], graph, &info))
        return CUDA_ERROR_INVALID_VALUE;
    return take_over(node_at(own)->child[0], graph) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint32_t find_switch(CUgraphExec exec, CUgraphNode node, const char *call)
{
    uint32_t own = exec_node(exec, node, call);
    CUgraphNodeType type = own ? node_at(own)->type : CU_GRAPH_NODE_TYPE_EMPTY;
    bool can = type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET;
    return can ? own : 0;
}

CUresult exec_enable(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
    uint32_t own = find_switch(exec, node, "cuGraphNodeSetEnabled");
    if (!own)
        return CUDA_ERROR_INVALID_VALUE;
    node_at(own)->disabled = !enabled;
    return CUDA_SUCCESS;
}

CUresult exec_is_enabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled)
{
    uint32_t own = find_switch(exec, node, "cuGraphNodeGetEnabled");
    if (!own || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node_at(own)->disabled;
    return CUDA_SUCCESS;
}
