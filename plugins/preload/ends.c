/*
 * ends.c: what ends in the driver and matters to cenote: captures, streams, and the primary context of a device.
 *
 * A primary context ends when the program resets it, or releases it as often as it has retained it. The place retains it, too, so it would outlive
 * the program's last release with all its memory. How often the program has retained it only the driver knows: a part of the program may do so by a
 * route past our hooks. What has ended is named to the driver no more: the place closes afterwards. A context that the program has made ends when the
 * program destroys it: its place closes before, because the driver may give its handle to the next one.
 *
 * LOCKING: `ending` of a device is held while our retain is given back and taken again: no other thread of the program retains or releases the
 * context between. Retains that are ours for a moment, on other threads, are told from the program's (place_is_borrowing).
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/peers.h"
#include "plugins/preload/place.h"

#include <pthread.h>
#include <sched.h>

/*
 * Every pool is told: the stream may have used memory of other devices. A pool that does not know it says OK. One that cannot be told now finds the
 * stream's memory again by itself: announced captures let it ask for the whole context.
 */
CUresult serve_cuStreamDestroy_v2(CUstream stream)
{
    bool is_ours = false;
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        is_ours = is_ours || place_has_stream(p, stream);
        if (!is_ours)
            cenote_stream_retire(p->pool, stream);
        place_visit_end(p);
    }
    if (is_ours)
        return CUDA_ERROR_INVALID_HANDLE;
    real_is_in_use(); /* there was a stream */
    captures_forget_stream(stream);
    memory_return_kept();
    return real()->cuStreamDestroy_v2(stream);
}

/* It may fail and have ended the capture, or leave it open, as when it is called on another thread than the capture was begun on. */
static CUresult ended(CUstream stream, CUresult result)
{
    if (!result || !captures_have(stream)) {
        captures_forget_stream(stream);
        memory_return_kept();
    }
    return result;
}

CUresult serve_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(stream, real()->cuStreamEndCapture(stream, graph));
}

#if CUDA_VERSION >= 13050
CUresult serve_cuStreamEndCaptureToCig(CUstream stream)
{
    return ended(stream, real()->cuStreamEndCaptureToCig(stream));
}
#endif

/* --- contexts */

static pthread_mutex_t ending[DEVICES_SERVED] = {[0 ... DEVICES_SERVED - 1] = PTHREAD_MUTEX_INITIALIZER};

/* The driver answers what is no device, and devices that are not served have no place. */
static pthread_mutex_t *ending_of(CUdevice device)
{
    return &ending[device >= 0 && device < DEVICES_SERVED ? device : 0];
}

/* The context has ended. */
static void close(CUdevice device, bool is_released)
{
    struct place *p = place_at(device);
    if (p)
        families_close(p);
    place_close(device, true, is_released);
    memory_return_kept(); /* of other devices: its captures are over */
}

/* By a caller that keeps it. */
static bool is_retained(CUdevice device)
{
    unsigned flags;
    int active = 0;
    bool may_be_ours;
    do {
        may_be_ours = place_is_borrowing();
        if (real()->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active)
            return false;
        sched_yield();
    } while (may_be_ours);
    return true;
}

/*
 * The program has released the context once. Would it be there without us? Our own retain is given back; cenote has none, because its pool is in a
 * context that we keep. If another caller has retained it, in whichever way, it goes on, and we take ours again; otherwise it has ended with that,
 * and the place closes.
 */
static void released(CUdevice device)
{
    const struct real *r = real();
    CUcontext context;
    if (!place_at(device))
        return;
    r->cuDevicePrimaryCtxRelease_v2(device);
    if (!is_retained(device) || r->cuDevicePrimaryCtxRetain(&context, device))
        close(device, true);
}

CUresult serve_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(ending_of(device));
    CUresult result = real()->cuDevicePrimaryCtxRetain(context, device);
    if (place_lacks_room(result))
        result = real()->cuDevicePrimaryCtxRetain(context, device);
    pthread_mutex_unlock(ending_of(device));
    if (!result)
        peers_retained(device);
    return result;
}

static CUresult release(CUdevice device, CUresult (*of_driver)(CUdevice))
{
    CUresult result = of_driver(device);
    pthread_mutex_lock(ending_of(device));
    if (!result)
        released(device);
    pthread_mutex_unlock(ending_of(device));
    return result;
}

CUresult serve_cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release(device, real()->cuDevicePrimaryCtxRelease);
}

CUresult serve_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release(device, real()->cuDevicePrimaryCtxRelease_v2);
}

/* The handle of the context stays, and so do the retains of the program and of the place. */
static CUresult reset(CUdevice device, CUresult (*of_driver)(CUdevice))
{
    CUresult result = of_driver(device);
    if (!result)
        close(device, false);
    return result;
}

CUresult serve_cuDevicePrimaryCtxReset(CUdevice device)
{
    return reset(device, real()->cuDevicePrimaryCtxReset);
}

CUresult serve_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return reset(device, real()->cuDevicePrimaryCtxReset_v2);
}

/* --- contexts that the program makes */

static CUresult made(CUresult result, CUcontext *context)
{
    if (!result)
        place_context_made(*context);
    return result;
}

CUresult serve_cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    CUresult result = real()->cuCtxCreate_v2(context, flags, device);
    return made(place_lacks_room(result) ? real()->cuCtxCreate_v2(context, flags, device) : result, context);
}

CUresult serve_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *list, int count, unsigned int flags, CUdevice device)
{
    CUresult result = real()->cuCtxCreate_v3(context, list, count, flags, device);
    return made(place_lacks_room(result) ? real()->cuCtxCreate_v3(context, list, count, flags, device) : result, context);
}

#if CUDA_VERSION >= 12050
CUresult serve_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *with, unsigned int flags, CUdevice device)
{
    CUresult result = real()->cuCtxCreate_v4(context, with, flags, device);
    return made(place_lacks_room(result) ? real()->cuCtxCreate_v4(context, with, flags, device) : result, context);
}
#endif

/* While it captures nothing can be waited for in it: its captures, which would end with it, end before. */
static void ends(CUcontext context)
{
    struct place *p = place_open_in(context);
    if (p && !place_is_primary(p)) {
        captures_end_in(context);
        families_close(p);
    }
    place_context_ends(context);
    memory_return_kept(); /* of other contexts: its captures are over */
}

CUresult serve_cuCtxDestroy_v2(CUcontext context)
{
    ends(context);
    return real()->cuCtxDestroy_v2(context);
}

CUresult serve_cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUresult result = real()->cuCtxAttach(context, flags);
    if (!result)
        place_context_attached(*context);
    return result;
}

/* The last one ends the context. The driver refuses one that is not current, and it goes on. */
CUresult serve_cuCtxDetach(CUcontext context)
{
    CUcontext now;
    bool is_current = !real()->cuCtxGetCurrent(&now) && now == context;
    if (is_current && !place_context_detached(context))
        ends(context);
    return real()->cuCtxDetach(context);
}
