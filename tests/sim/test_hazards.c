/* test_hazards.c: what goes wrong on a real device in silence, or later, shows on the simulated one. */
#include "tests/sim/simulated.h"

#define LAG 1000
#define PAGE SIMULATED_PAGE

static CUstream one, two;

static void begin(void)
{
    simulated_begin();
    sim_set_lag(LAG);
    one = simulated_stream();
    two = simulated_stream();
}

static void expect_lost(void)
{
    CUdeviceptr at;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuMemAlloc(&at, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuStreamSynchronize(one), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(simulated_violations() > 0);
}

CASE(unmapping_under_work_is_found_at_once_and_again_when_it_runs)
{
    struct machine_range range = machine_map(2);
    EXPECT_OK(sim_launch_fill(one, range.at, 1, 2 * PAGE));
    EXPECT_OK(cuMemUnmap(range.at + PAGE, PAGE));
    EXPECT_EQ(simulated_violations(), 1);
    EXPECT(strstr(sim_last_violation(), "used by work that is not done") != NULL);
    expect_lost();
}

CASE(unmapping_after_the_work_is_fine)
{
    struct machine_range range = machine_map(2);
    EXPECT_OK(sim_launch_fill(one, range.at, 1, 2 * PAGE));
    sim_advance(LAG);
    machine_unmap(range);
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_OK(cuCtxSynchronize());
}

CASE(remapping_under_work_lets_it_write_the_new_page)
{
    struct machine_range range = machine_map(1);
    EXPECT_OK(sim_launch_fill(one, range.at, 42, PAGE));
    EXPECT_OK(cuMemUnmap(range.at, PAGE));
    machine_map_page(range.at);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(sim_launch_expect(two, range.at, 42, PAGE));
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT(simulated_violations() > 0);
}

CASE(memory_handed_to_another_stream_too_early_is_overwritten)
{
    struct machine_range range = machine_map(1);
    EXPECT_OK(sim_launch_wait(one, 5000));
    EXPECT_OK(sim_launch_fill(one, range.at, 1, PAGE));  /* the old owner still writes */
    EXPECT_OK(sim_launch_fill(two, range.at, 2, PAGE));  /* the new one does not wait for it */
    EXPECT_OK(sim_launch_wait(two, 10000));
    EXPECT_OK(sim_launch_expect(two, range.at, 2, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), PAGE / 8);
}

CASE(the_same_with_an_event_between_is_fine)
{
    CUevent event;
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    EXPECT_OK(sim_launch_wait(one, 5000));
    EXPECT_OK(sim_launch_fill(one, range.at, 1, PAGE));
    EXPECT_OK(cuEventRecord(event, one));
    EXPECT_OK(cuStreamWaitEvent(two, event, 0));
    EXPECT_OK(sim_launch_fill(two, range.at, 2, PAGE));
    EXPECT_OK(sim_launch_expect(two, range.at, 2, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
}

CASE(aliases_overwrite_each_other)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle page = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * PAGE, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, PAGE, 0, page, 0));
    REQUIRE_OK(cuMemMap(at + PAGE, PAGE, 0, page, 0));
    machine_allow(at, 2 * PAGE);
    EXPECT_OK(sim_launch_fill(one, at, 1, PAGE));
    EXPECT_OK(sim_launch_fill(one, at + PAGE, 2, PAGE / 2));
    EXPECT_OK(sim_launch_expect(one, at, 1, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), PAGE / 2 / 8);
}

CASE(mapped_is_not_yet_accessible)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle page = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, PAGE, 0, page, 0));
    EXPECT_OK(sim_launch_touch(one, at, 8));
    expect_lost();
}

CASE(read_only_is_not_written)
{
    struct machine_range range = machine_map(1);
    CUmemAccessDesc who = {.location = machine_memory_of(0).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    EXPECT_OK(cuMemSetAccess(range.at, range.bytes, &who, 1));
    EXPECT_OK(sim_launch_touch(one, range.at, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(sim_launch_fill(one, range.at, 1, 8));
    expect_lost();
}

CASE(one_byte_beyond_the_mapping_is_illegal)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * PAGE, 0, 0, 0));
    machine_map_page(at);
    EXPECT_OK(sim_launch_touch(one, at + PAGE - 8, 8));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(sim_launch_touch(one, at + PAGE - 8, 9));
    expect_lost();
}

