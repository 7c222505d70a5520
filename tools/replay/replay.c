/*
 * replay.c: plays a trace through the public API, on the simulated GPU.
 *
 * TIME. Two clocks run. The pool's clock is the trace's t_us plus the modelled cost of the driver calls made so far: it is what the
 * harvest budget is measured by. A trace without times gets TRACE_PACE_NS a record. The device's clock ticks once per record, so that
 * "the GPU runs behind by 5 % of the records" means the same at every place of every trace; nothing else is put on the streams.
 *
 * WHAT IS COUNTED. Peaks of memory and of address space are those of the simulated driver's own books, not of cenote's counters: a mistake in
 * the counters cannot flatter them. The books' violations, a failing cenote_pool_check() and a pool that cannot be destroyed at the
 * end all fail the replay. Out of memory does not: it is counted, and the block is absent until its free.
 *
 * LOCKING: none; one thread.
 */
#include "tools/replay/replay.h"

#include <cenote/report.h>
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"
#include "sim/sim.h"

/* Everything of one replay. `streams` and `blocks` are indexed as in the trace. */
struct player {
    const struct trace       *trace;
    const struct replay_plan *plan;
    struct replay_result     *result;
    cenote_pool              *pools[RECORD_DEVICES_MAX];
    CUstream                 *streams; /* device by device; NULL: the legacy default stream, or not created yet */
    void                    **blocks;  /* block -> what cenote_alloc returned; NULL: none */
    uint64_t                  now_ns;  /* the trace's time, which goes on from one repetition to the next */
    uint64_t                  live;    /* bytes asked for */
    uint64_t                  peak;    /* of reserved bytes, so far */
};

static bool fail(struct player *p, const char *what, const char *why)
{
    p->result->failed = 1;
    snprintf(p->result->message, sizeof(p->result->message), "%s: %s", what, why);
    return false;
}

static uint64_t pool_clock(void *arg)
{
    const struct player *p = arg;
    struct sim_books books;
    sim_books(&books);
    return p->now_ns + books.cost_ns;
}

/* -------------------------------------------------------------------------------------------------------------------- streams */

/* Stream 0 need not be created: it is the legacy default stream of the pool's device. The others live as long as the replay. */
static bool find_stream(struct player *p, const struct record *r, CUstream *stream)
{
    CUcontext context;
    CUdevice device;
    *stream = NULL;
    if (r->stream == 0)
        return true; /* the other devices keep their contexts, which end with the simulated GPU */
    CUstream *place = &p->streams[(size_t)r->device * p->trace->streams + r->stream];
    bool is_new = !*place;
    if (is_new && (cuDeviceGet(&device, (int)r->device) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxPushCurrent(context) ||
                    cuStreamCreate(place, CU_STREAM_NON_BLOCKING) || cuCtxPopCurrent(&context)))
        return fail(p, "a stream", "could not be created on the simulated GPU");
    if (is_new && !p->plan->options.announced && cenote_stream_set_immortal(p->pools[r->device], *place))
        return fail(p, "cenote_stream_set_immortal", cenote_message());
    *stream = *place;
    return true;
}

/* -------------------------------------------------------------------------------------------------------------------- records */

/* Only allocations take memory, so that the peak is looked at after them alone. */
static void note_peak(struct player *p, uint64_t bytes)
{
    struct sim_books books;
    sim_books(&books);
    p->live += bytes;
    if (p->peak < books.used_peak) {
        p->peak = books.used_peak;
        p->result->live_at_peak = p->live;
    }
}

static bool play_alloc(struct player *p, const struct record *r, CUstream stream)
{
    void **block = &p->blocks[r->block];
    int error = cenote_alloc(p->pools[r->device], r->bytes, stream, block);
    if (!error) {
        note_peak(p, r->bytes);
        return true;
    }
    *block = NULL;
    p->result->ooms++;
    return error == CENOTE_OUT_OF_MEMORY || fail(p, "cenote_alloc", cenote_message());
}

/* Ends an iteration of the program, or gives back what is cached, on all its devices. */
static bool play_step(struct player *p)
{
    for (uint32_t d = 0; d < p->trace->devices; d++) {
        if (p->plan->trims ? cenote_pool_trim(p->pools[d], 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC) : cenote_pool_step(p->pools[d]))
            return fail(p, p->plan->trims ? "cenote_pool_trim" : "cenote_pool_step", cenote_message());
    }
    return true;
}

