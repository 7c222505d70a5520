/*
 * kinds.c: the calls that add, change or ask one kind of node: they translate between its description and the one that covers all kinds.
 *
 * Parameters of kernels are not kept: their number and size stand in code that is not read. Asked for, they are NULL.
 */
#include "sim/code/kernel.h"
#include "sim/graph/graph.h"
#include "sim/memory/region.h"

static void read_kernel(CUgraphNodeParams *all, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    all->type = CU_GRAPH_NODE_TYPE_KERNEL;
    all->kernel = (CUDA_KERNEL_NODE_PARAMS_v3){.func = p->func, .gridDimX = p->gridDimX, .gridDimY = p->gridDimY, .gridDimZ = p->gridDimZ,
        .blockDimX = p->blockDimX, .blockDimY = p->blockDimY, .blockDimZ = p->blockDimZ, .sharedMemBytes = p->sharedMemBytes,
        .kernelParams = p->kernelParams, .extra = p->extra};
}

static CUresult tell_kernel(const struct node *n, CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    const struct work *w = &n->work;
    if (n->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function_at((uint32_t)w->number))
        return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    *p = (CUDA_KERNEL_NODE_PARAMS_v1){.func = function_handle((uint32_t)w->number), .gridDimX = w->grid[0], .gridDimY = w->grid[1],
        .gridDimZ = w->grid[2], .blockDimX = w->block[0], .blockDimY = w->block[1], .blockDimZ = w->block[2], .sharedMemBytes = w->shared};
    return CUDA_SUCCESS;
}

static void read_kernel_2(CUgraphNodeParams *all, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    all->type = CU_GRAPH_NODE_TYPE_KERNEL;
    all->kernel = (CUDA_KERNEL_NODE_PARAMS_v3){.func = p->func, .gridDimX = p->gridDimX, .gridDimY = p->gridDimY, .gridDimZ = p->gridDimZ,
        .blockDimX = p->blockDimX, .blockDimY = p->blockDimY, .blockDimZ = p->blockDimZ, .sharedMemBytes = p->sharedMemBytes,
        .kernelParams = p->kernelParams, .extra = p->extra, .kern = p->kern, .ctx = p->ctx};
}

static CUresult tell_kernel_2(const struct node *n, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    CUresult result = tell_kernel(n, &first);
    if (!result)
        *p = (CUDA_KERNEL_NODE_PARAMS_v2){.func = first.func, .gridDimX = first.gridDimX, .gridDimY = first.gridDimY,
            .gridDimZ = first.gridDimZ, .blockDimX = first.blockDimX, .blockDimY = first.blockDimY, .blockDimZ = first.blockDimZ,
            .sharedMemBytes = first.sharedMemBytes};
    return result;
}

static void read_copy(CUgraphNodeParams *all, const CUDA_MEMCPY3D *p)
{
    all->type = CU_GRAPH_NODE_TYPE_MEMCPY;
    all->memcpy.copyParams = *p;
}

static CUresult tell_copy(const struct node *n, CUDA_MEMCPY3D *p)
{
    if (n->type != CU_GRAPH_NODE_TYPE_MEMCPY)
        return CUDA_ERROR_INVALID_VALUE;
    region_tell_copy(&n->work, p);
    return CUDA_SUCCESS;
}

static void read_fill(CUgraphNodeParams *all, const CUDA_MEMSET_NODE_PARAMS_v1 *p)
{
    all->type = CU_GRAPH_NODE_TYPE_MEMSET;
    all->memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = p->dst, .pitch = p->pitch, .value = p->value, .elementSize = p->elementSize,
        .width = p->width, .height = p->height};
}

static CUresult tell_fill(const struct node *n, CUDA_MEMSET_NODE_PARAMS_v1 *p)
{
    const struct work *w = &n->work;
    if (n->type != CU_GRAPH_NODE_TYPE_MEMSET)
        return CUDA_ERROR_INVALID_VALUE;
    *p = (CUDA_MEMSET_NODE_PARAMS_v1){.dst = w->to, .pitch = w->to_pitch, .value = (unsigned)w->pattern, .elementSize = w->width,
        .width = w->bytes / w->width, .height = w->rows ? w->rows : 1};
    return CUDA_SUCCESS;
}

static void read_call(CUgraphNodeParams *all, const CUDA_HOST_NODE_PARAMS_v1 *p)
{
    all->type = CU_GRAPH_NODE_TYPE_HOST;
    all->host.fn = p->fn;
    all->host.userData = p->userData;
}

