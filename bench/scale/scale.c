/*
 * scale.c: which operations become slow if there are many blocks, segments, streams or groups? And how long do other threads wait for a report?
 *
 *     bench-scale [--json] [--check] [WORD]      only cases with WORD in their names
 *
 * Each operation is measured with few things around it and with many, in the same run; the ratio counts. For reports, a second thread asks for
 * the report while the first one repeats a short call: its longest wait is the time for which the report held the pool's lock. Other programs of
 * the machine can make a wait longer. So a wait counts no longer than the time for which the reporting thread ran meanwhile, and without the
 * time in which the waiting thread could have run but had no processor; and the shortest wait of several rounds counts.
 * Where the lock is held long by anything else is measured in locked.c. --check fails if a ratio is above what cases.def allows, a wait above
 * HOLD_MAX_US, or a hold above HELD_MAX_US.
 */
#include <cenote/report.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/scale/scale.h"

#define HOLD_MAX_US 200.0
#define ROUNDS 5
#define HOLD_ROUNDS 15
#define OPERATIONS 4000
#define ASKED_AFTER 100 /* addresses, spread over all blocks: the same number with few and with many, so that caches treat both alike */
#define THINGS_MAX 1000000
#define CAPACITY (1ull << 40)

static cenote_pool *pool;
static void *blocks[THINGS_MAX];
static CUstream streams[THINGS_MAX / 100];
static cenote_group *groups[THINGS_MAX / 100];
static uint32_t things;

static void open_pool(const char *conf)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = CAPACITY;
    pool = bench_open(&shape, conf);
    CUcontext context;
    scale_need((int)cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    scale_need((int)cuCtxSetCurrent(context), "cuCtxSetCurrent");
    things = 0;
}

/* The blocks that are left go with the simulated machine. */
static void close_pool(void)
{
    for (uint32_t i = 0; i < things; i++)
        if (groups[i % (THINGS_MAX / 100)])
            groups[i % (THINGS_MAX / 100)] = NULL;
    bench_close(pool);
}

/* -------------------------------------------------------------------------------------------------------------------------- scenes */

/* Blocks of 16 to 48 KiB, side by side. */
static void make_blocks(uint32_t count)
{
    uint64_t state = 88172645463325252ull;
    open_pool("");
    for (things = 0; things < count; things++)
        scale_need(cenote_alloc(pool, 16384 + bench_random(&state) % 32768, NULL, &blocks[things]), "cenote_alloc");
}

static void drop_blocks(void)
{
    for (uint32_t i = 0; i < things; i++)
        scale_need(cenote_free(blocks[i]), "cenote_free");
    close_pool();
}

static void make_records(uint32_t count)
{
    open_pool("record:1000000");
    for (uint32_t i = 0; i < count; i++) {
        scale_need(cenote_alloc(pool, 512, NULL, &blocks[0]), "cenote_alloc");
        scale_need(cenote_free(blocks[0]), "cenote_free");
    }
}

