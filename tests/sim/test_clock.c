/* test_clock.c: when work on the simulated device is done: lag, lengths, order, and what moves the clock. */
#include <time.h>

#include "tests/sim/simulated.h"

#define LAG 1000

static CUevent event;

static void begin(void)
{
    simulated_begin();
    sim_set_lag(LAG);
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
}

CASE(a_manual_clock_stands_still)
{
    uint64_t before = sim_now();
    for (int i = 0; i < 1000; i++)
        EXPECT_OK(cuStreamQuery(NULL));
    EXPECT_EQ(sim_now(), before);
    sim_advance(5);
    EXPECT_EQ(sim_now(), before + 5);
}

CASE(an_event_is_not_ready_until_the_lag_is_over)
{
    EXPECT_OK(cuEventRecord(event, simulated_stream()));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    sim_advance(LAG - 1);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    sim_advance(1);
    EXPECT_OK(cuEventQuery(event));
}

CASE(without_lag_work_is_done_at_once)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    sim_set_lag(0);
    CUstream stream = simulated_stream();
    EXPECT_OK(sim_launch_fill(stream, at, 3, 4096));
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(sim_launch_expect(stream, at, 3, 4096));
    EXPECT_EQ(sim_mismatches(), 0);
}

CASE(lengths_add_up_in_stream_order)
{
    CUstream stream = simulated_stream();
    uint64_t before = sim_now();
    for (int i = 0; i < 3; i++)
        EXPECT_OK(sim_launch_wait(stream, 500));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(sim_now() - before, LAG + 3 * 500);
}

CASE(streams_run_beside_each_other)
{
    CUstream one = simulated_stream(), two = simulated_stream();
    uint64_t before = sim_now();
    EXPECT_OK(sim_launch_wait(one, 500));
    EXPECT_OK(sim_launch_wait(two, 700));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_now() - before, LAG + 700);
}

CASE(a_stream_waits_for_the_event_of_another)
{
    CUstream one = simulated_stream(), two = simulated_stream();
    uint64_t before = sim_now();
    EXPECT_OK(sim_launch_wait(one, 5000));
    EXPECT_OK(cuEventRecord(event, one));
    EXPECT_OK(cuStreamWaitEvent(two, event, 0));
    EXPECT_OK(sim_launch_wait(two, 100));
    EXPECT_OK(cuStreamSynchronize(two));
    EXPECT_EQ(sim_now() - before, LAG + 5100);
}

CASE(blocking_streams_and_the_default_stream_wait_for_each_other)
{
    CUstream blocking;
    REQUIRE_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    uint64_t before = sim_now();
    EXPECT_OK(sim_launch_wait(blocking, 100));
    EXPECT_OK(sim_launch_wait(NULL, 100));
    EXPECT_OK(sim_launch_wait(CU_STREAM_PER_THREAD, 100));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(sim_now() - before, LAG + 300);
}

CASE(other_streams_do_not_wait_for_the_default_stream)
{
    CUstream stream = simulated_stream();
    EXPECT_OK(sim_launch_wait(NULL, 5000));
    EXPECT_OK(sim_launch_wait(stream, 100));
    sim_advance(LAG + 100);
    EXPECT_OK(cuStreamQuery(stream));
    EXPECT_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
}

CASE(a_context_event_covers_every_stream)
{
    CUstream stream = simulated_stream();
    EXPECT_OK(sim_launch_wait(stream, 5000));
    EXPECT_OK(cuStreamDestroy(stream)); /* its work goes on */
    EXPECT_OK(cuCtxRecordEvent(machine_context, event));
    sim_advance(LAG + 4999);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    sim_advance(1);
    EXPECT_OK(cuEventQuery(event));
}

CASE(a_second_record_replaces_the_first)
{
    CUstream stream = simulated_stream();
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT_OK(sim_launch_wait(stream, 5000));
    EXPECT_OK(cuEventRecord(event, stream));
    sim_advance(LAG);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_OK(cuEventQuery(event));
}

CASE(elapsed_time_is_the_length_between)
{
    float ms = 0;
    CUevent start, end;
    CUstream stream = simulated_stream();
    REQUIRE_OK(cuEventCreate(&start, 0));
    REQUIRE_OK(cuEventCreate(&end, 0));
    EXPECT_OK(cuEventRecord(start, stream));
    EXPECT_OK(sim_launch_wait(stream, 2000000));
    EXPECT_OK(cuEventRecord(end, stream));
    EXPECT_EQ(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuEventSynchronize(end));
    EXPECT_OK(cuEventElapsedTime(&ms, start, end));
    EXPECT(ms > 1.99f && ms < 2.01f);
}

CASE(an_external_event_is_recorded_at_each_replay)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream = simulated_stream();
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(sim_launch_wait(stream, 300));
    EXPECT_OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    sim_advance(LAG + 300);
    EXPECT_OK(cuEventQuery(event));
}

CASE(a_pool_gives_a_freed_place_to_its_own_stream_first)
{
    CUdeviceptr freed, other, own;
    CUstream one = simulated_stream(), two = simulated_stream();
    REQUIRE_OK(cuMemAllocAsync(&freed, 4096, one));
    EXPECT_OK(cuMemFreeAsync(freed, one));
    REQUIRE_OK(cuMemAllocAsync(&other, 4096, two));
    EXPECT(other != freed);
    REQUIRE_OK(cuMemAllocAsync(&own, 4096, one));
    EXPECT_EQ(own, freed);
    EXPECT_OK(cuMemFreeAsync(own, one));
    sim_advance(LAG);
    EXPECT_OK(cuStreamQuery(one)); /* the free has come: now any request may have the place */
    REQUIRE_OK(cuMemAllocAsync(&other, 4096, two));
    EXPECT_EQ(other, freed);
}

CASE(a_pool_waits_for_frees_before_it_runs_out)
{
    CUdeviceptr first, second;
    CUstream one = simulated_stream(), two = simulated_stream();
    REQUIRE_OK(cuMemAllocAsync(&first, 600 << 20, one));
    EXPECT_OK(cuMemFreeAsync(first, one));
    uint64_t before = sim_now();
    EXPECT_OK(cuMemAllocAsync(&second, 700 << 20, two));
    EXPECT_EQ(sim_now() - before, LAG);
    EXPECT_EQ(cuMemAllocAsync(&first, 600 << 20, two), CUDA_ERROR_OUT_OF_MEMORY);
}

CASE(calls_cost_time_where_the_shape_says_so)
{
    struct sim_shape shape = simulated_shape();
    shape.charge_cost = true;
    simulated_begin_as(&shape);
    uint64_t before = sim_now(), cost_before = simulated_books().cost_ns;
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT(sim_now() > before);
    EXPECT_EQ(sim_now() - before, simulated_books().cost_ns - cost_before);
    EXPECT_OK(cuMemRelease(page));
}

static uint64_t host_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

CASE(calls_take_the_host_time_where_the_shape_says_so)
{
    struct sim_shape shape = simulated_shape();
    shape.spend_cost = true;
    simulated_begin_as(&shape);
    uint64_t before = host_now(), cost_before = simulated_books().cost_ns;
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT(simulated_books().cost_ns > cost_before);
    EXPECT(host_now() - before >= simulated_books().cost_ns - cost_before);
    EXPECT_OK(cuMemRelease(page));
}

SUITE_MAIN_AROUND("simulated device: time", begin, NULL)
