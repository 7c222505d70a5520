/*
 * clock.c: the time of the simulated device, in ns.
 *
 * It goes on by host time (unless the shape says `manual_clock`), by sim_advance, by the modelled cost of calls (if the shape says so),
 * and jumps when somebody waits. It is lazy: nothing happens until somebody looks, then all work that is due is done in order. While no
 * work is due later nobody needs to look, and calls cost no system time.
 */
#include <time.h>

#include "sim/stream.h"

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
    if (time > now.seen) {
        now.seen = time;
        work_run_until(time);
        boards_publish(time);
    }
    return now.seen;
}

void clock_go_to(uint64_t when)
{
    if (when <= now.seen)
        return;
    uint64_t time = clock_look();
    if (when > time)
        clock_advance(when - time);
}

void clock_advance(uint64_t ns)
{
    now.base += ns;
    clock_look();
}
