/*
 * place.c: which devices are served: a pool of cenote for each device whose primary context allocates.
 *
 *     closed ----place_here, place_of_context----> open ----the context has ended: place_close----> closed
 *       |
 *       +------- it cannot open -------> refused, until the context ends
 *
 * Contexts that a program makes itself (cuCtxCreate) are not served: cenote's pools are of primary contexts. What those allocate is the driver's.
 *
 * The pool is of our own, with the options of CENOTE_CONF: a default pool could not go when the program resets the device.
 *
 * LOCKING: `opening` guards the steps between closed and open, and `pasts`. `context` is written last, and tells that all else is there. A thread
 * that uses a device while another resets it does what CUDA forbids.
 */
#include "plugins/preload/place.h"

#include "plugins/preload/captures.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/peers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static struct place places[PLACES_MAX];
static struct place_past pasts[PLACES_MAX]; /* of places that have closed */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t passes[PASSES];
static _Atomic(CUcontext) refused[PLACES_MAX]; /* the context for which the place could not open */

CUresult place_passed(enum pass why, CUresult result)
{
    CHECK(why < PASSES);
    if (!result)
        atomic_fetch_add_explicit(&passes[why], 1, memory_order_relaxed);
    return result;
}

uint64_t place_passes(enum pass why)
{
    return atomic_load_explicit(&passes[why], memory_order_relaxed);
}

static bool is_valid(const struct place *p)
{
    return p->pool && p->still && p->mark && p->captures && p->device == (int)(p - places) && cenote_pool_device(p->pool) == p->device;
}

/* --- calls of the driver */

CUresult place_enter(struct place *p, struct scope *scope)
{
    const struct real *r = real();
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    r->cuThreadExchangeStreamCaptureMode(&scope->mode);
    CUresult result = r->cuCtxPushCurrent_v2(atomic_load(&p->context));
    scope->has_pushed = !result;
    return result;
}

void place_leave(struct scope *scope)
{
    const struct real *r = real();
    CUcontext popped;
    if (scope->has_pushed)
        r->cuCtxPopCurrent_v2(&popped);
    r->cuThreadExchangeStreamCaptureMode(&scope->mode);
}

CUevent place_take_event(struct place *p)
{
    CUevent event = NULL;
    for (int i = 0; i < EVENTS_KEPT && !event; i++)
        if (atomic_load_explicit(&p->events[i], memory_order_relaxed))
            event = atomic_exchange(&p->events[i], NULL);
    return event || !real()->cuEventCreate(&event, p->event_flags) ? event : NULL;
}

void place_give_event(struct place *p, CUevent event)
{
    for (int i = 0; i < EVENTS_KEPT; i++) {
        CUevent none = NULL;
        if (atomic_compare_exchange_strong(&p->events[i], &none, event))
            return;
    }
    real()->cuEventDestroy_v2(event);
}

/* --- opening */

static int make_pool(struct place *p)
{
    cenote_options options;
    int error = cenote_options_default(&options);
    options.order = 0; /* memory of cuMemAlloc may be used on any stream at once */
    p->all_are_seen = options.announced;
    if (!error)
        error = cenote_pool_create(p->device, &options, &p->pool);
    if (!error)
        error = cenote_stream_set_immortal(p->pool, p->still);
    if (!error)
        error = cenote_stream_set_immortal(p->pool, p->mark); /* the end of a capture is announced for it also after a reset, which takes it away */
    if (!error)
        error = cenote_group_create(p->pool, "captures", CENOTE_GROUP_PRIVATE, NULL, &p->captures);
    if (!error)
        error = peers_grant(p->device, p->pool);
    if (!error)
        error = captures_join(p->device, p->captures, p->mark, p->all_are_seen);
    if (!error)
        error = cenote_pool_on_shortage(p->pool, memory_return_in_shortage, p);
    if (!error)
        cenote_pool_set_user(p->pool, "the program");
    return error;
}

