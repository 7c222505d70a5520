/* test_strict.c: what CUDA calls undefined or refuses is refused by name and counted; and what is legal is not. */
#include "tests/sim/simulated.h"

#define PAGE SIMULATED_PAGE

static uint64_t violations_before;

static void begin(void)
{
    simulated_begin();
    violations_before = simulated_violations();
}

/* Exactly one violation since the last time, and its words. */
static void expect_violation(const char *words)
{
    EXPECT_EQ(simulated_violations(), violations_before + 1);
    EXPECT(strstr(sim_last_violation(), words) != NULL);
    violations_before = simulated_violations();
}

CASE(a_handle_is_released_once)
{
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT_OK(cuMemRelease(page));
    EXPECT_EQ(cuMemRelease(page), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemRelease");
}

CASE(an_old_handle_does_not_name_new_memory)
{
    CUmemGenericAllocationHandle old = machine_create_page();
    EXPECT_OK(cuMemRelease(old));
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT(page != old);
    EXPECT_EQ(cuMemRelease(old), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemRelease");
    EXPECT_OK(cuMemRelease(page));
}

CASE(a_mapped_handle_released_is_legal)
{
    struct machine_range range = machine_map(1);
    machine_unmap(range);
    EXPECT_EQ(simulated_violations(), violations_before);
    EXPECT_EQ(simulated_books().used, 0);
}

CASE(a_released_handle_is_not_mapped_again)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle page = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * PAGE, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, PAGE, 0, page, 0));
    EXPECT_OK(cuMemRelease(page));
    EXPECT_EQ(cuMemMap(at + PAGE, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemMap");
}

CASE(maps_stay_inside_one_reservation)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle page = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    EXPECT_EQ(cuMemMap(at + PAGE, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemMap");
    EXPECT_EQ(cuMemMap(at + 4096, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemMap");
    EXPECT_EQ(cuMemMap(at, PAGE, PAGE, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemMap");
}

/* So answers an H200, driver 580.159: the price of a handle cannot be shared by pages. */
CASE(a_handle_is_mapped_whole)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    REQUIRE_OK(cuMemAddressReserve(&at, 4 * PAGE, 0, 0, 0));
    REQUIRE_OK(cuMemCreate(&handle, 2 * PAGE, &prop, 0));
    EXPECT_EQ(cuMemMap(at, PAGE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    expect_violation("cuMemMap");
    EXPECT_EQ(cuMemMap(at, PAGE, PAGE, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    expect_violation("cuMemMap");
    EXPECT_EQ(cuMemMap(at, 4 * PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemMap");
    EXPECT_OK(cuMemMap(at, 2 * PAGE, 0, handle, 0));
    EXPECT_EQ(cuMemUnmap(at, PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemUnmap");
    EXPECT_OK(cuMemUnmap(at, 2 * PAGE));
    EXPECT_OK(cuMemRelease(handle));
}

CASE(addresses_with_mappings_are_not_freed)
{
    struct machine_range range = machine_map(2);
    EXPECT_EQ(cuMemAddressFree(range.at, range.bytes), CUDA_ERROR_INVALID_VALUE);
    expect_violation("has mappings");
    machine_unmap(range);
    EXPECT_EQ(cuMemAddressFree(range.at, range.bytes), CUDA_ERROR_INVALID_VALUE);
    expect_violation("not exactly a reservation");
}

CASE(holes_are_not_unmapped)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAddressReserve(&at, 3 * PAGE, 0, 0, 0));
    machine_map_page(at);
    machine_map_page(at + 2 * PAGE);
    EXPECT_EQ(cuMemUnmap(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemUnmap");
    EXPECT_OK(cuMemUnmap(at, PAGE));
    EXPECT_EQ(cuMemUnmap(at, PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemUnmap");
}

CASE(memory_of_allocations_is_not_unmapped)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, PAGE));
    EXPECT_EQ(cuMemUnmap(at, PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemUnmap");
    EXPECT_OK(cuMemFree(at));
}

CASE(allocations_are_freed_once_and_from_their_start)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    EXPECT_EQ(cuMemFree(at + 512), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemFree");
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemFree");
}

CASE(destroyed_streams_are_found_out_until_the_handle_is_used_again)
{
    CUevent event;
    CUstream old = simulated_stream();
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    EXPECT_OK(cuStreamDestroy(old));
    EXPECT_EQ(cuEventRecord(event, old), CUDA_ERROR_INVALID_HANDLE);
    expect_violation("stream");
    EXPECT_EQ(cuStreamDestroy(old), CUDA_ERROR_INVALID_HANDLE);
    expect_violation("cuStreamDestroy");
    EXPECT_EQ(simulated_stream(), old);
    EXPECT_OK(cuEventRecord(event, old));
}

CASE(handles_are_not_used_again_where_the_shape_says_so)
{
    struct sim_shape shape = simulated_shape();
    shape.reuse_handles = false;
    simulated_begin_as(&shape);
    CUstream old = simulated_stream();
    EXPECT_OK(cuStreamDestroy(old));
    EXPECT(simulated_stream() != old);
}

CASE(destroyed_events_are_found_out)
{
    CUevent event;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    EXPECT_OK(cuEventDestroy(event));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    expect_violation("event");
    EXPECT_EQ(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
    expect_violation("cuEventDestroy");
}

CASE(wild_handles_are_errors_not_crashes)
{
    EXPECT_EQ(cuStreamSynchronize((CUstream)0x1234567), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventQuery((CUevent)0x1234567), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuCtxPushCurrent((CUcontext)0x1234567), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemPoolDestroy((CUmemoryPool)0x1234567), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphLaunch((CUgraphExec)0x1234567, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemRelease(0x1234567), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(simulated_violations(), violations_before + 6);
}

CASE(a_context_nobody_holds_is_not_used)
{
    EXPECT_OK(cuDevicePrimaryCtxRelease(0));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    expect_violation("no caller holds");
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    expect_violation("cuDevicePrimaryCtxRelease");
}

CASE(an_empty_stack_is_not_popped)
{
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT_EQ(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
    expect_violation("cuCtxPopCurrent");
}

CASE(pool_memory_is_freed_once)
{
    CUdeviceptr at;
    sim_set_lag(1000);
    REQUIRE_OK(cuMemAllocAsync(&at, 4096, NULL));
    EXPECT_OK(cuMemFreeAsync(at, NULL));
    EXPECT_EQ(cuMemFreeAsync(at, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_violation("cuMemFreeAsync");
}

/* The programming guide, "Stream Ordered Memory Allocator": cudaFreeAsync frees memory of cudaMalloc, too. */
CASE(memory_of_cuMemAlloc_is_freed_in_stream_order)
{
    size_t before, between, after, total;
    CUdeviceptr at;
    sim_set_lag(1000000);
    EXPECT_OK(cuMemGetInfo(&before, &total));
    REQUIRE_OK(cuMemAlloc(&at, 8 << 20));
    EXPECT_OK(cuMemsetD32Async(at, 9, 1024, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemGetInfo(&between, &total));
    EXPECT_EQ(cuMemFreeAsync(at, CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(between, before - (8 << 20));
    EXPECT_EQ(after, before);
}

CASE(page_operations_are_unsafe_in_captures_that_are_not_relaxed)
{
    CUgraph graph;
    CUstream stream = simulated_stream();
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_EQ(cuMemUnmap(range.at, range.bytes), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_violation("cuMemUnmap: not allowed during stream capture");
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    machine_unmap(range);
}

CASE(destroying_a_capturing_stream_ends_its_capture)
{
    CUgraph graph;
    CUevent event;
    CUstream origin = simulated_stream(), joined = simulated_stream();
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    REQUIRE_OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuEventRecord(event, origin));
    EXPECT_OK(cuStreamWaitEvent(joined, event, 0));
    EXPECT_OK(cuStreamDestroy(origin));
    expect_violation("cuStreamDestroy");
    EXPECT_OK(sim_launch_wait(joined, 1)); /* captures no more */
    EXPECT_OK(cuStreamSynchronize(joined));
    EXPECT_EQ(cuStreamEndCapture(joined, &graph), CUDA_ERROR_ILLEGAL_STATE);
    expect_violation("does not capture");
}

CASE(device_memory_is_not_opened_to_the_host)
{
    CUmemAccessDesc who = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct machine_range range = machine_map(1);
    who.location.type = CU_MEM_LOCATION_TYPE_HOST;
    EXPECT_EQ(cuMemSetAccess(range.at, range.bytes, &who, 1), CUDA_ERROR_INVALID_VALUE);
    expect_violation("host");
    machine_unmap(range);
}

CASE(out_of_memory_and_not_ready_are_no_violations)
{
    CUdeviceptr at;
    sim_set_lag(1000);
    EXPECT_OK(sim_launch_wait(NULL, 5));
    EXPECT_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuMemAlloc(&at, 2ull << 30), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(simulated_violations(), violations_before);
}

SUITE_MAIN_AROUND("simulated device: violations", begin, NULL)
