/* test_ipc.c: memory of cuMemAlloc, and events, that processes open by cuIpc handles. The other processes are agents: see agent.h. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/agent.h"

/* --- memory of cuMemAlloc */

CASE(plain_memory_is_opened_by_another_process)
{
    struct agent other;
    CUipcMemHandle handle;
    CUdeviceptr at, there;
    REQUIRE_OK(cuMemAlloc(&at, 5 << 20));
    own_fill(at, 41, 5 << 20);
    REQUIRE_OK(cuIpcGetMemHandle(&handle, at));
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_open(&other, handle, &there));
    EXPECT_EQ(agent_differ(&other, there, 41, 5 << 20), 0);
    EXPECT_OK(agent_fill(&other, there, 42, 5 << 20));
    EXPECT_EQ(own_differ(at, 42, 5 << 20), 0);
    EXPECT_OK(agent_close(&other, there));
    EXPECT_EQ(agent_close(&other, there), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(agent_violations(&other), 1);
    agent_end(&other);
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(simulated_books().used, 0);
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(a_small_allocation_is_opened_at_its_own_address)
{
    struct agent other;
    CUipcMemHandle handle[2];
    CUdeviceptr at[2], there[2];
    agent_start(&other, ALONE);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(cuMemAlloc(&at[i], 4096));
        own_fill(at[i], 60 + (uint64_t)i, 4096);
        REQUIRE_OK(cuIpcGetMemHandle(&handle[i], at[i] + 8)); /* anywhere in it */
        REQUIRE_OK(agent_open(&other, handle[i], &there[i]));
    }
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(agent_differ(&other, there[i], 60 + (uint64_t)i, 4096), 0);
    EXPECT_EQ(there[1] - there[0] == at[1] - at[0], 0); /* each has a mapping of its own */
    EXPECT_OK(agent_close(&other, there[0]));
    EXPECT_EQ(agent_differ(&other, there[1], 61, 4096), 0);
    EXPECT_EQ(agent_violations(&other), 0);
    agent_end(&other);
}

CASE(opening_twice_counts)
{
    struct agent other;
    CUipcMemHandle handle;
    CUdeviceptr at, first, second;
    REQUIRE_OK(cuMemAlloc(&at, 4 << 20));
    REQUIRE_OK(cuIpcGetMemHandle(&handle, at));
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_open(&other, handle, &first));
    REQUIRE_OK(agent_open(&other, handle, &second));
    EXPECT_EQ(first, second);
    EXPECT_OK(agent_close(&other, first));
    EXPECT_OK(agent_fill(&other, first, 1, 64));
    EXPECT_EQ(own_differ(at, 1, 64), 0);
    EXPECT_OK(agent_close(&other, first));
    EXPECT_EQ(agent_close(&other, first), CUDA_ERROR_INVALID_VALUE);
    agent_end(&other);
}

/* Undefined to CUDA. Each allocation counts by itself, and a process that has died has nothing open. */
CASE(memory_is_freed_while_another_process_has_it_open)
{
    struct agent other, third;
    CUipcMemHandle handle[3];
    CUdeviceptr at[3], there[3];
    agent_start(&other, ALONE);
    agent_start(&third, ALONE);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(cuMemAlloc(&at[i], 4096));
        REQUIRE_OK(cuIpcGetMemHandle(&handle[i], at[i]));
        REQUIRE_OK(agent_open(i < 2 ? &other : &third, handle[i], &there[i]));
    }
    EXPECT_OK(agent_close(&other, there[0]));
    EXPECT_OK(cuMemFree(at[0]));
    EXPECT_EQ(simulated_violations(), 0);
    agent_kill(&third);
    EXPECT_OK(cuMemFree(at[2]));
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_OK(cuMemFree(at[1]));
    EXPECT_EQ(simulated_violations(), 1);
    EXPECT(strstr(sim_last_violation(), "open in another process") != NULL);
    EXPECT_OK(agent_close(&other, there[1]));
    agent_end(&other);
}

