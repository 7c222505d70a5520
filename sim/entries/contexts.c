/*
 * contexts.c: how contexts begin and end: one primary for each device, shared and counted; others by cuCtxCreate. With a context ends all that
 * belongs to it, in every room; so this file is above them all. What a context is while it lives: machine/context.c.
 *
 *     not held ---first retain, or cuCtxCreate---> alive ---last release, reset, or cuCtxDestroy---> not held, or gone
 *
 * LOCKING: the model's lock.
 */
#include "sim/code/kernel.h"
#include "sim/entries/start.h"
#include "sim/graph/graph.h"
#include "sim/machine/machine.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

static uint64_t context_ids;

uint64_t context_next_id(void)
{
    return ++context_ids;
}

static CUresult start(uint32_t number)
{
    struct context *c = context_at(number);
    if (!machine_enter())
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (!device_take(c->device, model.shape.context_bytes, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t legacy = stream_open(number, STREAM_LEGACY, 0, 0);
    if (!legacy) {
        device_give(c->device, model.shape.context_bytes, true);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->legacy = legacy;
    c->lost = CUDA_SUCCESS;
    c->has_local_memory = false;
    c->id = context_next_id();
    c->all_done = c->blocking_done = c->not_before = 0;
    c->peers = 0;
    return CUDA_SUCCESS;
}

static void end_green(uint32_t whole)
{
    for (uint32_t i = 1; i < model.contexts.used; i++)
        if (slots_is_live(&model.contexts, i) && context_at(i)->whole == whole)
            context_at(i)->legacy = 0;
}

/* Waits for the work, then takes everything that belongs to the context. What cuMemCreate gave belongs to none and stays. */
static CUresult stop(uint32_t number)
{
    struct context *c = context_at(number);
    if (!clock_finish(c->all_done))
        return MODEL_AGAIN;
    events_close_all(number);
    streams_close_all(number);
    end_green(number);
    graph_memory_close_all(number);
    modules_close_all(number);
    allocations_close_all(number);
    device_give(c->device, model.shape.context_bytes, true);
    c->legacy = 0;
    c->lost = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult context_init(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!model.initialised)
        visible_renew();
    if (!visible_count())
        return CUDA_ERROR_NO_DEVICE;
    model.initialised = true;
    return model.shape.shuts_down && !model_watch_exit() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult context_retain_primary(CUcontext *context, CUdevice device)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = model.devices[device].primary;
    struct context *c = context_at(number);
    CUresult result = context_is_alive(c) ? CUDA_SUCCESS : start(number);
    if (result)
        return result;
    c->held++;
    model.books.contexts++;
    *context = slots_handle(&model.contexts, number);
    return CUDA_SUCCESS;
}

/* With it memory of the device's pools ends, which stay: that is assumed of those that the program has made. */
static CUresult stop_primary(CUdevice device)
{
    CUresult result = stop(model.devices[device].primary);
    if (!result)
        pools_empty(device);
    return result;
}

CUresult context_release_primary(CUdevice device)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = model.devices[device].primary;
    struct context *c = context_at(number);
    if (!c->held)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease: released more often than retained");
    CUresult result = c->held == 1 && context_is_alive(c) ? stop_primary(device) : CUDA_SUCCESS;
    if (result)
        return result;
    c->held--;
    model.books.contexts--;
    return CUDA_SUCCESS;
}

/*
 * It ends the context, and releases it for no caller: each that has retained it has to release it still. The next to retain it finds a new one.
 */
CUresult context_reset_primary(CUdevice device)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = model.devices[device].primary;
    return context_is_alive(context_at(number)) ? stop_primary(device) : CUDA_SUCCESS;
}

CUresult context_create(CUcontext *context, unsigned flags, CUdevice device)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = slots_take(&model.contexts);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *context_at(number) = (struct context){.device = device, .flags = flags};
    CUresult result = start(number);
    if (!result) {
        context_at(number)->held = 1;
        model.books.contexts++;
        result = context_enter(number);
    }
    if (result) {
        slots_give(&model.contexts, number);
        return result;
    }
    *context = slots_handle(&model.contexts, number);
    return CUDA_SUCCESS;
}

CUresult context_create_with(CUcontext *context, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    return params ? CUDA_ERROR_NOT_SUPPORTED : context_create(context, flags, device);
}

/* Of a context that the program made: each attach wants a detach, and the last one ends it. */
CUresult context_attach(CUcontext *context, unsigned flags)
{
    uint32_t number = context_current();
    struct context *c = context_at(number);
    if (!context || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (c->primary || c->whole)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxAttach: to a primary or a green context");
    c->held++;
    *context = slots_handle(&model.contexts, number);
    return CUDA_SUCCESS;
}

CUresult context_detach(CUcontext context)
{
    uint32_t number = context_find(context, "cuCtxDetach");
    if (!number || number != context_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *c = context_at(number);
    if (c->primary || c->whole || c->held == 1)
        return context_destroy(context);
    c->held--;
    return CUDA_SUCCESS;
}

CUresult context_destroy(CUcontext context)
{
    uint32_t number = context_find(context, "cuCtxDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context_at(number)->primary || context_at(number)->whole)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxDestroy: of a primary or a green context");
    CUresult result = stop(number);
    if (result)
        return result;
    model.books.contexts--;
    struct thread *t = model_thread();
    if (t->depth && t->stack[t->depth - 1] == number)
        t->depth--;
    slots_give(&model.contexts, number);
    return CUDA_SUCCESS;
}
