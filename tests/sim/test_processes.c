/* test_processes.c: threads that call at the same time, and a process that forks. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/simulated.h"

#define THREADS 4
#define ROUNDS 500

static void *work(void *failures)
{
    CUstream stream;
    CUevent event;
    unsigned long long id;
    uint64_t *failed = failures;
    *failed += cuCtxSetCurrent(machine_context) != CUDA_SUCCESS;
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr at;
        *failed += cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
        *failed += cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS;
        *failed += cuStreamGetId(stream, &id) != CUDA_SUCCESS;
        *failed += cuStreamGetId(CU_STREAM_PER_THREAD, &id) != CUDA_SUCCESS;
        *failed += cuMemAllocAsync(&at, 4096, stream) != CUDA_SUCCESS;
        *failed += sim_launch_fill(stream, at, (uintptr_t)failures, 4096) != CUDA_SUCCESS;
        *failed += sim_launch_expect(stream, at, (uintptr_t)failures, 4096) != CUDA_SUCCESS;
        *failed += cuMemFreeAsync(at, stream) != CUDA_SUCCESS;
        *failed += cuEventRecord(event, stream) != CUDA_SUCCESS;
        *failed += cuEventSynchronize(event) != CUDA_SUCCESS;
        *failed += cuEventDestroy(event) != CUDA_SUCCESS;
        *failed += cuStreamDestroy(stream) != CUDA_SUCCESS;
    }
    return NULL;
}

CASE(threads_do_not_disturb_each_other)
{
    pthread_t threads[THREADS];
    uint64_t failures[THREADS] = {0};
    sim_set_lag(100);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, work, &failures[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(failures[i], 0);
    }
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(simulated_violations(), 0);
    EXPECT_EQ(simulated_books().streams, 0);
}

CASE(a_child_is_refused_everything)
{
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        CUdeviceptr at;
        unsigned long long id;
        bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemAlloc(&at, 512) == CUDA_ERROR_NOT_INITIALIZED &&
                       cuStreamGetId(NULL, &id) == CUDA_ERROR_NOT_INITIALIZED && cuEventQuery(NULL) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CUdeviceptr at;
    EXPECT_OK(cuMemAlloc(&at, 512)); /* the parent goes on */
}

SUITE_MAIN_AROUND("simulated device: threads and processes", simulated_begin, NULL)