CASE(opened_memory_is_not_freed_and_not_charged)
{
    struct agent other;
    CUipcMemHandle handle;
    CUdeviceptr at, here;
    size_t before, after, total;
    unsigned capable = 1;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_alloc(&other, 8 << 20, &at));
    REQUIRE_OK(agent_get(&other, at, &handle));
    EXPECT_OK(cuMemGetInfo(&before, &total));
    REQUIRE_OK(cuIpcOpenMemHandle(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(before, after);
    EXPECT_EQ(cuMemFree(here), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr start;
    size_t size;
    EXPECT_OK(cuMemGetAddressRange(&start, &size, here + 4096));
    EXPECT_EQ(start, here);
    EXPECT_EQ(size, 8 << 20);
    EXPECT_OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, here));
    EXPECT_EQ(capable, 0);
    EXPECT_OK(cuDevicePrimaryCtxReset(0)); /* it ends with its context */
    EXPECT_EQ(cuIpcCloseMemHandle(here), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(simulated_books().allocations, 0);
    agent_end(&other);
}

CASE(the_exporter_does_not_open_its_own)
{
    CUipcMemHandle handle;
    CUdeviceptr at, again;
    unsigned capable = 0;
    REQUIRE_OK(cuMemAlloc(&at, 4 << 20));
    EXPECT_OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    EXPECT_EQ(capable, 1);
    REQUIRE_OK(cuIpcGetMemHandle(&handle, at));
    EXPECT_EQ(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuIpcOpenMemHandle(&again, handle, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(other_memory_has_no_such_handle)
{
    CUipcMemHandle handle;
    struct machine_range range = machine_map(1);
    CUdeviceptr pooled;
    void *host;
    unsigned capable = 1;
    REQUIRE_OK(cuMemAllocAsync(&pooled, 4096, NULL));
    REQUIRE_OK(cuMemAllocHost(&host, 4096));
    EXPECT_OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range.at));
    EXPECT_EQ(capable, 0);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, range.at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, pooled), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, (CUdeviceptr)host), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, 8), CUDA_ERROR_INVALID_VALUE);
    machine_unmap(range);
}

