/* clock.h: the system's clock that only goes forward, in ns. Not a pool's clock, which may be the program's (pool_now). */
#ifndef CENOTE_BASE_CLOCK_H
#define CENOTE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
