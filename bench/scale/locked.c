/*
 * locked.c: the longest time for which a thread keeps a pool's lock at one go, in programs that have very much of something: pages, blocks, freed
 * blocks that wait for streams, streams, groups, mappings. No thread waits for the lock here; each hold is measured where the lock is given back, by
 * the processor time of the thread that held it (base/lock.h), so that other programs of the machine make none longer. Debug builds alone know it.
 *
 * Each program runs from its opening to its end, so that whatever it calls counts. An interrupt makes a hold longer, now and then any of them. So
 * from and to each pair of functions the shortest of the longest holds of several rounds counts, and of these the longest.
 */
#include <cenote/report.h>
#include <cenote/sleep.h>
#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "bench/scale/scale.h"

#if CENOTE_DEBUG >= 1

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define CARD (80 * GIB)
#define ROUNDS 3
#define BLOCKS_MANY 300000
#define STREAMS_MANY 20000
#define GROUPS_MANY 4000

static cenote_pool *pool;
static CUcontext context;
static CUstream a, b, streams[STREAMS_MANY];
static void *blocks[BLOCKS_MANY];
static cenote_group *groups[GROUPS_MANY];

#define NEED(call) scale_need((int)(call), #call)

static void *take(uint64_t bytes, CUstream stream)
{
    void *block;
    NEED(cenote_alloc(pool, bytes, stream, &block));
    return block;
}

static void open_shape(const struct sim_shape *shape, const char *conf)
{
    pool = bench_open(shape, conf);
    NEED(cuDevicePrimaryCtxRetain(&context, 0));
    NEED(cuCtxSetCurrent(context));
    NEED(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
}

/* A card of 80 GiB; of small pages there are some 40,000. */
static struct sim_shape card(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = CARD;
    shape.context_bytes = 0;
    return shape;
}

static void open_pool(const char *conf)
{
    struct sim_shape shape = card();
    open_shape(&shape, conf);
}

static void close_pool(void)
{
    NEED(cuCtxSynchronize());
    bench_close(pool);
}

static void make_streams(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        NEED(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
}

/* ---------------------------------------------------------------------------------------------------------------------------- programs */

/* Nearly all of the card in one block, on one stream and then on another, whose pages come from the first. */
static void one_block_of(const char *conf)
{
    open_pool(conf);
    void *block = take(79 * GIB, a);
    NEED(cenote_free(block));
    block = take(79 * GIB, a);
    NEED(cenote_pin(block, 79 * GIB));
    NEED(cenote_unpin(block, 79 * GIB));
    NEED(cenote_free(block));
    NEED(cuCtxSynchronize());
    block = take(79 * GIB, b);
    NEED(cenote_use(block, a));
    NEED(cenote_free(block));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 40 * GIB, CENOTE_TRIM_WAIT));
    close_pool();
}

static void one_block(void) { one_block_of("page_mib:2"); }
static void one_block_of_all_sizes(void) { one_block_of(""); }

/* The driver takes no more mappings half way: pages that were made become spares, by the ten thousand, and the next request takes them. */
static void spares(void)
{
    struct sim_shape shape = card();
    void *block;
    shape.mapping_ceiling = 30000;
    shape.quirks = SIM_QUIRK(MAPPING_CEILING);
    open_shape(&shape, "page_mib:2");
    if (!cenote_alloc(pool, 79 * GIB, a, &block))
        bench_fail("the ceiling of mappings");
    block = take(39 * GIB, a);
    NEED(cenote_free(block));
    close_pool();
}

/* Small pages all over, free one by one, go to one large block, and back to the driver. */
static void scattered_pages(void)
{
    uint32_t count = 0;
    open_pool("page_mib:2");
    for (; count < 79 * GIB / (2 * MIB); count++)
        blocks[count] = take(2 * MIB, count % 2 ? a : b);
    for (uint32_t i = 0; i < count; i++)
        NEED(cenote_free(blocks[i * 7919ull % count]));
    NEED(cuCtxSynchronize());
    void *block = take(70 * GIB, a);
    NEED(cenote_free(block));
    close_pool();
}

