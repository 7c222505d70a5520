/*
 * ends.c: what ends in the driver and matters to cenote: captures, streams, and the primary context of a device.
 *
 * A primary context ends when the program resets it, or releases it as often as it has retained it. cenote retains it, too, so it would outlive the
 * program's last release with all its memory. How often the program has retained it only the driver knows: a part of the program may do so by a route
 * past our hooks. What has ended is named to the driver no more: the place closes afterwards.
 *
 * LOCKING: `ending` is held while our retains are given back and taken again: no other thread retains or releases the context between.
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/place.h"

#include <pthread.h>

/*
 * Every pool is told: the stream may have used memory of other devices. A pool that does not know it says OK. One that cannot be told now finds the
 * stream's memory again by itself: announced captures let it ask for the whole context.
 */
CUresult serve_cuStreamDestroy_v2(CUstream stream)
{
    for (int i = 0; i < PLACES_MAX; i++)
        if (place_at(i))
            cenote_stream_retire(place_at(i)->pool, stream);
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

static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER;

/* The context has ended. */
static void close(CUdevice device, bool is_released)
{
    struct place *p = place_at(device);
    if (p) {
        memory_forget(p);
        families_close(p);
    }
    place_close(device, is_released);
    memory_return_kept(); /* of other devices: its captures are over */
}

static void give_back(const struct real *r, CUdevice device)
{
    for (int i = 0; i < PLACE_RETAINS; i++)
        r->cuDevicePrimaryCtxRelease_v2(device);
}

/* False: the context has ended since, and this is another one; it is given back. */
static bool take_again(const struct real *r, CUdevice device)
{
    CUcontext context;
    for (int i = 0; i < PLACE_RETAINS; i++)
        if (r->cuDevicePrimaryCtxRetain(&context, device))
            return false;
    return true;
}

/*
 * The program has released the context once. Would it be there without us? Our own retains are given back. If another caller has retained it, in
 * whichever way, it goes on, and we take them again; otherwise it has ended with that, and the place closes.
 */
static void released(CUdevice device)
{
    const struct real *r = real();
    unsigned flags;
    int active = 0;
    if (!place_at(device))
        return;
    give_back(r, device);
    if (r->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active || !take_again(r, device))
        close(device, true);
}

CUresult serve_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&ending);
    CUresult result = real()->cuDevicePrimaryCtxRetain(context, device);
    if (place_lacks_room(result))
        result = real()->cuDevicePrimaryCtxRetain(context, device);
    pthread_mutex_unlock(&ending);
    return result;
}

static CUresult release(CUdevice device, CUresult (*of_driver)(CUdevice))
{
    CUresult result = of_driver(device);
    pthread_mutex_lock(&ending);
    if (!result)
        released(device);
    pthread_mutex_unlock(&ending);
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
