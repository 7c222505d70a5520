/*
 * peer_fences.c: a page that kernels of other devices may touch (cenote_pool_grant)
 * leaves its place when those devices are done, too.
 *
 * A fence covers the pool's own device, all of it, because a program may have ordered other streams behind the arena's
 * without telling cenote (rule 1). The same holds for streams of a granted device. So a fence that is done counts once
 * each granted device is done with all that its context was given up to a moment after the last free that the fence
 * covers. There is one event for each granted device: it is recorded when a fence wants it, and not again before a
 * fence wants more than it covers.
 *
 * Not uses that the program has told (cenote_use_on_device): those are in peer_uses.c. With announced:0 no call over a
 * context is made, and granted devices are not asked. A program that has waited for a granted device, and says so
 * (synced.c), is believed.
 *
 * LOCKING: the turn. Other devices are visited, never entered, by a thread that is inside its own (docs/locks.md).
 */
#include "base/check.h"
#include "pool/clock/room.h"

/* The granted devices to ask. */
static uint64_t asked_devices(const struct clock *c)
{
    return touch_captures_are_announced() ? c->grants.devices : 0;
}

/* A device on which the program has no context has nothing to do for it; asking that device would make one. */
bool peer_fences_have_context(const struct device *other)
{
    unsigned flags;
    int active = 0;
    return device_context(other) || other->driver->cuDevicePrimaryCtxGetState(other->handle, &flags, &active) || active;
}

/* The granted device, and of which generation it was. */
static struct device *granted(const struct clock *c, int ordinal, uint64_t *generation)
{
    *generation = atomic_load(&c->grants.fence[ordinal].generation);
    return atomic_load(&c->others[ordinal]);
}

/* Is a capture open on a granted device? Nothing can be recorded there then, nor waited for. */
bool peer_fences_are_barred(const struct clock *c)
{
    bool barred = false;
    for (uint64_t devices = asked_devices(c); devices && !barred; devices &= devices - 1) {
        uint64_t generation;
        const struct device *other = granted(c, __builtin_ctzll(devices), &generation);
        barred = device_is_captured(other) && device_is(other, generation); /* captures end with their context */
    }
    return barred;
}

/*
 * Visiting. Drivers before CUDA 12.5 have no such event. There only a fence asks that was recorded on streams, while
 * captures were not announced: it is due until the devices are waited for.
 */
static CUresult record(struct clock *c, struct device *other, struct peer_fence *f)
{
    lock_take(c->lock);
    tick now = c->fences.now; /* what is freed from here on is not covered */
    lock_give(c->lock);
    CUresult result = other->driver->cuCtxRecordEvent ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    if (!result && !f->event)
        result = other->driver->cuEventCreate(&f->event, CU_EVENT_DISABLE_TIMING);
    if (!result)
        result = other->driver->cuCtxRecordEvent(device_context(other), f->event);
    f->covers = result ? f->done : now;
    return result;
}

/* A context that is lost does no work any more. */
static CUresult ask(struct clock *c, struct device *other, struct peer_fence *f, tick covers)
{
    uint64_t generation = f->generation;
    CUresult result = device_visit(other, generation);
    if (result)
        return device_is_lost(other, generation, result) ? CUDA_SUCCESS : result;
    if (device_is_captured(other))
        result = CUDA_ERROR_NOT_READY;
    else if (f->covers < covers)
        result = record(c, other, f);
    if (!result)
        result = other->driver->cuEventQuery(f->event);
    if (!result)
        f->done = f->covers;
    device_visit_end(other);
    CHECK(result || f->done >= covers);
    return device_is_lost(other, generation, result) ? CUDA_SUCCESS : result;
}

/*
 * Is each granted device done with what was freed up to `covers`? CUDA_SUCCESS,
 * CUDA_ERROR_NOT_READY, or a driver will not say. LOCKING: inside.
 */
CUresult peer_fences_ask(struct clock *c, tick covers)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t devices = asked_devices(c); devices && !result; devices &= devices - 1) {
        struct peer_fence *f = &c->grants.fence[__builtin_ctzll(devices)];
        struct device *other = atomic_load(&c->others[__builtin_ctzll(devices)]);
        if (f->done < covers && peer_fences_have_context(other))
            result = ask(c, other, f, covers);
    }
    return result;
}

/* The program has waited there for what was freed up to `covers`. LOCKING: the turn. */
void peer_fences_all_done(struct clock *c, int ordinal, tick covers)
{
    struct peer_fence *f = &c->grants.fence[ordinal];
    f->done = f->done < covers ? covers : f->done;
    f->covers = f->covers < covers ? covers : f->covers;
}

/* Is the granted device known to be done with all that was freed so far? LOCKING: none held. */
static bool is_done(struct clock *c, int ordinal)
{
    lock_take(c->lock);
    tick freed = c->fences.freed;
    lock_give(c->lock);
    return c->grants.fence[ordinal].done >= freed;
}

/*
 * Waits for each granted device as a whole, with what it was given for `live` blocks, or if something was freed. False:
 * one cannot be waited for now. LOCKING: none held, not inside.
 */
bool peer_fences_wait(struct clock *c, bool live)
{
    bool waited = true;
    for (uint64_t devices = asked_devices(c); devices && waited; devices &= devices - 1) {
        int ordinal = __builtin_ctzll(devices);
        uint64_t generation;
        struct device *other = granted(c, ordinal, &generation);
        waited = (!live && is_done(c, ordinal)) || !peer_fences_have_context(other) ||
                 peer_uses_wait_for(other, generation) || !device_is(other, generation);
    }
    return waited;
}

/* Has the device been granted in the context that it has now? LOCKING: the turn. */
bool peer_fences_know(const struct clock *c, const struct device *other)
{
    return device_is(other, c->grants.fence[other->ordinal].generation);
}

/*
 * Kernels of this context may use the pool from now on; those of one that
 * has ended do not any more, and its event is gone. LOCKING: the turn.
 */
void peer_fences_begin(struct clock *c, struct device *other)
{
    struct peer_fence *f = &c->grants.fence[other->ordinal];
    f->event = NULL;
    f->covers = f->done;
    atomic_store(&f->generation, atomic_load(&other->generation));
    c->grants.devices |= 1ull << other->ordinal;
}

/* The pool is closed for calls. */
void peer_fences_close(struct clock *c)
{
    for (int ordinal = 0; ordinal < DEVICES_MAX; ordinal++) {
        struct peer_fence *f = &c->grants.fence[ordinal];
        const struct device *other = f->event ? atomic_load(&c->others[ordinal]) : NULL;
        if (other && device_is(other, f->generation) && other->driver->cuEventDestroy(f->event))
            other->driver->cuEventDestroy(f->event); /* it would be lost: a refusal is asked for once more */
        f->event = NULL;
    }
}
