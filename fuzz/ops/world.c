/*
 * world.c: the world of an operation stream comes from the first bytes of its input and must be gone without a trace at the end.
 *
 * One or two small cards run behind the host by a lag; one to three pools lie on them, of any provider and with any options. The clock
 * stands still unless something synchronises or an operation advances it, and work touches memory when it is done, not when it is
 * submitted: what was handed out or unmapped too early shows.
 *
 * FAULTS. One failing driver call at a time may be armed. The operation in which it fires may fail with any error, but must not break
 * anything; the one after it has no excuse.
 */
#include "fuzz/ops/world.h"

#include "driver/driver.h"

#include <cenote/report.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t page_mibs[] = {2, 0, 4, 8};
static const uint32_t ratios[] = {4, 1, 2, 64};
static const double   budgets[] = {-1, 0, 0.01, 0.5};
extern uint32_t units_grade_pages; /* pool/mapping/units.h, of whose names this folder has others */
static const uint32_t splits[] = {128, 2, 0, 4};

static uint64_t clock_ns(void *unused)
{
    (void)unused;
    return sim_now();
}

/* ------------------------------------------------------------------------------------------------------------------------ judging */

void world_say(const struct world *w, const char *format, ...)
{
    va_list arguments;
    if (!w->verbose)
        return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

bool world_excuses(const struct world *w, int error)
{
    return error == CENOTE_OK || fault_fired() != w->fired;
}

void world_judge(struct world *w)
{
    struct sim_books books;
    (void)w;
    sim_books(&books);
    JUDGE(sim_mismatches() == 0);
    JUDGE(books.violations == 0);
}

static void judge_identities(const struct pool *p)
{
    cenote_stats s;
    JUDGE(cenote_pool_stats(p->pool, &s) == CENOTE_OK);
    JUDGE(s.reserved.current == s.allocated.current + s.cached.current);
    JUDGE(s.requested.current <= s.allocated.current);
    JUDGE(s.allocated.current <= s.active.current);
    JUDGE(s.active.current <= s.reserved.current);
    JUDGE(s.requested.current == p->requested);
}

/* The picture shows what the counters count: pieces tile their segments, and segments are what is reserved. */
static void judge_picture(const struct pool *p)
{
    static cenote_piece pieces[1 << 16];
    cenote_stats s;
    size_t count;
    uint64_t size = 0, requested = 0, pending = 0;
    JUDGE(cenote_pool_stats(p->pool, &s) == CENOTE_OK);
    JUDGE(cenote_pool_pieces(p->pool, NULL, pieces, sizeof pieces / sizeof *pieces, &count) == CENOTE_OK);
    JUDGE(count <= sizeof pieces / sizeof *pieces);
    for (size_t i = 0; i < count; i++) {
        bool begins = i == 0 || pieces[i].segment != pieces[i - 1].segment;
        JUDGE(pieces[i].address == (begins ? pieces[i].segment : pieces[i - 1].address + pieces[i - 1].size));
        size += pieces[i].size;
        requested += pieces[i].state == CENOTE_PIECE_LIVE ? pieces[i].requested : 0;
        pending += pieces[i].state == CENOTE_PIECE_PENDING;
    }
    JUDGE(size == s.reserved.current && requested == s.requested.current && pending == s.pending_blocks);
}

void world_judge_deeply(struct world *w)
{
    for (int i = 0; i < POOLS; i++) {
        if (!w->pool[i].pool)
            continue;
        judge_identities(&w->pool[i]);
        judge_picture(&w->pool[i]);
        JUDGE(cenote_pool_check(w->pool[i].pool) == CENOTE_OK);
    }
    for (int d = 0; w->capturing < 0 && d < w->shape.devices; d++) {
        world_enter(w, d);
        JUDGE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    world_judge(w);
}

bool world_is_capturing(const struct world *w, int pool, int stream)
{
    return w->capturing == pool && stream == CAPTURE_STREAM;
}

void world_enter(const struct world *w, int device)
{
    JUDGE(cuCtxSetCurrent(w->device[device].context) == CUDA_SUCCESS);
}

CUstream world_stream(const struct world *w, int pool, int stream)
{
    return w->device[w->pool[pool].device].stream[stream];
}

/* ------------------------------------------------------------------------------------- what pools ask the program for, with no lock held */

static bool capturing_on(const struct world *w, int device)
{
    return w->capturing >= 0 && w->pool[w->capturing].device == device;
}

/* The program gives up a block of this pool, if it has one. */
static int give_one(cenote_pool *pool, size_t bytes, void *arg)
{
    struct world *w = arg;
    CUcontext current = NULL;
    int i = 0;
    (void)bytes;
    while (i < BLOCKS && !(w->block[i].at && w->pool[w->block[i].pool].pool == pool))
        i++;
    if (i == BLOCKS)
        return 0;
    JUDGE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    world_say(w, "  gives up %p", (void *)w->block[i].at);
    block_give(w, &w->block[i]);
    JUDGE(cuCtxSetCurrent(current) == CUDA_SUCCESS);
    return 1;
}

static struct world *the_world;     /* sources know their device, which is more than one pointer holds beside it */

static void *source_take(size_t bytes, cenote_stream stream, void *arg)
{
    int device = (int)(uintptr_t)arg;
    CUdeviceptr at = 0;
    (void)stream;
    if (the_world->capturing >= 0) /* cuMemAlloc would spoil the capture */
        return NULL;
    JUDGE(cuCtxPushCurrent(the_world->device[device].context) == CUDA_SUCCESS);
    CUresult result = cuMemAlloc(&at, bytes);
    JUDGE(cuCtxPopCurrent(NULL) == CUDA_SUCCESS);
    return result ? NULL : (void *)(uintptr_t)at;
}

static void source_give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    int device = (int)(uintptr_t)arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)bytes;
    (void)stream;
    JUDGE(!capturing_on(the_world, device));
    JUDGE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS); /* a capture may be open on the other device */
    JUDGE(cuCtxPushCurrent(the_world->device[device].context) == CUDA_SUCCESS);
    JUDGE(cuMemFree((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS);
    JUDGE(cuCtxPopCurrent(NULL) == CUDA_SUCCESS);
    JUDGE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
}

/* ---------------------------------------------------------------------------------------------------------------- groups and pools */

void group_open(struct world *w, int pool, enum group group)
{
    struct pool *p = &w->pool[pool];
    cenote_source source = {source_take, source_give, (void *)(uintptr_t)p->device};
    p->flags[group] = group == GROUP_PRIVATE || group == GROUP_GRAPHS ? CENOTE_GROUP_PRIVATE : group == GROUP_WHOLE ? CENOTE_GROUP_WHOLE : 0;
    JUDGE(cenote_group_create(p->pool, "fuzz", p->flags[group], group == GROUP_SOURCE ? &source : NULL, &p->group[group]) == CENOTE_OK);
}

static cenote_options choose_options(struct world *w)
{
    cenote_options options;
    uint8_t a = input_byte(w->in), b = input_byte(w->in);
    JUDGE(cenote_options_default(&options) == CENOTE_OK);
    options.provider = a & 3;
    options.page_mib = page_mibs[a >> 2 & 3];
    options.address_ratio = ratios[a >> 4 & 3];
    options.harvest_budget = budgets[a >> 6];
    units_grade_pages = splits[b >> 4 & 3]; /* of all pools: the last one says */
    options.trim_every = b & 3;
    options.limit = b & 4 ? 0.5 : 0;
    if ((b >> 3 & 7) == 7)
        options.provider = CENOTE_GUARD;
    options.decay_ms = b >> 6 == 3;
    if (!options.page_mib && b >> 6 == 1)
        options.page_mib = 16; /* units of eight small pages */
    options.graphs = b >> 6 == 2 ? CENOTE_GRAPHS_PLAIN : CENOTE_GRAPHS_AUTO;
    options.clock = clock_ns;
    options.announced = 1; /* streams come and go without a word */
    return options;
}

/* Fails where a fault says so, or where the card lacks what the options ask for. */
void pool_open(struct world *w, int pool)
{
    struct pool *p = &w->pool[pool];
    cenote_stats s;
    memset(p, 0, sizeof *p);
    p->device = (int)input_below(w->in, (uint64_t)w->shape.devices);
    cenote_options options = choose_options(w);
    p->plain_graphs = options.graphs == CENOTE_GRAPHS_PLAIN;
    int error = cenote_pool_create(p->device, &options, &p->pool);
    world_say(w, "pool %d on device %d, provider %u: %s", pool, p->device, options.provider, cenote_error_name(error));
    if (error) {
        bool maps = options.provider == CENOTE_VMM || options.provider == CENOTE_GUARD;
        bool lacks = (maps && !w->shape.vmm) || (options.provider == CENOTE_ASYNC && !w->shape.pools);
        JUDGE(world_excuses(w, error) || (error == CENOTE_NOT_SUPPORTED && lacks));
        p->pool = NULL;
        return;
    }
    JUDGE(cenote_pool_stats(p->pool, &s) == CENOTE_OK);
    p->page_bytes = s.page_bytes;
    for (enum group g = 0; g < GROUPS; g++)
        group_open(w, pool, g);
    p->gives = input_byte(w->in) & 1;
    if (p->gives)
        JUDGE(cenote_pool_on_shortage(p->pool, 1, give_one, w) == CENOTE_OK);
}

static bool is_in_use(const struct world *w, int pool)
{
    bool used = capturing_on(w, w->pool[pool].device);
    for (int i = 0; i < BLOCKS; i++)
        used = used || (w->block[i].at && w->block[i].pool == pool);
    for (int i = 0; i < PINS; i++)
        used = used || (w->pin[i].at && w->pin[i].pool == pool);
    return used;
}

static void close_graphs(struct pool *p)
{
    for (int g = 0; g < GRAPHS; g++)
        if (p->graph[g])
            JUDGE(cuGraphExecDestroy(p->graph[g]) == CUDA_SUCCESS);
    for (enum group g = 0; g < GROUPS; g++)
        JUDGE(cenote_group_destroy(p->group[g]) == CENOTE_OK);
}

/* What is free can be had again: all of it goes back to the driver, and the pool serves on. */
static void judge_empty(struct world *w, struct pool *p)
{
    cenote_stats s;
    void *block = NULL;
    world_enter(w, p->device);
    JUDGE(cenote_pool_set_limit(p->pool, 0) == CENOTE_OK);
    JUDGE(cenote_pool_check(p->pool) == CENOTE_OK);
    JUDGE(cenote_pool_trim(p->pool, 0, CENOTE_TRIM_WAIT) == CENOTE_OK);
    JUDGE(cenote_pool_stats(p->pool, &s) == CENOTE_OK);
    JUDGE(s.reserved.current == 0 && s.allocated.current == 0 && s.pending_blocks == 0);
    JUDGE(cenote_alloc(p->pool, p->page_bytes, w->device[p->device].stream[1], &block) != CENOTE_OK || cenote_free(block) == CENOTE_OK);
    JUDGE(cenote_pool_check(p->pool) == CENOTE_OK);
}

bool pool_close(struct world *w, int pool)
{
    struct pool *p = &w->pool[pool];
    if (!p->pool)
        return true;
    if (is_in_use(w, pool)) {
        JUDGE(cenote_pool_destroy(p->pool) == CENOTE_BUSY);
        return false;
    }
    fault_disarm();
    close_graphs(p);
    judge_empty(w, p);
    JUDGE(cenote_pool_destroy(p->pool) == CENOTE_OK);
    p->pool = NULL;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------- begin and end */

/* A process loads its driver once, so the version is no choice of the input: CENOTE_FUZZ_DRIVER, as 11080. */
static int driver_version_wanted(void)
{
    const char *version = getenv("CENOTE_FUZZ_DRIVER");
    return version ? atoi(version) : 13000;
}

static void choose_shape(struct world *w)
{
    static const size_t capacities[] = {64 * MIB, 32 * MIB, 96 * MIB, 512 * MIB};
    static const uint64_t lags[] = {0, MSEC / 5, 2 * MSEC, 20 * MSEC};
    uint8_t a = input_byte(w->in), b = input_byte(w->in);
    sim_shape_default(&w->shape);
    w->shape.capacity = capacities[a & 3];
    w->shape.lag = lags[a >> 2 & 3];
    w->shape.driver_version = driver_version_wanted();
    w->shape.devices = 1 + (a >> 6 & 1);
    w->shape.reuse_handles = !(a >> 7);
    w->shape.context_bytes = b & 1 ? MIB : 0;
    w->shape.vmm = (b & 6) != 6;
    w->shape.pools = (b & 24) != 24;
    w->shape.address_space = (b & 96) == 96 ? 16 * w->shape.capacity : 0;
    w->shape.charge_cost = b >> 7;
    w->shape.manual_clock = true;
}

static void open_device(struct world *w, int d)
{
    struct device *device = &w->device[d];
    JUDGE(cuDevicePrimaryCtxRetain(&device->context, d) == CUDA_SUCCESS);
    world_enter(w, d);
    for (int s = 0; s < CREATED; s++)
        JUDGE(cuStreamCreate(&device->stream[s], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    device->stream[CREATED] = NULL;
    device->stream[CREATED + 1] = CU_STREAM_PER_THREAD;
}

void world_open(struct world *w, struct input *in)
{
    memset(w, 0, sizeof *w);
    the_world = w;
    w->in = in;
    w->capturing = -1;
    w->verbose = getenv("CENOTE_FUZZ_VERBOSE") != NULL;
    choose_shape(w);
    sim_set_quiet(true);
    sim_reset(&w->shape);
    fault_disarm();
    w->fired = fault_fired();
    JUDGE(cuInit(0) == CUDA_SUCCESS);
    for (int d = 0; d < w->shape.devices; d++)
        open_device(w, d);
    int pools = 1 + (int)input_below(in, POOLS);
    for (int i = 0; i < pools; i++)
        pool_open(w, i);
}

static void judge_books(void)
{
    struct sim_books books;
    sim_books(&books);
    JUDGE(books.used == 0 && books.handles == 0 && books.mappings == 0);
    JUDGE(books.reserved == 0 && books.reservations == 0);
    JUDGE(books.allocations == 0 && books.pools == 0);
    JUDGE(books.events == 0);
    JUDGE(books.streams == 0 && books.contexts == 0);
}

void world_close(struct world *w)
{
    fault_disarm();
    w->fired = fault_fired();
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].at)
            block_give(w, &w->block[i]);
    shares_close(w);
    for (; w->tags; w->tags--)
        JUDGE(cenote_tag_pop() == CENOTE_OK);
    JUDGE(cenote_phase_set(CENOTE_PHASE_NONE) == CENOTE_OK);
    world_judge_deeply(w);
    for (int i = 0; i < PINS; i++)
        if (w->pin[i].at)
            JUDGE(cenote_unpin(w->pin[i].at, w->pin[i].bytes) == CENOTE_OK);
    memset(w->pin, 0, sizeof w->pin);
    for (int i = 0; i < POOLS; i++)
        JUDGE(pool_close(w, i));
    for (int d = 0; d < w->shape.devices; d++) {
        world_enter(w, d);
        for (int s = 0; s < CREATED; s++)
            JUDGE(cuStreamDestroy(w->device[d].stream[s]) == CUDA_SUCCESS);
        JUDGE(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
        JUDGE(cuDevicePrimaryCtxRelease(d) == CUDA_SUCCESS);
    }
    world_judge(w);
    judge_books();
}

void world_order(CUstream before, CUstream after)
{
    CUevent event = NULL;
    JUDGE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    JUDGE(cuEventRecord(event, before) == CUDA_SUCCESS);
    JUDGE(cuStreamWaitEvent(after, event, 0) == CUDA_SUCCESS);
    JUDGE(cuEventDestroy(event) == CUDA_SUCCESS);
}
