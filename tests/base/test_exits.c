/*
 * test_exits.c: no thread is inside atexit for us while another one forks. The fork happens as late as it can: in the handler of pthread_atfork that
 * runs last before it, which was registered first.
 */
#include "base/exits.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tests/base/child.h"
#include "tests/patience.h"

static _Atomic int thread_number_of_system;
static atomic_bool is_registered, is_seen_asleep;
static bool watches;

static void *registers(void *unused);
static void says_so(void) { fputs("handler", stderr); }

static void *registers(void *unused)
{
    atomic_store(&thread_number_of_system, gettid());
    atomic_store(&is_registered, exits_call(says_so));
    return unused;
}

static pthread_t thread;

static void last_before_the_fork(void)
{
    if (!watches || pthread_create(&thread, NULL, registers, NULL))
        return;
    for (struct wait wait = {0}; !atomic_load(&is_registered) && !atomic_load(&is_seen_asleep) && wait_on(&wait);)
        atomic_store(&is_seen_asleep, atomic_load(&thread_number_of_system) && is_asleep(atomic_load(&thread_number_of_system)));
}

__attribute__((constructor(101))) static void watch_forks(void) { pthread_atfork(last_before_the_fork, NULL, NULL); }

static void ends(void *unused)
{
    (void)unused;
    alarm(patience(20));
    exit(0);
}

CASE(a_fork_waits_for_a_thread_that_registers)
{
    FORKS_BESIDE_THREADS();
    watches = true;
    struct child_end end = child_run(ends, NULL);
    watches = false;
    EXPECT(atomic_load(&is_seen_asleep));
    EXPECT_EQ(end.signal, 0);
    EXPECT_EQ(end.status, 0);
    EXPECT(!strstr(end.words, "handler")); /* it was registered after the fork */
    pthread_join(thread, NULL);
    EXPECT(atomic_load(&is_registered));
}

static void registers_and_ends(void *unused)
{
    (void)unused;
    if (exits_call(says_so))
        exit(0);
}

CASE(a_function_that_was_registered_is_called)
{
    struct child_end end = child_run(registers_and_ends, NULL);
    EXPECT_EQ(end.status, 0);
    EXPECT(strstr(end.words, "handler") != NULL);
}

SUITE_MAIN("exits")
