/*
 * exits.c: atexit, beside forks. The C library guards its list of functions by a lock that no fork takes or makes free. If one thread is inside
 * atexit while another forks, the lock stays taken in the child, and the child's exit() waits for ever. So no fork happens inside a call of ours.
 * What the program, or the driver, registers itself is theirs to guard.
 *
 * LOCKING: `registering` is taken last, by calls that may hold any lock of lock.h, and across each fork.
 */
#include "base/exits.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&registering); }
static void after_fork(void) { pthread_mutex_unlock(&registering); }

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

bool exits_call(void (*function)(void))
{
    pthread_mutex_lock(&registering);
    bool is_registered = !atexit(function);
    pthread_mutex_unlock(&registering);
    return is_registered;
}
