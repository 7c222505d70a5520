/*
 * memory.c: allocation and copies, where the runtime's arguments are not the driver's. LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/runtime.h"

/* --- allocation */

cudaError_t cudaMalloc(void **at, size_t size)
{
    CUresult result = runtime_begin();
    if (!result && !at)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return runtime_end(result);
    *at = NULL;
    return runtime_end(size ? cuMemAlloc((CUdeviceptr *)at, size) : CUDA_SUCCESS);  /* of 0 bytes: NULL, where the driver refuses */
}

cudaError_t cudaFree(void *at)
{
    CUresult result = runtime_begin();  /* programs use cudaFree(NULL) to make a context */
    return runtime_end(result || !at ? result : cuMemFree((CUdeviceptr)at));
}

cudaError_t cudaMallocManaged(void **at, size_t size, unsigned flags)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuMemAllocManaged((CUdeviceptr *)at, size, flags));
}

cudaError_t cudaMallocPitch(void **at, size_t *pitch, size_t width, size_t height)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuMemAllocPitch((CUdeviceptr *)at, pitch, width, height, 4));
}

cudaError_t cudaHostAlloc(void **at, size_t size, unsigned flags)
{
    CUresult result = runtime_begin();
    if (!result && !at)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return runtime_end(result);
    *at = NULL;
    return runtime_end(size ? cuMemHostAlloc(at, size, flags) : CUDA_SUCCESS);
}

cudaError_t cudaMallocHost(void **at, size_t size)
{
    return cudaHostAlloc(at, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *at)
{
    CUresult result = runtime_begin();
    return runtime_end(result || !at ? result : cuMemFreeHost(at));
}

/* --- handles of other processes */

cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle same;
    memcpy(&same, &handle, sizeof same);
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuIpcOpenMemHandle((CUdeviceptr *)at, same, flags));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle same;
    memcpy(&same, &handle, sizeof same);
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuIpcOpenEventHandle(event, same));
}

/* --- copies */

static bool kind_is_known(enum cudaMemcpyKind kind)
{
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

/* The direction says what each address is; the driver finds out for itself only where it is left open, or where both are the host's. */
static CUresult copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return cuMemcpyHtoD((CUdeviceptr)to, from, bytes);
    case cudaMemcpyDeviceToHost:
        return cuMemcpyDtoH(to, (CUdeviceptr)from, bytes);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, bytes);
    default:
        return cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, bytes);
    }
}

static CUresult copy_async(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, CUstream stream)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return cuMemcpyHtoDAsync((CUdeviceptr)to, from, bytes, stream);
    case cudaMemcpyDeviceToHost:
        return cuMemcpyDtoHAsync(to, (CUdeviceptr)from, bytes, stream);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream);
    default:
        return cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream);
    }
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    CUresult result = runtime_begin();
    if (result || !kind_is_known(kind))
        return result ? runtime_end(result) : runtime_fail(cudaErrorInvalidMemcpyDirection);
    return runtime_end(bytes ? copy(to, from, bytes, kind) : CUDA_SUCCESS);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUresult result = runtime_begin();
    if (result || !kind_is_known(kind))
        return result ? runtime_end(result) : runtime_fail(cudaErrorInvalidMemcpyDirection);
    return runtime_end(bytes ? copy_async(to, from, bytes, kind, stream) : CUDA_SUCCESS);
}

cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpyAsync(to, from, bytes, kind, stream ? stream : cudaStreamPerThread);
}

/* Unified addresses know their device, but the two that are named must exist; their contexts are made, and stay. */
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    CUcontext there, here;
    CUresult result = runtime_begin();
    if (!result)
        result = runtime_primary(to_device, &there);
    if (!result)
        result = runtime_primary(from_device, &here);
    if (!result && bytes)
        result = cuMemcpyPeerAsync((CUdeviceptr)to, there, (CUdeviceptr)from, here, bytes, stream);
    return runtime_end(result);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    cudaError_t error = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

static CUmemorytype place(enum cudaMemcpyKind kind, bool source)
{
    if (kind == cudaMemcpyDefault)
        return CU_MEMORYTYPE_UNIFIED;
    bool host = source ? kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice
                       : kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost;
    return host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

static CUDA_MEMCPY2D rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                               enum cudaMemcpyKind kind)
{
    return (CUDA_MEMCPY2D){
        .srcMemoryType = place(kind, true), .srcHost = from, .srcDevice = (CUdeviceptr)from, .srcPitch = from_pitch,
        .dstMemoryType = place(kind, false), .dstHost = to, .dstDevice = (CUdeviceptr)to, .dstPitch = to_pitch,
        .WidthInBytes = width, .Height = height,
    };
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUresult result = runtime_begin();
    if (result || !kind_is_known(kind))
        return result ? runtime_end(result) : runtime_fail(cudaErrorInvalidMemcpyDirection);
    CUDA_MEMCPY2D what = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
    return runtime_end(width && height ? cuMemcpy2DAsync(&what, stream) : CUDA_SUCCESS);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    CUresult result = runtime_begin();
    if (result || !kind_is_known(kind))
        return result ? runtime_end(result) : runtime_fail(cudaErrorInvalidMemcpyDirection);
    CUDA_MEMCPY2D what = rectangle(to, to_pitch, from, from_pitch, width, height, kind);
    return runtime_end(width && height ? cuMemcpy2DUnaligned(&what) : CUDA_SUCCESS);
}

