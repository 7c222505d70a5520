/*
 * pending.c: freed blocks that a device may still be using. They wait in a list, until all of their uses are over (uses.c), and go back to a thread.
 *
 *          uses_add                        walk: all uses are over
 *     ---------------> pending, in the list ----------------------> free for the next
 *
 * A use without an event waits for the whole device: for a trim that does, or for an allocation that would fail. That must not be while a graph is
 * captured, for it would end the capture. A program that has a graph keeps its blocks, so while a block that a captured stream uses is live, an
 * allocation does not wait for the device. With the option announced:0 no device is waited for as a whole, but for a sweep (sweeps.c).
 *
 * LOCKING: the list belongs to `lock`. One thread at a time walks it (`walking`) and calls the driver meanwhile, in the device; the uses of a pending
 * block are for the thread that walks.
 */
#include "base/check.h"
#include "base/error.h"
#include "host/host.h"

#define NOT_READY_MAX 4        /* blocks a walk finds still in use before it gives up */

/* The block was freed. Its record says that it is not live, and which its uses are. */
void uses_add(struct host *h, uint64_t at, uint64_t word)
{
    uint32_t first = RECORD_USES(word);
    lock_take(&h->lock);
    h->freed++;
    for (uint32_t use = first; use; use = use_at(h, use)->next) {
        use_set_captured(h, use_at(h, use), false);
        use_at(h, use)->freed = h->freed;
    }
    use_at(h, first)->next_pending = 0;
    if (h->pending_last)
        use_at(h, h->pending_last)->next_pending = first;
    else
        h->pending_first = first;
    h->pending_last = first;
    h->node[chunk_under(h, at)->node].pending++;
    atomic_fetch_add(&h->pending, 1);
    lock_give(&h->lock);
}

/* ----------------------------------------------------------------------------------------------------------------------- walks */

static bool use_is_done(struct host *h, const struct use *u)
{
    if (!u->event && !u->is_swept)
        return false;
    struct device *d = u->device;
    bool inside = device_enter(d, u->generation) == CUDA_SUCCESS;
    bool done = inside ? u->event ? d->driver->cuEventQuery(u->event) == CUDA_SUCCESS : sweep_is_done(h, u) : host_was_reset(h, d, u->generation);
    device_leave(d);
    return done;
}

static bool all_done(struct host *h, uint32_t use)
{
    for (; use; use = use_at(h, use)->next)
        if (!use_is_done(h, use_at(h, use)))
            return false;
    return true;
}

/*
 * The entry after `before` (0: the first) leaves the list, and its uses are gone, but those whose events are not kept: they are chained to *spent.
 * Returns its block. LOCKING: `lock`, `walking`.
 */
static uint64_t unlink_entry(struct host *h, uint32_t before, uint32_t *spent)
{
    uint32_t use = before ? use_at(h, before)->next_pending : h->pending_first;
    uint64_t at = use_at(h, use)->at;
    uint32_t after = use_at(h, use)->next_pending;
    *(before ? &use_at(h, before)->next_pending : &h->pending_first) = after;
    if (!after)
        h->pending_last = before;
    h->node[chunk_under(h, at)->node].pending--;
    atomic_fetch_sub(&h->pending, 1);
    while (use) {
        struct use u = *use_at(h, use);
        if (!u.event || use_event_keep(h, u.device, u.generation, u.event)) {
            use_give(h, use);
        } else {
            use_at(h, use)->next = *spent;
            *spent = use;
        }
        use = u.next;
    }
    return at;
}

/* Events that are not kept go back to the driver, and their uses are gone. LOCKING: `walking`. */
static void drop_spent(struct host *h, uint32_t use)
{
    while (use) {
        const struct use u = *use_at(h, use);
        struct device *d = u.device;
        if (!device_enter(d, u.generation))
            use_event_drop(d, u.event);
        device_leave(d);
        lock_take(&h->lock);
        use_give(h, use);
        lock_give(&h->lock);
        use = u.next;
    }
}

static uint32_t entry_after(struct host *h, uint32_t before)
{
    lock_take(&h->lock);
    uint32_t use = before ? use_at(h, before)->next_pending : h->pending_first;
    lock_give(&h->lock);
    return use;
}

/*
 * Hands back blocks that no device uses any more: those at the head of the list, or all; those up to `known` (0: none) without asking. True: there
 * were some. LOCKING: `walking`.
 */
static bool walk(struct host *h, struct thread *t, bool everything, uint32_t known)
{
    bool any = false;
    uint32_t before = 0, not_ready = 0, use;
    while ((use = entry_after(h, before)) && (everything || not_ready < NOT_READY_MAX)) {
        if (!known && !all_done(h, use)) {
            before = use;
            not_ready++;
            continue;
        }
        known = use == known ? 0 : known;
        uint32_t spent = 0;
        lock_take(&h->lock);
        uint64_t at = unlink_entry(h, before, &spent);
        lock_give(&h->lock);
        drop_spent(h, spent);
        thread_free(h, t, at, atomic_load(record_of(h, at)) & RECORD_REQUESTED);
        any = true;
    }
    return any;
}

