/*
 * test_late.c: threads call everything on pools, groups and loans that come and go under them, so that any call may come too late: it is told so, and
 * all goes on. Books, checks and the sanitizers judge, and in the end the cards have everything back.
 *
 * A seed makes a program, as far as threads do. LATE_SEED: the first. CENOTE_TEST_ROUNDS: more seeds. LATE_STEPS: calls of a thread.
 *
 * Not: contents, for nothing is launched (test_worlds.c).
 */
#include <cenote/report.h>
#include <cenote/share.h>
#include <cenote/sleep.h>

#include "pool/mapping/units.h"
#include "tests/api/scene.h"
#include "tests/patience.h"
#include "tests/rounds.h"
#include "tests/stress/portions.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 4
#define POOLS   4
#define GROUPS  6
#define LOANS   3
#define BLOCKS  24              /* of a thread */
#define STREAMS 3

struct worker {
    int           number;
    uint64_t      random;
    void         *block[BLOCKS];
    cenote_pool  *pool;         /* what the next call names; they may have ended */
    cenote_group *group;
    void        **at;           /* a place for a block */
    CUstream      stream;
};

static struct scene scene;
static cenote_pool *_Atomic pools[POOLS];
static cenote_group *_Atomic groups[GROUPS];
static cenote_loan *_Atomic loans[LOANS];
static cenote_group *common;    /* written under the lock, held for reading as long as it is named */
static pthread_rwlock_t common_lock = PTHREAD_RWLOCK_INITIALIZER;
static CUstream streams[THREADS][STREAMS];
static atomic_ulong calls, served, ended, late, heard, sourced;
static bool careful;            /* announced:0 */
static uint64_t seed;

static uint64_t pick(struct worker *w, uint64_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % n;
}

static void die(const char *why)
{
    fprintf(stderr, "\nlate calls, seed %llu: %s: %s; %s\n", (unsigned long long)seed, why, cenote_message(), sim_last_violation());
    abort();
}

static int note(int error)
{
    calls++;
    served += !error;
    late += error == CENOTE_INVALID;
    return error;
}

/* ------------------------------------------------------------------------------------------------------- functions of the program */

static int shortage(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes, (void)arg;
    return 0;
}

static void hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)arg;
    heard += notice->bytes != 0;
}

static void *take(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream, (void)arg;
    if (cuMemAlloc(&at, bytes))
        return NULL;
    sourced++;
    return (void *)(uintptr_t)at;
}

