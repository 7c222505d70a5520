/*
 * uses.c: which streams may be using a block that is live. What becomes of them when it is freed stands in pending.c.
 *
 * cenote_host_use records an event on the stream, then and there: the stream exists, and what comes later on it has nothing to do with
 * the block, so that a block is free as soon as its last copy is done. (cenote_use of device memory records at the free: kernels go on
 * using a block without a call that says so.) One event for each stream of a block: later uses move it.
 *
 *     use: event recorded -----> again: event moved -----> the event is done, and a new use looks: gone
 *         |                         |                      the block is freed: pending.c
 *         +-----------+-------------+
 *                     v no event can be had
 *     part of the block's one use of the whole device
 *
 * No event can be had where the driver says no, on the default stream of a green context, whose handle means another stream in here, and while the
 * stream is being captured: replays may use the block on any stream. All these are one use for each device of the block, of the device as a whole:
 * it stays until the block is freed. A sweep (sweeps.c) may stand for it, if it is for replays alone, or for streams that a sweep covers.
 *
 * A block that stays, and is used by ever new streams, has uses that are done. So while more than half of the table is in use each new use looks at
 * two others, of any blocks, in turn. In a round all are looked at, and half as many are new: the table grows only if more than half of it has yet
 * to run, or waits. That is also why a stream that cannot be identified, where the driver has no ids, may have a new use at each call.
 *
 * Events are recorded with the care of driver/touch.c with announced:0, so that the default stream has one at any time.
 *
 * LOCKING: uses belong to `lock`. A thread that records in one, or asks after it, calls the driver meanwhile: it makes it `busy`, and other threads
 * leave that one alone. A thread that asks has `walking`, too: a block that is freed meanwhile goes no further.
 */
#include "base/check.h"
#include "base/error.h"
#include "base/thread.h"
#include "host/host.h"

#define LEGACY_STREAM    1ull
#define KEY_THREAD       (1ull << 63)
#define LOOKS            2      /* for each new use: fewer than two would not catch up */

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
 * Identifies a stream that is not captured. A handle may be given to another stream when this one is gone; 0: only the handle is known, because the
 * driver has no ids.
 */
static uint64_t stream_key(const struct driver *t, CUstream stream)
{
    unsigned long long id;
    if (is_default_handle(stream))
        return LEGACY_STREAM;
    if (stream == CU_STREAM_PER_THREAD)
        return KEY_THREAD | thread_number();
    return t->cuStreamGetId && t->cuStreamGetId(stream, &id) == CUDA_SUCCESS ? id << 1 : 0;
}

/* Does a sweep cover all that the stream was given? */
static bool is_swept(const struct device *d, CUstream stream)
{
    return is_default_handle(stream) || touch_has(d, stream);
}

/* ---------------------------------------------------------------------------------------------------------------------- events */

/* Of that context; those of an earlier one have ended with it. LOCKING: `lock`. */
static struct spare_events *spare_of(struct host *h, const struct device *d, uint64_t generation)
{
    struct spare_events *spare = h->events[d->ordinal];
    if (spare->generation != generation)
        spare->count = 0;
    spare->generation = generation;
    return spare;
}

static CUevent event_take(struct host *h, const struct device *d, uint64_t generation)
{
    CUevent event = NULL;
    lock_take(&h->lock);
    struct spare_events *spare = spare_of(h, d, generation);
    if (spare->count)
        event = spare->event[--spare->count];
    lock_give(&h->lock);
    return event || d->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : NULL;
}

/* LOCKING: `lock`. False: there are enough. */
bool use_event_keep(struct host *h, const struct device *d, uint64_t generation, CUevent event)
{
    if (!device_is(d, generation))
        return true; /* it has ended with its context */
    struct spare_events *spare = spare_of(h, d, generation);
    bool room = spare->count < EVENTS_MAX;
    if (room)
        spare->event[spare->count++] = event;
    return room;
}

/* LOCKING: in the device. */
void use_event_drop(const struct device *d, CUevent event)
{
    if (event && d->driver->cuEventDestroy(event))
        d->driver->cuEventDestroy(event); /* it would be lost: a refusal is asked for once more */
}

/* -------------------------------------------------------------------------------------------------- uses of a block. LOCKING: `lock` */

static uint32_t first_of(struct host *h, uint64_t at)
{
    return RECORD_USES(atomic_load(record_of(h, at)));
}

/* False: the block was freed a moment ago. */
static bool set_first(struct host *h, uint64_t at, uint32_t use)
{
    uint64_t word = atomic_load(record_of(h, at));
    return word & RECORD_LIVE &&
           atomic_compare_exchange_strong(record_of(h, at), &word, (word & (RECORD_LIVE | RECORD_REQUESTED)) | (uint64_t)use << RECORD_USES_SHIFT);
}

