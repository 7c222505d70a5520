/* test_graphs.c: graphs made by hand and by captures: nodes, edges, copies, replays, updates, and what they keep alive. */
#include <unistd.h>

#include "tests/sim/simulated.h"
#include "tests/patience.h"

#if CUDA_VERSION >= 13000
#define DEPENDENCIES(node, nodes, count) cuGraphNodeGetDependencies(node, nodes, NULL, count)
#define DEPENDENTS(node, nodes, count) cuGraphNodeGetDependentNodes(node, nodes, NULL, count)
#define CONNECT(graph, from, to) cuGraphAddDependencies(graph, from, to, NULL, 1)
#define DISCONNECT(graph, from, to) cuGraphRemoveDependencies(graph, from, to, NULL, 1)
#define EDGES(graph, from, to, count) cuGraphGetEdges(graph, from, to, NULL, count)
#define CAPTURE_INFO(stream, status, graph, nodes, count) cuStreamGetCaptureInfo(stream, status, NULL, graph, nodes, NULL, count)
#define UPDATE_CAPTURE(stream, nodes, count, flags) cuStreamUpdateCaptureDependencies(stream, nodes, NULL, count, flags)
#else
#define DEPENDENCIES(node, nodes, count) cuGraphNodeGetDependencies(node, nodes, count)
#define DEPENDENTS(node, nodes, count) cuGraphNodeGetDependentNodes(node, nodes, count)
#define CONNECT(graph, from, to) cuGraphAddDependencies(graph, from, to, 1)
#define DISCONNECT(graph, from, to) cuGraphRemoveDependencies(graph, from, to, 1)
#define EDGES(graph, from, to, count) cuGraphGetEdges(graph, from, to, count)
#define CAPTURE_INFO(stream, status, graph, nodes, count) cuStreamGetCaptureInfo(stream, status, NULL, graph, nodes, count)
#define UPDATE_CAPTURE(stream, nodes, count, flags) cuStreamUpdateCaptureDependencies(stream, nodes, count, flags)
#endif

static CUstream stream, other;
static CUevent event;
static CUdeviceptr memory;
static CUgraph graph;
static CUfunction function;

static void begin(void)
{
    CUmodule module;
    simulated_begin();
    stream = simulated_stream();
    other = simulated_stream();
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    REQUIRE_OK(cuMemAlloc(&memory, 1 << 20));
    REQUIRE_OK(cuGraphCreate(&graph, 0));
    REQUIRE_OK(cuModuleLoadData(&module, "any image"));
    REQUIRE_OK(cuModuleGetFunction(&function, module, "add"));
}

static uint32_t word_at(CUdeviceptr at)
{
    uint32_t value = 0;
    EXPECT_OK(cuMemcpyDtoH(&value, at, 4));
    return value;
}

static CUgraphNode add_fill(CUgraph to, const CUgraphNode *before, size_t count, CUdeviceptr at, unsigned value)
{
    CUgraphNode node = NULL;
    CUDA_MEMSET_NODE_PARAMS params = {.dst = at, .value = value, .elementSize = 4, .width = 1, .height = 1};
    REQUIRE_OK(cuGraphAddMemsetNode(&node, to, before, count, &params, machine_context));
    return node;
}

static CUgraphNode add_kernel(CUgraph to, const CUgraphNode *before, size_t count)
{
    CUgraphNode node = NULL;
    CUDA_KERNEL_NODE_PARAMS params = {.func = function, .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1,
                                      .blockDimZ = 1};
    REQUIRE_OK(cuGraphAddKernelNode(&node, to, before, count, &params));
    return node;
}

static CUgraphExec instantiate(CUgraph of)
{
    CUgraphExec exec = NULL;
    REQUIRE_OK(cuGraphInstantiate(&exec, of, 0));
    return exec;
}

static void replay(CUgraph of)
{
    CUgraphExec exec = instantiate(of);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_OK(cuGraphExecDestroy(exec));
}