static void give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    cenote_sleep what = {.contents = CENOTE_DISCARD_ALL};
    (void)bytes, (void)stream;
    sourced -= cuMemFree((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS;
    if (arg)
        note(cenote_pool_pause(pools[0], &what));
}

/* --------------------------------------------------------------------------------------------------------------------- blocks */

static void ask(struct worker *w)
{
    size_t bytes = 1 + pick(w, pick(w, 2) ? 9 * KIB : 4 * MIB);
    if (!*w->at && note(cenote_alloc(w->pool, bytes, w->stream, w->at)))
        *w->at = NULL;
}

static void ask_group(struct worker *w)
{
    cenote_request r = {.bytes = 1 + pick(w, 2 * MIB), .alignment = 1ull << pick(w, 12), .group = w->group, .stream = w->stream};
    r.flags = pick(w, 4) ? 0 : CENOTE_NO_WAIT;
    if (!*w->at && w->group && note(cenote_alloc_with(NULL, &r, w->at)))
        *w->at = NULL;
}

/* A group that another thread resets may have freed it: then it is no one's, or another's. */
static void free_block(struct worker *w)
{
    if (!*w->at)
        return;
    if (note(pick(w, 4) ? cenote_free(*w->at) : cenote_free_on(*w->at, streams[(w->number + 1) % THREADS][0])) && cenote_free(*w->at))
        die("a free failed");
    *w->at = NULL;
}

static void use(struct worker *w)
{
    cenote_block about;
    cenote_share share;
    char bytes[8];
    if (!*w->at)
        return;
    note(cenote_find(*w->at, &about));
    note(cenote_use(*w->at, streams[(w->number + 1) % THREADS][pick(w, STREAMS)]));
    note(cenote_block_read_asleep(*w->at, bytes, sizeof bytes));
    if (pick(w, 4) == 0)
        note(cenote_export(*w->at, &share));
    if (pick(w, 3) == 0)
        note(cenote_extend(*w->at, 1 + pick(w, 6 * MIB)));
    if (pick(w, 3) == 0 && !note(cenote_pin(*w->at, 1)) && note(cenote_unpin(*w->at, 1)))
        die("an unpin failed");
}

static void free_all(struct worker *w)
{
    for (int i = 0; i < BLOCKS; i++) {
        w->at = &w->block[i];
        free_block(w);
    }
}

/* ---------------------------------------------------------------------------------------------------------------------- looks */

static void look(struct worker *w)
{
    cenote_stats stats;
    cenote_row rows[8];
    cenote_piece pieces[8];
    cenote_available available;
    size_t count;
    switch (pick(w, 6)) {
    case 0: note(cenote_pool_stats(w->pool, &stats)); break;
    case 1: note(cenote_pool_rows(w->pool, (int)pick(w, 6), rows, 8, &count)); break;
    case 2: note(cenote_pool_pieces(w->pool, pick(w, 2) ? w->group : NULL, pieces, 8, &count)); break;
    case 3: note(cenote_pool_snapshot(w->pool, "/dev/null")); break;
    case 4: note(cenote_pool_available(w->pool, &available)); break;
    default: cenote_pool_explain(w->pool, MIB, NULL, 0); break;
    }
}

static void check(struct worker *w)
{
    if (note(cenote_pool_check(w->pool)) && strstr(cenote_message(), "invariant"))
        die("check");
}

/* ------------------------------------------------------------------------------------------------------------- pools and groups */

static void change_pool(struct worker *w)
{
    uint64_t sync;
    switch (pick(w, 10)) {
    case 0: note(cenote_pool_step(w->pool)); break;
    case 1: note(cenote_pool_set_limit(w->pool, pick(w, 2) ? 0 : 40 * MIB)); break;
    case 2: note(cenote_pool_watch(w->pool, pick(w, 2) ? (uint32_t)pick(w, 64) : 0, hear, (void *)(uintptr_t)pick(w, 3))); break;
    case 3: note(cenote_pool_on_shortage(w->pool, pick(w, 3), shortage, NULL)); break;
    case 4: note(cenote_pool_grant(w->pool, 1)); break;
    case 5: note(cenote_stream_retire(w->pool, w->stream)); break;
    case 6: note(cenote_pool_reserve(w->pool, pick(w, 8 * MIB), w->stream)); break;
    case 7: if (!note(cenote_pool_sync_begin(w->pool, &sync))) note(cenote_pool_sync_end(w->pool, sync)); break;
    default: note(cenote_pool_trim(w->pool, pick(w, 3) ? 0 : 20 * MIB, (unsigned)pick(w, 8))); break;
    }
}

static void nap(struct worker *w)
{
    const void *names[1] = {*w->at};
    cenote_sleep what = {.contents = (uint32_t)pick(w, 4), .group = pick(w, 4) ? NULL : w->group};
    if (*w->at && pick(w, 3) == 0)
        what = (cenote_sleep){.blocks = names, .count = 1};
    note(pick(w, 2) ? cenote_pool_pause(w->pool, &what) : cenote_pool_resume(w->pool, &what));
}

/* No other process is short of memory: nothing takes the loan, and late calls meet it all the same. */
static void lend(struct worker *w)
{
    cenote_sleep what = {.group = pick(w, 2) ? NULL : w->group};
    cenote_loan *_Atomic *place = &loans[pick(w, LOANS)];
    cenote_loan *loan = NULL;
    if (pick(w, 2) && note(cenote_pool_lend(w->pool, &what, &loan)))
        loan = NULL;
    loan = atomic_exchange(place, loan);
    if (loan && note(cenote_loan_end(loan, NULL)) && pick(w, 2))
        note(cenote_loan_end(loan, NULL));
}

/* Another thread may capture with it. */
static void end_group(cenote_group *group)
{
    struct wait wait = {0};
    while (group && note(cenote_group_destroy(group)) == CENOTE_CAPTURE && wait_on(&wait))
        ;
}

static void change_group(struct worker *w)
{
    static const unsigned flags[] = {0, CENOTE_GROUP_PRIVATE, CENOTE_GROUP_LEND, CENOTE_GROUP_WHOLE, CENOTE_GROUP_PLAIN};
    uint64_t bytes;
    cenote_group *made = NULL, *old = w->group;
    cenote_group *_Atomic *place = &groups[pick(w, GROUPS)];
    cenote_source source = {take, give, pick(w, 3) ? NULL : &scene};
    if (old)
        note(pick(w, 2) ? cenote_group_trim(old, 0) : cenote_group_reserved(old, &bytes));
    if (old && pick(w, 3) == 0)
        note(cenote_group_set_flags(old, flags[pick(w, 5)]));
    if (pick(w, 2) && note(cenote_group_create(w->pool, "g", flags[pick(w, 5)], pick(w, 4) ? NULL : &source, &made)))
        made = NULL;
    if (made || pick(w, 3) == 0)
        end_group(atomic_exchange(place, made));
}

static void capture(struct worker *w)
{
    cenote_group *group = pick(w, 2) ? w->group : NULL;
    if (pick(w, 2) || note(cenote_capture_begin(group ? NULL : w->pool, group, w->stream)))
        return;
    for (int i = (int)pick(w, 3); i; i--)
        group ? ask_group(w) : look(w);
    sched_yield();
    note(cenote_capture_end(group ? NULL : w->pool, group, w->stream));
}

/* All threads allocate from one group. No thread frees a block of it; each thread resets the group now and then. */
static void reset_group(struct worker *w)
{
    void *block;
    pthread_rwlock_rdlock(&common_lock);
    for (int i = 0; common && i < 5; i++) {
        cenote_request r = {.bytes = 1 + pick(w, pick(w, 2) ? 9 * KIB : 2 * MIB), .group = common, .stream = w->stream};
        if (!note(cenote_alloc_with(NULL, &r, &block)) && pick(w, 4) == 0)
            cenote_use(block, streams[(w->number + 1) % THREADS][0]);
    }
    if (common && pick(w, 2) && note(cenote_group_reset(common)))
        die("a reset");
    pthread_rwlock_unlock(&common_lock);
    pthread_rwlock_wrlock(&common_lock);
    if (!common && note(cenote_group_create(w->pool, "common", pick(w, 2) ? 0 : CENOTE_GROUP_PRIVATE, NULL, &common)))
        common = NULL;
    pthread_rwlock_unlock(&common_lock);
}

/* --------------------------------------------------------------------------------------------------------------- lives of pools */

static cenote_options options_of(struct worker *w)
{
    static const unsigned providers[] = {CENOTE_VMM, CENOTE_VMM, CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN, CENOTE_GUARD};
    cenote_options o = scene_options();
    o.page_mib = 2u << pick(w, 3);
    o.provider = providers[pick(w, 6)];
    o.announced = !careful;
    o.decay_ms = pick(w, 3) ? 0 : 1;
    o.background = pick(w, 4) == 0;
    o.order = pick(w, 2) != 0;
    o.limit = pick(w, 3) ? 0 : (double)(50 * MIB);
    o.trim_every = (uint32_t)pick(w, 2);
    return o;
}

static void end_groups(void)
{
    for (int i = 0; i < GROUPS; i++)
        end_group(atomic_exchange(&groups[i], NULL));
    pthread_rwlock_wrlock(&common_lock);
    if (common && (note(cenote_group_reset(common)) || note(cenote_group_destroy(common))))
        die("the end of a group");
    common = NULL;
    pthread_rwlock_unlock(&common_lock);
}

static void end_pool(cenote_pool *_Atomic *place)
{
    cenote_pool *pool = *place, *was = pool;
    if (pool && !note(cenote_pool_destroy(pool))) {
        ended++;
        atomic_compare_exchange_strong(place, &was, NULL);
    }
}

static void end_and_begin(struct worker *w)
{
    cenote_pool *_Atomic *place = &pools[pick(w, POOLS)];
    cenote_pool *made, *none = NULL;
    cenote_options options = options_of(w);
    struct wait wait = {0};
    if (pick(w, 3))
        return;
    free_all(w);
    end_groups();
    end_pool(place);
    if ((*place && pick(w, 6)) || note(cenote_pool_create(0, &options, &made)))
        return;
    if (!atomic_compare_exchange_strong(place, &none, made))
        while (cenote_pool_destroy(made) == CENOTE_BUSY && wait_on(&wait))
            ;
}

/* ----------------------------------------------------------------------------------------------------------------------- programs */

static void (*const ways[])(struct worker *w) = {ask,         ask,     ask,  ask,         ask_group,    ask_group, free_block, free_block,
                                                 free_block,  use,     use,  look,        look,         check,     change_pool, change_pool,
                                                 change_pool, nap,     nap,  nap,         change_group, capture,   reset_group, lend,
                                                 end_and_begin, end_and_begin};

static unsigned steps(void)
{
    const char *text = getenv("LATE_STEPS");
    return text ? (unsigned)strtoul(text, NULL, 0) : 600;
}

static void *run(void *arg)
{
    struct worker *w = arg;
    cuCtxSetCurrent(scene.context);
    for (unsigned i = steps(); i; i--) {
        cenote_pool *pool = pools[pick(w, POOLS)];
        w->pool = pool && pick(w, 8) ? pool : w->pool; /* now and then the one of before */
        if (pick(w, 8))
            w->group = groups[pick(w, GROUPS)];
        w->at = &w->block[pick(w, BLOCKS)];
        w->stream = streams[w->number][pick(w, STREAMS)];
        ways[pick(w, sizeof ways / sizeof *ways)](w);
    }
    free_all(w);
    cuCtxSetCurrent(NULL);
    return NULL;
}

static void begin(struct worker *w)
{
    struct sim_shape shape = scene_card((100 + 20 * pick(w, 5)) * MIB);
    shape.devices = 2;
    shape.lag = pick(w, 2) * MSEC / 5;
    careful = pick(w, 4) == 0;
    portions_begin(pick(w, 4));
    units_grade_pages = (uint32_t[]){0, 1, 128}[pick(w, 3)];
    scene_open_card(&scene, &shape);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < STREAMS; i++)
            DONE(cuStreamCreate(&streams[t][i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < POOLS; i++) {
        cenote_options options = options_of(w);
        cenote_pool *pool;
        DONE(cenote_pool_create(0, &options, &pool));
        pools[i] = pool;
    }
}

static void end(void)
{
    struct sim_books books;
    uint64_t sync;
    for (int i = 0; i < LOANS; i++)
        atomic_store(&loans[i], NULL); /* a loan ends with its pool */
    end_groups();
    for (int i = 0; i < POOLS; i++) {
        cenote_pool *pool = atomic_exchange(&pools[i], NULL);
        if (!pool)
            continue;
        if (cenote_pool_check(pool) && strstr(cenote_message(), "invariant"))
            die("check at the end");
        if (cenote_pool_sync_begin(pool, &sync) || cuCtxSynchronize() || cenote_pool_sync_end(pool, sync) || cenote_pool_destroy(pool))
            die("a pool does not end");
    }
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < STREAMS; i++)
            DONE(cuStreamDestroy(streams[t][i]));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cuStreamDestroy(scene.stream[i]));
    sim_books(&books);
    bool is_left = books.used || books.handles || books.mappings || books.reservations || books.events || books.allocations || books.violations;
    if (is_left)
        fprintf(stderr, "\n%llu bytes, %llu handles, %llu mappings, %llu reservations, %llu events, %llu allocations, %llu violations",
                (unsigned long long)books.used, (unsigned long long)books.handles, (unsigned long long)books.mappings,
                (unsigned long long)books.reservations, (unsigned long long)books.events, (unsigned long long)books.allocations,
                (unsigned long long)books.violations);
    if (is_left || sourced)
        die(sourced ? "a source has not had all back" : "something is left");
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(0));
    scene_is_open = false;
    portions_end();
    units_grade_pages = GRADE_PAGES;
}

CASE(everything_on_what_comes_and_goes)
{
    static struct worker worker[THREADS];
    const char *text = getenv("LATE_SEED");
    uint64_t first = text ? strtoull(text, NULL, 0) : 1, last = first + (uint64_t)rounds(10);
    for (seed = first; seed < last; seed++) {
        pthread_t thread[THREADS];
        struct worker w = {.random = seed * 0x9e3779b97f4a7c15u | 1};
        memset(worker, 0, sizeof worker);
        begin(&w);
        for (int t = 0; t < THREADS; t++) {
            worker[t].number = t;
            worker[t].random = pick(&w, UINT64_MAX) | 1;
            REQUIRE(!pthread_create(&thread[t], NULL, run, &worker[t]));
        }
        for (int t = 0; t < THREADS; t++)
            pthread_join(thread[t], NULL);
        end();
    }
    fprintf(stderr, "(%lu calls, %lu served, %lu too late or wrong, %lu pools ended, %lu notices) ", calls, served, late, ended, heard);
    EXPECT(served && ended && late && heard);
}

SUITE_MAIN("late calls")