static CUresult tell_call(const struct node *n, CUDA_HOST_NODE_PARAMS_v1 *p)
{
    if (n->type != CU_GRAPH_NODE_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *p = (CUDA_HOST_NODE_PARAMS_v1){.fn = n->work.function, .userData = n->work.argument};
    return CUDA_SUCCESS;
}

#define KIND(kind, description)                                                                                             \
    CUresult node_add_##kind(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, const description *p)  \
    {                                                                                                                        \
        CUgraphNodeParams all = {0};                                                                                         \
        if (!p)                                                                                                              \
            return CUDA_ERROR_INVALID_VALUE;                                                                                 \
        read_##kind(&all, p);                                                                                                \
        return node_add(node, graph, before, NULL, count, &all);                                                             \
    }                                                                                                                        \
    CUresult node_set_##kind(CUgraphNode node, const description *p)                                                         \
    {                                                                                                                        \
        CUgraphNodeParams all = {0};                                                                                         \
        if (!p)                                                                                                              \
            return CUDA_ERROR_INVALID_VALUE;                                                                                 \
        read_##kind(&all, p);                                                                                                \
        return node_set(node, &all);                                                                                         \
    }                                                                                                                        \
    CUresult exec_set_##kind(CUgraphExec exec, CUgraphNode node, const description *p)                                       \
    {                                                                                                                        \
        CUgraphNodeParams all = {0};                                                                                         \
        if (!p)                                                                                                              \
            return CUDA_ERROR_INVALID_VALUE;                                                                                 \
        read_##kind(&all, p);                                                                                                \
        return exec_set(exec, node, &all);                                                                                   \
    }                                                                                                                        \
    CUresult node_get_##kind(CUgraphNode node, description *p)                                                               \
    {                                                                                                                        \
        uint32_t number = node_find(node, "cuGraphNodeGetParams");                                                           \
        return number && p ? tell_##kind(node_at(number), p) : CUDA_ERROR_INVALID_VALUE;                                     \
    }
#include "sim/graph/kinds.def"
#undef KIND

static CUgraphNodeParams event_params(CUgraphNodeType type, CUevent event)
{
    CUgraphNodeParams all = {.type = type};
    if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
        all.eventWait.event = event;
    else
        all.eventRecord.event = event;
    return all;
}

CUresult node_add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeType type, CUevent event)
{
    CUgraphNodeParams all = event_params(type, event);
    return node_add(node, graph, before, NULL, count, &all);
}

CUresult node_set_event(CUgraphNode node, CUgraphNodeType type, CUevent event)
{
    CUgraphNodeParams all = event_params(type, event);
    return node_set(node, &all);
}

CUresult exec_set_event(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUevent event)
{
    CUgraphNodeParams all = event_params(type, event);
    return exec_set(exec, node, &all);
}

CUresult node_get_event(CUgraphNode node, CUgraphNodeType type, CUevent *event)
{
    uint32_t number = node_find(node, "cuGraphEventNodeGetEvent");
    if (!number || !event || node_at(number)->type != type)
        return CUDA_ERROR_INVALID_VALUE;
    *event = node_at(number)->work.argument;
    return CUDA_SUCCESS;
}

CUresult node_get_child(CUgraphNode node, CUgraph *child)
{
    uint32_t number = node_find(node, "cuGraphChildGraphNodeGetGraph");
    if (!number || !child || node_at(number)->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *child = node_at(number)->told[0];
    return CUDA_SUCCESS;
}

CUresult node_get_alloc(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *p)
{
    uint32_t number = node_find(node, "cuGraphMemAllocNodeGetParams");
    if (!number || !p || node_at(number)->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t memory = node_at(number)->memory;
    *p = (CUDA_MEM_ALLOC_NODE_PARAMS_v1){.bytesize = graph_memory_bytes(memory), .dptr = graph_memory_address(memory)};
    p->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->poolProps.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = graph_memory_device(memory)};
    return CUDA_SUCCESS;
}

CUresult node_get_free(CUgraphNode node, CUdeviceptr *at)
{
    uint32_t number = node_find(node, "cuGraphMemFreeNodeGetParams");
    if (!number || !at || node_at(number)->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *at = graph_memory_address(node_at(number)->memory);
    return CUDA_SUCCESS;
}