CASE(nodes_are_done_after_what_they_wait_for)
{
    CUgraphNode late = add_fill(graph, NULL, 0, memory, 2);
    CUgraphNode early = add_fill(graph, NULL, 0, memory, 1);
    REQUIRE_OK(CONNECT(graph, &early, &late));  /* made first, done last */
    replay(graph);
    EXPECT_EQ(word_at(memory), 2);
    REQUIRE_OK(DISCONNECT(graph, &early, &late));
    REQUIRE_OK(CONNECT(graph, &late, &early));
    replay(graph);
    EXPECT_EQ(word_at(memory), 1);
}

CASE(a_cycle_is_not_instantiated)
{
    CUgraphExec exec;
    CUgraphNode one = add_fill(graph, NULL, 0, memory, 1);
    CUgraphNode two = add_fill(graph, &one, 1, memory, 2);
    EXPECT_EQ(CONNECT(graph, &one, &two), CUDA_ERROR_INVALID_VALUE);    /* it is there */
    EXPECT_EQ(CONNECT(graph, &one, &one), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(CONNECT(graph, &two, &one));
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
}

CASE(nodes_and_edges_are_told)
{
    CUgraphNode nodes[4], from[4], to[4];
    size_t count = 0;
    CUgraphNode a = add_kernel(graph, NULL, 0);
    CUgraphNode b = add_kernel(graph, &a, 1), c = add_kernel(graph, &a, 1);
    CUgraphNode both[] = {b, c};
    CUgraphNode d = add_kernel(graph, both, 2);
    EXPECT_OK(cuGraphGetNodes(graph, NULL, &count));
    EXPECT_EQ(count, 4);
    EXPECT_OK(cuGraphGetNodes(graph, nodes, &count));
    EXPECT(nodes[0] == a && nodes[1] == b && nodes[2] == c && nodes[3] == d);
    count = 4;
    EXPECT_OK(cuGraphGetRootNodes(graph, nodes, &count));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(nodes[0], a);
    EXPECT_EQ(nodes[1], NULL);
    EXPECT_OK(EDGES(graph, NULL, NULL, &count));
    EXPECT_EQ(count, 4);
    EXPECT_OK(EDGES(graph, from, to, &count));
    EXPECT(from[0] == a && to[0] == b && from[3] == c && to[3] == d);
    count = 4;
    EXPECT_OK(DEPENDENCIES(d, nodes, &count));
    EXPECT_EQ(count, 2);
    EXPECT(nodes[0] == b && nodes[1] == c);
    count = 1;
    EXPECT_OK(DEPENDENTS(a, nodes, &count));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(nodes[0], b);
}

CASE(a_node_waits_only_for_nodes_of_its_own_graph)
{
    CUgraph second;
    CUgraphNode node;
    REQUIRE_OK(cuGraphCreate(&second, 0));
    CUgraphNode foreign = add_kernel(second, NULL, 0);
    CUgraphNode twice[] = {add_kernel(graph, NULL, 0), NULL};
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph, &foreign, 1), CUDA_ERROR_INVALID_VALUE);
    twice[1] = twice[0];
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph, twice, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph, (CUgraphNode[]){(CUgraphNode)0x1230}, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CONNECT(graph, &foreign, &twice[0]), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_destroyed_node_leaves_no_edges)
{
    size_t count = 9;
    CUgraphNode a = add_kernel(graph, NULL, 0), b = add_kernel(graph, &a, 1), c = add_kernel(graph, &b, 1);
    EXPECT_OK(cuGraphDestroyNode(b));
    EXPECT_OK(EDGES(graph, NULL, NULL, &count));
    EXPECT_EQ(count, 0);
    EXPECT_OK(DEPENDENCIES(c, NULL, &count));
    EXPECT_EQ(count, 0);
    EXPECT_EQ(cuGraphDestroyNode(b), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphAddEmptyNode(&b, graph, &c, 1), CUDA_SUCCESS);
}