bool uses_poll(struct host *h, struct thread *t, bool everything)
{
    if (driver_is_exiting() || pthread_mutex_trylock(&h->walking))
        return false;
    bool any = walk(h, t, everything, 0);
    pthread_mutex_unlock(&h->walking);
    return any;
}

/* Waits on the host, with the gate open, for the event; without one for the whole context, if captures are announced. LOCKING: inside. */
static CUresult wait_outside(struct device *d, CUevent event)
{
    device_wait_begin(d);
    CUresult result = event ? d->driver->cuEventSynchronize(event) : device_wait_for_context(d);
    device_wait_end(d);
    return result;
}

/* Waits on the host for all that was put on every open device. The first error; a device that is lost does nothing any more. */
static CUresult wait_for_devices(struct host *h)
{
    CUresult first = CUDA_SUCCESS;
    for (int i = 0; i < DEVICES_MAX; i++) {
        struct device *d = atomic_load(&h->devices[i]);
        if (!d)
            continue;
        uint64_t generation = host_generation(h, d);
        CUresult result = device_enter(d, generation);
        if (!result)
            result = wait_outside(d, NULL);
        else if (host_was_reset(h, d, generation))
            result = CUDA_SUCCESS; /* nothing runs there any more */
        device_leave(d);
        if (result && (!first || !driver_result_is_sticky(result)))
            first = result;
    }
    return first;
}

/* LOCKING: `walking`. */
static CUresult wait_for_use(struct host *h, const struct use *u)
{
    struct device *d = u->device;
    CUevent event;
    CUresult result = device_enter(d, u->generation);
    if (!result && u->event)
        result = wait_outside(d, u->event);
    while (!result && !u->event && u->is_swept && (event = sweep_awaits(h, u)))
        result = wait_outside(d, event);
    bool was_reset = host_was_reset(h, d, u->generation);
    device_leave(d);
    return was_reset ? CUDA_SUCCESS : result;
}

/* For the events of all that is pending. LOCKING: `walking`. */
static CUresult wait_for_events(struct host *h)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t entry = entry_after(h, 0); entry && !result; entry = entry_after(h, entry))
        for (uint32_t use = entry; use && !result; use = use_at(h, use)->next)
            result = wait_for_use(h, use_at(h, use));
    return result;
}

/* What is freed during the wait is not covered by it. LOCKING: `walking`. */
static CUresult wait_for_all(struct host *h, struct thread *t)
{
    lock_take(&h->lock);
    uint32_t last = h->pending_last;
    lock_give(&h->lock);
    CUresult result = wait_for_devices(h);
    walk(h, t, true, !result || driver_result_is_sticky(result) ? last : 0);
    return result;
}

/* Afterwards only those are pending that have no event, and what came since. LOCKING: `walking`. */
static CUresult wait_for_some(struct host *h, struct thread *t)
{
    CUresult result = wait_for_events(h);
    walk(h, t, true, 0);
    return result;
}

/* Devices are waited for as a whole only if captures are announced (device_wait_for_context). */
int uses_wait(struct host *h, bool devices)
{
    struct thread *t = thread_mine(h);
    if (!atomic_load(&h->pending) || driver_is_exiting() || !t)
        return CENOTE_OK;
    pthread_mutex_lock(&h->walking);
    CUresult result = devices ? wait_for_all(h, t) : wait_for_some(h, t);
    if (!devices && !result && atomic_load(&h->pending) && !atomic_load(&h->captured))
        result = wait_for_all(h, t);
    if (result == CUDA_ERROR_NOT_READY)
        result = wait_for_some(h, t);
    pthread_mutex_unlock(&h->walking);
    lock_take(&h->lock);
    h->node[0].waits++;
    lock_give(&h->lock);
    return result ? error_set(driver_result_is_sticky(result) ? CENOTE_DEVICE_LOST : CENOTE_DRIVER, (int)result,
                              "waiting for blocks in use: %s", driver_result_name(result)) : CENOTE_OK;
}

/* Events of open devices. Nothing is pending. */
void uses_close(struct host *h)
{
    for (int i = 0; i < DEVICES_MAX; i++) {
        struct device *d = atomic_load(&h->devices[i]);
        uint64_t generation = d ? host_generation(h, d) : 0;
        bool inside = d && device_enter(d, generation) == CUDA_SUCCESS;
        while (inside && h->events[i]->generation == generation && h->events[i]->count)
            use_event_drop(d, h->events[i]->event[--h->events[i]->count]);
        if (inside)
            sweep_close(h, d);
        if (d)
            device_leave(d);
        memory_unmap(h->events[i], sizeof(*h->events[i])); /* they may be there without the device */
        memory_unmap(h->sweeps[i], sizeof(*h->sweeps[i]));
    }
}
