/* test_calls.c: host functions and the ends of user objects run outside of the driver, and what comes after them waits. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/sim/simulated.h"
#include "tests/patience.h"

#define BYTES 4096

static CUstream stream, other;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* the program's; Python's is like it */
static _Atomic bool stop, entered, open_door;
static _Atomic int calls;

static void begin(void)
{
    simulated_begin();
    stream = simulated_stream();
    other = simulated_stream();
    atomic_store(&stop, false);
    atomic_store(&entered, false);
    atomic_store(&open_door, false);
    atomic_store(&calls, 0);
}

static bool comes(const _Atomic bool *flag)
{
    for (struct wait wait = {0}; !atomic_load(flag) && wait_on(&wait);)
        ;
    return atomic_load(flag);
}

static void CUDA_CB count(void *step)
{
    atomic_fetch_add(&calls, (int)(intptr_t)step);
}

static void CUDA_CB take_lock(void *nothing)
{
    pthread_mutex_lock(&lock);
    count((void *)(intptr_t)!nothing);
    pthread_mutex_unlock(&lock);
}

/* Until another thread opens the door. */
static void CUDA_CB stay(void *nothing)
{
    (void)nothing;
    atomic_store(&entered, true);
    EXPECT(comes(&open_door));
    count((void *)1);
}

static void *open_soon(void *nothing)
{
    usleep(20000);
    atomic_store(&open_door, true);
    return nothing;
}

static void *call_with_the_lock(void *nothing)
{
    size_t free, total;
    EXPECT_OK(cuCtxSetCurrent(machine_context));
    while (!atomic_load(&stop)) {
        pthread_mutex_lock(&lock);
        EXPECT_OK(cuMemGetInfo(&free, &total));
        pthread_mutex_unlock(&lock);
        atomic_store(&entered, true);
    }
    return nothing;
}

CASE(a_host_function_may_wait_for_a_thread_that_calls_the_driver)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, call_with_the_lock, NULL));
    EXPECT(comes(&entered));
    for (int i = 0; i < 3000; i++)
        EXPECT_OK(cuLaunchHostFunc(stream, take_lock, NULL));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(atomic_load(&calls), 3000);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

/* It has the lock that the function wants: the driver may not run it on this thread. */
CASE(a_thread_with_the_lock_goes_on)
{
    CUdeviceptr at;
    pthread_mutex_lock(&lock);
    EXPECT_OK(cuLaunchHostFunc(stream, take_lock, NULL));
    EXPECT_OK(cuMemAlloc(&at, BYTES));
    EXPECT_OK(cuMemcpyDtoDAsync(at, at, BYTES, other));
    EXPECT_OK(cuStreamSynchronize(other));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(atomic_load(&calls), 0);
    pthread_mutex_unlock(&lock);
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(atomic_load(&calls), 1);
}

static uint64_t words[BYTES / 8];

static void CUDA_CB write_words(void *nothing)
{
    stay(nothing);
    for (int i = 0; i < BYTES / 8; i++)
        words[i] = 77;
}

CASE(what_comes_after_a_host_function_waits_for_it)
{
    CUdeviceptr at;
    CUevent before, after;
    pthread_t thread;
    REQUIRE_OK(cuMemHostRegister(words, BYTES, 0));
    memset(words, 0, BYTES);
    REQUIRE_OK(cuMemAlloc(&at, BYTES));
    REQUIRE_OK(cuEventCreate(&before, 0));
    REQUIRE_OK(cuEventCreate(&after, 0));
    EXPECT_OK(cuEventRecord(before, stream));
    EXPECT_OK(cuLaunchHostFunc(stream, write_words, NULL));
    EXPECT_OK(cuMemcpyHtoDAsync(at, words, BYTES, stream));
    EXPECT_OK(cuEventRecord(after, stream));
    EXPECT_OK(cuStreamWaitEvent(other, after, 0));
    EXPECT_OK(sim_launch_expect(other, at, 77, BYTES));
    EXPECT(comes(&entered));
    EXPECT_OK(cuEventQuery(before));
    EXPECT_EQ(cuEventQuery(after), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    REQUIRE(!pthread_create(&thread, NULL, open_soon, NULL));
    EXPECT_OK(cuEventSynchronize(after));
    EXPECT_EQ(atomic_load(&calls), 1);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    pthread_join(thread, NULL);
    EXPECT_OK(cuMemHostUnregister(words));
    EXPECT_EQ(simulated_violations(), 0);
}

/* Each waits for the function, and only then does what it is for. */
static void expect_waiting(CUresult call(void *), void *argument)
{
    pthread_t thread;
    atomic_store(&open_door, false);
    atomic_store(&calls, 0);
    EXPECT_OK(cuLaunchHostFunc(stream, stay, NULL));
    REQUIRE(!pthread_create(&thread, NULL, open_soon, NULL));
    EXPECT_OK(call(argument));
    EXPECT_EQ(atomic_load(&calls), 1);
    pthread_join(thread, NULL);
}

static CUresult synchronize(void *nothing) { (void)nothing; return cuCtxSynchronize(); }
static CUresult free_memory(void *at) { return cuMemFree((CUdeviceptr)(uintptr_t)at); }
static CUresult free_host(void *at) { return cuMemFreeHost(at); }
static CUresult copy(void *at) { return cuMemcpyDtoH(words, (CUdeviceptr)(uintptr_t)at, BYTES); }
static CUresult reset(void *nothing) { (void)nothing; return cuDevicePrimaryCtxReset(0); }

CASE(calls_that_wait_for_the_device_wait_for_host_functions)
{
    CUdeviceptr at, copied;
    void *host;
    REQUIRE_OK(cuMemAlloc(&at, BYTES));
    REQUIRE_OK(cuMemAlloc(&copied, BYTES));
    REQUIRE_OK(cuMemHostAlloc(&host, BYTES, 0));
    expect_waiting(synchronize, NULL);
    expect_waiting(free_memory, (void *)(uintptr_t)at);
    expect_waiting(free_host, host);
    REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT)); /* the default stream waits for this one */
    REQUIRE_OK(cuMemsetD8(copied, 5, BYTES));
    expect_waiting(copy, (void *)(uintptr_t)copied);
    EXPECT_EQ(words[0], 0x0505050505050505);
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_EQ(simulated_books().allocations, 1);
    expect_waiting(reset, NULL);
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&machine_context, 0));
}