CASE(a_captured_graph_has_nodes_with_kinds_and_dependencies)
{
    CUgraphNode nodes[4];
    CUgraphNodeType type;
    size_t count = 4;
    char word[4];
    CUgraph captured;
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(sim_launch_kernel(stream, "first"));
    EXPECT_OK(cuMemsetD8Async(memory, 1, 4, stream));
    EXPECT_OK(cuMemcpyDtoHAsync(word, memory, 4, stream));
    REQUIRE_OK(cuStreamEndCapture(stream, &captured));
    EXPECT_OK(cuGraphGetNodes(captured, nodes, &count));
    EXPECT_EQ(count, 3);
    CUgraphNodeType expected[] = {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_MEMCPY};
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(cuGraphNodeGetType(nodes[i], &type));
        EXPECT_EQ(type, expected[i]);
    }
    CUgraphNode before = NULL;
    count = 1;
    EXPECT_OK(DEPENDENCIES(nodes[2], &before, &count));
    EXPECT_EQ(before, nodes[1]);
    CUDA_KERNEL_NODE_PARAMS params;
    const char *name = NULL;
    EXPECT_OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    EXPECT_OK(cuFuncGetName(&name, params.func));
    EXPECT_TEXT_EQ(name, "first");
    CUDA_MEMCPY3D copy;
    EXPECT_OK(cuGraphMemcpyNodeGetParams(nodes[2], &copy));
    EXPECT(copy.srcDevice == memory && copy.dstHost == word && copy.WidthInBytes == 4);
    EXPECT_EQ(cuGraphMemcpyNodeGetParams(nodes[1], &copy), CUDA_ERROR_INVALID_VALUE);
}

