/*
 * place.c: which devices are served: a pool of cenote for each device whose primary context allocates.
 *
 *     closed ----place_here, place_of_context----> open ----the context is reset, or released by the program: place_close----> closed
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

/* --- opening */

static int make_pool(struct place *p)
{
    cenote_options options;
    int error = cenote_options_default(&options);
    options.order = 0; /* memory of cuMemAlloc may be used on any stream at once */
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
        error = captures_join(p->device, p->captures, p->mark, options.announced);
    if (!error)
        cenote_pool_set_user(p->pool, "the program");
    return error;
}

/* Takes apart what is there. */
static void close_parts(struct place *p)
{
    const struct real *r = real();
    if (p->captures) {
        captures_leave(p->device);
        cenote_group_destroy(p->captures);
    }
    if (p->pool && cenote_pool_destroy(p->pool))
        fprintf(stderr, "cenote: the pool of device %d cannot be given back: %s\n", p->device, cenote_message());
    if (p->still)
        r->cuStreamDestroy_v2(p->still);
    if (p->mark)
        r->cuStreamDestroy_v2(p->mark);
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
    if (!make_pool(p))
        return true;
    fprintf(stderr, "cenote: device %d is left to the driver: %s\n", p->device, cenote_message());
    return false;
}

/* `context` is current and of the device: is it the primary one? Then it stays retained while the place is open. */
static bool retain_primary(const struct real *r, CUdevice device, CUcontext context)
{
    CUcontext primary;
    unsigned flags;
    int active = 0;
    if (r->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active || r->cuDevicePrimaryCtxRetain(&primary, device))
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

static struct place *open_place(CUdevice device, CUcontext context)
{
    const struct real *r = real();
    struct place *p = &places[device];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    real_is_in_use();
    pthread_mutex_lock(&opening);
    CUcontext open = atomic_load(&p->context);
    if (!open && retain_primary(r, device, context)) {
        p->device = device;
        r->cuThreadExchangeStreamCaptureMode(&mode);
        if (open_parts(p)) {
            CHECK(is_valid(p));
            atomic_store(&p->context, open = context);
            peers_grant(device, p->pool); /* again: another thread may have let in a device before it saw the place */
            open_to_others(p);
        } else {
            close_parts(p);
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

void place_close(int ordinal, bool has_ended)
{
    const struct real *r = real();
    struct place *p = place_at(ordinal);
    CUcontext popped, context = p ? atomic_load(&p->context) : NULL;
    if (!p || (!has_ended && (captures_are_in(context) || r->cuCtxPushCurrent_v2(context))))
        return;
    if (!has_ended)
        r->cuCtxSynchronize(); /* where it fails the context is lost, and nothing runs there any more */
    captures_forget_context(context);
    pthread_mutex_lock(&opening);
    pasts[ordinal] = past_of(ordinal);
    atomic_store(&p->context, NULL);
    free_everything(p->pool);
    if (has_ended)
        p->still = p->mark = NULL; /* they went with it */
    close_parts(p);
    peers_forget(ordinal);
    pthread_mutex_unlock(&opening);
    if (!has_ended)
        r->cuCtxPopCurrent_v2(&popped);
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