/* A side is memory or an array, not both. The driver refuses each array: it has none. */
static CUresult box_of(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *box)
{
    if (!p || !p->srcArray == !p->srcPtr.ptr || !p->dstArray == !p->dstPtr.ptr)
        return CUDA_ERROR_INVALID_VALUE;
    *box = (CUDA_MEMCPY3D){
        .srcXInBytes = p->srcPos.x, .srcY = p->srcPos.y, .srcZ = p->srcPos.z, .srcArray = (CUarray)p->srcArray,
        .srcMemoryType = p->srcArray ? CU_MEMORYTYPE_ARRAY : place(p->kind, true),
        .srcHost = p->srcPtr.ptr, .srcDevice = (CUdeviceptr)p->srcPtr.ptr, .srcPitch = p->srcPtr.pitch, .srcHeight = p->srcPtr.ysize,
        .dstXInBytes = p->dstPos.x, .dstY = p->dstPos.y, .dstZ = p->dstPos.z, .dstArray = (CUarray)p->dstArray,
        .dstMemoryType = p->dstArray ? CU_MEMORYTYPE_ARRAY : place(p->kind, false),
        .dstHost = p->dstPtr.ptr, .dstDevice = (CUdeviceptr)p->dstPtr.ptr, .dstPitch = p->dstPtr.pitch, .dstHeight = p->dstPtr.ysize,
        .WidthInBytes = p->extent.width, .Height = p->extent.height, .Depth = p->extent.depth,
    };
    return CUDA_SUCCESS;
}

static cudaError_t copy_box(const struct cudaMemcpy3DParms *p, cudaStream_t stream, bool waits)
{
    CUDA_MEMCPY3D box;
    CUresult result = runtime_begin();
    if (!result)
        result = box_of(p, &box);
    if (!result && !kind_is_known(p->kind))
        return runtime_fail(cudaErrorInvalidMemcpyDirection);
    return runtime_end(result ? result : waits ? cuMemcpy3D(&box) : cuMemcpy3DAsync(&box, stream));
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p)
{
    return copy_box(p, NULL, true);
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t stream)
{
    return copy_box(p, stream, false);
}

/* --- pitched memory of three sides */

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *p, struct cudaExtent extent)
{
    CUresult result = runtime_begin();
    CUdeviceptr at = 0;
    size_t pitch = 0;
    if (!result && !p)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && extent.width && extent.height && extent.depth)
        result = extent.height > SIZE_MAX / extent.depth ? CUDA_ERROR_INVALID_VALUE
                                                         : cuMemAllocPitch(&at, &pitch, extent.width, extent.height * extent.depth, 4);
    if (!result)
        *p = (struct cudaPitchedPtr){.ptr = (void *)at, .pitch = pitch, .xsize = extent.width, .ysize = extent.height};
    return runtime_end(result);
}

cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr p, int value, struct cudaExtent extent, cudaStream_t stream)
{
    CUresult result = runtime_begin();
    for (size_t z = 0; z < extent.depth && !result; z++)
        result = cuMemsetD2D8Async((CUdeviceptr)p.ptr + z * p.pitch * p.ysize, p.pitch, (unsigned char)value, extent.width, extent.height, stream);
    return runtime_end(result);
}

cudaError_t cudaMemset3D(struct cudaPitchedPtr p, int value, struct cudaExtent extent)
{
    return cudaMemset3DAsync(p, value, extent, NULL);
}

/* --- the same with the per-thread default stream for stream 0, and for calls that name none */

#define ON_OWN(call)                                                           \
    {                                                                          \
        cudaError_t error = call;                                              \
        return error ? error : cudaStreamSynchronize(cudaStreamPerThread);     \
    }
#define OWN(stream) ((stream) ? (stream) : cudaStreamPerThread)

cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
ON_OWN(cudaMemcpyAsync(to, from, bytes, kind, cudaStreamPerThread))

cudaError_t cudaMemset_ptds(void *at, int value, size_t bytes);
cudaError_t cudaMemset_ptds(void *at, int value, size_t bytes)
ON_OWN(cudaMemsetAsync(at, value, bytes, cudaStreamPerThread))

cudaError_t cudaMemcpy2D_ptds(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2D_ptds(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind)
ON_OWN(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, cudaStreamPerThread))

cudaError_t cudaMemcpy2DAsync_ptsz(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                                   enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync_ptsz(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                                   enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, OWN(stream));
}

cudaError_t cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms *p);
cudaError_t cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms *p)
ON_OWN(cudaMemcpy3DAsync(p, cudaStreamPerThread))

cudaError_t cudaMemcpy3DAsync_ptsz(const struct cudaMemcpy3DParms *p, cudaStream_t stream);
cudaError_t cudaMemcpy3DAsync_ptsz(const struct cudaMemcpy3DParms *p, cudaStream_t stream)
{
    return cudaMemcpy3DAsync(p, OWN(stream));
}

cudaError_t cudaMemcpyPeerAsync_ptsz(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync_ptsz(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, OWN(stream));
}

/* --- addresses */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
    CUmemorytype type = 0;
    unsigned managed = 0;
    int device = 0;
    CUdeviceptr there = 0;
    void *here = NULL;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *answers[] = {&type, &managed, &device, &there, &here};
    CUresult result = runtime_begin();
    if (!result && !attributes)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = cuPointerGetAttributes(sizeof asked / sizeof asked[0], asked, answers, (CUdeviceptr)at);
    if (result)
        return runtime_end(result);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                                                                        : cudaMemoryTypeUnregistered;
    if (managed)
        attributes->type = cudaMemoryTypeManaged;
    bool known = attributes->type != cudaMemoryTypeUnregistered;
    attributes->device = known ? device : -2; /* as the real one says of memory it does not know */
    attributes->devicePointer = (void *)there;
    attributes->hostPointer = known ? here : (void *)(uintptr_t)at;
    return cudaSuccess;
}

/* --- of arrays: all that needs none */

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, enum cudaChannelFormatKind kind)
{
    return (struct cudaChannelFormatDesc){x, y, z, w, kind};
}