CASE(the_tails_of_a_capture_are_told_and_can_be_set)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *tails = NULL;
    size_t count = 0;
    CUgraph captured;
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(CAPTURE_INFO(stream, &status, &captured, &tails, &count));
    EXPECT_EQ(count, 0);
    EXPECT_OK(sim_launch_kernel(stream, "a"));
    EXPECT_OK(CAPTURE_INFO(stream, &status, &captured, &tails, &count));
    REQUIRE(count == 1);
    CUgraphNode a = tails[0];
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuStreamWaitEvent(other, event, 0));
    EXPECT_OK(sim_launch_kernel(other, "b"));
    EXPECT_OK(sim_launch_kernel(stream, "c"));
    EXPECT_OK(cuEventRecord(event, other));
    EXPECT_OK(cuStreamWaitEvent(stream, event, 0));
    EXPECT_OK(CAPTURE_INFO(stream, &status, &captured, &tails, &count));
    EXPECT_EQ(count, 2);
    CUgraphNode mine = add_kernel(captured, &a, 1); /* a node by hand, and the stream goes on after it alone */
    EXPECT_OK(UPDATE_CAPTURE(stream, &mine, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    EXPECT_OK(CAPTURE_INFO(stream, &status, &captured, &tails, &count));
    EXPECT(count == 1 && tails[0] == mine);
    EXPECT_EQ(cuGraphDestroyNode(mine), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphDestroy(captured), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);   /* b and c are not before it */
}

CASE(a_capture_may_grow_a_graph_of_the_program)
{
    CUgraph captured;
    CUgraphNode first = add_fill(graph, NULL, 0, memory, 1), nodes[2];
    size_t count = 2;
    REQUIRE_OK(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuStreamBeginCaptureToGraph(other, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemsetD32Async(memory, 2, 1, stream));
    REQUIRE_OK(cuStreamEndCapture(stream, &captured));
    EXPECT_EQ(captured, graph);
    EXPECT_OK(cuGraphGetNodes(graph, nodes, &count));
    EXPECT_EQ(count, 2);
    EXPECT_OK(DEPENDENCIES(nodes[1], nodes, &count));
    EXPECT_EQ(nodes[0], first);
    replay(graph);
    EXPECT_EQ(word_at(memory), 2);
}

CASE(a_clone_has_its_own_nodes)
{
    CUgraph clone;
    CUgraphNode a = add_fill(graph, NULL, 0, memory, 1), b = add_fill(graph, &a, 1, memory, 2), copy, before;
    size_t count = 1;
    REQUIRE_OK(cuGraphClone(&clone, graph));
    EXPECT_OK(cuGraphNodeFindInClone(&copy, b, clone));
    EXPECT(copy != b);
    EXPECT_OK(DEPENDENCIES(copy, &before, &count));
    EXPECT(before != a);
    EXPECT_OK(cuGraphDestroy(graph));
    replay(clone);
    EXPECT_EQ(word_at(memory), 2);
    EXPECT_EQ(cuGraphGetNodes(graph, NULL, &count), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphNodeFindInClone(&copy, before, clone), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_child_graph_is_copied_and_replayed)
{
    CUgraph child, inside;
    CUgraphNode node;
    REQUIRE_OK(cuGraphCreate(&child, 0));
    add_fill(child, NULL, 0, memory, 5);
    CUgraphNode first = add_fill(graph, NULL, 0, memory, 1);
    REQUIRE_OK(cuGraphAddChildGraphNode(&node, graph, &first, 1, child));
    EXPECT_OK(cuGraphDestroy(child));
    EXPECT_OK(cuGraphChildGraphNodeGetGraph(node, &inside));
    EXPECT(inside != child);
    EXPECT_EQ(cuGraphDestroy(inside), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphAddChildGraphNode(&node, inside, NULL, 0, graph), CUDA_ERROR_INVALID_VALUE);   /* a graph inside itself */
    replay(graph);
    EXPECT_EQ(word_at(memory), 5);
}

CASE(a_launch_in_a_capture_becomes_a_child)
{
    CUgraph captured;
    CUgraphNode node;
    CUgraphNodeType type;
    size_t count = 1;
    add_fill(graph, NULL, 0, memory, 6);
    CUgraphExec exec = instantiate(graph);
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    REQUIRE_OK(cuStreamEndCapture(stream, &captured));
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphGetNodes(captured, &node, &count));
    EXPECT_OK(cuGraphNodeGetType(node, &type));
    EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_GRAPH);
    replay(captured);
    EXPECT_EQ(word_at(memory), 6);
}

static int called;
static void CUDA_CB call(void *argument)
{
    called += *(int *)argument;
}

CASE(every_kind_of_node_by_hand)
{
    int three = 3;
    uint32_t back = 0;
    CUgraphNode a = add_fill(graph, NULL, 0, memory, 9), b, c, d, e;
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = &back,
                          .WidthInBytes = 4, .Height = 1, .Depth = 1};
    CUDA_HOST_NODE_PARAMS host = {.fn = call, .userData = &three};
    called = 0;
    EXPECT_OK(cuGraphAddMemcpyNode(&b, graph, &a, 1, &copy, machine_context));
    EXPECT_OK(cuGraphAddHostNode(&c, graph, &b, 1, &host));
    EXPECT_OK(cuGraphAddEventRecordNode(&d, graph, &c, 1, event));
    EXPECT_OK(cuGraphAddEventWaitNode(&e, graph, &d, 1, event));
    CUevent asked = NULL;
    EXPECT_OK(cuGraphEventRecordNodeGetEvent(d, &asked));
    EXPECT_EQ(asked, event);
    sim_set_lag(1000);
    CUgraphExec exec = instantiate(graph);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_EQ(back, 9);
    EXPECT_EQ(called, 3);
}

