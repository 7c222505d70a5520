/*
 * async.c: plays a trace through the driver's own pool, cuMemAllocAsync, as PyTorch's cudaMallocAsync backend does: the pool keeps all that it
 * has, and a block that other streams used is freed on a stream that waits for all of them.
 *
 * The pool behind it is the simulated driver's (sim/memory/pools.c), a model of NVIDIA's. One device. LOCKING: none; one thread.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "tools/waste/models.h"


struct player {
    CUstream            *streams;   /* by the trace's numbers; 0 is the legacy default stream */
    CUstream             joining;   /* waits for others before it frees */
    CUdeviceptr         *blocks;
    CUstream            *homes;     /* where each block was allocated */
    uint64_t            *users;     /* bits of the streams, by block; more streams than 64 share them */
    uint64_t             live, peak;
    struct replay_result *result;
};

static void begin(struct player *p, const struct trace *trace, const struct replay_plan *plan)
{
    struct sim_shape shape;
    CUcontext context;
    CUmemoryPool pool;
    cuuint64_t all = UINT64_MAX;
    sim_shape_default(&shape);
    shape.capacity = plan->capacity;
    snprintf(shape.prices, sizeof(shape.prices), "%s", plan->prices);
    shape.manual_clock = true;
    shape.lag = replay_lag(plan, trace) * REPLAY_TICK_NS;
    sim_reset(&shape);
    p->blocks = calloc(trace->blocks + 1, sizeof(*p->blocks));
    p->homes = calloc(trace->blocks + 1, sizeof(*p->homes));
    p->users = calloc(trace->blocks + 1, sizeof(*p->users));
    p->streams = calloc(trace->streams, sizeof(*p->streams));
    p->result->failed = !p->blocks || !p->homes || !p->users || !p->streams || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
                        cuCtxPushCurrent(context) || cuDeviceGetDefaultMemPool(&pool, 0) ||
                        cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) ||
                        cuStreamCreate(&p->joining, CU_STREAM_NON_BLOCKING);
    for (uint32_t i = 1; i < trace->streams && !p->result->failed; i++)
        p->result->failed = cuStreamCreate(&p->streams[i], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
}

static bool play_alloc(struct player *p, const struct record *r)
{
    struct sim_books books;
    CUresult error = cuMemAllocAsync(&p->blocks[r->block], r->bytes, p->streams[r->stream]);
    p->users[r->block] = 0;
    p->homes[r->block] = p->streams[r->stream];
    if (error) {
        p->blocks[r->block] = 0;
        p->result->ooms++;
        return error == CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_books(&books);
    p->live += r->bytes;
    if (p->peak < books.used_peak) {
        p->peak = books.used_peak;
        p->result->live_at_peak = p->live;
    }
    return true;
}

/* Makes `waiting` wait for the work that is on `first` now. */
static bool order_after(CUstream waiting, CUstream first)
{
    CUevent event;
    return !cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) && !cuEventRecord(event, first) && !cuStreamWaitEvent(waiting, event, 0) &&
           !cuEventDestroy(event);
}

static bool play_free(struct player *p, const struct record *r, uint32_t streams)
{
    CUdeviceptr at = p->blocks[r->block];
    if (!at)
        return true;
    p->blocks[r->block] = 0;
    p->live -= r->bytes;
    if (!p->users[r->block])
        return !cuMemFreeAsync(at, p->homes[r->block]);
    bool ordered = order_after(p->joining, p->homes[r->block]);
    for (uint32_t i = 0; i < streams && ordered; i++)
        if (p->users[r->block] >> i % 64 & 1)
            ordered = order_after(p->joining, p->streams[i]);
    return ordered && !cuMemFreeAsync(at, p->joining);
}

static bool play_record(struct player *p, const struct record *r, uint32_t streams)
{
    if (r->op == RECORD_ALLOC)
        return play_alloc(p, r);
    if (r->op == RECORD_FREE)
        return play_free(p, r, streams);
    if (r->op == RECORD_USE)
        p->users[r->block] |= 1ull << r->stream % 64;
    return true;
}

void play_async(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    struct player p = {.result = result};
    struct sim_books books;
    memset(result, 0, sizeof(*result));
    begin(&p, trace, plan);
    for (size_t i = 0; i < trace->count && !result->failed; i++) {
        sim_advance(REPLAY_TICK_NS);
        result->failed = !play_record(&p, &trace->records[i], trace->streams);
    }
    sim_books(&books);
    result->reserved_peak = books.used_peak;
    result->driver_ns = books.cost_ns;
    result->failed |= books.violations != 0;
    if (result->failed)
        strcpy(result->message, "the simulated driver refused a call");
    free(p.blocks);
    free(p.homes);
    free(p.users);
    free(p.streams);
}
