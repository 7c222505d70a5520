/* test_green.c: green contexts: parts of a device's multiprocessors with streams of their own. */
#include "tests/sim/simulated.h"

#define SHORT 1000

struct part {
    CUgreenCtx green;
    CUcontext  context;
    CUstream   stream;
};

/* As flashinfer and SGLang do: of the device's resource, `processors` at least. */
static struct part new_part(unsigned processors)
{
    struct part p;
    CUdevResource whole, group;
    CUdevResourceDesc described;
    unsigned count = 1;
    REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE_OK(cuDevSmResourceSplitByCount(&group, &count, &whole, NULL, 0, processors));
    REQUIRE_EQ(count, 1);
    REQUIRE_OK(cuDevResourceGenerateDesc(&described, &group, 1));
    REQUIRE_OK(cuGreenCtxCreate(&p.green, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE_OK(cuCtxFromGreenCtx(&p.context, p.green));
    REQUIRE_OK(cuGreenCtxStreamCreate(&p.stream, p.green, CU_STREAM_NON_BLOCKING, 0));
    return p;
}

static void end_part(struct part *p)
{
    EXPECT_OK(cuStreamDestroy(p->stream));
    EXPECT_OK(cuGreenCtxDestroy(p->green));
}

static CUevent new_event(void)
{
    CUevent event = NULL;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/* After an event that was recorded on it now. */
static bool is_done(CUstream stream)
{
    return cuStreamQuery(stream) == CUDA_SUCCESS;
}

CASE(multiprocessors_are_split_in_steps)
{
    CUdevResource whole, groups[16], rest;
    unsigned count = 16;
    REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_EQ(whole.sm.smCount, 132);
    EXPECT_OK(cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL, 0, 40));
    EXPECT_EQ(count, 3);
    EXPECT_OK(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, 33));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(groups[2].sm.smCount, 40);
    EXPECT_EQ(rest.sm.smCount, 12);
    count = 1;
    EXPECT_OK(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3));
    EXPECT_EQ(groups[0].sm.smCount, 4);
    EXPECT_EQ(rest.sm.smCount, 128);
    EXPECT_EQ(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, 133), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    EXPECT_EQ(cuDevSmResourceSplitByCount(NULL, &count, &rest, NULL, 0, 8), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

CASE(parts_of_two_splits_make_no_context)
{
    CUdevResource whole, two[2];
    CUdevResourceDesc described;
    CUgreenCtx green;
    unsigned count = 1;
    REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE_OK(cuDevSmResourceSplitByCount(&two[0], &count, &whole, NULL, 0, 8));
    REQUIRE_OK(cuDevSmResourceSplitByCount(&two[1], &count, &whole, NULL, 0, 8));
    EXPECT_EQ(cuDevResourceGenerateDesc(&described, two, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    REQUIRE_OK(cuDevResourceGenerateDesc(&described, two, 1));
    EXPECT_EQ(cuGreenCtxCreate(&green, described, 0, 0), CUDA_ERROR_INVALID_VALUE); /* its default stream has to be asked for */
    EXPECT_EQ(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_INVALID), CUDA_ERROR_INVALID_RESOURCE_TYPE);
}

CASE(a_green_context_knows_its_part)
{
    CUdevResource resource;
    struct part p = new_part(16);
    EXPECT_OK(cuGreenCtxGetDevResource(p.green, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_EQ(resource.sm.smCount, 16);
    EXPECT_OK(cuCtxGetDevResource(p.context, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_EQ(resource.sm.smCount, 16);
    EXPECT_OK(cuCtxGetDevResource(NULL, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_EQ(resource.sm.smCount, 132);
    end_part(&p);
}

/* The older question names the green context, the newer one its primary. */
CASE(a_stream_names_its_contexts_in_two_ways)
{
    struct part p = new_part(16);
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    EXPECT_OK(cuStreamGetCtx(p.stream, &context));
    EXPECT_EQ(context, p.context);
    EXPECT_OK(cuStreamGetCtx_v2(p.stream, &context, &green));
    EXPECT_EQ(context, machine_context);
    EXPECT_EQ(green, p.green);
    EXPECT_OK(cuStreamGetCtx_v2(NULL, &context, &green));
    EXPECT_EQ(context, machine_context);
    EXPECT_EQ(green, NULL);
    EXPECT_EQ(cuGreenCtxStreamCreate(&p.stream, p.green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
    end_part(&p);
}

CASE(a_current_green_context_has_a_default_stream_of_its_own)
{
    struct part p = new_part(16);
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    CUstream made;
    unsigned long long own = 0, whole = 0;
    EXPECT_OK(cuStreamGetId(NULL, &whole));
    EXPECT_OK(cuCtxPushCurrent(p.context));
    EXPECT_OK(cuCtxGetCurrent(&context));
    EXPECT_EQ(context, p.context);
    EXPECT_OK(cuStreamGetId(NULL, &own));
    EXPECT(own != whole);
    EXPECT_OK(cuStreamGetCtx_v2(NULL, &context, &green));
    EXPECT_EQ(green, p.green);
    EXPECT_EQ(cuStreamGetCtx_v2(CU_STREAM_PER_THREAD, &context, &green), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)); /* in the current one */
    EXPECT_OK(cuStreamGetCtx(made, &context));
    EXPECT_EQ(context, p.context);
    EXPECT_OK(cuStreamDestroy(made));
    EXPECT_OK(cuCtxPopCurrent(&context));
    EXPECT_EQ(context, p.context);
    end_part(&p);
}

CASE(default_streams_of_two_parts_do_not_wait_for_each_other)
{
    struct part p = new_part(16);
    EXPECT_OK(sim_launch_wait(NULL, 2 * SHORT));
    EXPECT_OK(cuCtxPushCurrent(p.context));
    EXPECT_OK(sim_launch_wait(NULL, SHORT));
    EXPECT(!is_done(NULL));
    sim_advance(SHORT);
    EXPECT(is_done(NULL));
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT(!is_done(NULL));
    end_part(&p);
}

/* An event over the primary context covers its green ones; one over a green context covers that alone. Waiting for the whole is the same. */
CASE(the_whole_context_covers_its_parts)
{
    struct part p = new_part(16), other = new_part(8);
    CUevent whole = new_event(), part = new_event(), as_context = new_event();
    EXPECT_OK(sim_launch_wait(p.stream, SHORT));
    EXPECT_OK(sim_launch_wait(other.stream, 2 * SHORT));
    EXPECT_OK(cuCtxRecordEvent(machine_context, whole));
    EXPECT_OK(cuGreenCtxRecordEvent(p.green, part));
    EXPECT_OK(cuCtxRecordEvent(p.context, as_context));
    EXPECT_EQ(cuEventQuery(part), CUDA_ERROR_NOT_READY);
    sim_advance(SHORT);
    EXPECT_OK(cuEventQuery(part));
    EXPECT_OK(cuEventQuery(as_context));
    EXPECT_EQ(cuEventQuery(whole), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuEventQuery(whole));
    end_part(&p);
    end_part(&other);
}

/* An event of the primary context serves the streams of its green ones. */
CASE(a_green_context_waits_for_an_event)
{
    struct part p = new_part(16);
    CUevent event = new_event();
    CUstream stream = simulated_stream();
    EXPECT_OK(sim_launch_wait(stream, SHORT));
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuGreenCtxWaitEvent(p.green, event));
    EXPECT_OK(sim_launch_wait(p.stream, 1));
    sim_advance(1);
    EXPECT(!is_done(p.stream));
    sim_advance(SHORT);
    EXPECT(is_done(p.stream));
    EXPECT_OK(cuEventRecord(event, p.stream));
    EXPECT_OK(cuEventQuery(event));
    end_part(&p);
}

/* What is asked of the whole context ends captures of its parts; of one part, its own alone. */
CASE(captures_of_a_part)
{
    struct part p = new_part(16), other = new_part(8);
    CUgraph graph = NULL;
    CUevent event = new_event();
    EXPECT_OK(cuStreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuGreenCtxRecordEvent(other.green, event));
    EXPECT_EQ(cuGreenCtxWaitEvent(p.green, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(p.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_OK(cuStreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuCtxRecordEvent(machine_context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(p.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_part(&p);
    end_part(&other);
}

CASE(streams_that_are_left_are_lost)
{
    struct part p = new_part(16);
    unsigned long long id;
    uint64_t contexts = simulated_books().contexts;
    EXPECT_OK(cuGreenCtxDestroy(p.green));
    EXPECT_EQ(simulated_books().contexts, contexts - 1); /* it held the primary context */
    EXPECT_EQ(cuStreamGetId(p.stream, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuStreamSynchronize(p.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuStreamDestroy(p.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuGreenCtxDestroy(p.green), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_OK(cuCtxSynchronize());
}

CASE(a_green_context_ends_with_its_primary)
{
    struct part p = new_part(16);
    CUstream stream;
    EXPECT_OK(cuDevicePrimaryCtxReset(0));
    EXPECT_EQ(cuGreenCtxStreamCreate(&stream, p.green, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_OK(cuGreenCtxDestroy(p.green));
}

SUITE_MAIN_AROUND("simulated driver: green contexts", simulated_begin, machine_end)
