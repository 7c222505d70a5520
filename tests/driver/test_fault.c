/* test_fault.c: faults come when they are ordered, and only then, and do not reach the driver. */
#include <pthread.h>
#include <signal.h>

#include "driver/driver.h"
#include "tests/base/child.h"
#include "tests/driver/fake.h"

static const struct driver *faulty;

static void begin(void)
{
    memset(&fake, 0, sizeof(fake));
    faulty = driver_fault_over(&fake_driver);
}

CASE(nothing_fails_unless_ordered)
{
    fault_disarm();
    EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), CUDA_SUCCESS);
    EXPECT_EQ(fake.last_freed, FAKE_BLOCK);
    EXPECT(faulty->cuMemMap == NULL);
}

CASE(the_nth_call_of_a_name_fails)
{
    fault_arm("cuMemFree", 3, CUDA_ERROR_INVALID_CONTEXT, false);
    for (int i = 1; i <= 5; i++) {
        EXPECT_EQ(faulty->cuEventQuery(NULL), CUDA_SUCCESS); /* another name does not count */
        EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), i == 3 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS);
    }
    EXPECT_EQ(fault_calls(), 5);
    EXPECT_EQ(fault_fired(), 1);
    EXPECT_EQ(fake.calls, 9); /* the failed one did not reach the driver */
}

CASE(all_calls_from_the_nth_fail)
{
    fault_arm("cuMemFree", 3, CUDA_ERROR_UNKNOWN, true);
    for (int i = 1; i <= 5; i++)
        EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), i >= 3 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    EXPECT_EQ(fault_fired(), 3);
    fault_disarm();
    EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), CUDA_SUCCESS);
    EXPECT_EQ(fault_calls(), 5);
}

CASE(any_call_counts_without_a_name)
{
    CUdeviceptr block = 5;
    fault_arm(NULL, 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), CUDA_SUCCESS);
    EXPECT_EQ(faulty->cuMemAlloc(&block, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(block, 5); /* results stay unset */
    EXPECT_EQ(faulty->cuMemAlloc(&block, 1), CUDA_SUCCESS);
    EXPECT_EQ(fault_calls(), 3);
}

CASE(arming_again_counts_from_one)
{
    fault_arm("cuMemFree", 1, CUDA_ERROR_UNKNOWN, true);
    faulty->cuMemFree(FAKE_BLOCK);
    fault_arm("cuMemFree", 2, CUDA_ERROR_ASSERT, false);
    EXPECT_EQ(fault_calls() + fault_fired(), 0);
    EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), CUDA_SUCCESS);
    EXPECT_EQ(faulty->cuMemFree(FAKE_BLOCK), CUDA_ERROR_ASSERT);
}

static void arm_a_misspelt_name(void *unused)
{
    (void)unused;
    fault_arm("cuMemFre", 1, CUDA_ERROR_UNKNOWN, false);
}

CASE(a_misspelt_name_ends_the_program)
{
    EXPECT_EQ(child_run(arm_a_misspelt_name, NULL).signal, SIGABRT);
}

#define THREADS 4
#define CALLS   5000

static void *call_often(void *failures)
{
    for (int i = 0; i < CALLS; i++)
        *(uint64_t *)failures += faulty->cuEventQuery(NULL) != CUDA_SUCCESS;
    return NULL;
}

CASE(one_thread_gets_the_nth_call)
{
    pthread_t threads[THREADS];
    uint64_t failures[THREADS] = {0};
    uint64_t sum = 0;
    fault_arm("cuEventQuery", THREADS * CALLS / 2, CUDA_ERROR_UNKNOWN, false);
    for (int i = 0; i < THREADS; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, call_often, &failures[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        REQUIRE_EQ(pthread_join(threads[i], NULL), 0);
        sum += failures[i];
    }
    EXPECT_EQ(sum, 1);
    EXPECT_EQ(fault_calls(), THREADS * CALLS);
    EXPECT_EQ(fault_fired(), 1);
}

SUITE_MAIN_AROUND("driver fault", begin, fault_disarm)
