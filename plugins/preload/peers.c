/*
 * peers.c: cuCtxEnablePeerAccess opens all memory of cuMemAlloc of one device, what is there and what comes, to the kernels of another. The driver
 * does that for its own; a pool of cenote is granted.
 *
 * The memory ends with its context, as the driver's does, whatever the kernels of other devices do with it: they are not waited for. A capture may be
 * open on those devices, and would end.
 *
 * A grant lasts as long as the pool: cuCtxDisablePeerAccess takes back only what is the driver's. A program sees no difference but for a fault that
 * does not come.
 *
 * A device that may use memory of another one, or of a pool that the program has opened to it, is asked how far its kernels are. cenote would retain
 * its primary context for that, which would then outlive the program's last release. So the preload serves that context from then on.
 *
 * LOCKING: `deciding` guards the table, and is held while a pool is granted: a pool that opens meanwhile is granted here or there.
 */
#include "plugins/preload/peers.h"

#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

#include <pthread.h>

static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;
static uint64_t lets_in[DEVICES_SERVED]; /* of each device: the devices that may use its memory, a bit each */
static _Atomic uint64_t guests;          /* the devices that a pool of another one was ever opened to, a bit each */

static int grant_all(int device, cenote_pool *pool)
{
    int error = CENOTE_OK;
    for (int i = 0; i < DEVICES_SERVED && !error; i++)
        if (lets_in[device] >> i & 1)
            error = cenote_pool_grant(pool, i);
    return error;
}

int peers_grant(int device, cenote_pool *pool)
{
    pthread_mutex_lock(&deciding);
    int error = grant_all(device, pool);
    pthread_mutex_unlock(&deciding);
    return error;
}

void peers_forget(int device)
{
    pthread_mutex_lock(&deciding);
    lets_in[device] = 0;
    for (int i = 0; i < DEVICES_SERVED; i++)
        lets_in[i] &= ~(1ull << device);
    pthread_mutex_unlock(&deciding);
}

/* The context of the pool ends: what other devices have still to do there they must not do, and they may be capturing. */
static void forget_device(cenote_pool *pool, CUdevice device)
{
    const struct real *r = real();
    CUcontext context, popped;
    unsigned flags;
    int active = 0;
    uint64_t sync;
    if (r->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active || r->cuDevicePrimaryCtxRetain(&context, device))
        return;
    if (!r->cuCtxPushCurrent_v2(context)) {
        if (!cenote_pool_sync_begin(pool, &sync))
            cenote_pool_sync_end(pool, sync);
        r->cuCtxPopCurrent_v2(&popped);
    }
    r->cuDevicePrimaryCtxRelease_v2(device);
}

void peers_are_done(cenote_pool *pool)
{
    int devices = 0;
    if (real()->cuDeviceGetCount(&devices))
        return;
    for (int i = 0; i < devices && i < DEVICES_SERVED; i++)
        if (i != cenote_pool_device(pool))
            forget_device(pool, i);
}

void peers_let_in(uint64_t devices)
{
    atomic_fetch_or(&guests, devices);
    for (int i = 0; i < DEVICES_SERVED; i++)
        if (devices >> i & 1)
            place_of_primary(i);
}

void peers_retained(int device)
{
    if (device >= 0 && device < DEVICES_SERVED && atomic_load_explicit(&guests, memory_order_relaxed) >> device & 1)
        place_of_primary(device);
}

static bool devices_of(CUcontext peer, CUdevice *own, CUdevice *other)
{
    const struct real *r = real();
    CUcontext popped;
    if (r->cuCtxGetDevice(own) || r->cuCtxPushCurrent_v2(peer))
        return false;
    CUresult result = r->cuCtxGetDevice(other);
    r->cuCtxPopCurrent_v2(&popped);
    return !result && *own >= 0 && *own < DEVICES_SERVED && *other >= 0 && *other < DEVICES_SERVED;
}

CUresult serve_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUdevice own, other;
    CUresult result = real()->cuCtxEnablePeerAccess(peer, flags);
    if (result || !devices_of(peer, &own, &other))
        return result;
    real_is_in_use();
    place_here(); /* so that cenote knows this context as one that ends: it would retain the context otherwise, to ask how far its kernels are */
    pthread_mutex_lock(&deciding);
    lets_in[other] |= 1ull << own;
    int error = CENOTE_OK;
    for (int i = 0; i < PLACES_MAX && !error; i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        error = p->device == other ? cenote_pool_grant(p->pool, own) : CENOTE_OK;
        place_visit_end(p);
    }
    error = error == CENOTE_EXITING ? CENOTE_OK : error; /* what is there stays as it is, and nothing comes */
    if (error)
        lets_in[other] &= ~(1ull << own);
    pthread_mutex_unlock(&deciding);
    if (!error)
        return CUDA_SUCCESS;
    real()->cuCtxDisablePeerAccess(peer);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}
