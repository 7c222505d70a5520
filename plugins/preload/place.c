/*
 * place.c: which contexts are served: a pool of cenote for each primary context that allocates, and for each context that the program has made.
 *
 *     closed ----place_here, place_of_context----> open ----the context has ended: place_close----> closed
 *       |
 *       +------- it cannot open -------> refused, until the context ends
 *
 * A context of the program's own is known from cuCtxCreate on. Other contexts beside the primary ones, as those of green contexts, are not served:
 * what they allocate is the driver's.
 *
 * The pool is in a context that we keep for it, with the options of CENOTE_CONF: a default pool could not go with the last release of the context,
 * and would retain it once more.
 *
 * LOCKING: `opening` guards the steps between closed and open, and `pasts`. `context` is written last, and tells that all else is there. A thread
 * that uses a device while another resets it does what CUDA forbids. But a thread that goes through all places meets contexts that it has nothing to
 * do with: it visits them, and a place closes when its visitors have gone. They take none of these locks, and go on in its context (`inside`)
 * though it closes.
 */
#include "plugins/preload/place.h"

#include "plugins/preload/captures.h"
#include "plugins/preload/identities.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/peers.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static struct place places[PLACES_MAX];
static struct place_past pasts[PLACES_MAX]; /* of places that have closed */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t passes[PASSES];
static _Atomic(CUcontext) refused[PLACES_MAX]; /* the context for which the place could not open */
static _Atomic(CUcontext) made[CONTEXTS_SERVED]; /* by the program; NULL: none */
static _Atomic int made_used;                    /* slots that were ever taken */
static _Atomic unsigned visitors[PLACES_MAX];    /* threads that look at the place beside what they do, and must not meet its end */
static _Atomic unsigned attached[CONTEXTS_SERVED]; /* how often, beside its making */
static _Atomic unsigned borrowing; /* threads that open or close a place: they and cenote retain primary contexts, and release them again */

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
    return p->pool && p->still && p->mark && p->number == (int)(p - places) && cenote_pool_device(p->pool) == p->device &&
           (!place_is_primary(p) || p->number == p->device);
}

/* --- calls of the driver */

CUresult place_enter(struct place *p, struct scope *scope)
{
    const struct real *r = real();
    CUcontext now = NULL;
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    scope->has_pushed = false;
    r->cuThreadExchangeStreamCaptureMode(&scope->mode);
    scope->had_context = !r->cuCtxGetCurrent(&now) && now;
    if (p->inside && now == p->inside)
        return CUDA_SUCCESS;
    CUresult result = r->cuCtxPushCurrent_v2(p->inside);
    scope->has_pushed = !result;
    return result;
}

