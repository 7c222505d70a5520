/*
 * courier.c: carries bytes between the device and host memory, by a stream of its own and pinned stages, each
 * as large as a page.
 *
 *     closed ---> open ---> out ---> open ---> ... ---> closed
 *              first      begun   waited              the pool ends
 *              copy
 *
 * If the driver refuses a wait, the copies may still be under way. Then the courier stays out: the stages are not
 * given back, and no copy begins, before a wait has succeeded.
 *
 * LOCKING: the turn, let go of in courier_wait. One thread at a time has the courier (sleepers_begin).
 */
#include "pool/sleep/courier.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"

/* The pool ends, and the courier is back. A context that has ended took its stream with it, and what it had pinned. */
void courier_close(cenote_pool *pool)
{
    struct courier *c = &pool->courier;
    const struct driver *t = pool->config.device->driver;
    uint64_t bytes = STAGES * c->stage_bytes;
    bool is_over = pool_is_over(pool);
    if (c->stream && !is_over && t->cuStreamDestroy(c->stream))
        t->cuStreamDestroy(c->stream); /* it would be lost: a refusal is asked for once more */
    if (c->staging && (is_over || !t->cuMemHostUnregister(c->staging) || !t->cuMemHostUnregister(c->staging)))
        memory_unmap(c->staging, bytes);
    *c = (struct courier){0};
}

static int make_staging(cenote_pool *pool)
{
    struct courier *c = &pool->courier;
    const struct driver *t = pool->config.device->driver;
    uint64_t stage_bytes = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    char *staging = memory_map(STAGES * stage_bytes);
    if (!staging)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for copies of memory that sleeps");
    CUresult result = t->cuMemHostRegister(staging, STAGES * stage_bytes, 0);
    if (result) {
        memory_unmap(staging, STAGES * stage_bytes);
        return pool_driver_error(pool, result, "pinning host memory for copies");
    }
    c->staging = staging;
    c->stage_bytes = stage_bytes;
    return CENOTE_OK;
}

/* Is there a courier, and is it back? LOCKING: the turn, let go of if it is out. */
int courier_open(cenote_pool *pool)
{
    struct courier *c = &pool->courier;
    const struct driver *t = pool->config.device->driver;
    if (!t->cuMemHostRegister || !t->cuMemHostUnregister)
        return error_set(CENOTE_NOT_SUPPORTED, 0, "the driver cannot pin host memory, so that contents cannot be kept");
    CUresult result = c->stream ? CUDA_SUCCESS : t->cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING);
    if (!result && c->is_out)
        result = courier_wait(pool);
    if (result)
        return pool_driver_error(pool, result, "beginning to copy memory that sleeps");
    return c->staging ? CENOTE_OK : make_staging(pool);
}

char *courier_stage(cenote_pool *pool, uint32_t stage)
{
    return pool->courier.staging + stage * pool->courier.stage_bytes;
}

/* The device begins to write to the host. */
CUresult courier_fetch(cenote_pool *pool, char *to, uint64_t from, uint64_t bytes)
{
    pool->courier.is_out = true;
    return pool->config.device->driver->cuMemcpyDtoHAsync(to, from, bytes, pool->courier.stream);
}

/* The device begins to read from the host. */
CUresult courier_bring(cenote_pool *pool, uint64_t to, const char *from, uint64_t bytes)
{
    pool->courier.is_out = true;
    return pool->config.device->driver->cuMemcpyHtoDAsync(to, from, bytes, pool->courier.stream);
}

/* Before the pool ends: pages that the device may copy to or from do not go before. LOCKING: as courier_wait. */
int courier_come_back(cenote_pool *pool)
{
    CUresult result = pool->courier.is_out && !pool_is_over(pool) ? courier_wait(pool) : CUDA_SUCCESS;
    return result ? pool_driver_error(pool, result, "waiting for copies of memory that sleeps") : CENOTE_OK;
}

/* All that was begun is done. LOCKING: the turn, let go of meanwhile. */
CUresult courier_wait(cenote_pool *pool)
{
    CUstream stream = pool->courier.stream;
    turn_pause(pool);
    CUresult result = pool->config.device->driver->cuStreamSynchronize(stream);
    turn_go_on(pool);
    pool->courier.is_out = result != CUDA_SUCCESS;
    return result;
}
