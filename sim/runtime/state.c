/*
 * state.c: which device a thread of the program uses, the primary contexts that the runtime holds, and the last error of a thread.
 *
 * A thread starts on device 0. A context is made by the first call that needs one, or by cudaSetDevice. A program may make contexts
 * current through the driver: then the runtime works in those.
 *
 * LOCKING: `lock` is held while a context is retained, so that only one thread does it; reading one that is there takes no lock.
 */
#include "sim/runtime/runtime.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(CUcontext) primary[RUNTIME_DEVICES_MAX];
static _Atomic bool started;
static _Atomic(CUcontext) ended[RUNTIME_DEVICES_MAX];  /* by cudaDeviceReset; may live again, under the same handle */
static _Atomic uint32_t resets;

static _Thread_local int device_of_thread;
static _Thread_local bool device_chosen;     /* by cudaSetDevice: its context is current unless the program changed that */
static _Thread_local uint32_t resets_seen;   /* a context that was current before the last one may be dead */
static _Thread_local cudaError_t last_error;

CUresult runtime_start(void)
{
    if (atomic_load_explicit(&started, memory_order_relaxed))
        return CUDA_SUCCESS;
    CUresult result = cuInit(0);
    if (!result)
        atomic_store(&started, true);
    return result;
}

CUresult runtime_primary(int device, CUcontext *context)
{
    if (device < 0 || device >= RUNTIME_DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    *context = atomic_load(&primary[device]);
    if (*context)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    *context = atomic_load(&primary[device]);
    if (!*context) {
        result = cuDevicePrimaryCtxRetain(context, device);
        if (!result)
            atomic_store(&primary[device], *context);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int runtime_device(void)
{
    CUdevice device;
    return device_chosen || cuCtxGetDevice(&device) ? device_of_thread : device;
}

CUresult runtime_use_device(int device, bool context)
{
    int count = 0;
    CUresult result = runtime_start();
    if (!result)
        result = cuDeviceGetCount(&count);
    if (result)
        return result;
    if (device < 0 || device >= count || device >= RUNTIME_DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext own = NULL;
    if (context)
        result = runtime_primary(device, &own);
    if (!result && context)
        result = cuCtxSetCurrent(own);
    if (result)
        return result;
    device_of_thread = device;
    device_chosen = context;
    return CUDA_SUCCESS;
}

/* The context was a device's primary one, the device was reset, and no call has made it live again. */
static bool is_over(CUcontext context)
{
    int device = 0, active = 1;
    unsigned flags;
    while (device < RUNTIME_DEVICES_MAX && atomic_load(&ended[device]) != context)
        device++;
    return device < RUNTIME_DEVICES_MAX && !cuDevicePrimaryCtxGetState(device, &flags, &active) && !active;
}

CUresult runtime_begin(void)
{
    CUcontext current = NULL;
    CUresult result = runtime_start();
    if (!result)
        result = cuCtxGetCurrent(&current);
    uint32_t now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (resets_seen != now && current && is_over(current))
        current = NULL;
    resets_seen = now;
    return result || current ? result : runtime_use_device(device_of_thread, true);
}

cudaError_t runtime_end(CUresult result)
{
    return runtime_fail((cudaError_t)result);
}

cudaError_t runtime_fail(cudaError_t error)
{
    if (error)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaSetDevice(int device)
{
    return runtime_end(runtime_use_device(device, true));
}

cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more)
{
    (void)flags;
    (void)more;
    int count;
    CUcontext context;
    CUresult result = runtime_start();
    if (!result)
        result = cuDeviceGetCount(&count);
    if (!result)
        result = device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : runtime_primary(device, &context);
    return runtime_end(result);
}

cudaError_t cudaGetDevice(int *device)
{
    CUresult result = runtime_start();
    if (!result && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *device = runtime_device();
    return runtime_end(result);
}

/* Everything of the device is gone afterwards, for all threads. */
cudaError_t cudaDeviceReset(void)
{
    int device = runtime_device();
    CUresult result = runtime_start();
    CUcontext context = result ? NULL : atomic_exchange(&primary[device], NULL);
    if (context) {
        atomic_store(&ended[device], context);
        result = cuDevicePrimaryCtxReset(device);
        cuDevicePrimaryCtxRelease(device);          /* a reset ends it and leaves it retained */
        symbols_forget(device);
        atomic_fetch_add(&resets, 1);
    }
    device_chosen = false;
    return runtime_end(result);
}
