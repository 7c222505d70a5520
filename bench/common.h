/* common.h: what the benchmarks share: a pool on the simulated GPU, random numbers that are the same everywhere, CPU time. */
#ifndef CENOTE_BENCH_COMMON_H
#define CENOTE_BENCH_COMMON_H

#include <cenote/cenote.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/sim.h"

/* A fresh simulated GPU of that shape and a pool on it; options from CENOTE_CONF, then from `conf`. Ends the program on an error. */
cenote_pool *bench_open(const struct sim_shape *shape, const char *conf);
void         bench_close(cenote_pool *pool);

/* Prints what failed, with cenote_message(), and ends the program. */
__attribute__((noreturn)) void bench_fail(const char *what);

/* Reads the whole argument as a number of bytes, or as a count. Ends the program if it is none. */
uint64_t bench_number(const char *option, const char *text);

/* xorshift64*: the same sequence on every machine. `state` is not 0. */
uint64_t bench_random(uint64_t *state);

/* A size between the two, each power of two between them equally likely. */
uint64_t bench_random_size(uint64_t *state, uint64_t least, uint64_t most);

double bench_cpu_ns(void);                          /* of this thread */
double bench_median(double *values, size_t count);  /* sorts them */

#endif
