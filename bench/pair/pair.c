/*
 * pair.c: what does one allocation and its free cost on a warm pool?
 *
 *     bench-pair [--json] [--check]
 *
 * The cases of cases.def do two kinds of work: one block of one size again and again, and random churn, where each turn frees a random one of
 * many live blocks and allocates another size. jemalloc does the same sequence in the same run and is the yardstick: times differ between
 * machines, the ratio to jemalloc much less. Neither touches the memory. Rounds of both alternate, and the median counts, so that a disturbance
 * hits both, or one round that the median leaves out.
 *
 * Times are CPU time of cenote and the simulated driver; of a real driver they say nothing, but a warm pool seldom calls it.
 * --check fails if a case takes more times the time of jemalloc than cases.def allows.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common.h"

#ifdef HAVE_JEMALLOC
#include <jemalloc/jemalloc.h>
#endif

#define ROUNDS 9
#define CHURN_LEAST 512
#define CHURN_MAX (1 << 20)
#define CAPACITY (1ull << 40) /* a million blocks of the churn hold some 140 GB */

struct bench_case {
    const char *name;
    uint64_t    bytes;  /* 0: random sizes */
    uint32_t    live;
    uint32_t    turns;  /* per round */
    double      most;   /* times jemalloc */
};

static const struct bench_case cases[] = {
#define PAIR(name, bytes, turns, most) {name, bytes, 1, turns, most},
#define CHURN(name, live, turns, most) {name, 0, live, turns, most},
#include "bench/pair/cases.def"
#undef PAIR
#undef CHURN
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

struct allocator {
    void *(*take)(size_t bytes);
    void (*give)(void *block);
};

struct turn {
    uint32_t place; /* of the block to free */
    uint32_t bytes; /* of the one to allocate instead */
};

/* ---------------------------------------------------------------------------------------------------------------- allocators */

static cenote_pool *pool;

static void *cenote_take(size_t bytes)
{
    void *block;
    if (cenote_alloc(pool, bytes, NULL, &block))
        bench_fail("cenote_alloc");
    return block;
}

static void cenote_give(void *block)
{
    if (cenote_free(block))
        bench_fail("cenote_free");
}

static const struct allocator ours = {cenote_take, cenote_give};

#ifdef HAVE_JEMALLOC
static void *jemalloc_take(size_t bytes)
{
    void *block = mallocx(bytes, 0);
    if (!block) {
        fprintf(stderr, "jemalloc has no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return block;
}

static void jemalloc_give(void *block)
{
    dallocx(block, 0);
}

static const struct allocator yardstick = {jemalloc_take, jemalloc_give};
#endif

/* --------------------------------------------------------------------------------------------------------------------- work */

/* What one allocator holds between rounds. */
struct worker {
    const struct allocator *allocator;
    void                  **blocks;
    double                  ns[ROUNDS];
};

static struct turn *make_turns(const struct bench_case *c)
{
    struct turn *turns = malloc(c->turns * sizeof(*turns));
    uint64_t state = 88172645463325252ull;
    for (uint32_t i = 0; turns && i < c->turns; i++) {
        turns[i].place = (uint32_t)(bench_random(&state) % c->live);
        turns[i].bytes = (uint32_t)(c->bytes ? c->bytes : bench_random_size(&state, CHURN_LEAST, CHURN_MAX));
    }
    return turns;
}

/* Both free first and then allocate, so that a case of one size finds the block that it has just freed. */
static double play(struct worker *w, const struct turn *turns, uint32_t count)
{
    double begin = bench_cpu_ns();
    for (uint32_t i = 0; i < count; i++) {
        void **block = &w->blocks[turns[i].place];
        w->allocator->give(*block);
        *block = w->allocator->take(turns[i].bytes);
    }
    return (bench_cpu_ns() - begin) / count;
}

static void fill(struct worker *w, const struct bench_case *c, const struct turn *turns)
{
    w->blocks = calloc(c->live, sizeof(*w->blocks));
    if (!w->blocks)
        bench_fail("no host memory");
    for (uint32_t i = 0; i < c->live; i++)
        w->blocks[i] = w->allocator->take(turns[i % c->turns].bytes);
    play(w, turns, c->turns);
}

static void empty(struct worker *w, const struct bench_case *c)
{
    for (uint32_t i = 0; i < c->live; i++)
        w->allocator->give(w->blocks[i]);
    free(w->blocks);
}

/* The median of each worker, in ns per pair. */
static void measure(const struct bench_case *c, struct worker *workers, size_t count, double *medians)
{
    struct turn *turns = make_turns(c);
    if (!turns)
        bench_fail("no host memory");
    for (size_t w = 0; w < count; w++)
        fill(&workers[w], c, turns);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t w = 0; w < count; w++)
            workers[w].ns[round] = play(&workers[w], turns, c->turns);
    for (size_t w = 0; w < count; w++) {
        empty(&workers[w], c);
        medians[w] = bench_median(workers[w].ns, ROUNDS);
    }
    free(turns);
}

/* -------------------------------------------------------------------------------------------------------------------- output */

static bool json, check;

/* False if the case is slower than it may be. */
static bool run_case(const struct bench_case *c)
{
    double ns[2] = {0, 0};
    struct worker workers[] = {
        {.allocator = &ours},
#ifdef HAVE_JEMALLOC
        {.allocator = &yardstick},
#endif
    };
    measure(c, workers, sizeof(workers) / sizeof(workers[0]), ns);
    double ratio = ns[1] > 0 ? ns[0] / ns[1] : 0;
    if (json)
        printf("{\"case\":\"%s\",\"live_blocks\":%u,\"ns_pair\":%.1f,\"jemalloc_ns_pair\":%.1f,\"ratio\":%.3f,\"most\":%.2f}\n", c->name,
               c->live, ns[0], ns[1], ratio, c->most);
    else
        printf("%-16s %9u %10.1f %10.1f %8.2f %8.2f\n", c->name, c->live, ns[0], ns[1], ratio, c->most);
    fflush(stdout);
    if (check && ratio > c->most) {
        fprintf(stderr, "bench-pair: %s takes %.2f times what jemalloc takes; at most %.2f is allowed\n", c->name, ratio, c->most);
        return false;
    }
    return true;
}

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        check |= !strcmp(argv[i], "--check");
        if (strcmp(argv[i], "--json") != 0 && strcmp(argv[i], "--check") != 0) {
            fprintf(stderr, "usage: bench-pair [--json] [--check]\n");
            exit(1);
        }
    }
#ifndef HAVE_JEMALLOC
    if (check) {
        fprintf(stderr, "bench-pair: built without jemalloc, so there is nothing to compare with\n");
        exit(1);
    }
#endif
}

int main(int argc, char **argv)
{
    struct sim_shape shape;
    bool fine = true;
    read_arguments(argc, argv);
    if (!json)
        printf("Simulated GPU; ns of CPU time per pair, median of %d rounds.\n%-16s %9s %10s %10s %8s %8s\n", ROUNDS, "case", "live",
               "cenote", "jemalloc", "ratio", "at most");
    sim_shape_default(&shape);
    shape.capacity = CAPACITY;
    for (size_t i = 0; i < CASES; i++) {
        pool = bench_open(&shape, "");
        fine &= run_case(&cases[i]);
        bench_close(pool);
    }
    return fine ? 0 : 1;
}
