/* test_context.c: contexts and the stack of the thread. CUDA driver API only. */
#include <pthread.h>

#include "tests/sim/machine.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* cuCtxAttach: what is deprecated is still called */

CASE(flags_are_set_as_a_whole)
{
    unsigned before, flags = 0;
    EXPECT_OK(cuCtxGetFlags(&before));
#if CUDA_VERSION >= 12010
    EXPECT_OK(cuCtxSetFlags(before | CU_CTX_SYNC_MEMOPS));
    EXPECT_OK(cuCtxGetFlags(&flags));
    EXPECT_EQ(flags, before | CU_CTX_SYNC_MEMOPS);
    EXPECT_OK(cuCtxSetFlags(before));
    EXPECT_EQ(cuCtxSetFlags(0x10000), CUDA_ERROR_INVALID_VALUE);
#endif
    EXPECT_OK(cuCtxGetFlags(&flags));
    EXPECT_EQ(flags, before);
}

CASE(primary_context_is_one_for_all_who_retain_it)
{
    CUcontext again = NULL;
    EXPECT_OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT_EQ(again, machine_context);
    EXPECT_OK(cuDevicePrimaryCtxRelease(0));
}

CASE(primary_context_is_active_while_it_is_held)
{
    unsigned flags;
    int active = 0;
    EXPECT_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 1);
}

CASE(push_and_pop_are_a_stack)
{
    CUcontext made = machine_new_context(), popped = NULL, current = NULL; /* pushes it too */
    EXPECT_OK(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, made);
    EXPECT_OK(cuCtxPushCurrent(machine_context));
    EXPECT_OK(cuCtxPopCurrent(&popped));
    EXPECT_EQ(popped, machine_context);
    EXPECT_OK(cuCtxPopCurrent(&popped));
    EXPECT_EQ(popped, made);
    EXPECT_OK(cuCtxDestroy(made));
}

CASE(a_context_ends_with_its_last_detach)
{
    CUcontext made = machine_new_context(), same = NULL, current = NULL;
    EXPECT_EQ(cuCtxAttach(&same, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuCtxAttach(&same, 0));
    EXPECT_EQ(same, made);
    EXPECT_OK(cuCtxDetach(made));
    EXPECT_OK(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, made);
    EXPECT_OK(cuCtxPushCurrent(machine_context));
    EXPECT_EQ(cuCtxDetach(made), CUDA_ERROR_INVALID_CONTEXT); /* it is not current */
    EXPECT_EQ(cuCtxDetach(machine_context), CUDA_ERROR_INVALID_CONTEXT); /* it is primary */
    EXPECT_EQ(cuCtxAttach(&same, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT_OK(cuCtxDetach(made));
    EXPECT_EQ(cuCtxPushCurrent(made), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(set_replaces_the_top_of_the_stack)
{
    CUcontext made = machine_new_context(), current = NULL;
    EXPECT_OK(cuCtxSetCurrent(machine_context));
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT_OK(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, machine_context);
    EXPECT_OK(cuCtxDestroy(made));
}

CASE(current_context_knows_its_device)
{
    CUdevice device = -1;
    EXPECT_OK(cuCtxGetDevice(&device));
    EXPECT_EQ(device, 0);
}

CASE(contexts_have_unique_ids)
{
    CUcontext made = machine_new_context();
    unsigned long long one = 0, two = 0;
    EXPECT_OK(cuCtxGetId(made, &one));
    EXPECT_OK(cuCtxGetId(machine_context, &two));
    EXPECT(one != two);
    EXPECT_OK(cuCtxDestroy(made));
}

static void *without_context(void *result)
{
    CUcontext current;
    CUresult *results = result;
    CUdeviceptr at;
    results[0] = cuCtxGetCurrent(&current);
    results[1] = current == NULL ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    results[2] = cuMemAlloc(&at, 512);
    return NULL;
}

CASE(a_new_thread_has_no_context)
{
    pthread_t thread;
    CUresult results[3];
    REQUIRE(pthread_create(&thread, NULL, without_context, results) == 0);
    pthread_join(thread, NULL);
    EXPECT_EQ(results[0], CUDA_SUCCESS);
    EXPECT_EQ(results[1], CUDA_SUCCESS);
    EXPECT_EQ(results[2], CUDA_ERROR_INVALID_CONTEXT);
}

CASE(synchronize_needs_a_context)
{
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuCtxSetCurrent(NULL));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_OK(cuCtxSetCurrent(machine_context));
}

CASE(higher_priority_is_the_smaller_number)
{
    int least = 0, greatest = 0;
    EXPECT_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(greatest <= least);
}

CASE(allocations_end_with_their_context)
{
    CUdeviceptr at;
    size_t before, after, total;
    REQUIRE_OK(cuMemGetInfo(&before, &total));
    CUcontext made = machine_new_context();
    EXPECT_OK(cuMemAlloc(&at, 64 << 20));
    EXPECT_OK(cuCtxDestroy(made));
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before);
}

SUITE_MAIN_AROUND("simulated driver: contexts", machine_begin, machine_end)
