/*
 * patience.h: how long a test waits for what has to come. It looks for the event, not at the clock; the clock only ends a wait for what never comes.
 *
 *     struct wait wait = {0};
 *     while (!atomic_load(&entered) && wait_on(&wait))
 *         ;
 *     EXPECT(atomic_load(&entered));
 *
 *     alarm(patience(20));     // a process that hangs ends, on any machine
 *
 * Limits are for a quiet machine of 2026 times a factor: CENOTE_TEST_PATIENCE, which `make test` measures (tools/test), or else measured here once.
 * It is at least 4, because a machine may become busier while a test runs. tests/patience.py is the same for Python.
 *
 * LOCKING: none; threads are made after the first call, or each measures for itself.
 */
#ifndef CENOTE_TESTS_PATIENCE_H
#define CENOTE_TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

#define PATIENCE_LEAST 4
#define PATIENCE_LOOPS 7000000 /* 10 ms of the machine that the limits were chosen on */
#define PATIENCE_WAIT  60       /* s, before the factor: what has to come is called lost */

static inline unsigned patience_measure(void)
{
    volatile uint32_t number = 1;
    uint64_t before = clock_ns();
    for (int i = 0; i < PATIENCE_LOOPS; i++)
        number = number * 1664525u + 1013904223u;
    return PATIENCE_LEAST * (unsigned)(1 + (clock_ns() - before) / 10000000u);
}

/* That many seconds of a quiet machine, in seconds of this one. */
static inline unsigned patience(unsigned seconds)
{
    static _Atomic unsigned factor; /* any thread may be the first to measure */
    if (!factor) {
        const char *said = getenv("CENOTE_TEST_PATIENCE");
        unsigned    asked = said ? (unsigned)atoi(said) : 0;
        factor = asked ? asked : patience_measure();
    }
    return seconds * factor;
}

struct wait {
    uint64_t until; /* 0: it has not begun */
};

/* Rests for a millisecond. False: the event has not come in all that time. */
static inline bool wait_on(struct wait *wait)
{
    if (!wait->until)
        wait->until = clock_ns() + patience(PATIENCE_WAIT) * (uint64_t)1000000000;
    usleep(1000);
    return clock_ns() < wait->until;
}

/* The state of a thread of this process (gettid), and the CPU time that it has used, in ticks of 10 ms. The state 0: there is no such thread. */
static inline char thread_state(int thread, uint64_t *ticks)
{
    char path[64], line[512], state = 0;
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file))
        sscanf(line, "%*d (%*[^)]) %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &state, &user, &system);
    if (file)
        fclose(file);
    *ticks = user + system;
    return state;
}

/* The thread sleeps: it waits for something, and not for a processor. */
static inline bool is_asleep(int thread)
{
    uint64_t ticks;
    return thread_state(thread, &ticks) == 'S';
}

static inline uint64_t thread_ticks(int thread)
{
    uint64_t ticks;
    thread_state(thread, &ticks);
    return ticks;
}

/* It has gone to sleep for good, as far as several looks can tell. False: it never does. */
static inline bool wait_until_asleep(int thread)
{
    struct wait wait = {0};
    int looks = 0;
    while (looks < 20 && wait_on(&wait))
        looks = is_asleep(thread) ? looks + 1 : 0;
    return looks == 20;
}

#endif
