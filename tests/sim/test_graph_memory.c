/* test_graph_memory.c: memory of graphs: cuMemAllocAsync and cuMemFreeAsync in captures, and nodes of memory by hand. */
#include "tests/sim/simulated.h"

#define MIB (1ull << 20)

static CUstream stream, other;

static void begin(void)
{
    simulated_begin();
    stream = simulated_stream();
    other = simulated_stream();
}

static cuuint64_t usage(CUgraphMem_attribute attribute)
{
    cuuint64_t value = 0;
    EXPECT_OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

static void capture(void)
{
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph end_capture(void)
{
    CUgraph graph = NULL;
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph, unsigned long long flags)
{
    CUgraphExec exec = NULL;
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, flags));
    return exec;
}

CASE(memory_is_there_from_launch_to_free)
{
    CUdeviceptr at;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, 64 * MIB, stream));
    EXPECT_OK(cuMemsetD8Async(at, 1, 64 * MIB, stream));
    EXPECT_OK(cuMemFreeAsync(at, stream));
    CUgraph graph = end_capture();
    CUgraphExec exec = instantiate(graph, 0);
    EXPECT_EQ(simulated_books().used, 0);
    sim_set_lag(1000);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 64 * MIB);
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 64 * MIB);
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
    EXPECT_EQ(simulated_books().used, 64 * MIB);
    EXPECT_OK(cuDeviceGraphMemTrim(0));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    EXPECT_EQ(simulated_books().used, 0);
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(a_graph_is_launched_again_before_its_first_replay_is_done)
{
    CUdeviceptr at;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, stream));
    EXPECT_OK(cuMemsetD8Async(at, 1, MIB, stream));
    EXPECT_OK(cuMemFreeAsync(at, stream));
    CUgraphExec exec = instantiate(end_capture(), 0);
    sim_set_lag(1000);
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(cuGraphLaunch(exec, stream));
        sim_advance(300);
    }
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    EXPECT_EQ(simulated_books().allocations, 0);
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(a_place_freed_in_a_chain_is_taken_again_in_it)
{
    CUdeviceptr first, second, third;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&first, 3000, stream));
    EXPECT_OK(cuMemFreeAsync(first, stream));
    REQUIRE_OK(cuMemAllocAsync(&second, 3000, stream));
    EXPECT_EQ(second, first);
    REQUIRE_OK(cuMemAllocAsync(&third, 3000, stream));
    EXPECT(third != second);
    EXPECT_EQ(cuMemFreeAsync(first + 512, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemFreeAsync(second, stream));
    EXPECT_EQ(cuMemFreeAsync(second, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemFreeAsync(third, stream));
    CUgraphExec exec = instantiate(end_capture(), 0);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
}

CASE(parallel_chains_share_no_place)
{
    CUdeviceptr first, second;
    CUevent event;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    capture();
    EXPECT_OK(sim_launch_kernel(stream, "root"));
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuStreamWaitEvent(other, event, 0));
    REQUIRE_OK(cuMemAllocAsync(&first, 3000, stream));
    EXPECT_OK(cuMemFreeAsync(first, stream));
    REQUIRE_OK(cuMemAllocAsync(&second, 3000, other));
    EXPECT(second != first);
    EXPECT_OK(cuMemFreeAsync(second, other));
    EXPECT_OK(cuEventRecord(event, other));
    EXPECT_OK(cuStreamWaitEvent(stream, event, 0));
    EXPECT_OK(cuGraphDestroy(end_capture()));
}

CASE(memory_not_freed_in_the_graph_outlives_the_launch)
{
    CUdeviceptr at;
    CUmemorytype type = 0;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, stream));
    CUgraph graph = end_capture();
    CUgraphExec exec = instantiate(graph, 0);
    EXPECT_EQ(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);    /* not launched */
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuMemsetD8(at, 1, MIB));
    EXPECT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
    EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);   /* it is alive */
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphDestroy(graph));
    EXPECT_OK(cuMemsetD8(at, 1, MIB));          /* still */
    EXPECT_OK(cuMemFreeAsync(at, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    EXPECT_EQ(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(memory_is_freed_by_cuMemFree_or_by_another_graph)
{
    CUdeviceptr one, two;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&one, MIB, stream));
    REQUIRE_OK(cuMemAllocAsync(&two, MIB, stream));
    CUgraphExec exec = instantiate(end_capture(), 0);
    capture();
    EXPECT_OK(cuMemFreeAsync(two, stream));
    CUgraphExec freeing = instantiate(end_capture(), 0);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuMemFree(one));
    EXPECT_OK(cuGraphLaunch(freeing, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    EXPECT_EQ(simulated_books().allocations, 0);
}

CASE(a_launch_that_frees_first_can_be_repeated)
{
    CUdeviceptr at;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, stream));
    CUgraphExec exec = instantiate(end_capture(), CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 3; i++)
        EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(simulated_books().allocations, 1);
    EXPECT_OK(cuMemFree(at));
}

