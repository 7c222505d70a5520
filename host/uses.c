/*
 * uses.c: which devices may still be using a block, and freed blocks that wait for them.
 *
 * cenote_host_use records an event on the stream, then and there: the stream exists, and what comes later on it has nothing to do with
 * the block, so that a block is free as soon as its last copy is done. (cenote_use of device memory records at the free: kernels go on
 * using a block without a call that says so.) One event for each stream of a block: later uses move it.
 *
 *        use: event recorded         free               all events done
 *     live -----------------> live ---------> pending -------------------> free for the next
 *
 * Where no event can be had (the driver says no, or it is the default stream of a green context, whose handle means another stream in here),
 * and where the stream is being captured, so that replays may use the block on any stream, the block waits for the whole device: for a trim that
 * does, or for an allocation that would fail.
 * That must not be while a graph is captured, for it would end the capture. A program that has a graph keeps its blocks, so while a block that
 * a captured stream uses is live, an allocation does not wait for the device.
 *
 * With the option announced:0 no device is waited for, because that ends captures that cenote was not told of. What captured streams used waits for a
 * sweep over all streams that may be touched (sweeps.c) instead, and a block without an event stays pending. Events are recorded with the care of
 * driver/touch.c then, so that the default stream has one at any time.
 *
 * LOCKING: uses and the list belong to `lock`. One thread at a time walks the list (`walking`) and calls the driver meanwhile, in the device;
 * a live block's uses are touched by its owner alone, a pending one's by the thread that walks.
 */
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "host/host.h"

#define NOT_READY_MAX 4        /* blocks a walk finds still in use before it gives up */
#define LEGACY_STREAM  1ull

static bool is_default_handle(CUstream stream)
{
    return stream == CU_STREAM_LEGACY || !stream;
}

