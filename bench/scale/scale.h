/* scale.h: what the files of bench-scale share. See scale.c, and cases.def for the cases. */
#ifndef CENOTE_BENCH_SCALE_H
#define CENOTE_BENCH_SCALE_H

#include <stdbool.h>

#include "bench/common.h"

#define HELD_MAX_US 1000.0

static inline void scale_need(int error, const char *what)
{
    if (error)
        bench_fail(what);
}

/* locked.c: how long a thread keeps the pool's lock in programs with much of something. True: longer than HELD_MAX_US. */
bool locked_run(bool json, const char *word);

#endif
