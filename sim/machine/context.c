/*
 * context.c: contexts as everything else sees them: which one is current, which may be used, what they say of themselves; and the stack of
 * each thread. How they begin and end, with all that belongs to them, is in entries/contexts.c.
 *
 * A green context is a part of a primary one: only streams are its own.
 *
 * A context that is lost (an illegal address, sim_lose_context) answers every call with that error until it is destroyed. The handle of
 * a primary context stays the same for ever; while no caller holds it, using it is an error.
 */
#include "sim/machine/model.h"

void contexts_reset(void)
{
    if (model.contexts.items)
        slots_clear(&model.contexts);
    else
        slots_open(&model.contexts, sizeof(struct context), CONTEXTS_MAX, SLOTS_OLDEST_FIRST);
    for (int i = 0; i < model.shape.devices; i++) {
        model.devices[i].primary = slots_take(&model.contexts);
        *context_at(model.devices[i].primary) = (struct context){.device = i, .primary = true};
    }
}

uint32_t context_top(void)
{
    const struct thread *t = model_thread();
    return t->depth ? t->stack[t->depth - 1] : 0;
}

uint32_t context_current(void)
{
    uint32_t top = context_top();
    return top ? context_whole(top) : 0;
}

CUresult context_usable(uint32_t context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!slots_is_live(&model.contexts, context) || !context_is_alive(context_at(context)))
        return model_refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "a context is used that no caller holds any more, or that was reset");
    return context_at(context_whole(context))->lost;
}

void context_lose(uint32_t context, CUresult error)
{
    if (!context_at(context)->lost)
        context_at(context)->lost = error;
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

CUresult context_enter(uint32_t number)
{
    struct thread *t = model_thread();
    if (t->depth == CONTEXT_STACK_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->stack[t->depth++] = number;
    return CUDA_SUCCESS;
}

uint32_t context_find(CUcontext handle, const char *call)
{
    uint32_t number = slots_number(&model.contexts, handle);
    if (!number)
        model_violation("%s: %p is no context", call, (void *)handle);
    return number;
}

CUresult context_push(CUcontext context)
{
    uint32_t number = context_find(context, "cuCtxPushCurrent");
    return number ? context_enter(number) : CUDA_ERROR_INVALID_CONTEXT;
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
    uint32_t number = context_find(context, "cuCtxSetCurrent");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    t->depth -= t->depth > 0;
    return context_enter(number);
}

CUresult context_get(CUcontext *context)
{
    const struct thread *t = model_thread();
    if (t->in_host_function)
        return model_refuse_call("cuCtxGetCurrent");
    if (!atomic_load_explicit(&model.initialised, memory_order_relaxed))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = t->depth ? slots_handle(&model.contexts, t->stack[t->depth - 1]) : NULL;
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

CUresult context_set_flags(unsigned flags)
{
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    context_at(context_current())->flags = flags;
    return CUDA_SUCCESS;
}

CUresult context_id(CUcontext context, unsigned long long *id)
{
    uint32_t number = context ? context_find(context, "cuCtxGetId") : context_top();
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
    if (context && !context_find(context, "cuCtxGetApiVersion"))
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
    uint32_t number = context_find(peer, "cuCtxEnablePeerAccess");
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
    uint32_t number = context_find(peer, "cuCtxDisablePeerAccess");
    if (!number)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *c = context_at(context_current());
    uint64_t bit = 1ull << context_at(number)->device;
    if (!(c->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    c->peers &= ~bit;
    return CUDA_SUCCESS;
}