/* Or may be: the driver will not say while another stream is captured that the legacy stream would have to wait for. Then *result says so. */
static bool is_captured(const struct driver *t, CUstream stream, CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    *result = t->cuStreamIsCapturing ? t->cuStreamIsCapturing(stream, &status) : CUDA_SUCCESS;
    return *result || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * Identifies the stream. A handle may be given to another stream when this one is gone; 0: only the handle is known, because the driver has no ids,
 * or because the question would end the capture that the stream is in.
 */
static uint64_t stream_key(const struct driver *t, CUstream stream)
{
    unsigned long long id;
    CUresult result;
    if (is_default_handle(stream))
        return LEGACY_STREAM;
    if (stream == CU_STREAM_PER_THREAD)
        return 1ull << 63 | (uint64_t)gettid();
    return t->cuStreamGetId && !is_captured(t, stream, &result) && t->cuStreamGetId(stream, &id) == CUDA_SUCCESS ? id << 1 : 0;
}

/* Does a sweep cover all that the stream was given? */
static bool is_swept(const struct device *d, CUstream stream)
{
    return is_default_handle(stream) || touch_has(d, stream);
}

static CUevent event_take(struct host *h, const struct device *d)
{
    struct spare_events *spare = h->events[d->ordinal];
    CUevent event = NULL;
    lock_take(&h->lock);
    if (spare->count)
        event = spare->event[--spare->count];
    lock_give(&h->lock);
    return event || d->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : NULL;
}

/* LOCKING: `lock`. False: there are enough. */
static bool event_give(struct host *h, int device, CUevent event)
{
    struct spare_events *spare = h->events[device];
    bool room = spare->count < EVENTS_MAX;
    if (room)
        spare->event[spare->count++] = event;
    return room;
}

/* The use of a stream by a block, new if there is none. 0: no memory. */
static uint32_t use_of_stream(struct host *h, uint64_t at, int device, uint64_t key)
{
    lock_take(&h->lock);
    uint64_t word = atomic_load(record_of(h, at));
    uint32_t use = RECORD_USES(word);
    while (use && key && (use_at(h, use)->device != device || use_at(h, use)->stream != key))
        use = use_at(h, use)->next;
    if (!key || !use) {
        use = table_take(&h->uses);
        if (use) {
            *use_at(h, use) = (struct use){.at = at, .stream = key, .device = device, .next = RECORD_USES(word)};
            atomic_store(record_of(h, at), (word & (RECORD_LIVE | RECORD_REQUESTED)) | (uint64_t)use << 40);
        }
    }
    lock_give(&h->lock);
    return use;
}

static void set_captured(struct host *h, struct use *u, bool captured)
{
    if (captured != u->captured)
        atomic_fetch_add(&h->captured, captured ? 1u : -1u);
    u->captured = captured;
}

/* CUDA_ERROR_NOT_READY: the stream is being captured. LOCKING: in the device. */
static CUresult record_event(struct device *d, CUstream stream, CUevent event)
{
    return touch_captures_are_announced() ? d->driver->cuEventRecord(event, stream) : touch_record_end(d, stream, event);
}

static void drop_event(const struct device *d, struct use *u)
{
    if (u->event)
        d->driver->cuEventDestroy(u->event);
    u->event = NULL;
}

/*
 * Without an event the use waits for the whole device, or for a sweep that covers the stream. What a captured stream used before its capture has its
 * event still. LOCKING: in the device.
 */
static CUresult record_use(struct host *h, struct device *d, struct use *u, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    bool is_stood_in_for = is_default_handle(stream) && !touch_captures_are_announced();
    set_captured(h, u, !is_stood_in_for && is_captured(d->driver, stream, &result));
    if (u->captured) {
        if (result)
            drop_event(d, u);
        u->is_everywhere = !result || is_swept(d, stream);
        return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
    }
    u->is_everywhere = false;
    if (!u->event)
        u->event = event_take(h, d);
    result = u->event ? record_event(d, stream, u->event) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result) {
        drop_event(d, u);
        u->is_everywhere = is_swept(d, stream);
    }
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

int uses_note(struct host *h, uint64_t at, int device, CUstream stream)
{
    int error;
    unsigned long long part = 0;
    struct device *d = host_device(h, device, &error);
    if (!d)
        return error;
    bool is_named = !is_default_handle(stream) || (!device_default_stream(d, &part) && !part);
    CUresult result = device_enter(d);
    uint32_t use = use_of_stream(h, at, device, !is_named ? part << 1 : result ? 0 : stream_key(d->driver, stream));
    if (!result && use && is_named)
        result = record_use(h, d, use_at(h, use), stream);
    device_leave(d);
    if (!use)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no memory to note that the block is used: wait for the stream before it is freed");
    if (!result || result == CUDA_ERROR_OUT_OF_MEMORY)
        return CENOTE_OK; /* it waits for the device instead */
    return error_set(driver_result_is_sticky(result) ? CENOTE_DEVICE_LOST : CENOTE_DRIVER, (int)result,
                     "no event could be recorded on that stream of device %d: %s. The block will wait for the whole device", device,
                     driver_result_name(result));
}

/* The block was freed. Its record says that it is not live, and which its uses are. */
void uses_add(struct host *h, uint64_t at, uint64_t word)
{
    uint32_t first = RECORD_USES(word);
    lock_take(&h->lock);
    h->freed++;
    for (uint32_t use = first; use; use = use_at(h, use)->next) {
        set_captured(h, use_at(h, use), false);
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
    if (!u->event && !u->is_everywhere)
        return false;
    struct device *d = atomic_load(&h->devices[u->device]);
    bool done = device_enter(d) == CUDA_SUCCESS && (!u->event || d->driver->cuEventQuery(u->event) == CUDA_SUCCESS) &&
                (!u->is_everywhere || sweep_is_done(h, d, u->freed));
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
        if (!u.event || event_give(h, u.device, u.event)) {
            table_give(&h->uses, use);
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
        struct device *d = atomic_load(&h->devices[u.device]);
        if (!device_enter(d) && d->driver->cuEventDestroy(u.event))
            d->driver->cuEventDestroy(u.event); /* it would be lost: a refusal is asked for once more */
        device_leave(d);
        lock_take(&h->lock);
        table_give(&h->uses, use);
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
        CUresult result = device_enter(d);
        if (!result)
            result = wait_outside(d, NULL);
        device_leave(d);
        if (result && (!first || !driver_result_is_sticky(result)))
            first = result;
    }
    return first;
}

/* LOCKING: `walking`. */
static CUresult wait_for_use(struct host *h, const struct use *u)
{
    struct device *d = atomic_load(&h->devices[u->device]);
    CUevent event;
    CUresult result = device_enter(d);
    if (!result && u->event)
        result = wait_outside(d, u->event);
    while (!result && u->is_everywhere && (event = sweep_awaits(h, d, u->freed)))
        result = wait_outside(d, event);
    device_leave(d);
    return result;
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
        if (!d)
            continue;
        bool inside = device_enter(d) == CUDA_SUCCESS;
        while (inside && h->events[i]->count) {
            CUevent event = h->events[i]->event[--h->events[i]->count];
            if (d->driver->cuEventDestroy(event))
                d->driver->cuEventDestroy(event);
        }
        if (inside)
            sweep_close(h, d);
        device_leave(d);
        memory_unmap(h->events[i], sizeof(*h->events[i]));
        memory_unmap(h->sweeps[i], sizeof(*h->sweeps[i]));
    }
}