/* Takes apart what is there; `has_ended`: the context, and with it our streams and events. */
static void close_parts(struct place *p, bool has_ended, bool is_released)
{
    const struct real *r = real();
    if (p->captures) {
        captures_leave(p->device);
        cenote_group_destroy(p->captures);
    }
    int error = p->pool ? cenote_pool_destroy(p->pool) : CENOTE_OK;
    if (error && error != CENOTE_EXITING) /* then it ends with the process */
        fprintf(stderr, "cenote: the pool of device %d cannot be given back: %s\n", p->device, cenote_message());
    if (p->still && !has_ended)
        r->cuStreamDestroy_v2(p->still);
    if (p->mark && !has_ended)
        r->cuStreamDestroy_v2(p->mark);
    if (!is_released)
        r->cuDevicePrimaryCtxRelease_v2(p->device);
    memset(p, 0, sizeof *p);
}

/* The context is current, and retained. */
static bool open_parts(struct place *p)
{
    const struct real *r = real();
    CUmemoryPool current = NULL;
    if (r->cuStreamCreate(&p->still, CU_STREAM_NON_BLOCKING) || r->cuStreamCreate(&p->mark, CU_STREAM_NON_BLOCKING))
        return false;
    if (r->cuDeviceGetDefaultMemPool && !r->cuDeviceGetDefaultMemPool(&p->mempool, p->device))
        r->cuDeviceGetMemPool(&current, p->device);
    atomic_store(&p->current, current);
    p->family.device = p->device;
    atomic_store(&p->family.handle, p->mempool);
    int error = make_pool(p);
    if (!error)
        return true;
    if (error != CENOTE_EXITING)
        fprintf(stderr, "cenote: device %d is left to the driver: %s\n", p->device, cenote_message());
    return false;
}

/* `context` is current and of the device: is it the primary one? Then it stays retained while the place is open. */
static bool retain_primary(const struct real *r, CUdevice device, CUcontext context, unsigned *flags)
{
    CUcontext primary;
    int active = 0;
    if (r->cuDevicePrimaryCtxGetState(device, flags, &active) || !active || r->cuDevicePrimaryCtxRetain(&primary, device))
        return false;
    if (primary != context)
        r->cuDevicePrimaryCtxRelease_v2(device);
    return primary == context;
}

/*
 * The driver copies memory of cuMemAlloc from any device to any other, peer access or not; pages it copies only for devices that they are open to. So
 * the devices that the process uses are let in, each with each. Two that cannot reach each other stay apart: docs/preload.md.
 */
static void open_to_others(struct place *p)
{
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *other = place_at(i);
        if (other && other != p) {
            cenote_pool_grant(p->pool, other->device);
            cenote_pool_grant(other->pool, p->device);
        }
    }
}

