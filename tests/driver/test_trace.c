/* test_trace.c: the tracer counts what it should, changes nothing, and follows a change of what is under it. */
#include <pthread.h>
#include <signal.h>

#include "base/lock.h"
#include "driver/driver.h"
#include "tests/base/child.h"
#include "tests/driver/fake.h"

static const struct driver *traced;
static uint64_t clock_ns;

/* Each question takes 10 ns, so a call takes 10: from one reading to the next. */
static uint64_t tick(void *step)
{
    return clock_ns += *(uint64_t *)step;
}

static uint64_t step_ns = 10;

static void begin(void)
{
    memset(&fake, 0, sizeof(fake));
    traced = driver_trace_over(&fake_driver);
    driver_trace_clock(tick, &step_ns);
    driver_tallies_reset();
}

static void end(void)
{
    driver_trace_clock(NULL, NULL);
}

static struct driver_tally tally_of(enum driver_call call)
{
    struct driver_tally tallies[DRIVER_CALLS];
    driver_tallies(tallies);
    return tallies[call];
}

CASE(calls_and_answers_pass_through)
{
    CUdeviceptr block = 0;
    EXPECT_EQ(traced->cuMemAlloc(&block, 4096), CUDA_SUCCESS);
    EXPECT_EQ(block, FAKE_BLOCK + 4096);
    fake.answer = CUDA_ERROR_INVALID_VALUE;
    EXPECT_EQ(traced->cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(fake.last_freed, block);
}

static struct lock books = LOCK_INITIALIZER(LOCK_POOL), turn = LOCK_INITIALIZER(LOCK_TURN);

static void call_under(void *lock)
{
    lock_take(lock);
    traced->cuMemFree(FAKE_BLOCK);
    lock_give(lock);
}

/* Rule 9. Release builds do not check it. */
CASE(no_call_is_made_under_the_books_of_a_pool)
{
    EXPECT_EQ(child_run(call_under, &turn).signal, 0);
    EXPECT_EQ(child_run(call_under, &books).signal, CENOTE_DEBUG >= 1 ? SIGABRT : 0);
}

CASE(timed_calls_are_tallied)
{
    for (int i = 0; i < 5; i++)
        traced->cuMemFree(FAKE_BLOCK);
    fake.answer = CUDA_ERROR_UNKNOWN;
    traced->cuMemFree(FAKE_BLOCK);
    traced->cuCtxSynchronize();
    EXPECT_EQ(tally_of(CALL_cuMemFree).calls, 6);
    EXPECT_EQ(tally_of(CALL_cuMemFree).failed, 1);
    EXPECT_EQ(tally_of(CALL_cuMemFree).ns, 60);
    EXPECT_EQ(tally_of(CALL_cuCtxSynchronize).calls, 1);
    EXPECT_EQ(tally_of(CALL_cuMemAlloc).calls, 0);
    driver_tallies_reset();
    EXPECT_EQ(tally_of(CALL_cuMemFree).calls + tally_of(CALL_cuMemFree).failed + tally_of(CALL_cuMemFree).ns, 0);
}

CASE(not_ready_is_no_failure)
{
    fake.answer = CUDA_ERROR_NOT_READY;
    EXPECT_EQ(traced->cuEventQuery(NULL), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(tally_of(CALL_cuEventQuery).calls, 1);
    EXPECT_EQ(tally_of(CALL_cuEventQuery).failed, 0);
}

CASE(untimed_calls_are_not_tallied)
{
    unsigned long long id = 0;
    uint64_t before = clock_ns;
    EXPECT_EQ(traced->cuStreamGetId(NULL, &id), CUDA_SUCCESS);
    EXPECT_EQ(id, 77);
    EXPECT_EQ(clock_ns, before);
    EXPECT_EQ(tally_of(CALL_cuStreamGetId).calls, 0);
}

CASE(what_the_driver_lacks_the_tracer_lacks)
{
    EXPECT(traced->cuMemMap == NULL);
    EXPECT(traced->cuCtxRecordEvent == NULL);
    EXPECT(traced->cuMemFree != NULL);
}

static CUresult refuse(CUdeviceptr at)
{
    (void)at;
    return CUDA_ERROR_NOT_PERMITTED;
}

/* A table that was handed out keeps working over another driver. */
CASE(what_is_under_it_may_change)
{
    struct driver other = fake_driver;
    other.cuMemFree = refuse;
    driver_trace_inner(&other);
    EXPECT_EQ(traced->cuMemFree(FAKE_BLOCK), CUDA_ERROR_NOT_PERMITTED);
    driver_trace_inner(&fake_driver);
    EXPECT_EQ(traced->cuMemFree(FAKE_BLOCK), CUDA_SUCCESS);
}

CASE(the_clock_of_the_system)
{
    driver_trace_clock(NULL, NULL);
    traced->cuMemFree(FAKE_BLOCK);
    EXPECT(tally_of(CALL_cuMemFree).ns < 1000000000); /* a call of a function that does nothing */
    EXPECT_EQ(tally_of(CALL_cuMemFree).calls, 1);
}

static void *call_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < 10000; i++)
        traced->cuEventQuery(NULL);
    return NULL;
}

CASE(threads_lose_no_count)
{
    pthread_t threads[4];
    driver_trace_clock(NULL, NULL);
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, call_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT_EQ(tally_of(CALL_cuEventQuery).calls, 40000);
    EXPECT_EQ(fake.calls, 40000);
}

SUITE_MAIN_AROUND("driver trace", begin, end)