CASE(the_call_for_all_kinds_adds_and_changes)
{
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset.dst = memory;
    params.memset.elementSize = 4;
    params.memset.value = 3;
    params.memset.width = params.memset.height = 1;
#if CUDA_VERSION >= 13000
    REQUIRE_OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
#else
    REQUIRE_OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
#endif
    CUgraphExec exec = instantiate(graph);
    params.memset.value = 4;
    EXPECT_OK(cuGraphNodeSetParams(node, &params));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(word_at(memory), 3);      /* what was instantiated stays */
    EXPECT_OK(cuGraphExecNodeSetParams(exec, node, &params));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(word_at(memory), 4);
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    EXPECT_EQ(cuGraphNodeSetParams(node, &params), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_node_switched_off_is_skipped)
{
    unsigned on = 1;
    CUgraphNode node = add_fill(graph, NULL, 0, memory, 3);
    CUgraphExec exec = instantiate(graph);
    EXPECT_OK(cuMemsetD32(memory, 1, 1));
    EXPECT_OK(cuGraphNodeSetEnabled(exec, node, 0));
    EXPECT_OK(cuGraphNodeGetEnabled(exec, node, &on));
    EXPECT_EQ(on, 0);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(word_at(memory), 1);
}

static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph with)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = cuGraphExecUpdate(exec, with, &info);
    EXPECT_EQ(result == CUDA_SUCCESS, info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    return info.result;
}

CASE(an_update_replaces_the_work_of_a_graph_of_the_same_form)
{
    CUgraph changed;
    CUgraphNode a = add_fill(graph, NULL, 0, memory, 1);
    add_kernel(graph, &a, 1);
    CUgraphExec exec = instantiate(graph);
    REQUIRE_OK(cuGraphCreate(&changed, 0));
    CUgraphNode b = add_fill(changed, NULL, 0, memory + 4, 2);
    add_kernel(changed, &b, 1);
    EXPECT_EQ(update(exec, changed), CU_GRAPH_EXEC_UPDATE_SUCCESS);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(word_at(memory + 4), 2);
}

