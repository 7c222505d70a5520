/*
 * sleep.c: how long memory takes to sleep and to wake without its contents, by a price list of the simulated GPU: what the driver's calls cost.
 *
 *     bench-sleep [--check]
 *
 * 60 GiB in blocks of 1 GiB go from a card of 80 GiB and come back. Contents are not copied: the simulated GPU has no price for a copy.
 * --check: fails if that takes longer than the gates below.
 */
#include <cenote/sleep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common.h"

#define BLOCKS 60
#define PRICES "h200"
#define SLEEP_NS 200000000u     /* gates: chosen */
#define WAKE_NS  250000000u

static uint64_t simulated_ns(void *unused)
{
    (void)unused;
    return sim_now();
}

static void take_all(cenote_pool *pool)
{
    void *block;
    for (int i = 0; i < BLOCKS; i++)
        if (cenote_alloc(pool, 1ull << 30, NULL, &block))
            bench_fail("cenote_alloc");
}

int main(int argc, char **argv)
{
    struct sim_shape shape;
    cenote_options options;
    cenote_pool *pool;
    cenote_sleep slept = {.contents = CENOTE_DISCARD_ALL}, woken = {0};
    sim_shape_default(&shape);
    shape.manual_clock = shape.charge_cost = true;
    shape.data = 0;
    strcpy(shape.prices, PRICES);
    sim_reset(&shape);
    if (cenote_options_default(&options))
        bench_fail("cenote_options_default");
    options.clock = simulated_ns;
    options.announced = 1;
    if (cenote_pool_create(0, &options, &pool))
        bench_fail("cenote_pool_create");
    take_all(pool);
    if (cenote_pool_pause(pool, &slept))
        bench_fail("cenote_pool_pause");
    if (cenote_pool_resume(pool, &woken))
        bench_fail("cenote_pool_resume");
    printf("%llu GiB by the prices of %s: sleep %.3f s, wake %.3f s, without contents\n", (unsigned long long)(slept.pages >> 30), PRICES,
           (double)slept.ns / 1e9, (double)woken.ns / 1e9);
    bool good = slept.pages == (uint64_t)BLOCKS << 30 && woken.pages == slept.pages && slept.ns <= SLEEP_NS && woken.ns <= WAKE_NS;
    return argc > 1 && !strcmp(argv[1], "--check") && !good;
}
