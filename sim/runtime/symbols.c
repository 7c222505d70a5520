/*
 * symbols.c: variables of device code (__device__, __constant__). Each gets memory on a device when it is first asked for there; on a real
 * device it has been part of the module, so what a program sees as used differs by a few KiB.
 *
 * LOCKING: `lock` is held while a variable is made, so that only one thread does it; the driver is called under it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "sim/runtime/kernels.h"

struct place {
    const void   *host;
    int           device;
    CUdeviceptr   at;
    struct place *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places;

static CUresult make(const struct variable *v, int device, CUdeviceptr *at)
{
    struct place *p = malloc(sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;  /* its memory is not the program's doing */
    cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = cuMemAlloc(&p->at, v->size ? v->size : 1);
    cuThreadExchangeStreamCaptureMode(&mode);
    if (result) {
        free(p);
        return result;
    }
    p->host = v->host;
    p->device = device;
    p->next = places;
    places = p;
    *at = p->at;
    return CUDA_SUCCESS;
}

void symbols_forget(int device)
{
    pthread_mutex_lock(&lock);
    for (struct place **link = &places; *link;) {
        struct place *p = *link;
        if (p->device == device) {
            *link = p->next;
            free(p);
        } else {
            link = &p->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Where the variable is on the thread's device. */
static cudaError_t locate(const void *host, struct variable *v, CUdeviceptr *at)
{
    CUresult result = runtime_begin();
    if (result)
        return runtime_end(result);
    if (!variable_find(host, v))
        return runtime_fail(cudaErrorInvalidSymbol);
    int device = runtime_device();
    pthread_mutex_lock(&lock);
    struct place *p = places;
    while (p && (p->host != host || p->device != device))
        p = p->next;
    if (p)
        *at = p->at;
    else
        result = make(v, device, at);
    pthread_mutex_unlock(&lock);
    return runtime_end(result);
}

cudaError_t cudaGetSymbolAddress(void **at, const void *symbol)
{
    struct variable v;
    return at ? locate(symbol, &v, (CUdeviceptr *)at) : runtime_fail(cudaErrorInvalidValue);
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    struct variable v;
    if (!size || !variable_find(symbol, &v))
        return runtime_fail(size ? cudaErrorInvalidSymbol : cudaErrorInvalidValue);
    *size = v.size;
    return cudaSuccess;
}

/* The part [offset, offset + bytes) of a variable; `outside` is of no use. */
static cudaError_t part(const void *symbol, size_t bytes, size_t offset, CUdeviceptr *at)
{
    struct variable v;
    cudaError_t error = locate(symbol, &v, at);
    if (error)
        return error;
    if (offset > v.size || bytes > v.size - offset)
        return runtime_fail(cudaErrorInvalidValue);
    *at += offset;
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
{
    CUdeviceptr at;
    cudaError_t error = part(symbol, bytes, offset, &at);
    return error ? error : cudaMemcpy((void *)at, from, bytes, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
{
    CUdeviceptr at;
    cudaError_t error = part(symbol, bytes, offset, &at);
    return error ? error : cudaMemcpy(to, (void *)at, bytes, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                    cudaStream_t stream)
{
    CUdeviceptr at;
    cudaError_t error = part(symbol, bytes, offset, &at);
    return error ? error : cudaMemcpyAsync((void *)at, from, bytes, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                      cudaStream_t stream)
{
    CUdeviceptr at;
    cudaError_t error = part(symbol, bytes, offset, &at);
    return error ? error : cudaMemcpyAsync(to, (void *)at, bytes, kind, stream);
}