CASE(a_graph_with_memory_has_one_exec_and_no_clone)
{
    CUdeviceptr at;
    CUgraph clone, parent;
    CUgraphNode node;
    CUgraphExec second;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, stream));
    EXPECT_OK(cuMemFreeAsync(at, stream));
    CUgraph graph = end_capture();
    CUgraphExec exec = instantiate(graph, 0);
    EXPECT_EQ(cuGraphInstantiate(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE_OK(cuGraphCreate(&parent, 0));
    EXPECT_EQ(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphExecDestroy(instantiate(graph, 0)));
}

CASE(a_launch_without_room_fails_and_a_trim_is_made_before)
{
    CUdeviceptr at, plain;
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, 700 * MIB, stream));
    EXPECT_OK(cuMemFreeAsync(at, stream));
    CUgraphExec exec = instantiate(end_capture(), 0);
    REQUIRE_OK(cuMemAlloc(&plain, 600 * MIB));
    EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(usage(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    EXPECT_OK(cuMemFree(plain));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    capture();
    REQUIRE_OK(cuMemAllocAsync(&at, 800 * MIB, stream));
    EXPECT_OK(cuMemFreeAsync(at, stream));
    CUgraphExec larger = instantiate(end_capture(), 0);
    EXPECT_OK(cuGraphLaunch(larger, stream));   /* takes what the first one has reserved */
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(nodes_of_memory_by_hand)
{
    CUgraph graph;
    CUgraphNode alloc, fill, end;
    CUdeviceptr freed = 0;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = MIB};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = machine_memory_of(0).location;
    REQUIRE_OK(cuGraphCreate(&graph, 0));
    REQUIRE_OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
    EXPECT(params.dptr != 0);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = params.dptr, .value = 1, .elementSize = 4, .width = 4, .height = 1};
    EXPECT_OK(cuGraphAddMemsetNode(&fill, graph, &alloc, 1, &set, machine_context));
    EXPECT_EQ(cuGraphAddMemFreeNode(&end, graph, &fill, 1, params.dptr + 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuGraphAddMemFreeNode(&end, graph, &fill, 1, params.dptr));
    EXPECT_OK(cuGraphMemFreeNodeGetParams(end, &freed));
    EXPECT_EQ(freed, params.dptr);
    EXPECT_EQ(cuGraphDestroyNode(fill), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_OK(cuGraphLaunch(instantiate(graph, 0), stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    params.poolProps.location.id = 7;
    EXPECT_EQ(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
}

CASE(plain_memory_is_not_freed_in_a_capture)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, stream));
    capture();
    EXPECT_EQ(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuGraphDestroy(end_capture()));
    EXPECT_OK(cuMemFreeAsync(at, stream));
}

CASE(memory_of_graphs_ends_with_its_context)
{
    CUdeviceptr at;
    CUstream own;
    CUgraph graph;
    CUcontext context = machine_new_context();
    REQUIRE_OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE_OK(cuMemAllocAsync(&at, MIB, own));
    REQUIRE_OK(cuStreamEndCapture(own, &graph));
    EXPECT_OK(cuGraphLaunch(instantiate(graph, 0), own));
    EXPECT_EQ(simulated_books().allocations, 1);
    EXPECT_OK(cuCtxDestroy(context));
    EXPECT_EQ(simulated_books().allocations, 0);
    EXPECT_OK(cuDeviceGraphMemTrim(0));
    EXPECT_EQ(simulated_books().used, 0);
}

CASE(the_highest_figures_can_be_reset)
{
    cuuint64_t zero = 0, one = 1;
    EXPECT_OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    EXPECT_EQ(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(9, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero), CUDA_ERROR_INVALID_VALUE);
}

SUITE_MAIN_AROUND("simulated driver: memory of graphs", begin, machine_end)