bool place_has_context(void)
{
    CUcontext now = NULL;
    return !real()->cuCtxGetCurrent(&now) && now;
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

static int make_pool(struct place *p, CUcontext context)
{
    cenote_options options;
    cenote_pool *pool = NULL;
    int error = cenote_options_default(&options);
    options.order = 0; /* memory of cuMemAlloc may be used on any stream at once */
    p->all_are_seen = options.announced;
    if (!error)
        error = cenote_pool_create_in(context, &options, &pool);
    atomic_store(&p->pool, pool);
    if (!error)
        error = cenote_stream_set_immortal(p->pool, p->still);
    if (!error)
        error = cenote_stream_set_immortal(p->pool, p->mark); /* the end of a capture is announced for it also after a reset, which takes it away */
    if (!error)
        error = peers_grant(p->device, p->pool);
    if (!error)
        error = captures_join(p->number, p->pool, p->mark, p->all_are_seen);
    if (!error)
        error = cenote_pool_on_shortage(p->pool, 1, memory_return_in_shortage, p);
    if (!error)
        cenote_pool_set_user(p->pool, "the program");
    return error;
}

bool place_is_borrowing(void)
{
    return atomic_load(&borrowing);
}

/*
 * Blocks of the pool, whose context ends. If it has ended, the driver may give the addresses of segments to the pool of another device, between two
 * calls of this function, too. So blocks there end with their pool (`but_whole`); a driver before 12.0 does not say that a context has ended, and
 * then the pool does not end with them.
 */
static void free_everything(cenote_pool *pool, bool but_whole)
{
    size_t count = 0, room = 0;
    cenote_piece *pieces = NULL;
    cenote_block block;
    while (!cenote_pool_pieces(pool, NULL, pieces, room, &count) && count > room) {
        cenote_piece *more = realloc(pieces, (room = 2 * count) * sizeof *more);
        if (!more)
            break;
        pieces = more;
    }
    for (size_t i = 0; i < count && i < room; i++)
        if (pieces[i].state == CENOTE_PIECE_LIVE && !(but_whole && pieces[i].came_whole) &&
            !cenote_find((void *)(uintptr_t)pieces[i].address, &block) && block.pool == pool)
            cenote_free(block.start);
    free(pieces);
}

/* Takes apart what is there; `has_ended`: the context, and with it our streams and events. */
static void close_parts(struct place *p, bool has_ended, bool is_released)
{
    const struct real *r = real();
    captures_leave(p->number);
    int error = p->pool ? cenote_pool_destroy(p->pool) : CENOTE_OK;
    if (error == CENOTE_BUSY && has_ended) {
        free_everything(p->pool, false);
        error = cenote_pool_destroy(p->pool);
    }
    if (error && error != CENOTE_EXITING) /* then it ends with the process */
        fprintf(stderr, "cenote: the pool of device %d cannot be given back: %s\n", p->device, cenote_message());
    if (p->still && !has_ended)
        r->cuStreamDestroy_v2(p->still);
    if (p->mark && !has_ended)
        r->cuStreamDestroy_v2(p->mark);
    if (!is_released && place_is_primary(p))
        r->cuDevicePrimaryCtxRelease_v2(p->device);
    atomic_store(&p->pool, NULL);
    memset((char *)p + offsetof(struct place, number), 0, sizeof *p - offsetof(struct place, number));
}

/* The context is current, and kept. */
static bool open_parts(struct place *p, CUcontext context)
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
    int error = make_pool(p, context);
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
        if (other && other->device != p->device) {
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

/* Of a context of this device: its place's. */
static int number_of(CUdevice device, CUcontext context)
{
    for (int i = 0; i < atomic_load_explicit(&made_used, memory_order_acquire); i++)
        if (atomic_load_explicit(&made[i], memory_order_acquire) == context)
            return DEVICES_SERVED + i;
    return device;
}

/* The context is current: is it one that is served? It stays as long as the place is open: the program's own is closed before it ends. */
static bool keep_context(const struct real *r, int number, CUcontext context, unsigned *flags)
{
    if (number < DEVICES_SERVED)
        return retain_primary(r, number, context, flags);
    return !r->cuCtxGetFlags(flags);
}

static struct place *open_place(CUdevice device, CUcontext context)
{
    const struct real *r = real();
    int number = number_of(device, context);
    struct place *p = &places[number];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    unsigned flags = 0;
    if (atomic_load_explicit(&refused[number], memory_order_relaxed) == context)
        return NULL;
    real_is_in_use();
    pthread_mutex_lock(&opening);
    atomic_fetch_add(&borrowing, 1);
    CUcontext open = atomic_load(&p->context);
    if (!open && atomic_load(&refused[number]) != context && keep_context(r, number, context, &flags)) {
        p->inside = context;
        p->number = number;
        p->device = device;
        p->event_flags = event_flags_of(flags);
        r->cuThreadExchangeStreamCaptureMode(&mode);
        if (open_parts(p, context)) {
            CHECK(is_valid(p));
            memory_begin_to_ask(p);
            atomic_store(&p->context, open = context);
            peers_grant(device, p->pool); /* again: another thread may have let in a device before it saw the place */
            open_to_others(p);
        } else {
            close_parts(p, false, false);
            atomic_store(&refused[number], context);
        }
        r->cuThreadExchangeStreamCaptureMode(&mode);
    }
    atomic_fetch_sub(&borrowing, 1);
    pthread_mutex_unlock(&opening);
    return open == context ? p : NULL;
}

/* --- closing */

static struct place_past past_of(int number)
{
    struct place_past past = pasts[number];
    cenote_stats stats;
    if (!place_at(number) || cenote_pool_stats(places[number].pool, &stats))
        return past;
    past.device = places[number].device;
    past.requested = stats.requested.peak > past.requested ? stats.requested.peak : past.requested;
    past.reserved = stats.reserved.peak > past.reserved ? stats.reserved.peak : past.reserved;
    past.trims += stats.trims;
    past.calls = stats.driver_calls;
    return past;
}

bool place_past(int number, struct place_past *past)
{
    pthread_mutex_lock(&opening);
    *past = past_of(number);
    pthread_mutex_unlock(&opening);
    return past->requested != 0;
}

/* The context ends next, and the driver would wait for it. No lock is held: what the device has still to do may be a thread that opens a place. */
static void wait_for_the_end(struct place *p)
{
    struct scope scope;
    if (!place_enter(p, &scope))
        real()->cuCtxSynchronize();
    place_leave(&scope);
}

/* What visitors do they do before the parts go, and what they have kept is forgotten. */
void place_close(int number, bool has_ended, bool is_released)
{
    struct place *p = place_at(number);
    if (number >= 0 && number < PLACES_MAX)
        atomic_store(&refused[number], NULL);
    if (!p)
        return;
    captures_forget_context(atomic_load(&p->context));
    if (!has_ended)
        wait_for_the_end(p);
    pthread_mutex_lock(&opening);
    atomic_fetch_add(&borrowing, 1);
    pasts[number] = past_of(number);
    atomic_store(&p->context, NULL);
    while (atomic_load(&visitors[number]))
        sched_yield();
    memory_forget(p);
    identities_end(p);
    free_everything(p->pool, has_ended);
    peers_are_done(p->pool);
    close_parts(p, has_ended, is_released);
    if (number < DEVICES_SERVED)
        peers_forget(number);
    atomic_fetch_sub(&borrowing, 1);
    pthread_mutex_unlock(&opening);
}

/* --- contexts of the program's own */

void place_context_made(CUcontext context)
{
    pthread_mutex_lock(&opening);
    int i = 0, used = atomic_load(&made_used);
    while (i < used && atomic_load(&made[i]))
        i++;
    if (i < CONTEXTS_SERVED) {
        atomic_store(&attached[i], 0);
        atomic_store_explicit(&made[i], context, memory_order_release);
        if (i == used)
            atomic_store_explicit(&made_used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
}

void place_context_ends(CUcontext context)
{
    int number = context ? number_of(-1, context) : -1;
    if (number < 0)
        return;
    place_close(number, false, true);
    atomic_store(&made[number - DEVICES_SERVED], NULL);
}

void place_context_attached(CUcontext context)
{
    int number = number_of(-1, context);
    if (number >= 0)
        atomic_fetch_add(&attached[number - DEVICES_SERVED], 1);
}

/* The context is current to this thread; another one may detach from it at once. */
bool place_context_detached(CUcontext context)
{
    int number = number_of(-1, context);
    unsigned left = number < 0 ? 0 : atomic_load(&attached[number - DEVICES_SERVED]);
    while (left && !atomic_compare_exchange_weak(&attached[number - DEVICES_SERVED], &left, left - 1))
        ;
    return left;
}

/* Has it given anything back? */
static bool trim(struct place *p, unsigned flags)
{
    cenote_stats before, after;
    bool is_known = !cenote_pool_stats(p->pool, &before) && !cenote_pool_trim(p->pool, 0, flags) && !cenote_pool_stats(p->pool, &after);
    return is_known && after.reserved.current < before.reserved.current;
}

bool place_make_room(void)
{
    bool has_given = false;
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        has_given = trim(p, 0) || has_given;
        place_visit_end(p);
    }
    return has_given;
}

/* --- questions */

struct place *place_open_in(CUcontext context)
{
    int used = DEVICES_SERVED + atomic_load_explicit(&made_used, memory_order_relaxed);
    for (int i = 0; context && i < used; i++)
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
    struct place *p = place_open_in(context);
    if (!p && !r->cuCtxGetDevice(&device) && device >= 0 && device < DEVICES_SERVED)
        p = open_place(device, context);
    return p;
}

struct place *place_of_context(CUcontext context)
{
    const struct real *r = real();
    struct place *p = place_open_in(context);
    CUcontext popped;
    if (p || !context || r->cuCtxPushCurrent_v2(context))
        return p;
    p = place_here();
    r->cuCtxPopCurrent_v2(&popped);
    return p;
}

struct place *place_of_primary(CUdevice device)
{
    const struct real *r = real();
    struct place *p = place_at(device);
    CUcontext context;
    unsigned flags;
    int active = 0;
    if (p || r->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active)
        return p;
    atomic_fetch_add(&borrowing, 1);
    if (!r->cuDevicePrimaryCtxRetain(&context, device)) {
        p = place_of_context(context);
        r->cuDevicePrimaryCtxRelease_v2(device);
    }
    atomic_fetch_sub(&borrowing, 1);
    return p;
}

struct place *place_at(int number)
{
    bool is_open = number >= 0 && number < PLACES_MAX && atomic_load_explicit(&places[number].context, memory_order_acquire);
    return is_open ? &places[number] : NULL;
}

struct place *place_visit(int number)
{
    if (!place_at(number))
        return NULL;
    atomic_fetch_add(&visitors[number], 1);
    struct place *p = atomic_load(&places[number].context) ? &places[number] : NULL;
    if (!p)
        atomic_fetch_sub(&visitors[number], 1);
    return p;
}

struct place *place_visit_there(const struct place *p)
{
    return place_visit((int)(p - places));
}

void place_visit_end(struct place *p)
{
    CHECK(atomic_load(&visitors[p - places]));
    atomic_fetch_sub(&visitors[p - places], 1);
}

struct place *place_of_pool(const cenote_pool *pool)
{
    struct place *p = place_at(cenote_pool_device(pool));
    for (int i = 0; (!p || p->pool != pool) && i < atomic_load_explicit(&made_used, memory_order_relaxed); i++)
        p = place_at(DEVICES_SERVED + i);
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
