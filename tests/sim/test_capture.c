/* test_capture.c: stream capture and graphs. CUDA driver API only. */
#include <pthread.h>

#include "tests/sim/machine.h"

static CUstream stream, other;
static CUevent event;
static CUdeviceptr memory;

static void begin(void)
{
    machine_begin();
    REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    REQUIRE_OK(cuMemAlloc(&memory, 4096));
}

static void end(void)
{
    EXPECT_OK(cuMemFree(memory));
    EXPECT_OK(cuEventDestroy(event));
    EXPECT_OK(cuStreamDestroy(other));
    EXPECT_OK(cuStreamDestroy(stream));
    machine_end();
}

static void capture(CUstreamCaptureMode mode)
{
    REQUIRE_OK(cuStreamBeginCapture(stream, mode));
}

static void expect_spoiled(void)
{
    CUgraph graph = (CUgraph)1;
    CUstreamCaptureStatus status;
    EXPECT_OK(cuStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, NULL);
    EXPECT_OK(cuStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

static CUgraphExec end_and_instantiate(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuGraphDestroy(graph));
    return exec;
}

static uint32_t word(void)
{
    uint32_t value = 0;
    EXPECT_OK(cuMemcpyDtoH(&value, memory, 4));
    return value;
}

CASE(captured_work_is_done_at_each_launch_and_not_before)
{
    EXPECT_OK(cuMemsetD32(memory, 1, 1));
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuMemsetD32Async(memory, 2, 1, stream));
    CUgraphExec exec = end_and_instantiate();
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(word(), 1);
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(cuMemsetD32(memory, 1, 1));
        EXPECT_OK(cuCtxSynchronize());
        EXPECT_OK(cuGraphLaunch(exec, stream));
        EXPECT_OK(cuStreamSynchronize(stream));
        EXPECT_EQ(word(), 2);
    }
    EXPECT_OK(cuGraphExecDestroy(exec));
}

CASE(a_second_stream_joins_by_an_event_and_is_joined_back)
{
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuMemsetD32Async(memory, 3, 1, stream));
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuStreamWaitEvent(other, event, 0));
    CUstreamCaptureStatus status;
    EXPECT_OK(cuStreamIsCapturing(other, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_OK(cuMemsetD32Async(memory, 4, 1, other));
    EXPECT_OK(cuEventRecord(event, other));
    EXPECT_OK(cuStreamWaitEvent(stream, event, 0));
    CUgraphExec exec = end_and_instantiate();
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(word(), 4);
    EXPECT_OK(cuGraphExecDestroy(exec));
}

CASE(a_stream_not_joined_back_is_an_error)
{
    CUgraph graph = (CUgraph)1;
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuStreamWaitEvent(other, event, 0));
    EXPECT_OK(cuMemsetD32Async(memory, 4, 1, other));
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(graph, NULL);
}