static void add_stream(void)
{
    scale_need((int)cuStreamCreate(&streams[things], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    scale_need(cenote_alloc(pool, 16384, streams[things], &blocks[things]), "cenote_alloc");
    things++;
}

static void add_group(void)
{
    scale_need(cenote_group_create(pool, "group", 0, NULL, &groups[things]), "cenote_group_create");
    scale_need(cenote_alloc_with(pool, &(cenote_request){.group = groups[things], .bytes = 16384}, &blocks[things]), "cenote_alloc_with");
    things++;
}

static void make_groups(uint32_t count)
{
    open_pool("page_mib:2");
    while (things < count)
        add_group();
}

static void drop_groups(void)
{
    for (uint32_t i = 0; i < things; i++) {
        scale_need(cenote_free(blocks[i]), "cenote_free");
        scale_need(cenote_group_destroy(groups[i]), "cenote_group_destroy");
    }
    close_pool();
}

static void drop_idle_streams(void)
{
    for (uint32_t i = 0; i < things; i++) {
        scale_need(cenote_stream_retire(pool, streams[i]), "cenote_stream_retire");
        scale_need((int)cuStreamDestroy(streams[i]), "cuStreamDestroy");
    }
    close_pool();
}

static void drop_streams(void)
{
    for (uint32_t i = 0; i < things; i++)
        scale_need(cenote_free(blocks[i]), "cenote_free");
    drop_idle_streams();
}

/* ------------------------------------------------------------------------------------------------------------ ns of one operation */

static void *block_asked_after(int operation, uint32_t count)
{
    return blocks[(uint64_t)(operation % ASKED_AFTER) * count / ASKED_AFTER];
}

static double find_inside(uint32_t count)
{
    cenote_block found;
    make_blocks(count);
    double begin = bench_cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        scale_need(cenote_find((char *)block_asked_after(i, count) + 100, &found), "cenote_find");
    double ns = (bench_cpu_ns() - begin) / OPERATIONS;
    drop_blocks();
    return ns;
}

static double free_inside(uint32_t count)
{
    make_blocks(count);
    double begin = bench_cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        if (cenote_free((char *)block_asked_after(i, count) + 512) != CENOTE_INTERIOR)
            bench_fail("a wrong free");
    double ns = (bench_cpu_ns() - begin) / OPERATIONS;
    drop_blocks();
    return ns;
}

static double alloc_at(uint32_t count)
{
    make_blocks(count);
    double begin = bench_cpu_ns();
    for (int i = 0; i < OPERATIONS; i++) {
        void *block = block_asked_after(i, count);
        scale_need(cenote_free(block), "cenote_free");
        scale_need(cenote_alloc_with(pool, &(cenote_request){.at = block, .bytes = 16384}, &block), "cenote_alloc_with");
    }
    double ns = (bench_cpu_ns() - begin) / OPERATIONS;
    drop_blocks();
    return ns;
}

static double trim_segments(uint32_t count)
{
    open_pool("provider:plain");
    for (uint32_t i = 0; i < count; i++)
        scale_need(cenote_alloc(pool, 20 << 20, NULL, &blocks[i]), "cenote_alloc");
    for (uint32_t i = 0; i < count; i++)
        scale_need(cenote_free(blocks[i]), "cenote_free");
    double begin = bench_cpu_ns();
    scale_need(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT), "cenote_pool_trim");
    double ns = (bench_cpu_ns() - begin) / count;
    close_pool();
    return ns;
}

#define ADDED 100 /* streams or groups; their mean counts */

static double new_stream(uint32_t count)
{
    open_pool("page_mib:2");
    while (things < count)
        add_stream();
    double begin = bench_cpu_ns();
    for (int i = 0; i < ADDED; i++)
        add_stream();
    double ns = (bench_cpu_ns() - begin) / ADDED;
    drop_streams();
    return ns;
}

/* The other streams have freed their blocks: each holds a page on which nothing lies. */
static double new_stream_beside_idle(uint32_t count)
{
    open_pool("page_mib:2");
    while (things < count)
        add_stream();
    for (uint32_t i = 0; i < count; i++)
        scale_need(cenote_free(blocks[i]), "cenote_free");
    double begin = bench_cpu_ns();
    for (int i = 0; i < ADDED; i++)
        add_stream();
    double ns = (bench_cpu_ns() - begin) / ADDED;
    for (uint32_t i = count; i < things; i++)
        scale_need(cenote_free(blocks[i]), "cenote_free");
    drop_idle_streams();
    return ns;
}

static double new_group(uint32_t count)
{
    make_groups(count);
    double begin = bench_cpu_ns();
    for (int i = 0; i < ADDED; i++)
        add_group();
    double ns = (bench_cpu_ns() - begin) / ADDED;
    drop_groups();
    return ns;
}

static double group_round(uint32_t count)
{
    cenote_group *group;
    void *block;
    make_groups(count);
    double begin = bench_cpu_ns();
    for (int i = 0; i < OPERATIONS; i++) {
        scale_need(cenote_group_create(pool, "round", i % 2 ? CENOTE_GROUP_PRIVATE : 0, NULL, &group), "cenote_group_create");
        scale_need(cenote_alloc_with(pool, &(cenote_request){.group = group, .bytes = 3 << 20}, &block), "cenote_alloc_with");
        scale_need(cenote_free(block), "cenote_free");
        scale_need(cenote_group_destroy(group), "cenote_group_destroy");
    }
    double ns = (bench_cpu_ns() - begin) / OPERATIONS;
    drop_groups();
    return ns;
}

/* A use that is noted already, of a block that very many streams use. */
static double another_use(uint32_t count)
{
    open_pool("page_mib:2");
    scale_need(cenote_alloc(pool, 1 << 20, NULL, &blocks[0]), "cenote_alloc");
    for (uint32_t i = 0; i < count; i++) {
        scale_need((int)cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        scale_need(cenote_use(blocks[0], streams[i]), "cenote_use");
    }
    double begin = bench_cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        scale_need(cenote_use(blocks[0], streams[(uint64_t)(i % ASKED_AFTER) * count / ASKED_AFTER]), "cenote_use");
    double ns = (bench_cpu_ns() - begin) / OPERATIONS;
    scale_need(cenote_free(blocks[0]), "cenote_free");
    scale_need((int)cuCtxSynchronize(), "cuCtxSynchronize");
    scale_need(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT), "cenote_pool_trim");
    for (uint32_t i = 0; i < count; i++)
        scale_need((int)cuStreamDestroy(streams[i]), "cuStreamDestroy");
    close_pool();
    return ns;
}

/* --------------------------------------------------------------------------------------------------------- how long others wait */

static void *space;     /* for reports */
static size_t room;     /* bytes of it */
static char path[64];

static void ask_rows(void)
{
    size_t count;
    scale_need(cenote_pool_rows(pool, CENOTE_BY_GROUP, space, room / sizeof(cenote_row), &count), "cenote_pool_rows");
}

static void ask_arenas(void)
{
    size_t count;
    scale_need(cenote_pool_rows(pool, CENOTE_BY_ARENA, space, room / sizeof(cenote_row), &count), "cenote_pool_rows");
}

static void ask_group(void)
{
    uint64_t bytes;
    scale_need(cenote_group_reserved(groups[0], &bytes), "cenote_group_reserved");
}

static void ask_stats(void)
{
    cenote_stats stats;
    scale_need(cenote_pool_stats(pool, &stats), "cenote_pool_stats");
}

static void ask_pieces(void)
{
    size_t count;
    scale_need(cenote_pool_pieces(pool, NULL, space, room / sizeof(cenote_piece), &count), "cenote_pool_pieces");
}

static void ask_explanation(void)
{
    char text[8192];
    cenote_pool_explain(pool, 1ull << 50, text, sizeof text);
}

static void ask_peaks(void) { scale_need(cenote_pool_reset_peaks(pool), "cenote_pool_reset_peaks"); }
static void ask_snapshot(void) { scale_need(cenote_pool_snapshot(pool, path), "cenote_pool_snapshot"); }
static void ask_check(void) { scale_need(cenote_pool_check(pool), "cenote_pool_check"); }
static void ask_trace(void) { scale_need(cenote_pool_record_save(pool, path), "cenote_pool_record_save"); }

struct hold {
    const char *name;
    void (*ask)(void);
    void (*make)(uint32_t count);
    uint32_t count;
};

static atomic_int phase; /* 0: not begun, 1: the report runs, 2: it has ended, 3: this thread has seen that */

static void *ask(void *arg)
{
    const struct hold *h = arg;
    atomic_store(&phase, 1);
    h->ask();
    atomic_store(&phase, 2);
    while (atomic_load(&phase) != 3) /* this thread still reads the other's clock */
        sched_yield();
    return NULL;
}

static double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* How long this thread has waited for a processor. 0 where the system does not say. */
static double starved_us(void)
{
    static int file = -1;
    char text[100];
    unsigned long long ran, starved = 0;
    if (file < 0)
        file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : pread(file, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    return sscanf(text, "%llu %llu", &ran, &starved) == 2 ? (double)starved / 1e3 : 0;
}

/* The longest that a call here took while the other thread asked once. */
static double longest_wait(struct hold *h)
{
    pthread_t thread;
    clockid_t clock;
    cenote_block found;
    double longest = 0;
    atomic_store(&phase, 0);
    if (pthread_create(&thread, NULL, ask, h))
        bench_fail("pthread_create");
    if (pthread_getcpuclockid(thread, &clock))
        bench_fail("pthread_getcpuclockid");
    while (!atomic_load(&phase))
        continue;
    while (atomic_load(&phase) < 2) {
        double starved = starved_us(), ran = now_us(clock), begin = now_us(CLOCK_MONOTONIC);
        cenote_find(h->make == make_records ? NULL : blocks[0], &found);
        if (h->make == make_records)
            cenote_pool_reset_peaks(pool);
        double us = now_us(CLOCK_MONOTONIC) - begin;
        ran = now_us(clock) - ran;
        us -= starved_us() - starved;
        us = us < ran ? us : ran;
        longest = us > longest ? us : longest;
    }
    atomic_store(&phase, 3);
    pthread_join(thread, NULL);
    return longest;
}

static double measure_hold(struct hold *h)
{
    double best = 1e12;
    h->make(h->count);
    for (int round = 0; round < HOLD_ROUNDS; round++) {
        double us = longest_wait(h);
        if (us > 0) /* 0: the report ended before this thread made a call */
            best = us < best ? us : best;
    }
    best = best < 1e12 ? best : 0;
    if (h->make == make_groups)
        drop_groups();
    else if (h->make == make_blocks)
        drop_blocks();
    else
        close_pool();
    return best;
}

/* ------------------------------------------------------------------------------------------------------------------------ results */

struct growth {
    const char *name;
    double (*measure)(uint32_t count);
    uint32_t small, large;
    double   most;
};

#define LOCKED(name, program)
#define GROWTH(name, function, small, large, most) {name, function, small, large, most},
#define HOLD(name, ask, make, count)
static const struct growth growths[] = {
#include "bench/scale/cases.def"
};
#undef GROWTH
#undef HOLD
#define GROWTH(name, function, small, large, most)
#define HOLD(name, ask, make, count) {name, ask, make, count},
static struct hold holds[] = {
#include "bench/scale/cases.def"
};
#undef GROWTH
#undef HOLD

/* The quickest of several rounds, few and many in turns. */
static double measure_growth(const struct growth *g, double *small, double *large)
{
    *small = *large = 1e12;
    for (int round = 0; round < ROUNDS; round++) {
        double few = g->measure(g->small), many = g->measure(g->large);
        *small = few < *small ? few : *small;
        *large = many < *large ? many : *large;
    }
    return *large / *small;
}

static bool run_growths(bool json, const char *word)
{
    bool slow = false;
    for (size_t i = 0; i < sizeof growths / sizeof *growths; i++) {
        const struct growth *g = &growths[i];
        if (!strstr(g->name, word))
            continue;
        double small, large, ratio = measure_growth(g, &small, &large);
        slow |= ratio > g->most;
        printf(json ? "{\"bench\":\"scale\",\"case\":\"%s\",\"few\":%u,\"many\":%u,\"few_ns\":%.0f,\"many_ns\":%.0f,\"ratio\":%.2f,\"most\":%.1f}\n" :
                      "%-28s %8u %8u %10.0f %10.0f %7.2f %8.1f\n", g->name, g->small, g->large, small, large, ratio, g->most);
        fflush(stdout);
    }
    return slow;
}

static bool run_holds(bool json, const char *word)
{
    bool slow = false;
    char name[80];
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
        snprintf(name, sizeof name, "others wait for %s", holds[i].name);
        if (!strstr(name, word))
            continue;
        double us = measure_hold(&holds[i]);
        slow |= us > HOLD_MAX_US;
        printf(json ? "{\"bench\":\"scale\",\"case\":\"others wait for %s\",\"many\":%u,\"us\":%.1f,\"most\":%.0f}\n" :
                      "others wait for %-21s %8u %10.1f us, at most %.0f\n", holds[i].name, holds[i].count, us, HOLD_MAX_US);
        fflush(stdout);
    }
    return slow;
}

int main(int argc, char **argv)
{
    bool json = false, check = false;
    const char *word = "";
    for (int i = 1; i < argc; i++) {
        json |= !strcmp(argv[i], "--json");
        check |= !strcmp(argv[i], "--check");
        word = argv[i][0] == '-' ? word : argv[i];
    }
    room = sizeof(cenote_piece) * (THINGS_MAX + 100000ull);
    space = malloc(room);
    if (!space)
        bench_fail("malloc");
    memset(space, 1, room);
    snprintf(path, sizeof path, "/tmp/bench-scale-%d", (int)getpid());
    if (!json)
        printf("Simulated GPU; ns of CPU time per operation, quickest of %d rounds.\n%-28s %8s %8s %10s %10s %7s %8s\n", ROUNDS, "case", "few",
               "many", "few ns", "many ns", "ratio", "at most");
    bool slow = run_growths(json, word);
    slow |= run_holds(json, word);
    slow |= locked_run(json, word);
    unlink(path);
    free(space);
    return check && slow;
}
