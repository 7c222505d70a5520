/*
 * courier.c: carries bytes between the device and host memory, by pinned stages, each as large as a page and with a
 * stream of its own: the device copies one page while the thread is busy with another.
 *
 *     closed ---> open ---> out ---> open ---> ... ---> closed
 *              first      begun   waited              the pool ends
 *              copy          (of each stage)
 *
 * If the driver refuses a wait, the copies may still be under way. Then the stage stays out: the stages are not
 * given back, no copy by it begins, and no page of the pool is unmapped, before a wait has succeeded.
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
    for (uint32_t i = 0; i < STAGES; i++)
        if (c->streams[i] && !is_over && t->cuStreamDestroy(c->streams[i]))
            t->cuStreamDestroy(c->streams[i]); /* it would be lost: a refusal is asked for once more */
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

/* Is there a courier, and is that stage back? LOCKING: the turn, let go of if it is out. */
int courier_open(cenote_pool *pool, uint32_t stage)
{
    struct courier *c = &pool->courier;
    const struct driver *t = pool->config.device->driver;
    if (!t->cuMemHostRegister || !t->cuMemHostUnregister)
        return error_set(CENOTE_NOT_SUPPORTED, 0, "the driver cannot pin host memory, so that contents cannot be kept");
    CUresult result = courier_wait(pool, stage);
    for (uint32_t i = 0; i < STAGES && !result; i++)
        if (!c->streams[i])
            result = t->cuStreamCreate(&c->streams[i], CU_STREAM_NON_BLOCKING);
    if (result)
        return pool_driver_error(pool, result, "beginning to copy memory that sleeps");
    return c->staging ? CENOTE_OK : make_staging(pool);
}

char *courier_stage(cenote_pool *pool, uint32_t stage)
{
    return pool->courier.staging + stage * pool->courier.stage_bytes;
}

/* The device begins to write to the host. */
CUresult courier_fetch(cenote_pool *pool, uint32_t stage, char *to, uint64_t from, uint64_t bytes)
{
    pool->courier.is_out[stage] = true;
    return pool->config.device->driver->cuMemcpyDtoHAsync(to, from, bytes, pool->courier.streams[stage]);
}

/* The device begins to read from the host. */
CUresult courier_bring(cenote_pool *pool, uint32_t stage, uint64_t to, const char *from, uint64_t bytes)
{
    pool->courier.is_out[stage] = true;
    return pool->config.device->driver->cuMemcpyHtoDAsync(to, from, bytes, pool->courier.streams[stage]);
}

/* Before pages go: the device may still copy to or from them, if a wait was refused. LOCKING: as courier_wait. */
int courier_come_back(cenote_pool *pool)
{
    CUresult result = pool_is_over(pool) ? CUDA_SUCCESS : courier_wait_for_all(pool);
    return result ? pool_driver_error(pool, result, "waiting for copies of memory that sleeps") : CENOTE_OK;
}

/* Does the device have a stage? */
bool courier_is_out(const cenote_pool *pool)
{
    bool is_out = false;
    for (uint32_t i = 0; i < STAGES; i++)
        is_out = is_out || pool->courier.is_out[i];
    return is_out;
}

/* All that was begun by the stage is done. LOCKING: the turn, let go of meanwhile. */
CUresult courier_wait(cenote_pool *pool, uint32_t stage)
{
    CUstream stream = pool->courier.streams[stage];
    if (!pool->courier.is_out[stage])
        return CUDA_SUCCESS;
    turn_pause(pool);
    CUresult result = pool->config.device->driver->cuStreamSynchronize(stream);
    turn_go_on(pool);
    pool->courier.is_out[stage] = pool->courier.is_stuck[stage] = result != CUDA_SUCCESS;
    return result;
}

/* The same, by every stage, also after a refusal. */
CUresult courier_wait_for_all(cenote_pool *pool)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < STAGES; i++) {
        CUresult waited = courier_wait(pool, i);
        result = result ? result : waited;
    }
    return result;
}