CASE(beyond_the_end_of_an_allocation_is_illegal)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, 1024));
    EXPECT_OK(sim_launch_fill(one, at, 1, 1024));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(sim_launch_fill(one, at, 1, 2048));
    expect_lost();
}

CASE(freed_pinned_memory_is_not_read_by_a_late_copy)
{
    CUdeviceptr at;
    void *host;
    CUgraph graph;
    CUgraphExec exec;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    REQUIRE_OK(cuMemAllocHost(&host, 4096));
    REQUIRE_OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuMemcpyHtoDAsync(at, host, 4096, one));
    REQUIRE_OK(cuStreamEndCapture(one, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuMemFreeHost(host));
    EXPECT_OK(cuGraphLaunch(exec, one));
    expect_lost();
}

CASE(a_replay_over_unmapped_memory_is_illegal)
{
    CUgraph graph;
    CUgraphExec exec;
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(sim_launch_fill(one, range.at, 1, PAGE));
    REQUIRE_OK(cuStreamEndCapture(one, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuGraphLaunch(exec, one));
    EXPECT_OK(cuCtxSynchronize());
    machine_unmap(range);
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_OK(cuGraphLaunch(exec, one));
    expect_lost();
}

CASE(a_replay_writes_what_is_mapped_there_now)
{
    CUgraph graph;
    CUgraphExec exec;
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(sim_launch_fill(one, range.at, 1, PAGE));
    REQUIRE_OK(cuStreamEndCapture(one, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuMemUnmap(range.at, PAGE));
    machine_map_page(range.at);
    EXPECT_OK(sim_launch_fill(two, range.at, 2, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuGraphLaunch(exec, one));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(sim_launch_expect(two, range.at, 2, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), PAGE / 8);
}

CASE(another_device_needs_access)
{
    struct sim_shape shape = simulated_shape();
    shape.devices = 2;
    simulated_begin_as(&shape);
    CUcontext second;
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
    REQUIRE_OK(cuCtxSetCurrent(second));
    CUmemAccessDesc who = {.location = machine_memory_of(1).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE_OK(cuMemSetAccess(range.at, range.bytes, &who, 1));
    EXPECT_OK(sim_launch_touch(NULL, range.at, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    who.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    REQUIRE_OK(cuMemSetAccess(range.at, range.bytes, &who, 1));
    EXPECT_OK(sim_launch_touch(NULL, range.at, PAGE));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_OK(cuCtxSetCurrent(machine_context)); /* the other device lives on */
    EXPECT_OK(sim_launch_touch(NULL, range.at, PAGE));
    EXPECT_OK(cuCtxSynchronize());
}

CASE(devices_that_cannot_reach_each_other)
{
    struct sim_shape shape = simulated_shape();
    int can = 1;
    shape.devices = 2;
    shape.peers = false;
    simulated_begin_as(&shape);
    CUcontext second;
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
    REQUIRE_OK(cuCtxSetCurrent(second));
    EXPECT_OK(cuDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(can, 0);
    EXPECT_OK(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    EXPECT_EQ(can, 0);
    EXPECT_EQ(cuCtxEnablePeerAccess(machine_context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

/* Memory of cuMemAlloc is copied by way of the host where it has to be; what is mapped needs access, or the copy between peers. */
CASE(copies_between_devices_without_peer_access)
{
    struct sim_shape shape = simulated_shape();
    CUdeviceptr here, there;
    CUcontext second;
    shape.devices = 2;
    simulated_begin_as(&shape);
    struct machine_range range = machine_map(1);
    REQUIRE_OK(cuMemAlloc(&here, PAGE));
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
    REQUIRE_OK(cuCtxSetCurrent(second));
    REQUIRE_OK(cuMemAlloc(&there, PAGE));
    EXPECT_OK(cuMemcpyDtoDAsync(there, here, PAGE, NULL));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemcpyPeerAsync(there, second, range.at, machine_context, PAGE, NULL));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(cuMemcpyDtoDAsync(there, range.at, PAGE, NULL), CUDA_ERROR_ILLEGAL_ADDRESS); /* nothing is behind: it runs at once */
}

CASE(plain_memory_of_a_peer_needs_peer_access)
{
    struct sim_shape shape = simulated_shape();
    shape.devices = 2;
    simulated_begin_as(&shape);
    CUcontext second;
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, PAGE));
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
    REQUIRE_OK(cuCtxSetCurrent(second));
    EXPECT_OK(cuCtxEnablePeerAccess(machine_context, 0));
    EXPECT_EQ(cuCtxEnablePeerAccess(machine_context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_OK(sim_launch_touch(NULL, at, PAGE));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuCtxDisablePeerAccess(machine_context));
    EXPECT_OK(sim_launch_touch(NULL, at, PAGE));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(a_lost_context_is_lost_until_it_is_reset)
{
    CUdeviceptr at;
    sim_lose_context(0, CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(cuMemAlloc(&at, 512), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(cuStreamSynchronize(one), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_OK(cuDevicePrimaryCtxReset(0));
    EXPECT_OK(cuDevicePrimaryCtxRetain(&machine_context, 0));
    EXPECT_OK(cuMemAlloc(&at, 512));
}

/* It ends the context, and the memory and events in it; a caller that has retained it releases it still, and the next to retain it finds another. */
CASE(a_reset_releases_nothing)
{
    CUcontext again;
    CUdeviceptr at;
    CUevent event;
    unsigned flags;
    int active = 1;
    unsigned long long before = 0, after = 0;
    uint64_t held = simulated_books().contexts;
    EXPECT_OK(cuCtxGetId(machine_context, &before));
    EXPECT_OK(cuMemAlloc(&at, 512));
    EXPECT_OK(cuEventCreate(&event, 0));
    EXPECT_OK(cuDevicePrimaryCtxReset(0));
    EXPECT_EQ(simulated_books().contexts, held);
    EXPECT_EQ(simulated_books().allocations, 0);
    EXPECT_EQ(simulated_books().events, 0);
    EXPECT_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 0);
    EXPECT_EQ(cuCtxGetId(machine_context, &after), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_OK(cuDevicePrimaryCtxReset(0)); /* of nothing */
    EXPECT_OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT_EQ(again, machine_context);
    EXPECT_OK(cuCtxGetId(machine_context, &after));
    EXPECT(after != before);
    EXPECT_OK(cuMemAlloc(&at, 512));
    for (uint64_t i = 0; i <= held; i++)
        EXPECT_OK(cuDevicePrimaryCtxRelease(0));
    EXPECT_EQ(simulated_books().contexts, 0);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(simulated_violations(), 1);
    EXPECT_OK(cuDevicePrimaryCtxRetain(&machine_context, 0));
}

/* NVIDIA's own tests of cuda.core expect it so: the call is refused, and the context lives. */
CASE(a_copy_beside_a_pool_without_access_is_refused)
{
    CUmemoryPool pool;
    CUdeviceptr far, near;
    CUmemAccessDesc who = {.location = machine_memory_of(0).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    struct sim_shape shape = simulated_shape();
    shape.devices = 2;
    simulated_begin_as(&shape);
    CUmemPoolProps of = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = machine_memory_of(1).location};
    REQUIRE_OK(cuMemPoolCreate(&pool, &of));
    REQUIRE_OK(cuMemAlloc(&near, 4096));
    REQUIRE_OK(cuMemAllocFromPoolAsync(&far, 4096, pool, NULL));
    EXPECT_EQ(cuMemcpyDtoDAsync(far, near, 4096, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoDAsync(near, far, 4096, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemPoolSetAccess(pool, &who, 1));
    EXPECT_OK(cuMemcpyDtoDAsync(near, far, 4096, NULL)); /* it may read now, and not write */
    EXPECT_EQ(cuMemcpyDtoDAsync(far, near, 4096, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemFreeAsync(far, NULL));
    EXPECT_OK(cuMemFree(near));
    EXPECT_OK(cuMemPoolDestroy(pool));
}

SUITE_MAIN_AROUND("simulated device: hazards", begin, NULL)
