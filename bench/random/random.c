/*
 * random.c: the load that is hardest to pack: random sizes, random lifetimes, and a card hardly larger than the live bytes.
 *
 *     bench-random [--live SIZE] [--capacity-percent N] [--allocs N] [--lag N] [--options CONF] [--json]
 *
 * Each turn draws a size from 512 B to 256 MiB, each power of two equally likely, frees random blocks until it fits under --live
 * (default 20 GB), and allocates it. The device has --capacity-percent (default 103) of that. Prints one JSON object: the peak of physical
 * memory over the peak of live bytes, and how many allocations failed. --lag: the GPU runs that many records behind.
 */
#include <cenote/report.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/common.h"

#define LEAST 512
#define MOST (256ull << 20)
#define BLOCKS_MAX (1 << 20)
#define TICK_NS 1000

struct plan {
    uint64_t    live, percent, allocs, lag;
    const char *conf;
};

static struct {
    void    *block;
    uint64_t bytes;
} blocks[BLOCKS_MAX];

struct load {
    uint32_t count;
    uint64_t live, live_peak, ooms;
};

static void give_random(struct load *load, uint64_t *state)
{
    uint32_t place = (uint32_t)(bench_random(state) % load->count);
    if (cenote_free(blocks[place].block))
        bench_fail("cenote_free");
    load->live -= blocks[place].bytes;
    blocks[place] = blocks[--load->count];
    sim_advance(TICK_NS);
}

static void take_random(struct load *load, cenote_pool *pool, const struct plan *plan, uint64_t *state)
{
    uint64_t bytes = bench_random_size(state, LEAST, MOST);
    while (load->count && (load->live + bytes > plan->live || load->count == BLOCKS_MAX))
        give_random(load, state);
    void *block;
    int error = cenote_alloc(pool, bytes, NULL, &block);
    sim_advance(TICK_NS);
    if (error && error != CENOTE_OUT_OF_MEMORY)
        bench_fail("cenote_alloc");
    if (error) {
        load->ooms++;
        return;
    }
    blocks[load->count].block = block;
    blocks[load->count++].bytes = bytes;
    load->live += bytes;
    if (load->live_peak < load->live)
        load->live_peak = load->live;
}

static void report(const struct plan *plan, const struct load *load, cenote_pool *pool, double cpu_ns)
{
    struct sim_books books;
    cenote_stats stats;
    sim_books(&books);
    if (cenote_pool_stats(pool, &stats))
        bench_fail("cenote_pool_stats");
    printf("{\"case\":\"random\",\"allocs\":%" PRIu64 ",\"live_peak_bytes\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64
           ",\"ratio\":%.4f,\"ooms\":%" PRIu64 ",\"waits\":%" PRIu64 ",\"driver_calls\":%" PRIu64 ",\"driver_s\":%.3f"
           ",\"address_bytes\":%" PRIu64 ",\"ns_pair\":%.0f}\n",
           plan->allocs, load->live_peak, books.used_peak, (double)books.used_peak / (double)load->live_peak, load->ooms, stats.waits,
           stats.driver_calls, (double)books.cost_ns / 1e9, books.reserved, cpu_ns / (double)plan->allocs);
}

static struct plan read_arguments(int argc, char **argv)
{
    static const struct option options[] = {
        {"live", required_argument, NULL, 'l'},   {"capacity-percent", required_argument, NULL, 'c'},
        {"allocs", required_argument, NULL, 'n'}, {"lag", required_argument, NULL, 'g'},
        {"options", required_argument, NULL, 'o'}, {"json", no_argument, NULL, 'j'},
        {0},
    };
    struct plan plan = {.live = 20000000000ull, .percent = 103, .allocs = 100000, .conf = ""};
    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (letter) {
        case 'l': plan.live = bench_number("--live", optarg); break;
        case 'c': plan.percent = bench_number("--capacity-percent", optarg); break;
        case 'n': plan.allocs = bench_number("--allocs", optarg); break;
        case 'g': plan.lag = bench_number("--lag", optarg); break;
        case 'o': plan.conf = optarg; break;
        case 'j': break; /* there is no other output; accepted because every benchmark takes it */
        default:
            fprintf(stderr, "usage: bench-random [--live SIZE] [--capacity-percent N] [--allocs N] [--lag N] [--options CONF] [--json]\n");
            exit(1);
        }
    }
    return plan;
}

int main(int argc, char **argv)
{
    struct plan plan = read_arguments(argc, argv);
    struct load load = {0};
    struct sim_shape shape;
    uint64_t state = 20251121;
    sim_shape_default(&shape);
    shape.capacity = plan.live / 100 * plan.percent + shape.context_bytes;
    shape.manual_clock = true;
    shape.lag = plan.lag * TICK_NS;
    cenote_pool *pool = bench_open(&shape, plan.conf);
    double begin = bench_cpu_ns();
    for (uint64_t i = 0; i < plan.allocs; i++)
        take_random(&load, pool, &plan, &state);
    report(&plan, &load, pool, bench_cpu_ns() - begin);
    while (load.count)
        give_random(&load, &state);
    bench_close(pool);
    return load.ooms ? 1 : 0;
}
