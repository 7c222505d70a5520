/*
 * memory.c: memory for every stream at once: cuMemAlloc, cuMemAllocPitch and cuMemFree.
 *
 * What cuMemAlloc gives may be used on any stream without order, so nothing that the device has still to do may touch it. Such blocks are all taken
 * on one stream of ours that never has work (`still` of struct place). Whatever leaves another stream's memory has to be done with on the device
 * first (rule 1 of docs/design.md), and what was freed here was waited for:
 *
 *     live ----cuMemFree: the thread waits for the context----> free, for any request
 *       |
 *       +-----cuMemFree while a stream is captured: the driver decides whether a free is allowed then. If it is, the thread cannot wait for the
 *             context, because that would end the capture: the block is *kept*. When the last capture has ended, a relay waits for the device in
 *             place of the thread, and the block is free after it (relay.c). Where that is not possible, the next cuMemFree or a shortage of memory
 *             waits for it
 *
 * cuMemFree of a block that was taken in stream order waits for nothing, as in the driver: cuda.h says that the program has. While a capture is open
 * the driver is asked here, too, and waits if it allows the free.
 *
 * LOCKING: `keeping` guards the blocks that are kept.
 */
#include "plugins/preload/memory.h"

#include "plugins/preload/captures.h"
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/identities.h"
#include "plugins/preload/relay.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/check.h"

#define PITCH_STEP 512 /* what drivers align rows to: a row begins at the alignment of textures */

static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;
static struct kept {
    struct place *place;
    void         *block;
    uint64_t      number; /* in the order in which they came */
} *kept;
static size_t kept_count, kept_room;
static _Atomic uint64_t kept_ever;

