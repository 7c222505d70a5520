/*
 * clock.c: the time of the simulated device, in ns.
 *
 * It goes on by host time (unless the shape says `manual_clock`), by sim_advance, by the modelled cost of calls (if the shape says so),
 * and jumps when somebody waits. It is lazy: nothing happens until somebody looks, then all work that is due is done in order. While no
 * work is due later nobody needs to look, and calls cost no system time. While a host function runs it stands, see calls.c.
 */
#include <time.h>

#include "sim/order/stream.h"

#define POLLS_MOST 16   /* chosen: no test asks so often without putting work on a stream between */

static struct {
    uint64_t base;      /* time without the host's part */
    uint64_t started;   /* host time at reset */
    uint64_t seen;      /* the last time somebody looked */
} now;

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
    if (time > now.seen && !calls_hold_clock()) {
        now.seen = time;
        now.seen = work_run_until(time);
        boards_publish(now.seen);
    }
    return now.seen;
}

bool clock_try(uint64_t when)
{
    if (when <= now.seen || when <= clock_look())
        return true;
    if (!calls_hold_clock()) {
        now.base += when - now.seen;
        clock_look();
    }
    return when <= now.seen;
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
    if (when <= now.seen)
        return true;
    return (model.waited && model.waited <= now.seen) || clock_finish(when);
}

bool clock_polled(uint64_t when)
{
    struct thread *t = model_thread();
    if (t->polls && t->polled_for <= now.seen)
        t->polls = 0;
    if (!t->polls++ || when < t->polled_for)
        t->polled_for = when;
    if (t->polls < POLLS_MOST)
        return false;
    t->polls = 0;
    clock_try(t->polled_for);
    return when <= now.seen;
}

void clock_submitted(void)
{
    model_thread()->polls = 0;
}

void clock_wait(uint64_t when)
{
    uint32_t epoch = atomic_load(&model.epoch);
    while (atomic_load(&model.epoch) == epoch && !clock_try(when))
        calls_wait();
}

void clock_advance(uint64_t ns)
{
    now.base += ns;
    uint64_t when = read_clock();
    if (!model_thread()->in_host_function)
        clock_wait(when);
}

void clock_pass(void)
{
    uint64_t time = read_clock();
    if (time <= now.seen)
        now.base += now.seen + 1 - time;
    clock_look();
}