/* A thread waits for our events as it waits for the context: it sleeps if the program wants that. */
static unsigned event_flags_of(unsigned context_flags)
{
    bool sleeps = (context_flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
    return CU_EVENT_DISABLE_TIMING | (sleeps ? CU_EVENT_BLOCKING_SYNC : 0u);
}

static struct place *open_place(CUdevice device, CUcontext context)
{
    const struct real *r = real();
    struct place *p = &places[device];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    unsigned flags = 0;
    if (atomic_load_explicit(&refused[device], memory_order_relaxed) == context)
        return NULL;
    real_is_in_use();
    pthread_mutex_lock(&opening);
    CUcontext open = atomic_load(&p->context);
    if (!open && atomic_load(&refused[device]) != context && retain_primary(r, device, context, &flags)) {
        p->device = device;
        p->event_flags = event_flags_of(flags);
        r->cuThreadExchangeStreamCaptureMode(&mode);
        if (open_parts(p)) {
            CHECK(is_valid(p));
            if (!p->all_are_seen)
                memory_begin_to_ask(p);
            atomic_store(&p->context, open = context);
            peers_grant(device, p->pool); /* again: another thread may have let in a device before it saw the place */
            open_to_others(p);
        } else {
            close_parts(p, false, false);
            atomic_store(&refused[device], context);
        }
        r->cuThreadExchangeStreamCaptureMode(&mode);
    }
    pthread_mutex_unlock(&opening);
    return open == context ? p : NULL;
}

/* --- closing */

/* All blocks of the pool: the context that they are of ends. */
static void free_everything(cenote_pool *pool)
{
    size_t count = 0, room = 0;
    cenote_piece *pieces = NULL;
    while (!cenote_pool_pieces(pool, NULL, pieces, room, &count) && count > room) {
        cenote_piece *more = realloc(pieces, (room = 2 * count) * sizeof *more);
        if (!more)
            break;
        pieces = more;
    }
    for (size_t i = 0; i < count && i < room; i++)
        if (pieces[i].state == CENOTE_PIECE_LIVE)
            cenote_free((void *)(uintptr_t)pieces[i].address);
    free(pieces);
}

static struct place_past past_of(int ordinal)
{
    struct place_past past = pasts[ordinal];
    cenote_stats stats;
    if (!place_at(ordinal) || cenote_pool_stats(places[ordinal].pool, &stats))
        return past;
    past.requested = stats.requested.peak > past.requested ? stats.requested.peak : past.requested;
    past.reserved = stats.reserved.peak > past.reserved ? stats.reserved.peak : past.reserved;
    past.trims += stats.trims;
    past.calls = stats.driver_calls;
    return past;
}

bool place_past(int ordinal, struct place_past *past)
{
    pthread_mutex_lock(&opening);
    *past = past_of(ordinal);
    pthread_mutex_unlock(&opening);
    return past->requested != 0;
}

void place_close(int ordinal, bool is_released)
{
    struct place *p = place_at(ordinal);
    if (ordinal >= 0 && ordinal < PLACES_MAX)
        atomic_store(&refused[ordinal], NULL);
    if (!p)
        return;
    captures_forget_context(atomic_load(&p->context));
    pthread_mutex_lock(&opening);
    pasts[ordinal] = past_of(ordinal);
    atomic_store(&p->context, NULL);
    free_everything(p->pool);
    close_parts(p, true, is_released);
    peers_forget(ordinal);
    pthread_mutex_unlock(&opening);
}

bool place_make_room(void)
{
    bool has_given = false;
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *p = place_at(i);
        cenote_stats before, after;
        if (p && !cenote_pool_stats(p->pool, &before) && !cenote_pool_trim(p->pool, 0, 0) && !cenote_pool_stats(p->pool, &after))
            has_given = has_given || after.reserved.current < before.reserved.current;
    }
    return has_given;
}

/* --- questions */

static struct place *find_open(CUcontext context)
{
    for (int i = 0; i < PLACES_MAX; i++)
        if (atomic_load_explicit(&places[i].context, memory_order_acquire) == context)
            return &places[i];
    return NULL;
}

struct place *place_here(void)
{
    const struct real *r = real();
    CUcontext context = NULL;
    CUdevice device;
    if (r->cuCtxGetCurrent(&context) || !context)
        return NULL; /* the driver says what is wrong */
    struct place *p = find_open(context);
    if (!p && !r->cuCtxGetDevice(&device) && device >= 0 && device < PLACES_MAX)
        p = open_place(device, context);
    return p;
}

struct place *place_of_context(CUcontext context)
{
    const struct real *r = real();
    struct place *p = find_open(context);
    CUcontext popped;
    if (p || !context || r->cuCtxPushCurrent_v2(context))
        return p;
    p = place_here();
    r->cuCtxPopCurrent_v2(&popped);
    return p;
}

struct place *place_at(int ordinal)
{
    bool is_open = ordinal >= 0 && ordinal < PLACES_MAX && atomic_load_explicit(&places[ordinal].context, memory_order_acquire);
    return is_open ? &places[ordinal] : NULL;
}

struct place *place_of_pool(const cenote_pool *pool)
{
    struct place *p = place_at(cenote_pool_device(pool));
    return p && p->pool == pool ? p : NULL;
}

struct place *place_of_block(CUdeviceptr at, cenote_block *block)
{
    return at && !cenote_find((void *)(uintptr_t)at, block) ? place_of_pool(block->pool) : NULL;
}

bool place_is_for_all(struct place *p, const cenote_block *block)
{
    return block->stream_id == atomic_load_explicit(&p->still_id, memory_order_acquire);
}
