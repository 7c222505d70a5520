/*
 * calls.c: functions of the program that the device calls: host functions on streams, and the ends of user objects.
 *
 * One thread of the library runs them, one after the other, in the order in which they became due, and without the model's lock: a function may wait
 * for any lock of the program (Python's, say), and the thread that holds it may be inside the driver. It may not call the driver: call_begin.
 *
 * While a host function is due and has not returned the clock stands at its moment (work.c): nothing that comes after it in stream order is done.
 * Without lag other streams do not notice, for their work is done at once; with lag they are late. A thread that has to wait for a moment after it
 * waits outside of the model, see MODEL_AGAIN. The end of a user object is in no stream's order: nothing waits for it.
 *
 * The thread is made at the first use and then stays. A child of a fork has none until it needs its own.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sim/order/work.h"

struct call {
    CUhostFn function;
    void    *argument;
    bool     holds;         /* the clock stands until it returns */
};

static struct {
    struct call *list;      /* a ring */
    uint32_t     first, count, room;
    bool         started;   /* there is the thread */
    bool         running;   /* a function */
} calls;

static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

void calls_reset(void)
{
    calls.count = 0;
    pthread_cond_broadcast(&ended);
}

void calls_after_fork(void)
{
    calls.started = calls.running = false;
    pthread_cond_init(&added, NULL);
    pthread_cond_init(&ended, NULL);
}

bool calls_running(void)
{
    return calls.running;
}

void calls_wait(void)
{
    model_wait(&ended, 0);
}

static void run(struct call call)
{
    uint32_t epoch = atomic_load(&model.epoch);
    calls.running = true;
    model_unlock();
    model_thread()->in_host_function = true;
    call.function(call.argument);
    model_thread()->in_host_function = false;
    model_lock();
    calls.running = false;
    if (call.holds && atomic_load(&model.epoch) == epoch)
        clock_release();
    pthread_cond_broadcast(&ended);
}

/* A program may wait for a function without asking the driver anything: so this thread looks at the clock. */
static void wait_for_more(void)
{
    uint64_t due = clock_is_held() || model.shape.manual_clock ? 0 : queue_call_due();
    if (!due) {
        model_wait(&added, 0);
        return;
    }
    uint64_t now = clock_look();
    if (!calls.count && due > now)
        model_wait(&added, due - now);
}

static void *serve(void *nothing)
{
    (void)nothing;
    model_lock();
    for (;;) {
        while (!calls.count)
            wait_for_more();
        struct call call = calls.list[calls.first];
        calls.first = (calls.first + 1) % calls.room;
        calls.count--;
        run(call);
    }
    return NULL;
}

bool calls_ready(void)
{
    if (!calls.started)
        calls.started = model_start_thread(serve, NULL);
    return calls.started;
}

static bool make_room(void)
{
    uint32_t room = calls.room ? 2 * calls.room : 64;
    if (calls.count < calls.room)
        return true;
    struct call *list = malloc(room * sizeof *list);
    if (!list)
        return false;
    for (uint32_t i = 0; i < calls.count; i++)
        list[i] = calls.list[(calls.first + i) % calls.room];
    free(calls.list);
    calls.list = list;
    calls.first = 0;
    calls.room = room;
    return true;
}

void calls_put(CUhostFn function, void *argument, bool holds)
{
    if (!calls_ready() || !make_room()) {
        fprintf(stderr, "simulated GPU: no host memory: a host function is not called\n");
        return;
    }
    calls.list[(calls.first + calls.count++) % calls.room] = (struct call){function, argument, holds};
    if (holds)
        clock_hold();
    pthread_cond_signal(&added);
}

void calls_expected(void)
{
    pthread_cond_signal(&added);
}
