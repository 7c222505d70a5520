/*
 * context.c: contexts: one primary for each device, shared and counted; others by cuCtxCreate; and the stack of each thread.
 *
 * A context that is lost (an illegal address, sim_lose_context) answers every call with that error until it is destroyed. The handle of
 * a primary context stays the same for ever; while nobody holds it, using it is an error.
 */
#include "sim/graph/graph.h"
#include "sim/code/kernel.h"
#include "sim/machine/machine.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

static uint64_t context_ids;

void contexts_reset(void)
{
    if (model.contexts.items)
        slots_clear(&model.contexts);
    else
        slots_open(&model.contexts, sizeof(struct context), CONTEXTS_MOST, SLOTS_OLDEST_FIRST);
    for (int i = 0; i < model.shape.devices; i++) {
        model.devices[i].primary = slots_take(&model.contexts);
        *context_at(model.devices[i].primary) = (struct context){.device = i, .primary = true};
    }
}

uint32_t context_current(void)
{
    const struct thread *t = model_thread();
    return t->depth ? t->stack[t->depth - 1] : 0;
}

CUresult context_usable(uint32_t context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!slots_is_live(&model.contexts, context) || !context_is_alive(context_at(context)))
        return model_refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "a context is used that nobody holds any more, or that was reset");
    return context_at(context)->lost;
}

void context_lose(uint32_t context, CUresult error)
{
    if (!context_at(context)->lost)
        context_at(context)->lost = error;
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
    c->id = ++context_ids;
    c->all_done = c->blocking_done = 0;
    c->peers = 0;
    return CUDA_SUCCESS;
}

/* Waits for the work, then takes everything that belongs to the context. What cuMemCreate gave belongs to none and stays. */
static CUresult stop(uint32_t number)
{
    struct context *c = context_at(number);
    if (!clock_finish(c->all_done))
        return MODEL_AGAIN;
    events_close_all(number);
    streams_close_all(number);
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

CUresult context_release_primary(CUdevice device)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = model.devices[device].primary;
    struct context *c = context_at(number);
    if (!c->held)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease: released more often than retained");
    CUresult result = c->held == 1 && context_is_alive(c) ? stop(number) : CUDA_SUCCESS;
    if (result)
        return result;
    c->held--;
    model.books.contexts--;
    return CUDA_SUCCESS;
}

/* It ends the context and releases it for nobody: whoever has retained it has to release it still. The next to retain it finds a new one. */
CUresult context_reset_primary(CUdevice device)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t number = model.devices[device].primary;
    return context_is_alive(context_at(number)) ? stop(number) : CUDA_SUCCESS;
}

CUresult context_primary_state(CUdevice device, unsigned *flags, int *active)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    const struct context *c = context_at(model.devices[device].primary);
    if (flags)
        *flags = c->flags;
    if (active)
        *active = context_is_alive(c);
    return CUDA_SUCCESS;
}

CUresult context_set_primary_flags(CUdevice device, unsigned flags)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    context_at(model.devices[device].primary)->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult push(uint32_t number)
{
    struct thread *t = model_thread();
    if (t->depth == CONTEXT_STACK_MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->stack[t->depth++] = number;
    return CUDA_SUCCESS;
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
        result = push(number);
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

/* The context a handle names, alive or a primary one that nobody holds. 0, and a violation: none. */
static uint32_t find(CUcontext handle, const char *call)
{
    uint32_t number = slots_number(&model.contexts, handle);
    if (!number)
        model_violation("%s: %p is no context", call, (void *)handle);
    return number;
}

CUresult context_destroy(CUcontext context)
{
    uint32_t number = find(context, "cuCtxDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context_at(number)->primary)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxDestroy: of a primary context");
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

CUresult context_push(CUcontext context)
{
    uint32_t number = find(context, "cuCtxPushCurrent");
    return number ? push(number) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_pop(CUcontext *context)
{
    struct thread *t = model_thread();
    if (!t->depth)
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent: this thread's stack is empty");
    t->depth--;
    if (context)
        *context = t->stack[t->depth] ? slots_handle(&model.contexts, t->stack[t->depth]) : NULL;
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL takes it away. */
CUresult context_set(CUcontext context)
{
    struct thread *t = model_thread();
    if (!context) {
        t->depth -= t->depth > 0;
        return CUDA_SUCCESS;
    }
    uint32_t number = find(context, "cuCtxSetCurrent");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    t->depth -= t->depth > 0;
    return push(number);
}

CUresult context_get(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = context_current();
    *context = number ? slots_handle(&model.contexts, number) : NULL;
    return CUDA_SUCCESS;
}

CUresult context_device(CUdevice *device)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = context_current();
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context_at(number)->device;
    return CUDA_SUCCESS;
}

CUresult context_flags(unsigned *flags)
{
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context_at(context_current())->flags;
    return CUDA_SUCCESS;
}

CUresult context_id(CUcontext context, unsigned long long *id)
{
    uint32_t number = context ? find(context, "cuCtxGetId") : context_current();
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_is_alive(context_at(number)))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context_at(number)->id;
    return CUDA_SUCCESS;
}

CUresult context_api_version(CUcontext context, unsigned *version)
{
    if (context && !find(context, "cuCtxGetApiVersion"))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult context_priorities(int *least, int *greatest)
{
    if (least)
        *least = STREAM_PRIORITY_LEAST;
    if (greatest)
        *greatest = STREAM_PRIORITY_GREATEST;
    return CUDA_SUCCESS;
}

CUresult context_synchronize(void)
{
    uint32_t number = context_current();
    CUresult result = capture_conflict(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize");
    if (result)
        return result;
    if (!clock_go_to(context_at(number)->all_done))
        return MODEL_AGAIN;
    pool_synchronized();
    return context_at(number)->lost;
}

CUresult context_can_access_peer(int *can, CUdevice device, CUdevice peer)
{
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device) || !device_exists(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && model.shape.peers;
    return CUDA_SUCCESS;
}

CUresult context_enable_peer(CUcontext peer, unsigned flags)
{
    uint32_t number = find(peer, "cuCtxEnablePeerAccess");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *c = context_at(context_current());
    const struct context *other = context_at(number);
    if (c->device == other->device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!model.shape.peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (c->peers >> other->device & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    c->peers |= 1ull << other->device;
    return CUDA_SUCCESS;
}

CUresult context_disable_peer(CUcontext peer)
{
    uint32_t number = find(peer, "cuCtxDisablePeerAccess");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *c = context_at(context_current());
    uint64_t bit = 1ull << context_at(number)->device;
    if (!(c->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    c->peers &= ~bit;
    return CUDA_SUCCESS;
}