CASE(the_clock_moves_by_hand_past_host_functions)
{
    sim_set_lag(1000);
    for (int i = 0; i < 20; i++)
        EXPECT_OK(cuLaunchHostFunc(i % 2 ? stream : other, count, (void *)1));
    EXPECT_EQ(atomic_load(&calls), 0);
    sim_advance(10000);
    EXPECT_EQ(atomic_load(&calls), 20);
    EXPECT_OK(cuStreamQuery(stream));
    EXPECT_OK(cuStreamQuery(other));
}

static void CUDA_CB open_the_door(void *nothing)
{
    (void)nothing;
    atomic_store(&open_door, true);
}

CASE(a_host_function_runs_though_nobody_asks_the_driver)
{
    struct sim_shape shape = simulated_shape();
    shape.manual_clock = false;
    shape.lag = 5000000;
    simulated_begin_as(&shape);
    EXPECT_OK(cuLaunchHostFunc(NULL, open_the_door, NULL));
    EXPECT(comes(&open_door));
    EXPECT_OK(cuCtxSynchronize());
}

CASE(streams_do_not_wait_for_host_functions_of_others)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, BYTES));
    EXPECT_OK(cuLaunchHostFunc(stream, stay, NULL));
    EXPECT(comes(&entered));
    EXPECT_OK(cuMemsetD8Async(at, 3, BYTES, other));
    EXPECT_OK(cuStreamSynchronize(other));
    EXPECT_OK(sim_launch_expect(other, at, 0x0303030303030303, BYTES));
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(atomic_load(&calls), 0);
    atomic_store(&open_door, true);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(atomic_load(&calls), 1);
}

CASE(the_end_of_a_user_object_may_wait_for_its_thread)
{
    CUuserObject object;
    REQUIRE_OK(cuUserObjectCreate(&object, NULL, take_lock, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    pthread_mutex_lock(&lock);
    EXPECT_OK(cuUserObjectRelease(object, 1));
    EXPECT_EQ(atomic_load(&calls), 0);
    pthread_mutex_unlock(&lock);
    for (struct wait wait = {0}; !atomic_load(&calls) && wait_on(&wait);)
        ;
    EXPECT_EQ(atomic_load(&calls), 1);
}

CASE(a_graph_waits_for_its_host_functions)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, BYTES));
    REQUIRE_OK(cuMemHostRegister(words, BYTES, 0));
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuLaunchHostFunc(stream, write_words, NULL));
    EXPECT_OK(cuMemcpyHtoDAsync(at, words, BYTES, stream));
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    atomic_store(&open_door, true);
    for (int i = 1; i <= 3; i++) {
        memset(words, 0, BYTES);
        EXPECT_OK(cuGraphLaunch(exec, stream));
        EXPECT_OK(sim_launch_expect(stream, at, 77, BYTES));
        EXPECT_OK(cuStreamSynchronize(stream));
        EXPECT_EQ(atomic_load(&calls), i);
    }
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_OK(cuMemHostUnregister(words));
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphDestroy(graph));
}

SUITE_MAIN_AROUND("simulated device: functions of the program", begin, NULL)
