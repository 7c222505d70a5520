/*
 * caller.h: a call on a thread of its own, so that a test knows when the thread waits for another one.
 *
 *     struct caller c;
 *     caller_start(&c, end_it, scene.context);     ... it has come back, or sleeps ...
 *     pthread_join(c.thread, NULL);
 *     EXPECT_EQ(c.error, 0);
 *
 * LOCKING: none; `id` and `is_back` may be read while the thread runs, `error` once it is back.
 */
#ifndef CENOTE_TESTS_API_CALLER_H
#define CENOTE_TESTS_API_CALLER_H

#include "tests/harness.h"
#include "tests/patience.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

struct caller {
    pthread_t   thread;
    CUcontext   context;    /* current there */
    int       (*call)(void);
    int         error;
    atomic_int  id;
    atomic_bool is_back;
};

static inline void *caller_calls(void *arg)
{
    struct caller *c = arg;
    cuCtxSetCurrent(c->context);
    atomic_store(&c->id, gettid());
    c->error = c->call();
    atomic_store(&c->is_back, true);
    return NULL;
}

/* The thread has come back, or sleeps, when this returns. */
static inline void caller_start(struct caller *c, int (*call)(void), CUcontext context)
{
    struct wait wait = {0};
    int looks = 0;
    *c = (struct caller){.context = context, .call = call};
    REQUIRE(!pthread_create(&c->thread, NULL, caller_calls, c));
    while (looks < 20 && !atomic_load(&c->is_back) && wait_on(&wait))
        looks = is_asleep(atomic_load(&c->id)) ? looks + 1 : 0;
}

#endif