static bool play_record(struct player *p, const struct record *r)
{
    CUstream stream;
    if (!find_stream(p, r, &stream))
        return false;
    void *block = p->blocks[r->block];
    switch (r->op) {
    case RECORD_ALLOC:
        return play_alloc(p, r, stream);
    case RECORD_FREE:
        p->blocks[r->block] = NULL;
        p->live -= block ? r->bytes : 0;
        return !cenote_free(block) || fail(p, "cenote_free", cenote_message());
    case RECORD_USE:
        return !block || !cenote_use(block, stream) || fail(p, "cenote_use", cenote_message());
    case RECORD_STEP:
        return play_step(p);
    }
    return true;
}

/* Addresses are given back only by trims, which no replay asks for: their peak is what is in use at the end of a repetition. */
static void note_addresses(struct player *p)
{
    uint64_t used = 0;
    for (uint32_t d = 0; d < p->trace->devices; d++) {
        cenote_stats stats;
        if (cenote_pool_stats(p->pools[d], &stats) == CENOTE_OK)
            used += stats.address_used;
    }
    if (p->result->address_peak < used)
        p->result->address_peak = used;
}

static void note_moment(const struct player *p, size_t record)
{
    struct sim_books books;
    if (!p->plan->curve || record >= p->trace->in_file)
        return;
    sim_books(&books);
    p->plan->curve[record] = (struct moment){.reserved = books.used};
}

static bool play_once(struct player *p)
{
    uint64_t begin_ns = p->now_ns;
    for (size_t i = 0; i < p->trace->count; i++) {
        const struct record *r = &p->trace->records[i];
        p->now_ns = begin_ns + r->t_ns;
        sim_advance(REPLAY_TICK_NS);
        if (!play_record(p, r))
            return false;
        note_moment(p, i);
    }
    note_addresses(p);
    return true;
}

/* -------------------------------------------------------------------------------------------------------------------- figures */

/* Calls that make, map, unmap or give up memory, from which every provider's traffic shows. */
static bool moves_memory(enum driver_call call)
{
    return call == CALL_cuMemCreate || call == CALL_cuMemMap || call == CALL_cuMemUnmap || call == CALL_cuMemAlloc ||
           call == CALL_cuMemFree || call == CALL_cuMemAllocFromPoolAsync;
}

struct figures {
    uint64_t moved, other; /* driver calls */
    uint64_t waits, orders, metadata;
    struct driver_split split;
};