/* That no other thread is at. 0: there is none. */
static uint32_t find(struct host *h, uint64_t at, uint64_t generation, uint64_t key)
{
    uint32_t use = first_of(h, at);
    while (use && (use_at(h, use)->generation != generation || use_at(h, use)->stream != key || use_at(h, use)->busy))
        use = use_at(h, use)->next;
    return use;
}

static uint32_t add(struct host *h, uint64_t at, struct device *d, uint64_t generation, uint64_t key)
{
    uint32_t use = table_take(&h->uses);
    if (h->uses.used > h->few_uses && 2 * h->uses.free_count < h->uses.used)
        atomic_store_explicit(&h->uses_are_short, true, memory_order_relaxed);
    if (!use)
        return 0;
    *use_at(h, use) = (struct use){.at = at, .stream = key, .device = d, .generation = generation, .next = first_of(h, at)};
    if (set_first(h, at, use))
        return use;
    table_give(&h->uses, use);
    return 0;
}

/* It is not a use of its block any more. False: the block was freed a moment ago, and this is the first of its uses: it stays that. */
static bool take_out(struct host *h, uint32_t use)
{
    const struct use *u = use_at(h, use);
    uint32_t before = first_of(h, u->at);
    if (before == use)
        return set_first(h, u->at, u->next);
    while (use_at(h, before)->next != use)
        before = use_at(h, before)->next;
    use_at(h, before)->next = u->next;
    return true;
}

/* After its event was kept or has no other name. */
void use_give(struct host *h, uint32_t use)
{
    use_at(h, use)->event = NULL; /* a look at the table passes it */
    table_give(&h->uses, use);
}

void use_set_captured(struct host *h, struct use *u, bool captured)
{
    if (captured != u->captured)
        atomic_fetch_add(&h->captured, captured ? 1u : -1u);
    u->captured = captured;
}