CASE(a_capture_ends_where_it_began)
{
    CUgraph graph;
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuStreamWaitEvent(other, event, 0));
    EXPECT_EQ(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    EXPECT(cuStreamEndCapture(stream, &graph) != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
}

enum question { ID, DEVICE, FLAGS, QUESTIONS };

static CUresult ask(CUstream of, enum question question)
{
    unsigned long long id;
    CUdevice device;
    unsigned flags;
    return question == ID ? cuStreamGetId(of, &id) : question == DEVICE ? cuStreamGetDevice(of, &device) : cuStreamGetFlags(of, &flags);
}

/* Of a stream that is in a capture, in any mode: the driver of an H100 answers so. Its context and priority may be asked for. */
CASE(what_may_not_be_asked_of_a_captured_stream)
{
    CUcontext context;
    int priority;
    for (int i = 0; i < QUESTIONS * 3 * 2; i++) {
        CUstream asked = i % 2 ? other : stream;
        capture((CUstreamCaptureMode)(i / 2 % 3));
        EXPECT_OK(cuEventRecord(event, stream));
        EXPECT_OK(cuStreamWaitEvent(other, event, 0));
        EXPECT_OK(cuStreamGetCtx(asked, &context));
        EXPECT_OK(cuStreamGetPriority(asked, &priority));
        EXPECT_EQ(ask(asked, (enum question)(i / 6)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        expect_spoiled();
        EXPECT_OK(ask(asked, (enum question)(i / 6)));
    }
}

/* Nor does the capture mind what is asked of a stream that is not in it. */
CASE(what_may_be_asked_while_another_stream_is_captured)
{
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (int question = 0; question < QUESTIONS; question++) {
        EXPECT_OK(ask(other, (enum question)question));
        EXPECT_OK(ask(CU_STREAM_LEGACY, (enum question)question));
    }
    EXPECT_OK(cuGraphExecDestroy(end_and_instantiate()));
}

CASE(the_default_stream_does_not_capture)
{
    EXPECT_EQ(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CASE(allocation_is_unsafe_in_a_global_capture)
{
    CUdeviceptr at;
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(cuMemAlloc(&at, 512), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoiled();
}

CASE(allocation_is_allowed_in_a_relaxed_thread)
{
    CUdeviceptr at;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_OK(cuMemAlloc(&at, 512));
    EXPECT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_OK(cuGraphExecDestroy(end_and_instantiate()));
    EXPECT_OK(cuMemFree(at));
}

static void *allocate(void *result)
{
    CUdeviceptr at;
    *(CUresult *)result = cuCtxSetCurrent(machine_context);
    if (*(CUresult *)result == CUDA_SUCCESS)
        *(CUresult *)result = cuMemAlloc(&at, 512);
    if (*(CUresult *)result == CUDA_SUCCESS)
        *(CUresult *)result = cuMemFree(at);
    return NULL;
}

static CUresult allocate_in_thread(void)
{
    pthread_t thread;
    CUresult result = CUDA_ERROR_UNKNOWN;
    REQUIRE(pthread_create(&thread, NULL, allocate, &result) == 0);
    pthread_join(thread, NULL);
    return result;
}

CASE(a_global_capture_forbids_it_in_other_threads_too)
{
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(allocate_in_thread(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoiled();
}

CASE(a_thread_local_capture_leaves_other_threads_alone)
{
    capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    EXPECT_EQ(allocate_in_thread(), CUDA_SUCCESS);
    EXPECT_OK(cuGraphExecDestroy(end_and_instantiate()));
}

CASE(synchronising_a_capturing_stream_spoils_the_capture)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoiled();
    EXPECT_OK(cuThreadExchangeStreamCaptureMode(&mode));
}

CASE(recording_the_context_spoils_the_capture)
{
    capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(cuCtxRecordEvent(machine_context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoiled();
}

CASE(a_captured_event_cannot_be_queried)
{
    capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    expect_spoiled();
}

CASE(waiting_for_work_outside_is_refused)
{
    EXPECT_OK(cuEventRecord(event, other));
    capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_spoiled();
}

CASE(two_captures_are_not_merged)
{
    CUgraph graph;
    capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    REQUIRE_OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuEventRecord(event, other));
    EXPECT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    expect_spoiled();
    EXPECT(cuStreamEndCapture(other, &graph) != CUDA_SUCCESS);
}

CASE(the_default_stream_is_off_limits_while_a_blocking_stream_captures)
{
    CUstream blocking;
    CUgraph graph;
    REQUIRE_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    REQUIRE_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuMemsetD32Async(memory, 1, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_OK(cuStreamDestroy(blocking));
}

CASE(asking_about_the_default_stream_spoils_no_capture)
{
    CUstream blocking;
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    REQUIRE_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    REQUIRE_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
#if CUDA_VERSION >= 13000
    EXPECT_EQ(cuStreamGetCaptureInfo(NULL, &status, NULL, NULL, NULL, NULL, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
#else
    EXPECT_EQ(cuStreamGetCaptureInfo(NULL, &status, NULL, NULL, NULL, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
#endif
    EXPECT_OK(cuStreamIsCapturing(blocking, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_OK(cuStreamEndCapture(blocking, &graph));
    EXPECT_OK(cuGraphDestroy(graph));
    EXPECT_OK(cuStreamDestroy(blocking));
}

CASE(capture_ids_are_unique)
{
    EXPECT_EQ(machine_capture_id(stream), 0);
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    cuuint64_t one = machine_capture_id(stream);
    EXPECT_OK(cuGraphExecDestroy(end_and_instantiate()));
    capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    cuuint64_t two = machine_capture_id(stream);
    EXPECT_OK(cuGraphExecDestroy(end_and_instantiate()));
    EXPECT(one && two && one != two);
}

SUITE_MAIN_AROUND("simulated driver: captures", begin, end)