CASE(an_update_says_why_it_is_refused)
{
    void *pinned;
    CUgraph changed[5];
    CUgraphNode a = add_fill(graph, NULL, 0, memory, 1);
    CUgraphNode b = add_kernel(graph, &a, 1);
    (void)b;
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 5; i++)
        REQUIRE_OK(cuGraphCreate(&changed[i], 0));
    add_fill(changed[0], NULL, 0, memory, 1);   /* a node less */
    EXPECT_EQ(update(exec, changed[0]), CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    add_fill(changed[1], NULL, 0, memory, 1);   /* no edge */
    add_kernel(changed[1], NULL, 0);
    EXPECT_EQ(update(exec, changed[1]), CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    CUgraphNode first = add_kernel(changed[2], NULL, 0);
    add_fill(changed[2], &first, 1, memory, 1);
    EXPECT_EQ(update(exec, changed[2]), CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    REQUIRE_OK(cuMemAllocHost(&pinned, 4096));
    first = add_fill(changed[3], NULL, 0, (CUdeviceptr)pinned, 1);
    add_kernel(changed[3], &first, 1);
    EXPECT_EQ(update(exec, changed[3]), CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
    first = add_fill(changed[4], NULL, 0, memory, 1);
    CUmodule module;
    machine_new_context();
    REQUIRE_OK(cuModuleLoadData(&module, "any image"));
    REQUIRE_OK(cuModuleGetFunction(&function, module, "add"));
    add_kernel(changed[4], &first, 1);
    EXPECT_EQ(update(exec, changed[4]), CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE);
    EXPECT_OK(cuGraphLaunch(exec, stream));     /* nothing has changed */
    EXPECT_EQ(word_at(memory), 1);
}

static _Atomic int ended;
static void CUDA_CB end_object(void *pointer)
{
    ended += *(int *)pointer;
}

/* Another thread counts. */
static int ended_soon(void)
{
    for (struct wait wait = {0}; !ended && wait_on(&wait);)
        ;
    return ended;
}

CASE(a_user_object_ends_with_the_last_that_holds_it)
{
    int one = 1;
    CUuserObject object;
    ended = 0;
    EXPECT_EQ(cuUserObjectCreate(&object, &one, end_object, 1, 0), CUDA_ERROR_INVALID_VALUE);
    REQUIRE_OK(cuUserObjectCreate(&object, &one, end_object, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    EXPECT_OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    EXPECT_OK(cuUserObjectRelease(object, 1));
    EXPECT_EQ(ended, 0);
    CUgraphExec exec = instantiate(graph);
    EXPECT_OK(cuGraphDestroy(graph));
    EXPECT_EQ(ended, 0);
    sim_set_lag(1000);
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_EQ(ended, 0);                        /* the replay is under way */
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(ended_soon(), 1);
    EXPECT_EQ(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_graph_gives_back_only_what_it_holds)
{
    int one = 1;
    CUuserObject object;
    ended = 0;
    REQUIRE_OK(cuUserObjectCreate(&object, &one, end_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    EXPECT_EQ(cuGraphReleaseUserObject(graph, object, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuGraphRetainUserObject(graph, object, 2, 0));
    EXPECT_EQ(cuGraphReleaseUserObject(graph, object, 3), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuGraphReleaseUserObject(graph, object, 2));
    EXPECT_EQ(ended, 0);
    EXPECT_OK(cuUserObjectRelease(object, 1));
    EXPECT_EQ(ended_soon(), 1);
}

CASE(the_body_of_a_condition_is_replayed_once)
{
    CUgraphNode node;
    CUgraphConditionalHandle handle;
    REQUIRE_OK(cuGraphConditionalHandleCreate(&handle, graph, machine_context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    params.conditional.size = 1;
    params.conditional.ctx = machine_context;
#if CUDA_VERSION >= 13000
    REQUIRE_OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
#else
    REQUIRE_OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
#endif
    REQUIRE(params.conditional.phGraph_out != NULL);
    CUgraph body = params.conditional.phGraph_out[0], captured;
    REQUIRE_OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(sim_launch_kernel(stream, "body"));
    EXPECT_OK(cuMemsetD32Async(memory, 8, 1, stream));
    EXPECT_OK(cuStreamEndCapture(stream, &captured));
    replay(graph);
    EXPECT_EQ(word_at(memory), 8);
    EXPECT_EQ(simulated_books().kernels, 1);
#if CUDA_VERSION >= 13000
    EXPECT_EQ(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);   /* the handle is taken */
#else
    EXPECT_EQ(cuGraphAddNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
#endif
}

CASE(a_graph_is_printed)
{
    char path[] = "/tmp/cenote-graph-XXXXXX", text[4096] = "";
    int file = mkstemp(path);
    REQUIRE(file >= 0);
    CUgraphNode a = add_kernel(graph, NULL, 0);
    add_fill(graph, &a, 1, memory, 1);
    EXPECT_OK(cuGraphDebugDotPrint(graph, path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    EXPECT(read(file, text, sizeof text - 1) > 0);
    EXPECT(strstr(text, "digraph") && strstr(text, "add") && strstr(text, "MEMSET") && strstr(text, "->"));
    close(file);
    unlink(path);
    EXPECT_EQ(cuGraphDebugDotPrint(graph, "/nowhere/at/all", 0), CUDA_ERROR_OPERATING_SYSTEM);
}

CASE(thousands_of_nodes_are_walked_captured_and_replayed)
{
    CUgraph captured;
    size_t count = 0;
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 20000; i++)
        REQUIRE_OK(sim_launch_kernel(stream, i % 2 ? "odd" : "even"));
    REQUIRE_OK(cuStreamEndCapture(stream, &captured));
    EXPECT_OK(EDGES(captured, NULL, NULL, &count));
    EXPECT_EQ(count, 19999);
    CUgraphExec exec = instantiate(captured);
    for (int i = 0; i < 100; i++)
        REQUIRE_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(simulated_books().kernels, 2000000);
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphDestroy(captured));
}

static void end(void)
{
    machine_end();
    sim_reset(NULL); /* nothing stays behind: graphs, names of kernels */
}

SUITE_MAIN_AROUND("simulated driver: graphs", begin, end)
