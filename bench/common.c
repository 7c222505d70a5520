/*
 * common.c: see common.h. Everything here runs on the simulated GPU: times are those of cenote and the simulated driver, never of a device.
 * LOCKING: none; benchmarks of several threads bring their own.
 */
#include "bench/common.h"

#include <cenote/report.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stats/text/quantity.h"

void bench_fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cenote_message());
    exit(1);
}

cenote_pool *bench_open(const struct sim_shape *shape, const char *conf)
{
    cenote_options options;
    cenote_pool *pool;
    sim_reset(shape);
    if (cuInit(0)) /* sim_reset made a new device: an earlier cuInit does not count */
        bench_fail("the simulated GPU does not start");
    if (cenote_options_default(&options) || cenote_options_parse(&options, conf) || cenote_pool_create(0, &options, &pool))
        bench_fail("the pool could not be made");
    return pool;
}

void bench_close(cenote_pool *pool)
{
    struct sim_books books;
    if (cenote_pool_check(pool) || cenote_pool_destroy(pool))
        bench_fail("the pool at the end");
    sim_books(&books);
    if (books.violations) {
        fprintf(stderr, "the simulated GPU: %s\n", sim_last_violation());
        exit(1);
    }
}

uint64_t bench_number(const char *option, const char *text)
{
    uint64_t number;
    if (!quantity_read_bytes(text, &number)) {
        fprintf(stderr, "%s cannot be \"%s\"\n", option, text);
        exit(1);
    }
    return number;
}

uint64_t bench_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

uint64_t bench_random_size(uint64_t *state, uint64_t least, uint64_t most)
{
    double unit = (double)(bench_random(state) >> 11) * 0x1p-53;
    return (uint64_t)exp2(log2((double)least) + unit * log2((double)most / (double)least));
}

double bench_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