/* Blocks of 16 to 48 KiB and of less than 8 KiB, freed in another order. */
static void many_blocks(void)
{
    uint64_t state = 88172645463325252ull;
    open_pool("page_mib:2");
    for (uint32_t i = 0; i < BLOCKS_MANY; i++)
        blocks[i] = take(i % 3 ? 16 * KIB + bench_random(&state) % (32 * KIB) : 1 + bench_random(&state) % (8 * KIB), i % 2 ? a : b);
    for (uint32_t i = 0; i < BLOCKS_MANY; i++)
        if (i % 5)
            NEED(cenote_free(blocks[i]));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, 0));
    for (uint32_t i = 0; i < BLOCKS_MANY; i++)
        if (i % 5 == 0)
            NEED(cenote_free(blocks[i]));
    close_pool();
}

/* Slabs with a free item each, as many as blocks of 8 KiB make. */
static void many_slabs(void)
{
    open_pool("page_mib:2");
    for (uint32_t i = 0; i < BLOCKS_MANY; i++)
        blocks[i] = take(8 * KIB, a);
    for (uint32_t i = 0; i < BLOCKS_MANY; i += 8)
        NEED(cenote_free(blocks[i]));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, 0));
    for (uint32_t i = 0; i < BLOCKS_MANY; i++)
        if (i % 8)
            NEED(cenote_free(blocks[i]));
    close_pool();
}

/* Small blocks on few pages, large ones on many: one of them sleeps, then all, which then wake, and half of which are freed in their sleep. */
static void sleep_of(uint64_t bytes, uint32_t count)
{
    open_pool("page_mib:2");
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = take(bytes, a);
    const void *one = blocks[count - 1];
    NEED(cenote_pool_pause(pool, &(cenote_sleep){.blocks = &one, .count = 1, .contents = CENOTE_DISCARD_ALL}));
    for (int round = 0; round < 2; round++) {
        NEED(cenote_pool_pause(pool, &(cenote_sleep){.contents = CENOTE_DISCARD_ALL}));
        NEED(cenote_pool_resume(pool, &(cenote_sleep){.blocks = &one, .count = 1}));
        for (uint32_t i = round; round && i < count; i += 2)
            NEED(cenote_free(blocks[i]));
        NEED(cenote_pool_resume(pool, &(cenote_sleep){0}));
    }
    for (uint32_t i = 0; i < count; i += 2)
        NEED(cenote_free(blocks[i]));
    close_pool();
}

static void small_sleepers(void) { sleep_of(300, BLOCKS_MANY); }
static void large_sleepers(void) { sleep_of(2 * MIB, (uint32_t)(79 * GIB / (2 * MIB))); }

#define PENDING_MANY 60000

static void pending_on(bool immortal)
{
    open_pool("page_mib:2");
    if (immortal)
        NEED(cenote_stream_set_immortal(pool, b));
    NEED(sim_launch_wait(b, 1000 * GIB));
    for (uint32_t i = 0; i < PENDING_MANY; i++) {
        blocks[i] = take(4 * KIB, a);
        NEED(cenote_use(blocks[i], b));
        NEED(cenote_free(blocks[i]));
    }
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    close_pool();
}

static void many_pending(void) { pending_on(false); }
static void many_pending_with_events(void) { pending_on(true); }

/* One block that very many streams use. */
static void many_uses(void)
{
    open_pool("page_mib:2");
    make_streams(STREAMS_MANY);
    void *block = take(MIB, a);
    for (uint32_t i = 0; i < STREAMS_MANY; i++)
        NEED(cenote_use(block, streams[i]));
    for (uint32_t i = 0; i < STREAMS_MANY; i++)
        NEED(cenote_use(block, streams[i]));
    NEED(cenote_free(block));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    close_pool();
}

static void streams_of(const char *conf)
{
    open_pool(conf);
    make_streams(STREAMS_MANY);
    for (uint32_t i = 0; i < STREAMS_MANY; i++)
        blocks[i] = take(16 * KIB, streams[i]);
    for (uint32_t i = 0; i < STREAMS_MANY; i++)
        NEED(cenote_free(blocks[i]));
    for (uint32_t i = 0; i < STREAMS_MANY; i++) {
        NEED(cenote_stream_retire(pool, streams[i]));
        if (i % 2000 == 0) { /* with announced:0 each has an event, of which there are not so many at one time */
            NEED(cuCtxSynchronize());
            NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
        }
    }
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    close_pool();
}

static void many_streams(void) { streams_of("page_mib:2"); }
static void many_streams_unannounced(void) { streams_of("page_mib:2,announced:0"); }

