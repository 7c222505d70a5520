/*
 * green.c: green contexts: parts of a primary context, with streams of their own and some of the device's multiprocessors (partitions.c).
 *
 * Memory, events and modules are the primary context's. A green context has a default stream, whose order has nothing to do with the
 * primary's, and streams that do not wait for that one. What is asked of the whole context concerns them too: cuCtxRecordEvent, cuCtxSynchronize.
 *
 *     cuGreenCtxCreate --> alive, and holds the primary context --cuGreenCtxDestroy--> gone; streams that are left are orphans
 *                             +--the primary context is reset--> ended: only cuGreenCtxDestroy is left
 *
 * A green context has two handles: one of its own, and one as a context, which can be made current.
 *
 * LOCKING: the model's lock.
 */
#include "sim/entries/start.h"
#include "sim/order/stream.h"

static struct slots greens;     /* each the number of its context */

void green_reset(void)
{
    if (greens.items)
        slots_clear(&greens);
    else
        slots_open(&greens, sizeof(uint32_t), CONTEXTS_MAX, SLOTS_OLDEST_FIRST);
}

static uint32_t *green_at(uint32_t number)
{
    return slots_at(&greens, number);
}

/* The context behind the handle, 0: none. */
static uint32_t find(CUgreenCtx handle, const char *call)
{
    uint32_t number = slots_number(&greens, handle);
    if (!number)
        model_violation("%s: %p is no green context", call, (void *)handle);
    return number ? *green_at(number) : 0;
}

static CUresult open_in(uint32_t whole, unsigned processors, CUgreenCtx *green)
{
    uint32_t number = slots_take(&model.contexts);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct context *c = context_at(number);
    *c = (struct context){.device = context_at(whole)->device, .whole = whole, .processors = processors, .id = context_next_id()};
    uint32_t legacy = stream_open(number, STREAM_LEGACY, 0, 0), other = legacy ? slots_take(&greens) : 0; /* as many as contexts: there is one */
    if (!other) {
        slots_give(&model.contexts, number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *green_at(other) = number;
    *green = c->green = slots_handle(&greens, other);
    c->legacy = legacy;
    return CUDA_SUCCESS;
}

CUresult green_create(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned flags)
{
    unsigned processors;
    CUcontext whole;
    if (!green || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!partition_of(resources, device, &processors))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGreenCtxCreate: the descriptor is none of device %d", device);
    CUresult result = context_retain_primary(&whole, device);
    if (result)
        return result;
    result = open_in(model.devices[device].primary, processors, green);
    if (result)
        context_release_primary(device);
    return result;
}

/* Work in flight goes on. */
CUresult green_destroy(CUgreenCtx green)
{
    uint32_t number = find(green, "cuGreenCtxDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *c = context_at(number);
    CUresult result = context_release_primary(c->device);
    if (result)
        return result;
    streams_orphan_all(number);
    c->legacy = 0;
    slots_give(&greens, slots_number(&greens, green));
    slots_give(&model.contexts, number);
    return CUDA_SUCCESS;
}

CUresult green_context(CUcontext *context, CUgreenCtx green)
{
    uint32_t number = find(green, "cuCtxFromGreenCtx");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = slots_handle(&model.contexts, number);
    return CUDA_SUCCESS;
}

CUresult green_resource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)
{
    CUcontext context;
    CUresult result = green_context(&context, green);
    return result ? result : partition_of_context(context, resource, type);
}

CUresult green_stream(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    uint32_t number = find(green, "cuGreenCtxStreamCreate");
    CUresult result = number ? context_usable(number) : CUDA_ERROR_INVALID_CONTEXT;
    if (!result && !(flags & CU_STREAM_NON_BLOCKING))
        result = CUDA_ERROR_INVALID_VALUE;
    return result ? result : stream_create_in(stream, number, flags, priority);
}

CUresult green_record(CUgreenCtx green, CUevent event)
{
    uint32_t number = find(green, "cuGreenCtxRecordEvent");
    return number ? event_record_all(number, event, "cuGreenCtxRecordEvent") : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult green_wait(CUgreenCtx green, CUevent event)
{
    uint32_t number = find(green, "cuGreenCtxWaitEvent");
    return number ? event_await_all(number, event, "cuGreenCtxWaitEvent") : CUDA_ERROR_INVALID_CONTEXT;
}
