/*
 * streams.c: eight streams in one pool, and memory that moves from one to the next.
 *
 *     bench-streams [--live SIZE] [--phases N] [--lag N] [--options CONF] [--json]
 *
 * In each phase one stream holds nearly everything and shifts it, block by block and in sizes drawn anew, to the next stream; each
 * of the others keeps a little. One cache per stream would in the end hold the sum of the streams' peaks, which is printed beside the
 * peak of the pool. The GPU runs --lag records behind (default 8), so that a page is not free for another stream the moment its block is freed.
 */
#include <cenote/report.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/common.h"

#define STREAMS 8
#define BLOCKS_MAX 4096  /* of one stream */
#define LEAST (64ull << 10)
#define MOST (64ull << 20)
#define KEPT 16           /* blocks that a stream keeps when its phase is over */
#define TICK_NS 1000

struct plan {
    uint64_t    live, phases, lag;
    const char *conf;
};

struct stream {
    CUstream handle;
    uint32_t first, count; /* of a ring: the oldest block is freed first */
    uint64_t live, peak;
    void    *block[BLOCKS_MAX];
    uint64_t bytes[BLOCKS_MAX];
};

static struct stream streams[STREAMS];
static uint64_t live, live_peak;

static void give(struct stream *s)
{
    uint32_t place = s->first++ % BLOCKS_MAX;
    s->count--;
    s->live -= s->bytes[place];
    live -= s->bytes[place];
    if (cenote_free(s->block[place]))
        bench_fail("cenote_free");
    sim_advance(TICK_NS);
}

static void take(struct stream *s, cenote_pool *pool, uint64_t bytes)
{
    uint32_t place = (s->first + s->count++) % BLOCKS_MAX;
    if (cenote_alloc(pool, bytes, s->handle, &s->block[place]))
        bench_fail("cenote_alloc");
    sim_advance(TICK_NS);
    s->bytes[place] = bytes;
    s->live += bytes;
    live += bytes;
    if (s->peak < s->live)
        s->peak = s->live;
    if (live_peak < live)
        live_peak = live;
}

/* Shifts what `from` holds to `to`, never holding more than `most` in all. */
static void shift(struct stream *from, struct stream *to, cenote_pool *pool, uint64_t most, uint64_t *state)
{
    while (from->count > KEPT) {
        uint64_t bytes = bench_random_size(state, LEAST, MOST);
        while (live + bytes > most && from->count > KEPT)
            give(from);
        if (live + bytes > most || to->count == BLOCKS_MAX)
            return;
        take(to, pool, bytes);
    }
}

static void report(const struct plan *plan, cenote_pool *pool)
{
    struct sim_books books;
    cenote_stats stats;
    uint64_t sum = 0;
    sim_books(&books);
    for (int i = 0; i < STREAMS; i++)
        sum += streams[i].peak;
    if (cenote_pool_stats(pool, &stats))
        bench_fail("cenote_pool_stats");
    printf("{\"case\":\"streams\",\"streams\":%d,\"phases\":%" PRIu64 ",\"live_peak_bytes\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64
           ",\"ratio\":%.4f,\"sum_of_stream_peaks_bytes\":%" PRIu64 ",\"waits\":%" PRIu64 ",\"driver_calls\":%" PRIu64 "}\n",
           STREAMS, plan->phases, live_peak, books.used_peak, (double)books.used_peak / (double)live_peak, sum, stats.waits,
           stats.driver_calls);
}

static struct plan read_arguments(int argc, char **argv)
{
    static const struct option options[] = {
        {"live", required_argument, NULL, 'l'}, {"phases", required_argument, NULL, 'p'}, {"lag", required_argument, NULL, 'g'},
        {"options", required_argument, NULL, 'o'}, {"json", no_argument, NULL, 'j'}, {0},
    };
    struct plan plan = {.live = 16ull << 30, .phases = 24, .lag = 8, .conf = ""};
    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (letter) {
        case 'l': plan.live = bench_number("--live", optarg); break;
        case 'p': plan.phases = bench_number("--phases", optarg); break;
        case 'g': plan.lag = bench_number("--lag", optarg); break;
        case 'o': plan.conf = optarg; break;
        case 'j': break; /* there is no other output; accepted because every benchmark takes it */
        default:
            fprintf(stderr, "usage: bench-streams [--live SIZE] [--phases N] [--lag N] [--options CONF] [--json]\n");
            exit(1);
        }
    }
    return plan;
}

/* The streams belong to the device's primary context, as the pool does. */
static void make_streams(cenote_pool *pool)
{
    CUcontext context;
    CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
    if (!result)
        result = cuCtxPushCurrent(context);
    for (int i = 0; i < STREAMS && !result; i++)
        result = cuStreamCreate(&streams[i].handle, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < STREAMS && !result; i++)
        result = (CUresult)cenote_stream_set_immortal(pool, streams[i].handle);
    if (result)
        bench_fail("the simulated GPU makes no streams");
}

int main(int argc, char **argv)
{
    struct plan plan = read_arguments(argc, argv);
    struct sim_shape shape;
    uint64_t state = 20251121;
    sim_shape_default(&shape);
    shape.manual_clock = true;
    shape.lag = plan.lag * TICK_NS;
    cenote_pool *pool = bench_open(&shape, plan.conf);
    make_streams(pool);
    for (uint64_t bytes; (bytes = bench_random_size(&state, LEAST, MOST)) + live <= plan.live && streams[0].count < BLOCKS_MAX;)
        take(&streams[0], pool, bytes);
    for (uint64_t phase = 0; phase < plan.phases; phase++)
        shift(&streams[phase % STREAMS], &streams[(phase + 1) % STREAMS], pool, plan.live, &state);
    report(&plan, pool);
    for (int i = 0; i < STREAMS; i++)
        while (streams[i].count)
            give(&streams[i]);
    bench_close(pool);
    return 0;
}
