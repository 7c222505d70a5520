/*
 * async.c: cuMemAllocAsync and cuMemFreeAsync: memory of a pool, or, in a capture, of the graph that is captured.
 *
 * LOCKING: the model's lock.
 */
#include "sim/graph/graph.h"
#include "sim/memory/memory.h"

static CUresult find_stream(CUstream stream, struct stream **s, const char *call)
{
    if (!model.shape.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = stream_find(stream, s);
    return result ? result : capture_legacy_conflict(*s, call);
}

/* Inside a capture the allocation is the graph's, and comes from none of the pools. */
static CUresult capture_alloc(CUdeviceptr *at, size_t size, int device, struct stream *s)
{
    const uint32_t *tails;
    uint32_t count, added, graph = capture_graph(s, &tails, &count);
    struct node n = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .work = {.kind = &work_wait, .name = "cuMemAllocAsync"}};
    if (!graph)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = graph_memory_new(graph_at(graph), device, size, graph_chain_after(tails, count), &n.memory);
    if (result)
        return result;
    uint64_t address = graph_memory_address(n.memory);
    result = capture_add_node(s, &n, &added);
    if (!result)
        *at = address;
    return result;
}

static CUresult capture_free(CUdeviceptr at, struct stream *s)
{
    uint32_t added, memory = graph_memory_at(at);
    struct node n = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .work = {.kind = &work_wait, .name = "cuMemFreeAsync"}, .memory = memory};
    if (!memory)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync in a capture: 0x%llx is not memory of a graph, or freed already", at);
    graph_memory_hold(memory);
    return capture_add_node(s, &n, &added);
}

static CUresult give(CUdeviceptr *at, size_t size, uint32_t pool, struct stream *s)
{
    if (!s->capture)
        return pool_take(at, size, pool, s);
    bool of_device = pool_is_of(pool, pool_device(pool), ON_DEVICE);
    return of_device ? capture_alloc(at, size, pool_device(pool), s) : CUDA_ERROR_NOT_SUPPORTED; /* graphs have memory of devices alone */
}

CUresult async_alloc_from(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream)
{
    struct stream *s;
    CUresult result = find_stream(stream, &s, "cuMemAllocFromPoolAsync");
    if (result)
        return result;
    uint32_t number = pool_find(pool, "cuMemAllocFromPoolAsync");
    return at && size && number ? give(at, size, number, s) : CUDA_ERROR_INVALID_VALUE;
}

CUresult async_alloc(CUdeviceptr *at, size_t size, CUstream stream)
{
    struct stream *s;
    CUresult result = find_stream(stream, &s, "cuMemAllocAsync");
    if (result)
        return result;
    uint32_t number = pool_chosen(context_at(s->context)->device);
    return at && size ? give(at, size, number, s) : CUDA_ERROR_INVALID_VALUE;
}

CUresult async_free(CUdeviceptr at, CUstream stream)
{
    struct stream *s;
    CUresult result = find_stream(stream, &s, "cuMemFreeAsync");
    if (result)
        return result;
    if (s->capture)
        return capture_free(at, s);
    uint32_t number = allocation_starting(at);
    const struct allocation *a = number ? allocation_at(number) : NULL;
    return a && a->kind == ALLOCATION_GRAPH ? graph_memory_end(a->pool, s) : pool_give(at, s);
}