/* More groups than one, each with a block on one stream; some lend. */
static void many_groups(void)
{
    open_pool("page_mib:2");
    for (uint32_t i = 0; i < GROUPS_MANY; i++) {
        NEED(cenote_group_create(pool, "group", i % 2 ? CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND : 0, NULL, &groups[i]));
        NEED(cenote_alloc_with(pool, (&(cenote_request){.group = groups[i], .bytes = 16 * KIB, .stream = a}), &blocks[i]));
    }
    void *block, *large = take(60 * GIB, a);
    if (!cenote_alloc(pool, 70 * GIB, a, &block))
        bench_fail("two blocks that do not fit");
    for (uint32_t i = 0; i < GROUPS_MANY; i++)
        NEED(cenote_free(blocks[i]));
    NEED(cenote_free(large));
    for (uint32_t i = 0; i < GROUPS_MANY; i++)
        NEED(cenote_group_destroy(groups[i]));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    close_pool();
}

/* All of the card in a private group that ends. */
static void a_large_graph(void)
{
    open_pool("page_mib:2");
    NEED(cenote_group_create(pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &groups[0]));
    NEED(cenote_alloc_with(pool, (&(cenote_request){.group = groups[0], .bytes = 79 * GIB, .stream = a}), &blocks[0]));
    NEED(cenote_free(blocks[0]));
    NEED(cenote_group_destroy(groups[0]));
    NEED(cuCtxSynchronize());
    NEED(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    close_pool();
}

/* Blocks as large as the card on one stream after another: addresses of many times the card, aliases in all of them, and bounds of both. */
static void addresses_of(const char *conf, uint32_t count)
{
    open_pool(conf);
    make_streams(count);
    for (uint32_t i = 0; i < count; i++) {
        blocks[0] = take(64 * GIB, streams[i]);
        NEED(cenote_free(blocks[0]));
        NEED(cuCtxSynchronize());
        NEED(cenote_pool_stats(pool, &(cenote_stats){0}));
    }
    close_pool();
}

static void many_mappings(void) { addresses_of("page_mib:2,harvest_budget:off", 24); }
static void many_addresses(void) { addresses_of("page_mib:2,harvest_budget:off,address_ratio:16,mappings:0", 24); }

/* ----------------------------------------------------------------------------------------------------------------------------- results */

struct program {
    const char *name;
    void (*run)(void);
};

#define GROWTH(name, function, small, large, most)
#define HOLD(name, ask, make, count)
#define LOCKED(name, run) {name, run},
static const struct program programs[] = {
#include "bench/scale/cases.def"
};
#undef GROWTH
#undef HOLD
#undef LOCKED

/* Names of functions are of the library's own text: equal ones are one. A pair that a round does not know had no hold there. */
static void merge(struct lock_hold *best, uint32_t *count, int round)
{
    struct lock_hold holds[LOCK_HOLDS_MAX];
    uint32_t found = lock_holds(holds);
    if (!round) {
        memcpy(best, holds, sizeof holds);
        *count = found;
        return;
    }
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t at = 0;
        while (at < found && (holds[at].taken_in != best[i].taken_in || holds[at].given_in != best[i].given_in))
            at++;
        best[i].ns = at == found ? 0 : holds[at].ns < best[i].ns ? holds[at].ns : best[i].ns;
    }
}

static struct lock_hold measure(const struct program *program)
{
    struct lock_hold best[LOCK_HOLDS_MAX], longest = {0};
    uint32_t count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        lock_time_holds(LOCK_POOL);
        program->run();
        merge(best, &count, round);
    }
    lock_time_holds(0);
    for (uint32_t i = 0; i < count; i++)
        longest = best[i].ns > longest.ns ? best[i] : longest;
    return longest;
}

bool locked_run(bool json, const char *word)
{
    bool slow = false;
    char name[80];
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        snprintf(name, sizeof name, "the lock, %s", programs[i].name);
        if (!strstr(name, word))
            continue;
        struct lock_hold hold = measure(&programs[i]);
        double us = (double)hold.ns / 1e3;
        slow |= us > HELD_MAX_US;
        printf(json ? "{\"bench\":\"scale\",\"case\":\"%s\",\"us\":%.1f,\"most\":%.0f,\"taken_in\":\"%s\",\"given_in\":\"%s\"}\n" :
                      "%-46s %10.1f us, at most %.0f   taken in %s, given in %s\n", name, us, HELD_MAX_US, hold.taken_in, hold.given_in);
        fflush(stdout);
    }
    return slow;
}

#else

bool locked_run(bool json, const char *word)
{
    (void)word;
    if (!json)
        printf("How long the pool's lock is held: debug builds know that.\n");
    return false;
}

#endif