/* What has no event becomes part of the use of the whole device. `use`: its own until now; 0: none. False: no memory. */
static bool fold(struct host *h, uint64_t at, struct device *d, uint64_t generation, uint32_t use, struct reach reach)
{
    uint32_t whole = find(h, at, generation, WHOLE_DEVICE);
    bool is_new = !whole;
    if (is_new && use) {
        whole = use;
        use_at(h, use)->stream = WHOLE_DEVICE;
    } else if (is_new) {
        whole = add(h, at, d, generation, WHOLE_DEVICE);
    } else if (use && take_out(h, use)) {
        use_give(h, use);
    }
    if (!whole)
        return false;
    struct use *u = use_at(h, whole);
    u->is_swept = reach.is_swept && (is_new || u->is_swept);
    use_set_captured(h, u, reach.is_captured || u->captured);
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- what is noted */

static bool note_whole(struct host *h, uint64_t at, struct device *d, uint64_t generation, struct reach reach)
{
    lock_take(&h->lock);
    bool noted = fold(h, at, d, generation, 0, reach);
    lock_give(&h->lock);
    return noted;
}

/* CUDA_ERROR_NOT_READY: the stream is being captured. LOCKING: in the device. */
static CUresult record_event(struct device *d, CUstream stream, CUevent event)
{
    return touch_captures_are_announced() ? d->driver->cuEventRecord(event, stream) : touch_record_end(d, stream, event);
}

static bool is_no_stream(CUresult result)
{
    return result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT;
}

/* An event was refused, or moving it was. A stream of another context is not noted: it had no event before. LOCKING: `lock`. */
static void end_without_event(struct host *h, struct device *d, CUstream stream, uint32_t use, bool is_noted)
{
    if (is_noted)
        fold(h, use_at(h, use)->at, d, use_at(h, use)->generation, use, (struct reach){.is_swept = is_swept(d, stream)});
    else if (take_out(h, use))
        use_give(h, use);
}

/* What the stream was given so far is in a use of its own, or part of that of the whole device. False: no memory. LOCKING: in the device. */
static bool note_event(struct host *h, struct device *d, uint64_t generation, uint64_t at, CUstream stream, CUresult *result)
{
    uint64_t key = stream_key(d->driver, stream);
    lock_take(&h->lock);
    uint32_t use = key ? find(h, at, generation, key) : 0;
    if (!use)
        use = add(h, at, d, generation, key);
    CUevent event = use ? use_at(h, use)->event : NULL;
    if (use)
        use_at(h, use)->busy = true;
    lock_give(&h->lock);
    if (!use)
        return false;
    bool is_new = !event;
    if (is_new)
        event = event_take(h, d, generation);
    *result = event ? record_event(d, stream, event) : CUDA_ERROR_OUT_OF_MEMORY;
    if (*result)
        use_event_drop(d, event);
    lock_take(&h->lock);
    use_at(h, use)->busy = false;
    use_at(h, use)->event = *result ? NULL : event;
    if (*result)
        end_without_event(h, d, stream, use, !is_new || !is_no_stream(*result));
    lock_give(&h->lock);
    return true;
}

/* False: no memory. LOCKING: in the device. */
static bool note(struct host *h, struct device *d, uint64_t generation, uint64_t at, CUstream stream, CUresult *result)
{
    bool is_stood_in_for = is_default_handle(stream) && !touch_captures_are_announced();
    if (is_stood_in_for || !is_captured(d->driver, stream, result))
        return note_event(h, d, generation, at, stream, result);
    if (is_no_stream(*result))
        return true;
    struct reach reach = {.is_swept = !*result || is_swept(d, stream), .is_captured = true};
    *result = driver_result_is_sticky(*result) ? *result : CUDA_SUCCESS;
    return note_whole(h, at, d, generation, reach);
}

/* ------------------------------------------------------------------------------------------------------------ uses that are done */

/* The next one in the table, if its block is live and it can be asked after; 0: it cannot. LOCKING: `lock`. */
static uint32_t next_look(struct host *h)
{
    h->looked = h->looked + 1 < h->uses.used ? h->looked + 1 : 1;
    struct use *u = use_at(h, h->looked);
    if (h->uses.used == 1 || !u->event || u->freed || u->busy)
        return 0;
    u->busy = true;
    return h->looked;
}

/* LOCKING: `walking`. */
static void look_at(struct host *h, uint32_t use)
{
    struct use *u = use_at(h, use);
    struct device *d = u->device;
    CUevent event = u->event;
    uint64_t generation = u->generation;
    bool done = device_enter(d, generation) == CUDA_SUCCESS ? d->driver->cuEventQuery(event) == CUDA_SUCCESS : host_was_reset(h, d, generation);
    lock_take(&h->lock);
    u->busy = false;
    done = done && take_out(h, use);
    if (done)
        use_give(h, use);
    bool drops = done && !use_event_keep(h, d, generation, event);
    lock_give(&h->lock);
    if (drops)
        use_event_drop(d, event);
    device_leave(d);
}

/* A thread that walks has its own way to make room. */
static void look_for_done(struct host *h)
{
    if (pthread_mutex_trylock(&h->walking))
        return;
    for (int i = 0; i < LOOKS; i++) {
        lock_take(&h->lock);
        uint32_t use = next_look(h);
        lock_give(&h->lock);
        if (use)
            look_at(h, use);
    }
    pthread_mutex_unlock(&h->walking);
}

/* ------------------------------------------------------------------------------------------------------------------------------ */

static int refuse_stream(int device, CUstream stream, CUresult result)
{
    return error_set(CENOTE_INVALID, (int)result, "%p is no stream of device %d, or not of its primary context, in which memory is pinned: wait for "
                     "it before the block is freed", (void *)stream, device);
}

int uses_note(struct host *h, uint64_t at, int device, CUstream stream)
{
    int error;
    unsigned long long part = 0;
    struct device *d = host_device(h, device, &error);
    if (!d)
        return error;
    bool is_default = is_default_handle(stream) || stream == CU_STREAM_PER_THREAD;
    CUresult result = is_default ? device_default_stream(d, &part) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        return refuse_stream(device, stream, result);
    bool is_named = !result && !part;
    uint64_t generation = host_generation(h, d);
    result = device_enter(d, generation);
    bool was_reset = result && host_was_reset(h, d, generation);
    bool noted = was_reset || (result || !is_named ? note_whole(h, at, d, generation, (struct reach){.is_swept = false})
                                                   : note(h, d, generation, at, stream, &result));
    device_leave(d);
    if (atomic_load_explicit(&h->uses_are_short, memory_order_relaxed) && atomic_exchange(&h->uses_are_short, false))
        look_for_done(h);
    if (was_reset)
        return error_set(CENOTE_DEVICE_LOST, (int)result, "the program has reset device %d: wait for its streams before the block is freed", device);
    if (!noted)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no memory to note that the block is used: wait for the stream before it is freed");
    if (is_no_stream(result))
        return refuse_stream(device, stream, result);
    if (!result || result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_READY)
        return CENOTE_OK; /* without an event it waits for the device */
    return error_set(driver_result_is_sticky(result) ? CENOTE_DEVICE_LOST : CENOTE_DRIVER, (int)result,
                     "no event could be recorded on that stream of device %d: %s. The block will wait for the whole device", device,
                     driver_result_name(result));
}
