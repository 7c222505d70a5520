/*
 * thread.c: threads of our own. They block all signals, which are for the program's threads; their stacks come from the C library.
 *
 * LOCKING: none.
 */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "base/memory.h"

bool thread_start(const char *name, void *(*run)(void *))
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = memory_fails_on_order() ? EAGAIN : pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) {
        pthread_setname_np(thread, name);
        pthread_detach(thread);
    }
    errno = error;
    return !error;
}