CASE(handles_of_the_dead_and_of_freed_memory_are_refused)
{
    struct agent other, third;
    CUipcMemHandle freed, dead, small, renewed;
    CUdeviceptr at, again, here;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_alloc(&other, 4 << 20, &at));
    REQUIRE_OK(agent_get(&other, at, &freed));
    EXPECT_OK(agent_free(&other, at));
    EXPECT_EQ(cuIpcOpenMemHandle(&here, freed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE_OK(agent_alloc(&other, 4 << 20, &again)); /* takes the number of the file, perhaps, and the address */
    REQUIRE_OK(agent_get(&other, again, &dead));
    EXPECT(memcmp(&freed, &dead, sizeof freed) != 0);
    EXPECT_EQ(cuIpcOpenMemHandle(&here, freed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE_OK(agent_alloc(&other, 512, &at));
    REQUIRE_OK(agent_get(&other, at, &small));
    EXPECT_OK(agent_free(&other, at));
    REQUIRE_OK(agent_alloc(&other, 512, &again));
    REQUIRE_OK(agent_get(&other, again, &renewed));
    EXPECT(memcmp(&small, &renewed, sizeof small) != 0);
    agent_kill(&other);
    EXPECT_EQ(cuIpcOpenMemHandle(&here, dead, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    agent_start(&third, ALONE);
    EXPECT_EQ(agent_open(&third, dead, &here), CUDA_ERROR_INVALID_HANDLE);
    agent_end(&third);
}

CASE(damaged_handles_are_refused)
{
    struct agent other;
    CUipcMemHandle memory, broken;
    CUipcEventHandle event, broken_event;
    CUdeviceptr at, here;
    CUevent opened;
    uint64_t there;
    int accepted = 0;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_alloc(&other, 4 << 20, &at));
    REQUIRE_OK(agent_get(&other, at, &memory));
    REQUIRE_OK(agent_event(&other, &there, &event));
    for (int i = 0; i < 5000; i++) {
        broken = memory;
        broken_event = event;
        agent_flip((unsigned char *)&broken, sizeof broken);
        agent_flip((unsigned char *)&broken_event, sizeof broken_event);
        if (memcmp(&broken, &memory, sizeof broken))
            accepted += !agent_is_refusal(cuIpcOpenMemHandle(&here, broken, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        if (memcmp(&broken_event, &event, sizeof event))
            accepted += !agent_is_refusal(cuIpcOpenEventHandle(&opened, broken_event));
    }
    EXPECT_EQ(accepted, 0);
    EXPECT_OK(cuIpcOpenMemHandle(&here, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_OK(cuIpcOpenEventHandle(&opened, event));
    agent_end(&other);
}

/* --- events */

static CUevent new_event(CUipcEventHandle *handle)
{
    CUevent event = NULL;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    REQUIRE_OK(cuIpcGetEventHandle(handle, event));
    return event;
}

CASE(an_event_is_complete_elsewhere_when_its_work_is_done_here)
{
    struct agent other;
    CUipcEventHandle handle;
    CUevent event = new_event(&handle);
    uint64_t there;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_open_event(&other, handle, &there));
    EXPECT_OK(agent_query(&other, there)); /* never recorded */
    EXPECT_OK(sim_launch_wait(NULL, 1000));
    EXPECT_OK(cuEventRecord(event, NULL));
    EXPECT_EQ(agent_query(&other, there), CUDA_ERROR_NOT_READY);
    sim_advance(999);
    EXPECT_EQ(agent_query(&other, there), CUDA_ERROR_NOT_READY);
    sim_advance(1);
    EXPECT_OK(agent_query(&other, there));
    EXPECT_OK(agent_synchronize(&other, there));
    EXPECT_OK(agent_stream_wait(&other, there));
    EXPECT_OK(agent_destroy(&other, there));
    EXPECT_EQ(agent_violations(&other), 0);
    agent_end(&other);
    EXPECT_OK(cuEventDestroy(event));
}

CASE(either_process_records_and_the_last_record_counts)
{
    struct agent other;
    CUipcEventHandle handle;
    CUevent event = new_event(&handle);
    uint64_t there;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_open_event(&other, handle, &there));
    EXPECT_OK(agent_record(&other, there));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(sim_launch_wait(NULL, 1000));
    EXPECT_OK(cuEventRecord(event, NULL));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(agent_query(&other, there), CUDA_ERROR_NOT_READY);
    EXPECT_OK(agent_record(&other, there)); /* its stream has no work: complete at once */
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(agent_query(&other, there));
    agent_end(&other);
}

/* The other one's device lags by 50 ms and it makes no call meanwhile: its work is done all the same, before the wait is over. */
CASE(what_was_written_before_a_record_is_there_after_the_wait)
{
    struct agent other;
    CUipcEventHandle handle;
    CUipcMemHandle memory;
    CUdeviceptr at, here;
    CUevent event;
    uint64_t there;
    agent_start(&other, ALONE ",lag:50000000");
    REQUIRE_OK(agent_alloc(&other, 4 << 20, &at));
    REQUIRE_OK(agent_get(&other, at, &memory));
    REQUIRE_OK(agent_event(&other, &there, &handle));
    REQUIRE_OK(cuIpcOpenMemHandle(&here, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    REQUIRE_OK(cuIpcOpenEventHandle(&event, handle));
    for (uint64_t round = 1; round <= 3; round++) {
        EXPECT_OK(agent_fill(&other, at, round, 4 << 20));
        EXPECT_OK(agent_record(&other, there));
        EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
        EXPECT_EQ(own_differ(here, round, 64), 8);
        EXPECT_OK(round % 2 ? cuEventSynchronize(event) : cuStreamWaitEvent(NULL, event, 0));
        EXPECT_EQ(own_differ(here, round, 4 << 20), 0);
        EXPECT_OK(cuEventQuery(event));
    }
    agent_end(&other);
}

/* Each waits for a record of the other that is not done yet: both devices go on meanwhile. */
CASE(two_processes_may_wait_for_each_other)
{
    struct agent other;
    CUipcEventHandle mine, theirs;
    CUevent event, opened;
    uint64_t there, opened_there;
    struct sim_shape shape = simulated_shape();
    shape.manual_clock = false;
    shape.lag = 20000000;
    simulated_begin_as(&shape);
    event = new_event(&mine);
    agent_start(&other, ALONE ",lag:20000000");
    REQUIRE_OK(agent_event(&other, &there, &theirs));
    REQUIRE_OK(cuIpcOpenEventHandle(&opened, theirs));
    REQUIRE_OK(agent_open_event(&other, mine, &opened_there));
    EXPECT_OK(agent_record(&other, there));
    EXPECT_OK(cuEventRecord(event, NULL));
    agent_begin_stream_wait(&other, opened_there);
    EXPECT_OK(cuStreamWaitEvent(NULL, opened, 0));
    EXPECT_OK(agent_answer(&other));
    EXPECT_OK(agent_query(&other, opened_there));
    EXPECT_OK(cuEventQuery(opened));
    agent_end(&other);
}

static CUevent awaited;
static CUgraphExec replay;
static _Atomic int returned;

static void *wait_for_it(void *how)
{
    EXPECT_OK(cuCtxSetCurrent(machine_context));
    switch ((int)(intptr_t)how) {
    case 0: EXPECT_OK(cuEventSynchronize(awaited)); break;
    case 1: EXPECT_OK(cuStreamWaitEvent(NULL, awaited, 0)); break;
    case 2: EXPECT_OK(cuGraphLaunch(replay, NULL)); break;
    }
    returned++;
    return NULL;
}

/* A replay of it waits, when it comes there, for the record that counts then. */
static void make_replay(void)
{
    CUgraph graph;
    CUstream stream = simulated_stream();
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE_OK(cuStreamWaitEvent(stream, awaited, CU_EVENT_WAIT_EXTERNAL));
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    REQUIRE_OK(cuGraphInstantiate(&replay, graph, 0));
}

CASE(who_waits_for_another_process_holds_up_nobody)
{
    struct agent other;
    CUipcEventHandle handle;
    uint64_t there;
    size_t free, total;
    pthread_t threads[3];
    returned = 0;
    agent_start(&other, ALONE ",manual_clock:1,lag:1000");
    REQUIRE_OK(agent_event(&other, &there, &handle));
    REQUIRE_OK(cuIpcOpenEventHandle(&awaited, handle));
    EXPECT_OK(agent_record(&other, there)); /* never done: nothing moves its clock */
    make_replay();
    for (int i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, wait_for_it, (void *)(intptr_t)i));
    usleep(20000);
    EXPECT_EQ(cuEventQuery(awaited), CUDA_ERROR_NOT_READY);
    for (int i = 0; i < 1000; i++)
        EXPECT_OK(cuMemGetInfo(&free, &total));
    pid_t child = fork();
    if (!child)
        _exit(0);
    EXPECT_EQ(waitpid(child, NULL, 0), child);
    EXPECT_EQ(returned, 0);
    agent_kill(&other);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    EXPECT_EQ(returned, 3);
    EXPECT_OK(cuGraphExecDestroy(replay));
    EXPECT_OK(cuEventDestroy(awaited));
}

CASE(a_record_of_a_process_that_died_is_complete)
{
    struct agent other;
    CUipcEventHandle handle;
    CUevent event;
    uint64_t there;
    agent_start(&other, ALONE ",manual_clock:1");
    REQUIRE_OK(agent_event(&other, &there, &handle));
    REQUIRE_OK(cuIpcOpenEventHandle(&event, handle));
    EXPECT_OK(agent_wait(&other, 1000));
    EXPECT_OK(agent_record(&other, there));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    agent_kill(&other);
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_OK(cuEventQuery(event));
    CUevent again;
    EXPECT_EQ(cuIpcOpenEventHandle(&again, handle), CUDA_ERROR_INVALID_HANDLE);
}

CASE(events_that_cannot_be_shared_are_refused)
{
    struct agent other;
    CUipcEventHandle handle;
    CUevent plain, event, opened;
    uint64_t there;
    int supported = 0;
    EXPECT_OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0));
    EXPECT_EQ(supported, 1);
    EXPECT_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    REQUIRE_OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    EXPECT_EQ(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_VALUE);
    event = new_event(&handle);
    EXPECT_EQ(cuIpcOpenEventHandle(&opened, handle), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_OK(cuEventDestroy(event));
    agent_start(&other, ALONE);
    EXPECT_EQ(agent_open_event(&other, handle, &there), CUDA_ERROR_INVALID_HANDLE);
    event = new_event(&handle); /* in the same cell: another event */
    REQUIRE_OK(agent_open_event(&other, handle, &there));
    agent_end(&other);
}

CASE(thousands_of_events_take_one_file)
{
    CUipcEventHandle handle;
    int before = dup(0);
    close(before);
    for (int i = 0; i < 3000; i++)
        new_event(&handle);
    int after = dup(0);
    close(after);
    EXPECT(after - before <= 1);
    EXPECT_EQ(simulated_books().events, 3000);
}

AGENT_MAIN_AROUND("simulated device: cuIpc", simulated_begin, NULL)