/* One unmap may cover many handles: those are counted by the pools, all else by the driver's tracer. */
static bool read_figures(struct player *p, struct figures *figures)
{
    struct driver_tally tallies[DRIVER_CALLS];
    driver_tallies(tallies);
    *figures = (struct figures){.split = {tallies[CALL_cuMemCreate].ns, tallies[CALL_cuMemMap].ns, tallies[CALL_cuMemSetAccess].ns,
                                          tallies[CALL_cuMemUnmap].ns, tallies[CALL_cuMemRelease].ns, 0, 0}};
    for (int call = 0; call < DRIVER_CALLS; call++) {
        if (!moves_memory(call))
            figures->other += tallies[call].calls;
        else if (call != CALL_cuMemUnmap)
            figures->moved += tallies[call].calls;
    }
    for (uint32_t d = 0; d < p->trace->devices; d++) {
        cenote_stats stats;
        if (cenote_pool_stats(p->pools[d], &stats))
            return fail(p, "cenote_pool_stats", cenote_message());
        figures->moved += stats.pages_unmapped;
        figures->split.pages_created += stats.pages_created;
        figures->split.pages_moved += stats.pages_harvested;
        figures->waits += stats.waits;
        figures->orders += stats.orders;
        p->result->page_bytes = stats.page_bytes;
        figures->metadata += stats.metadata;
    }
    return true;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool play_all(struct player *p)
{
    struct replay_result *result = p->result;
    struct figures before, after;
    if (!read_figures(p, &before))
        return false;
    for (uint32_t i = 0; i < p->plan->repeat; i++) {
        double begin = cpu_seconds();
        uint64_t begin_ns = sim_cost_of_thread();
        if (!play_once(p))
            return false;
        result->driver_last_ns = sim_cost_of_thread() - begin_ns;
        if (i == 0)
            result->driver_first_ns = result->driver_last_ns;
        result->seconds += cpu_seconds() - begin;
        if (!read_figures(p, &after))
            return false;
        result->calls_last = after.moved - before.moved;
        result->orders_last = after.orders - before.orders;
        if (i == 0) {
            result->calls_first = result->calls_last;
            result->orders_first = result->orders_last;
            result->first = after.split; /* the tallies and the pools began at 0 */
        }
        before = after;
    }
    result->calls_other = after.other;
    result->waits = after.waits;
    result->metadata = after.metadata;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------ beginning, end */

static bool begin(struct player *p)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = p->plan->capacity;
    shape.devices = (int)p->trace->devices;
    shape.manual_clock = true;
    shape.lag = replay_lag(p->plan, p->trace) * REPLAY_TICK_NS;
    snprintf(shape.prices, sizeof(shape.prices), "%s", p->plan->prices);
    sim_reset(&shape);

    p->blocks = calloc(p->trace->blocks + 1, sizeof(*p->blocks)); /* a step has block 0 */
    p->streams = calloc((size_t)p->trace->devices * p->trace->streams, sizeof(CUstream));
    if (!p->blocks || !p->streams)
        return fail(p, "replay", "no host memory");

    cenote_options options = p->plan->options;
    options.clock = pool_clock;
    options.clock_arg = p;
    for (uint32_t d = 0; d < p->trace->devices; d++)
        if (cenote_pool_create((int)d, &options, &p->pools[d]))
            return fail(p, "cenote_pool_create", cenote_message());
    driver_trace_clock(pool_clock, p);
    driver_tallies_reset();
    return true;
}

static bool end(struct player *p)
{
    struct sim_books books;
    sim_books(&books);
    p->result->reserved_peak = books.used_peak;
    p->result->driver_ns = books.cost_ns;
    for (uint32_t d = 0; d < p->trace->devices; d++)
        if (cenote_pool_check(p->pools[d]) || cenote_pool_destroy(p->pools[d]))
            return fail(p, "the pool at the end", cenote_message());
    sim_books(&books);
    if (books.violations)
        return fail(p, "the simulated GPU", sim_last_violation());
    return books.used == 0 || fail(p, "the simulated GPU", "memory is left over after the pools were destroyed");
}

static void replay(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    struct player p = {.trace = trace, .plan = plan, .result = result};
    if (begin(&p) && play_all(&p))
        end(&p);
    driver_trace_clock(NULL, NULL);
    free(p.blocks);
    free(p.streams);
}

uint64_t replay_lag(const struct replay_plan *plan, const struct trace *trace)
{
    return plan->step ? trace_step_records(trace) : (uint64_t)(plan->lag * (double)trace->in_file);
}

bool replay_set_prices(struct replay_plan *plan, const char *program, const char *value)
{
    char why[256] = "the path is too long";
    plan->prices = value;
    if (strlen(value) < sizeof(((struct sim_shape *)0)->prices) && sim_prices_are_fine(value, why, sizeof(why)))
        return true;
    fprintf(stderr, "%s: --prices %s: %s\n", program, value, why);
    return false;
}

static void run_apart(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    int ends[2], status = 0;
    memset(result, 0, sizeof(*result));
    fflush(NULL);
    pid_t child = pipe(ends) ? -1 : fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the parent dies, this replay ends, too */
        replay(trace, plan, result);
        _exit(write(ends[1], result, sizeof(*result)) == sizeof(*result) ? 0 : 1);
    }
    ssize_t got = 0;
    if (child > 0) {
        close(ends[1]);
        got = read(ends[0], result, sizeof(*result)); /* the result fits into the pipe, so that it comes in one piece */
        close(ends[0]);
        waitpid(child, &status, 0);
    }
    if (got != sizeof(*result)) {
        result->failed = 1;
        snprintf(result->message, sizeof(result->message), "the replay ended early, with status %#x", (unsigned)status);
    }
}

uint64_t replay_context_bytes(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    return shape.context_bytes;
}

void replay_run(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    struct replay_plan own = *plan;
    own.capacity -= own.capacity < replay_context_bytes() ? own.capacity : replay_context_bytes();
    if (plan->play)
        plan->play(trace, &own, result);
    else
        run_apart(trace, plan, result);
}
