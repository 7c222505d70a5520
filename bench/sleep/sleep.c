/*
 * sleep.c: how long memory takes to sleep and to wake, by a price list of the simulated GPU: what the driver's calls and the copies cost.
 *
 *     bench-sleep [--check] [--kept GIB]
 *
 * Without contents 60 GiB in blocks of 1 GiB go from a card of 80 GiB and come back. With contents so many GiB do (default 4), beside the bare copy
 * of as many bytes from and to pinned memory. The host needs memory for that many. What the host itself takes is not on the clock of the device, and
 * is told apart.
 * --check: fails if that takes longer than the gates below.
 */
#include <cenote/sleep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/common.h"

#define GIB      (1ull << 30)
#define BARE     60
#define KEPT     4
#define MOST     70
#define PRICES   "h200"         /* PCIe 5 */
#define SLEEP_NS 200000000u     /* gates: chosen */
#define WAKE_NS  250000000u
#define RATIO    1.15           /* of the bare copy, chosen */

static uint64_t simulated_ns(void *unused)
{
    (void)unused;
    return sim_now();
}

static double host_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *blocks[MOST];

static void begin_device(void)
{
    struct sim_shape shape;
    CUcontext context;
    sim_shape_default(&shape);
    shape.manual_clock = shape.charge_cost = true;
    shape.data = 0;
    strcpy(shape.prices, PRICES);
    sim_reset(&shape);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        bench_fail("cuDevicePrimaryCtxRetain");
}

static cenote_pool *open_pool(uint64_t count)
{
    cenote_options options;
    cenote_pool *pool;
    if (cenote_options_default(&options))
        bench_fail("cenote_options_default");
    options.clock = simulated_ns;
    options.announced = 1;
    if (cenote_pool_create(0, &options, &pool))
        bench_fail("cenote_pool_create");
    for (uint64_t i = 0; i < count; i++)
        if (cenote_alloc(pool, GIB, NULL, &blocks[i]))
            bench_fail("cenote_alloc");
    return pool;
}

static void close_pool(cenote_pool *pool, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        cenote_free(blocks[i]);
    if (cenote_pool_destroy(pool))
        bench_fail("cenote_pool_destroy");
}

/* So many GiB between a block and pinned memory, in one direction. */
static uint64_t bare_copy(CUdeviceptr block, void *pinned, bool to_host, uint64_t count)
{
    uint64_t start = sim_now();
    for (uint64_t i = 0; i < count; i++)
        if (to_host ? cuMemcpyDtoHAsync(pinned, block, GIB, NULL) : cuMemcpyHtoDAsync(block, pinned, GIB, NULL))
            bench_fail("a copy");
    if (cuCtxSynchronize())
        bench_fail("cuCtxSynchronize");
    return sim_now() - start;
}

static void sleep_and_wake(cenote_pool *pool, cenote_sleep *slept, cenote_sleep *woken)
{
    if (cenote_pool_pause(pool, slept))
        bench_fail("cenote_pool_pause");
    if (cenote_pool_resume(pool, woken))
        bench_fail("cenote_pool_resume");
}

static bool without_contents(void)
{
    cenote_sleep slept = {.contents = CENOTE_DISCARD_ALL}, woken = {0};
    cenote_pool *pool = open_pool(BARE);
    sleep_and_wake(pool, &slept, &woken);
    printf("%llu GiB by the prices of %s: sleep %.3f s, wake %.3f s, without contents\n", (unsigned long long)(slept.pages / GIB), PRICES,
           (double)slept.ns / 1e9, (double)woken.ns / 1e9);
    close_pool(pool, BARE);
    return slept.pages == BARE * GIB && woken.pages == slept.pages && slept.ns <= SLEEP_NS && woken.ns <= WAKE_NS;
}

static bool with_contents(uint64_t kept)
{
    cenote_sleep slept = {.contents = CENOTE_KEEP}, woken = {0};
    void *pinned;
    cenote_pool *pool = open_pool(kept);
    CUdeviceptr block = (CUdeviceptr)blocks[0];
    cenote_sleep first = {.blocks = (const void *const *)blocks, .count = 1}, again = first;
    sleep_and_wake(pool, &first, &again); /* the stages are pinned once */
    if (cuMemHostAlloc(&pinned, GIB, 0))
        bench_fail("cuMemHostAlloc");
    double to_host = (double)bare_copy(block, pinned, true, kept), to_device = (double)bare_copy(block, pinned, false, kept);
    double began = host_seconds();
    sleep_and_wake(pool, &slept, &woken);
    double slower = (double)slept.ns / to_host, back = (double)woken.ns / to_device;
    printf("%llu GiB kept: sleep %.3f s, %.3f times the bare copy (%.3f s); wake %.3f s, %.3f times (%.3f s); the host itself: %.1f s for both\n",
           (unsigned long long)(slept.kept / GIB), (double)slept.ns / 1e9, slower, to_host / 1e9, (double)woken.ns / 1e9, back, to_device / 1e9,
           host_seconds() - began);
    cuMemFreeHost(pinned);
    close_pool(pool, kept);
    return slept.kept == kept * GIB && woken.kept == slept.kept && slower <= RATIO && back <= RATIO;
}

int main(int argc, char **argv)
{
    uint64_t kept = KEPT;
    bool check = false;
    for (int i = 1; i < argc; i++) {
        check = check || !strcmp(argv[i], "--check");
        if (!strcmp(argv[i], "--kept") && i + 1 < argc)
            kept = bench_number("--kept", argv[++i]);
    }
    if (!kept || kept > MOST) {
        fprintf(stderr, "bench-sleep: --kept takes 1 to %d\n", MOST);
        return 2;
    }
    begin_device();
    bool good = without_contents();
    good = with_contents(kept) && good;
    return check && !good;
}
