/*
 * record.c: what does it cost to record what a pool does, and to write a snapshot of it?
 *
 *     bench-record [--json] [--check]
 *
 * Measures pairs of an allocation and its free with recording off and on, in rounds that alternate: the difference is the cost of two records, on
 * a new ring and on one that has wrapped. To switch recording on takes a while, because the system puts memory under the ring. Then, with a
 * million live blocks: how long a snapshot and a trace take, how large they are, and how long a pair of another thread takes meanwhile.
 *
 * --check fails if a record costs more than RECORD_NS_MAX, which is our choice.
 */
#include <cenote/report.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/common.h"

#define ROUNDS 15
#define PAIRS 500000u
#define RECORD_NS_MAX 50.0
#define BLOCKS 1000000u

static cenote_pool *pool;
static bool json, check;

static double pairs(uint64_t bytes)
{
    void *block;
    double begin = bench_cpu_ns();
    for (uint32_t i = 0; i < PAIRS; i++)
        if (cenote_alloc(pool, bytes, NULL, &block) || cenote_free(block))
            bench_fail("a pair");
    return (bench_cpu_ns() - begin) / PAIRS;
}

static void record(uint64_t records)
{
    if (cenote_pool_record(pool, records))
        bench_fail("cenote_pool_record");
}

static double wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* One row for each size: ns of a pair without recording, ns of one record on a new ring and on one that has wrapped, ms to switch it on. */
static bool measure_records(uint64_t bytes)
{
    double off[ROUNDS], fresh[ROUNDS], wrapped[ROUNDS], starts[ROUNDS];
    pairs(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        record(0);
        off[round] = pairs(bytes);
        double begin = wall_ms();
        record(2 * PAIRS);
        starts[round] = wall_ms() - begin;
        fresh[round] = (pairs(bytes) - off[round]) / 2;
        record(PAIRS / 8);
        pairs(bytes);
        wrapped[round] = (pairs(bytes) - off[round]) / 2;
    }
    record(0);
    double pair = bench_median(off, ROUNDS), new = bench_median(fresh, ROUNDS), old = bench_median(wrapped, ROUNDS);
    double start = bench_median(starts, ROUNDS);
    if (json)
        printf("{\"case\":\"pair of %llu bytes\",\"ns_pair\":%.1f,\"ns_record_new_ring\":%.1f,\"ns_record\":%.1f,\"most\":%.0f,"
               "\"ring\":%u,\"ms_start\":%.1f}\n", (unsigned long long)bytes, pair, new, old, RECORD_NS_MAX, 2 * PAIRS, start);
    else
        printf("%10llu %12.1f %12.1f %12.1f %12.1f\n", (unsigned long long)bytes, pair, new, old, start);
    return new <= RECORD_NS_MAX && old <= RECORD_NS_MAX;
}

/* ------------------------------------------------------------------------------------------------------------------ a million blocks */

static _Atomic bool over;

/* The longest pair of a thread that goes on during a report, in ms. */
static void *longest_pair(void *arg)
{
    double *longest = arg;
    void *block;
    while (!over) {
        double begin = wall_ms();
        if (cenote_alloc(pool, 1000, NULL, &block) || cenote_free(block))
            bench_fail("a pair");
        double took = wall_ms() - begin;
        *longest = took > *longest ? took : *longest;
    }
    return NULL;
}

static void measure_file(const char *what, int (*save)(cenote_pool *, const char *), const char *ending)
{
    char path[64];
    struct stat file;
    pthread_t thread;
    double longest = 0;
    snprintf(path, sizeof path, "/tmp/bench-record-%d%s", (int)getpid(), ending);
    over = false;
    if (pthread_create(&thread, NULL, longest_pair, &longest))
        bench_fail("a thread");
    double begin = wall_ms();
    if (save(pool, path) || stat(path, &file))
        bench_fail(what);
    double took = wall_ms() - begin;
    over = true;
    pthread_join(thread, NULL);
    unlink(path);
    if (json)
        printf("{\"case\":\"%s%s\",\"blocks\":%u,\"ms\":%.0f,\"bytes\":%lld,\"longest_pair_ms\":%.1f}\n", what, ending, BLOCKS, took,
               (long long)file.st_size, longest);
    else
        printf("%-10s%-10s %8.0f ms %12lld bytes; the longest pair meanwhile %.1f ms\n", what, ending, took, (long long)file.st_size, longest);
}

static void measure_files(void)
{
    uint64_t random = 88172645463325252ull;
    void **blocks = calloc(BLOCKS, sizeof *blocks);
    record(BLOCKS);
    for (uint32_t i = 0; blocks && i < BLOCKS; i++)
        if (cenote_alloc(pool, bench_random_size(&random, 512, 1 << 20), NULL, &blocks[i]))
            bench_fail("a block");
    measure_file("trace", cenote_pool_record_save, ".csv");
    measure_file("trace", cenote_pool_record_save, ".csv.gz");
    measure_file("snapshot", cenote_pool_snapshot, ".json");
    measure_file("snapshot", cenote_pool_snapshot, ".json.gz");
    for (uint32_t i = 0; blocks && i < BLOCKS; i++)
        cenote_free(blocks[i]);
    free(blocks);
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {512, 32768, 2 << 20, 64 << 20};
    struct sim_shape shape;
    bool cheap = true;
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        check |= !strcmp(argv[i], "--check");
    }
    sim_shape_default(&shape);
    shape.capacity = 1ull << 40;
    pool = bench_open(&shape, "");
    if (!json)
        printf("Simulated GPU; ns of CPU time, median of %d rounds.\n%10s %12s %12s %12s %12s\n", ROUNDS, "bytes", "pair", "record, new", "record",
               "start, ms");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        cheap &= measure_records(sizes[i]);
    measure_files();
    bench_close(pool);
    if (check && !cheap)
        fprintf(stderr, "bench-record: a record may cost %.0f ns\n", RECORD_NS_MAX);
    return check && !cheap;
}
