/*
 * clock.c: the time of the simulated device, in ns.
 *
 * It goes on by host time (unless the shape says `manual_clock`), by sim_advance, by the modelled cost of calls (if the shape says so),
 * and jumps when a thread waits. It is lazy: nothing happens until a thread looks, then all work that is due is done in order. While no
 * work is due later no thread needs to look, and calls cost no system time. While a host function runs it is held: it stands.
 *
 * LOCKING: the model's lock, which clock_wait and clock_advance drop meanwhile.
 */
#include <time.h>

#include "sim/order/work.h"

#define WORD_NAP 50000u /* ns between two looks at words that streams wait for, while a thread waits for such a stream */
#define POLLS_MAX 16   /* chosen: no test asks so often without putting work on a stream between */

static struct {
    uint64_t base;      /* time without the host's part */
    uint64_t started;   /* host time at reset */
    uint64_t seen;      /* the last time a thread looked */
    bool     held;      /* a host function is due and has not returned */
    void   (*passed)(uint64_t now);     /* told when time has gone on; NULL: nothing to tell */
} now;

static pthread_cond_t released = PTHREAD_COND_INITIALIZER;

static uint64_t host_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void clock_reset(void)
{
    now.base = now.seen = 0;
    now.started = host_time();
    now.held = false;
    now.passed = NULL;
    pthread_cond_broadcast(&released);
}

void clock_after_fork(void)
{
    pthread_cond_init(&released, NULL);
}

void clock_tell(void (*passed)(uint64_t now))
{
    now.passed = passed;
}

bool clock_is_held(void)
{
    return now.held;
}

void clock_hold(void)
{
    now.held = true;
}

uint64_t clock_seen(void)
{
    return now.seen;
}

static uint64_t read_clock(void)
{
    now.base += model.cost_owed;
    model.cost_owed = 0;
    return now.base + (model.shape.manual_clock ? 0 : host_time() - now.started);
}

uint64_t clock_look(void)
{
    uint64_t time = read_clock();
    if ((time > now.seen || queue_is_watching()) && !now.held) {
        now.seen = time;
        now.seen = queue_run_until(time, &now.held);
        if (now.passed)
            now.passed(now.seen);
    }
    return now.seen;
}

void clock_run_due(uint64_t until)
{
    queue_run_until(until, &now.held);
}

static bool has_come(uint64_t when)
{
    return moment_by_now(when) <= now.seen;
}

/* Where the clock jumps for a thread that waits. If the moment is not known: to the next work, which may make it known. 0: nowhere. */
static uint64_t jump(uint64_t when)
{
    when = moment_by_now(when);
    return moment_is_known(when) ? when : queue_next();
}

bool clock_try(uint64_t when)
{
    if (has_come(when))
        return true;
    clock_look();
    for (uint64_t to; !has_come(when) && !now.held && (to = jump(when));) {
        now.base += to > now.seen ? to - now.seen : 0;
        clock_look();
    }
    return has_come(when);
}

bool clock_finish(uint64_t when)
{
    if (clock_try(when))
        return true;
    model.until = when;
    return false;
}

bool clock_go_to(uint64_t when)
{
    return has_come(when) || (model.waited && has_come(model.waited)) || clock_finish(when);
}

bool clock_polled(uint64_t when)
{
    struct thread *t = model_thread();
    if (t->polls && has_come(t->polled_for))
        t->polls = 0;
    if (!t->polls++ || when < t->polled_for)
        t->polled_for = when;
    if (t->polls < POLLS_MAX)
        return false;
    t->polls = 0;
    clock_try(t->polled_for);
    return has_come(when);
}

void clock_submitted(void)
{
    model_thread()->polls = 0;
}

void clock_wait(uint64_t when)
{
    uint32_t epoch = atomic_load(&model.epoch);
    while (atomic_load(&model.epoch) == epoch && !clock_try(when))
        model_wait(&released, moment_is_known(moment_by_now(when)) ? 0 : WORD_NAP);
}

void clock_advance(uint64_t ns)
{
    now.base += ns;
    uint64_t when = read_clock();
    if (!model_thread()->in_host_function)
        clock_wait(when);
}

void clock_release(void)
{
    now.held = false;
    uint64_t time = read_clock();
    if (time <= now.seen)
        now.base += now.seen + 1 - time;
    clock_look();
    pthread_cond_broadcast(&released);
}
