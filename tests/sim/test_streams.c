/* test_streams.c: streams: handles, ids, order, host functions. CUDA driver API only. */
#include <pthread.h>

#include "tests/sim/machine.h"

static CUstream new_stream(void)
{
    CUstream stream = NULL;
    REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;
    EXPECT_OK(cuStreamGetId(stream, &id));
    return id;
}

CASE(unknown_flags_are_refused)
{
    CUstream stream;
    EXPECT_EQ(cuStreamCreate(&stream, 0x100), CUDA_ERROR_INVALID_VALUE);
}

CASE(streams_tell_their_flags_and_context)
{
    CUstream stream = new_stream();
    unsigned flags = 0;
    CUcontext context = NULL;
    EXPECT_OK(cuStreamGetFlags(stream, &flags));
    EXPECT_EQ(flags, CU_STREAM_NON_BLOCKING);
    EXPECT_OK(cuStreamGetCtx(stream, &context));
    EXPECT_EQ(context, machine_context);
    EXPECT_OK(cuStreamDestroy(stream));
}

CASE(priorities_are_clamped_to_the_range)
{
    CUstream stream;
    int least, greatest, priority = 1000;
    REQUIRE_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    REQUIRE_OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 100));
    EXPECT_OK(cuStreamGetPriority(stream, &priority));
    EXPECT_EQ(priority, greatest);
    EXPECT_OK(cuStreamDestroy(stream));
}

CASE(ids_are_unique_even_when_handles_are_not)
{
    CUstream first = new_stream();
    unsigned long long one = id_of(first);
    EXPECT_EQ(id_of(first), one);
    EXPECT_OK(cuStreamDestroy(first));
    CUstream second = new_stream();
    EXPECT(id_of(second) != one);
    EXPECT_OK(cuStreamDestroy(second));
}

CASE(both_names_of_the_default_stream_have_one_id)
{
    EXPECT_EQ(id_of(NULL), id_of(CU_STREAM_LEGACY));
    EXPECT(id_of(NULL) != id_of(CU_STREAM_PER_THREAD));
}

static void *own_id(void *result)
{
    if (cuCtxSetCurrent(machine_context) || cuStreamGetId(CU_STREAM_PER_THREAD, result))
        *(unsigned long long *)result = 0;
    return NULL;
}

CASE(each_thread_has_a_default_stream_of_its_own)
{
    pthread_t thread;
    unsigned long long other = 0;
    REQUIRE(pthread_create(&thread, NULL, own_id, &other) == 0);
    pthread_join(thread, NULL);
    EXPECT(other != 0);
    EXPECT(other != id_of(CU_STREAM_PER_THREAD));
    EXPECT_EQ(id_of(CU_STREAM_PER_THREAD), id_of(CU_STREAM_PER_THREAD));
}

CASE(an_idle_stream_is_done)
{
    CUstream stream = new_stream();
    EXPECT_OK(cuStreamQuery(stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_OK(cuStreamSynchronize(NULL));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamDestroy(stream));
}

static void count_up(void *number)
{
    ++*(int *)number;
}

CASE(host_functions_run_in_stream_order)
{
    CUstream stream = new_stream();
    int calls = 0;
    for (int i = 0; i < 10; i++)
        EXPECT_OK(cuLaunchHostFunc(stream, count_up, &calls));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(calls, 10);
    EXPECT_OK(cuStreamDestroy(stream));
}

static void call_the_driver(void *result)
{
    CUdeviceptr at;
    *(CUresult *)result = cuMemAlloc(&at, 512);
}

CASE(host_functions_may_not_call_the_driver)
{
    CUresult result = CUDA_SUCCESS;
    EXPECT_OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, call_the_driver, &result));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
}

CASE(work_of_a_destroyed_stream_is_still_done)
{
    CUstream stream = new_stream();
    int calls = 0;
    EXPECT_OK(cuLaunchHostFunc(stream, count_up, &calls));
    EXPECT_OK(cuStreamDestroy(stream));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(calls, 1);
}

SUITE_MAIN_AROUND("simulated driver: streams", machine_begin, machine_end)
