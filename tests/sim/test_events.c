/* test_events.c: events. CUDA driver API only. */
#include "tests/sim/machine.h"

static CUevent new_event(unsigned flags)
{
    CUevent event = NULL;
    REQUIRE_OK(cuEventCreate(&event, flags));
    return event;
}

CASE(an_event_never_recorded_is_complete)
{
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_OK(cuStreamWaitEvent(NULL, event, 0));
    EXPECT_OK(cuEventDestroy(event));
}

CASE(unknown_flags_are_refused)
{
    CUevent event;
    EXPECT_EQ(cuEventCreate(&event, 0x100), CUDA_ERROR_INVALID_VALUE);
}

CASE(interprocess_events_have_no_timing)
{
    CUevent event;
    EXPECT_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    event = new_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuEventDestroy(event));
}

CASE(a_recorded_event_is_complete_after_a_synchronise)
{
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuEventRecord(event, NULL));
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuEventDestroy(event));
}

CASE(a_stream_waits_for_an_event_of_another)
{
    CUstream one, two;
    CUdeviceptr at;
    uint32_t word = 0;
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    REQUIRE_OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    EXPECT_OK(cuMemsetD32Async(at, 11, 1024, one));
    EXPECT_OK(cuEventRecord(event, one));
    EXPECT_OK(cuStreamWaitEvent(two, event, 0));
    EXPECT_OK(cuMemcpyDtoHAsync(&word, at, 4, two));
    EXPECT_OK(cuStreamSynchronize(two));
    EXPECT_EQ(word, 11);
    EXPECT_OK(cuMemFree(at));
    EXPECT_OK(cuStreamDestroy(one));
    EXPECT_OK(cuStreamDestroy(two));
    EXPECT_OK(cuEventDestroy(event));
}

CASE(a_context_can_be_recorded)
{
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuCtxRecordEvent(machine_context, event));
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuEventDestroy(event));
}

CASE(events_of_another_context_are_not_recorded_here)
{
    CUcontext other = machine_new_context();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT_EQ(cuEventRecord(event, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuCtxRecordEvent(machine_context, event), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuCtxDestroy(other));
}

CASE(elapsed_time_does_not_go_back)
{
    CUevent start = new_event(0), end = new_event(0);
    float ms = -1;
    EXPECT_OK(cuEventRecord(start, NULL));
    EXPECT_OK(cuEventRecord(end, NULL));
    EXPECT_OK(cuEventSynchronize(end));
    EXPECT_OK(cuEventElapsedTime(&ms, start, end));
    EXPECT(ms >= 0);
    EXPECT_OK(cuEventDestroy(start));
    EXPECT_OK(cuEventDestroy(end));
}

CASE(elapsed_time_needs_records_and_timing)
{
    CUevent start = new_event(0), end = new_event(0), untimed = new_event(CU_EVENT_DISABLE_TIMING);
    float ms;
    EXPECT_EQ(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuEventRecord(start, NULL));
    EXPECT_OK(cuEventRecord(untimed, NULL));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(cuEventElapsedTime(&ms, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuEventDestroy(start));
    EXPECT_OK(cuEventDestroy(end));
    EXPECT_OK(cuEventDestroy(untimed));
}

CASE(an_event_may_be_destroyed_while_it_is_awaited)
{
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    EXPECT_OK(cuEventRecord(event, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamWaitEvent(NULL, event, 0));
    EXPECT_OK(cuEventDestroy(event));
    EXPECT_OK(cuCtxSynchronize());
}

SUITE_MAIN_AROUND("simulated driver: events", machine_begin, machine_end)
