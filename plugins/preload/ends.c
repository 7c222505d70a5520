/*
 * ends.c: what ends in the driver and matters to cenote: streams, and the primary context of a device.
 *
 * A primary context ends when the program resets it, or releases it as often as it has retained it. cenote retains it, too, so it would outlive the
 * program's last release with all its memory: the releases are counted here, and at the last one the place closes.
 *
 * LOCKING: none; `retained` is counted by atomic steps.
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/place.h"

static _Atomic int retained[PLACES_MAX]; /* by the program, of each device */

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
    return real()->cuStreamDestroy_v2(stream);
}

/* --- contexts */

static void close(CUdevice device, bool has_ended)
{
    struct place *p = place_at(device);
    if (!p || (!has_ended && captures_are_in(atomic_load(&p->context))))
        return;
    memory_forget(p);
    families_close(p);
    place_close(device, has_ended);
}

CUresult serve_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = real()->cuDevicePrimaryCtxRetain(context, device);
    if (!result && device >= 0 && device < PLACES_MAX)
        atomic_fetch_add(&retained[device], 1);
    return result;
}

static void released(CUdevice device)
{
    if (device < 0 || device >= PLACES_MAX)
        return;
    int before = atomic_load(&retained[device]);
    while (before > 0 && !atomic_compare_exchange_weak(&retained[device], &before, before - 1))
        ;
    if (before == 1)
        close(device, false);
}

/* The place closes before the driver is told: the context is still there. */
CUresult serve_cuDevicePrimaryCtxRelease(CUdevice device)
{
    released(device);
    return real()->cuDevicePrimaryCtxRelease(device);
}

CUresult serve_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    released(device);
    return real()->cuDevicePrimaryCtxRelease_v2(device);
}

/* The handle of the context stays, and so do the program's retains. What has ended is named to the driver no more: the place closes afterwards. */
CUresult serve_cuDevicePrimaryCtxReset(CUdevice device)
{
    CUresult result = real()->cuDevicePrimaryCtxReset(device);
    if (!result)
        close(device, true);
    return result;
}

CUresult serve_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = real()->cuDevicePrimaryCtxReset_v2(device);
    if (!result)
        close(device, true);
    return result;
}