static void *address(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

CUresult memory_said(int error)
{
    switch (error) {
    case CENOTE_OK:
        return CUDA_SUCCESS;
    case CENOTE_OUT_OF_MEMORY:
    case CENOTE_OUT_OF_HOST_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case CENOTE_EXITING:
        return CUDA_ERROR_DEINITIALIZED;
    case CENOTE_DRIVER:
    case CENOTE_DEVICE_LOST:
        return cenote_driver_result() ? (CUresult)cenote_driver_result() : CUDA_ERROR_UNKNOWN;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* --- taking */

static void learn_still_id(struct place *p, void *block)
{
    cenote_block found;
    if (!atomic_load_explicit(&p->still_id, memory_order_relaxed) && !cenote_find(block, &found)) {
        CHECK(found.stream == p->still);
        atomic_store_explicit(&p->still_id, found.stream_id, memory_order_release);
    }
}

static int take(struct place *p, struct family *family, size_t bytes, CUstream stream, void **block)
{
    cenote_group *group = NULL;
    if (family && !family_group(p, family, &group))
        return CENOTE_NOT_SUPPORTED;
    cenote_request request = {.bytes = bytes, .group = group, .stream = stream};
    return group ? cenote_alloc_with(p->pool, &request, block) : cenote_alloc(p->pool, bytes, stream, block);
}

bool memory_take(struct place *p, struct family *family, CUdeviceptr *at, size_t bytes, CUstream stream, CUresult *result)
{
    void *block = NULL;
    CHECK(!family == (stream == p->still));
    int error = take(p, family, bytes, stream, &block);
    *result = CUDA_SUCCESS;
    if (error == CENOTE_OUT_OF_MEMORY) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return true;
    }
    if (error)
        return false;
    if (family)
        family_count_taken(family, bytes);
    else
        learn_still_id(p, block);
    *at = (CUdeviceptr)(uintptr_t)block;
    return true;
}

/* A stream that has no work: the driver refuses the question when it refuses cuMemAlloc (sim/entries/answers.txt); nothing has to be given back. */
CUresult memory_ask(const struct place *p)
{
    CUresult result = captures_may_be_open() ? real()->cuStreamQuery(p->still) : CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

static bool take_for_all(struct place *p, CUdeviceptr *at, size_t bytes, CUresult *result)
{
    *result = memory_ask(p);
    return *result || memory_take(p, NULL, at, bytes, p->still, result);
}

CUresult serve_cuMemAlloc_v2(CUdeviceptr *at, size_t size)
{
    struct place *p = at && size ? place_here() : NULL;
    CUresult result;
    if (p && take_for_all(p, at, size, &result))
        return result;
    result = real()->cuMemAlloc_v2(at, size);
    return place_passed(p ? PASS_REFUSED : PASS_CONTEXT, place_lacks_room(result) ? real()->cuMemAlloc_v2(at, size) : result);
}

static CUresult pass_pitch(enum pass why, CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUresult result = real()->cuMemAllocPitch_v2(at, pitch, width, height, element);
    return place_passed(why, place_lacks_room(result) ? real()->cuMemAllocPitch_v2(at, pitch, width, height, element) : result);
}

CUresult serve_cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    bool is_fine = at && pitch && width && height && width <= INT32_MAX && (element == 4 || element == 8 || element == 16);
    size_t row = (width + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
    struct place *p = is_fine && height <= SIZE_MAX / row ? place_here() : NULL;
    CUresult result;
    if (!p || !take_for_all(p, at, row * height, &result))
        return pass_pitch(p ? PASS_REFUSED : PASS_CONTEXT, at, pitch, width, height, element);
    if (!result)
        *pitch = row;
    return result;
}

/* --- waiting for the device */

/* The driver refuses a cuMemFree of a thread to which no context is current. */
static CUresult enter_for_the_program(struct place *p, struct scope *scope)
{
    CUresult result = place_enter(p, scope);
    return !result && !scope->had_context ? CUDA_ERROR_INVALID_CONTEXT : result;
}

/* A thread may wait for an event over the whole context; otherwise the driver waits for it, in a free of its own memory. */
static bool waits_by_mark(const struct place *p)
{
    return p->all_are_seen && captures_can_mark();
}

/* Memory of the driver's own; with a reserve, because the device may be full. */
static CUresult take_probe(struct place *p, CUdeviceptr *probe)
{
    const struct real *r = real();
    *probe = atomic_exchange(&p->probe, 0);
    CUresult result = *probe ? CUDA_SUCCESS : r->cuMemAlloc_v2(probe, 1);
    return place_lacks_room(result) ? r->cuMemAlloc_v2(probe, 1) : result;
}

static void keep_probe(struct place *p, CUdeviceptr probe)
{
    CUdeviceptr none = 0;
    if (probe && !atomic_compare_exchange_strong(&p->probe, &none, probe))
        real()->cuMemFree_v2(probe);
}

/* In a mode in which this allocation ends no capture that has begun meanwhile. */
static void renew_probe(struct place *p)
{
    const struct real *r = real();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr probe = 0;
    r->cuThreadExchangeStreamCaptureMode(&mode);
    if (!r->cuMemAlloc_v2(&probe, 1))
        keep_probe(p, probe);
    r->cuThreadExchangeStreamCaptureMode(&mode);
}

void memory_begin_to_ask(struct place *p)
{
    if (!waits_by_mark(p))
        renew_probe(p);
}

/*
 * Would the driver allow a cuMemFree now? It is asked by one of its own memory, which it refuses, or also waits for, as it does for any. The context
 * is current.
 */
static CUresult ask_for_a_free(struct place *p, bool *has_waited)
{
    const struct real *r = real();
    CUdeviceptr probe = 0;
    *has_waited = false;
    CUresult result = take_probe(p, &probe);
    if (result)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result; /* it is no refusal */
    result = r->cuMemFree_v2(probe);
    *has_waited = !result;
    if (result)
        keep_probe(p, probe);
    else if (!waits_by_mark(p))
        renew_probe(p);
    return result;
}

static CUresult wait_as_the_driver(struct place *p, bool *has_waited)
{
    const struct real *r = real();
    CUcontext popped;
    *has_waited = false;
    CUresult result = place_has_context() ? r->cuCtxPushCurrent_v2(p->inside) : CUDA_ERROR_INVALID_CONTEXT;
    if (result)
        return result;
    result = ask_for_a_free(p, has_waited);
    *has_waited = *has_waited && !waits_by_mark(p) && !captures_are_open();
    r->cuCtxPopCurrent_v2(&popped);
    return result;
}

/* No lock is held meanwhile. False, and nothing was waited for: a capture is open, or the driver has no event to spare. */
static bool wait_for_mark(struct place *p, CUresult *result)
{
    struct scope scope;
    CUevent event = NULL;
    bool is_marked = false;
    *result = enter_for_the_program(p, &scope);
    if (!*result && (event = place_take_event(p))) {
        is_marked = captures_mark(p->inside, event, result);
        if (is_marked && !*result)
            *result = real()->cuEventSynchronize(event);
        place_give_event(p, event);
    }
    place_leave(&scope);
    return is_marked || *result;
}

/*
 * The device is done with all that it was given: *has_waited. With captures that are not seen, the driver alone knows whether a thread may wait, and
 * it waits as it does at each cuMemFree; so does a driver before CUDA 12.5, which has no event over a context: a thread that waited for the context
 * itself would have to keep captures from beginning, and the device may wait for one. While a capture is open no thread waits, and the driver says
 * whether a free is allowed.
 */
static CUresult wait_for_device(struct place *p, bool *has_waited)
{
    CUresult result = CUDA_SUCCESS;
    *has_waited = waits_by_mark(p) && wait_for_mark(p, &result);
    return *has_waited ? result : wait_as_the_driver(p, has_waited);
}

/* --- blocks that are kept */

static bool have_room(void)
{
    if (kept_count < kept_room)
        return true;
    size_t room = kept_room ? 2 * kept_room : 64;
    struct kept *more = realloc(kept, room * sizeof *more);
    kept = more ? more : kept;
    kept_room = more ? room : kept_room;
    return more != NULL;
}

static CUresult keep(struct place *p, void *block)
{
    pthread_mutex_lock(&keeping);
    bool has_room = have_room();
    if (has_room)
        kept[kept_count++] = (struct kept){p, block, atomic_fetch_add(&kept_ever, 1) + 1};
    pthread_mutex_unlock(&keeping);
    return has_room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool memory_is_kept(const void *block)
{
    bool is_kept = false;
    if (!atomic_load_explicit(&kept_ever, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&keeping);
    for (size_t i = 0; i < kept_count; i++)
        is_kept = is_kept || kept[i].block == block;
    pthread_mutex_unlock(&keeping);
    return is_kept;
}

/* Up to the one of that number: the device is done with them. */
static void free_kept(struct place *p, uint64_t last)
{
    cenote_block block;
    pthread_mutex_lock(&keeping);
    for (size_t i = kept_count; i-- > 0;)
        if (kept[i].place == p && kept[i].number <= last) {
            if (!cenote_find(kept[i].block, &block))
                memory_give(p, &block);
            kept[i] = kept[--kept_count];
        }
    pthread_mutex_unlock(&keeping);
}

uint64_t memory_kept(struct place *p)
{
    uint64_t bytes = 0;
    cenote_block block;
    if (!atomic_load_explicit(&kept_ever, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&keeping);
    for (size_t i = 0; i < kept_count; i++)
        bytes += kept[i].place == p && !cenote_find(kept[i].block, &block) ? block.requested : 0;
    pthread_mutex_unlock(&keeping);
    return bytes;
}

void memory_forget(struct place *p)
{
    pthread_mutex_lock(&keeping);
    for (size_t i = kept_count; i-- > 0;)
        if (kept[i].place == p)
            kept[i] = kept[--kept_count];
    pthread_mutex_unlock(&keeping);
}

/* One that is not later than `last`. NULL: there is none. */
static void *take_kept(struct place *p, uint64_t last)
{
    void *block = NULL;
    pthread_mutex_lock(&keeping);
    for (size_t i = kept_count; i-- > 0 && !block;)
        if (kept[i].place == p && kept[i].number <= last) {
            block = kept[i].block;
            kept[i] = kept[--kept_count];
        }
    pthread_mutex_unlock(&keeping);
    return block;
}

/* They are free when the relay has come to where the device is now. */
static void give_behind(struct place *p, CUstream relay, uint64_t last)
{
    cenote_block block;
    void *next;
    while ((next = take_kept(p, last)))
        if (cenote_use(next, relay)) {
            keep(p, next); /* no host memory */
            return;
        } else if (!cenote_find(next, &block)) {
            memory_give(p, &block);
        }
}

static void return_kept(struct place *p)
{
    struct scope scope;
    CUstream relay;
    uint64_t last = atomic_load(&kept_ever);
    CUresult result = place_enter(p, &scope);
    CUevent event = result ? NULL : place_take_event(p);
    if (event && captures_mark(p->inside, event, &result) && !result && !relay_open(event, &relay)) {
        give_behind(p, relay, last);
        relay_close(p, relay);
    }
    if (event)
        place_give_event(p, event);
    place_leave(&scope);
}

void memory_return_kept(void)
{
    for (int i = 0; i < PLACES_MAX && atomic_load_explicit(&kept_ever, memory_order_relaxed); i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        if (p->all_are_seen && memory_kept(p))
            return_kept(p);
        place_visit_end(p);
    }
}

int memory_return_in_shortage(cenote_pool *pool, size_t bytes, void *place)
{
    struct place *p = place;
    struct scope scope;
    uint64_t last = atomic_load(&kept_ever);
    bool has_waited = false;
    (void)pool, (void)bytes;
    if (!last || captures_are_open() || !memory_kept(p))
        return 0;
    if (!place_enter(p, &scope) && !wait_for_device(p, &has_waited) && has_waited)
        free_kept(p, last);
    place_leave(&scope);
    return has_waited;
}

/* --- giving */

/* What is known of the block goes first: at its address there may be another one as soon as it is free. */
int memory_give(struct place *p, const cenote_block *block)
{
    struct family *family = place_is_for_all(p, block) ? NULL : family_of_block(p, block);
    identity_forget(block->start);
    int error = cenote_free(block->start);
    if (!error && family)
        family_count_given(family, block->requested);
    return error;
}

static CUresult free_for_all(struct place *p, const cenote_block *block)
{
    bool has_waited;
    uint64_t last = atomic_load(&kept_ever); /* what is kept from here on was not waited for */
    CUresult result = wait_for_device(p, &has_waited);
    if (result)
        return result;
    if (!has_waited)
        return keep(p, block->start);
    if (last)
        free_kept(p, last);
    return memory_said(memory_give(p, block));
}

/* The driver refuses each call in a context that is lost; cenote would free the block in its books. */
static CUresult ask_for_the_context(struct place *p)
{
    struct scope scope;
    unsigned flags;
    CUresult result = enter_for_the_program(p, &scope);
    if (!result)
        result = real()->cuCtxGetFlags(&flags);
    place_leave(&scope);
    return result;
}

static CUresult free_in_order(struct place *p, const cenote_block *block)
{
    bool has_waited;
    CUresult result = ask_for_the_context(p);
    if (!result && captures_are_open())
        result = wait_as_the_driver(p, &has_waited);
    return result ? result : memory_said(memory_give(p, block));
}

CUresult serve_cuMemFree_v2(CUdeviceptr at)
{
    cenote_block block;
    struct place *p = place_of_block(at, &block);
    if (!p)
        return real()->cuMemFree_v2(at);
    if (block.start != address(at) || memory_is_kept(block.start)) {
        CUresult result = memory_ask(p);
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    }
    return place_is_for_all(p, &block) ? free_for_all(p, &block) : free_in_order(p, &block);
}
