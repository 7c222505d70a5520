/*
 * arrays.c: arrays of the runtime, which are the driver's, and copies from and to them. LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/arrays.h"

_Static_assert(sizeof(struct cudaArraySparseProperties) == sizeof(CUDA_ARRAY_SPARSE_PROPERTIES), "the two interfaces share their structures");
_Static_assert(sizeof(struct cudaArrayMemoryRequirements) == sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS), "the two interfaces share their structures");

/* --- beginning and end */

static cudaError_t shape_of(const struct cudaChannelFormatDesc *d, struct cudaExtent extent, unsigned flags, CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CUresult result = runtime_begin();
    if (result || !d)
        return runtime_end(result ? result : CUDA_ERROR_INVALID_VALUE);
    *shape = (CUDA_ARRAY3D_DESCRIPTOR){.Width = extent.width, .Height = extent.height, .Depth = extent.depth, .Flags = flags};
    return format_of(d, &shape->Format, &shape->NumChannels) ? cudaSuccess : runtime_fail(cudaErrorInvalidChannelDescriptor);
}

cudaError_t cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *d, struct cudaExtent extent, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    cudaError_t error = shape_of(d, extent, flags, &shape);
    return error ? error : runtime_end(cuArray3DCreate((CUarray *)array, &shape));
}

cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *d, size_t width, size_t height, unsigned flags)
{
    const unsigned allowed = cudaArraySurfaceLoadStore | cudaArrayTextureGather | cudaArraySparse | cudaArrayDeferredMapping;
    CUresult result = runtime_begin();
    if (result || flags & ~allowed)
        return runtime_end(result ? result : CUDA_ERROR_INVALID_VALUE);
    return cudaMalloc3DArray(array, d, (struct cudaExtent){width, height, 0}, flags);
}

cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *array, const struct cudaChannelFormatDesc *d, struct cudaExtent extent,
                                     unsigned levels, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    cudaError_t error = shape_of(d, extent, flags, &shape);
    return error ? error : runtime_end(cuMipmappedArrayCreate((CUmipmappedArray *)array, &shape, levels));
}

cudaError_t cudaFreeArray(cudaArray_t array)
{
    CUresult result = runtime_begin();
    return runtime_end(result || !array ? result : cuArrayDestroy((CUarray)array));
}

cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array)
{
    CUresult result = runtime_begin();
    return runtime_end(result || !array ? result : cuMipmappedArrayDestroy((CUmipmappedArray)array));
}

/* --- questions */

cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *d, struct cudaExtent *extent, unsigned *flags, cudaArray_t array)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUresult result = runtime_begin();
    if (!result)
        result = cuArray3DGetDescriptor(&shape, (CUarray)array);
    if (result)
        return runtime_end(result);
    if (d)
        *d = format_tell(shape.Format, shape.NumChannels);
    if (extent)
        *extent = (struct cudaExtent){shape.Width, shape.Height, shape.Depth};
    if (flags)
        *flags = shape.Flags;
    return cudaSuccess;
}

cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc *d, cudaArray_const_t array)
{
    return cudaArrayGetInfo(d, NULL, NULL, (cudaArray_t)array);
}

CUresult runtime_element(cudaArray_const_t array, size_t *bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    *bytes = 1;
    CUresult result = array ? cuArray3DGetDescriptor(&shape, (CUarray)array) : CUDA_SUCCESS;
    if (array && !result) {
        struct cudaChannelFormatDesc d = format_tell(shape.Format, shape.NumChannels);
        *bytes = (size_t)(d.x + d.y + d.z + d.w) / 8;
    }
    return result;
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

/* --- copies of rectangles */

struct corner {                 /* of one side */
    cudaArray_const_t array;    /* or NULL */
    const void       *at;
    size_t            pitch, x, y;
};

static CUmemorytype type_of(const struct corner *c, enum cudaMemcpyKind kind, enum cudaMemcpyKind other)
{
    if (c->array)
        return CU_MEMORYTYPE_ARRAY;
    return kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : kind == other ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

static cudaError_t copy(struct corner to, struct corner from, size_t width, size_t height, enum cudaMemcpyKind kind, CUstream stream, bool waits)
{
    CUresult result = runtime_begin();
    bool known = kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault || (to.array && kind == cudaMemcpyHostToDevice && !from.array) ||
                 (from.array && kind == cudaMemcpyDeviceToHost && !to.array);
    if (result || !known)
        return result ? runtime_end(result) : runtime_fail(cudaErrorInvalidMemcpyDirection);
    CUDA_MEMCPY2D what = {
        .srcMemoryType = type_of(&from, kind, cudaMemcpyHostToDevice), .srcHost = from.at, .srcDevice = (CUdeviceptr)from.at,
        .srcArray = (CUarray)from.array, .srcPitch = from.pitch, .srcXInBytes = from.x, .srcY = from.y,
        .dstMemoryType = type_of(&to, kind, cudaMemcpyDeviceToHost), .dstHost = (void *)to.at, .dstDevice = (CUdeviceptr)to.at,
        .dstArray = (CUarray)to.array, .dstPitch = to.pitch, .dstXInBytes = to.x, .dstY = to.y,
        .WidthInBytes = width, .Height = height,
    };
    if (!width || !height)
        return runtime_end(CUDA_SUCCESS);
    result = cuMemcpy2DAsync(&what, stream);
    return runtime_end(!result && waits ? cuStreamSynchronize(stream) : result);
}

#define IN(array, x, y) ((struct corner){(array), NULL, 0, (x), (y)})
#define AT(at, pitch) ((struct corner){NULL, (at), (pitch), 0, 0})
#define OWN(stream) ((stream) ? (stream) : cudaStreamPerThread)

/* Each with its sibling on the per-thread default stream. */
#define WAITS(name, to, from, ...)                                                                     \
    cudaError_t name(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind)               \
    {                                                                                                  \
        return copy(to, from, width, height, kind, NULL, true);                                        \
    }                                                                                                  \
    cudaError_t name##_ptds(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind);       \
    cudaError_t name##_ptds(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind)        \
    {                                                                                                  \
        return copy(to, from, width, height, kind, cudaStreamPerThread, true);                         \
    }
#define GOES_ON(name, to, from, ...)                                                                                         \
    cudaError_t name(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)                \
    {                                                                                                                        \
        return copy(to, from, width, height, kind, stream, false);                                                           \
    }                                                                                                                        \
    cudaError_t name##_ptsz(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream);        \
    cudaError_t name##_ptsz(__VA_ARGS__, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)         \
    {                                                                                                                        \
        return copy(to, from, width, height, kind, OWN(stream), false);                                                      \
    }

WAITS(cudaMemcpy2DToArray, IN(to, x, y), AT(from, pitch), cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch)
GOES_ON(cudaMemcpy2DToArrayAsync, IN(to, x, y), AT(from, pitch), cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch)
WAITS(cudaMemcpy2DFromArray, AT(to, pitch), IN(from, x, y), void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y)
GOES_ON(cudaMemcpy2DFromArrayAsync, AT(to, pitch), IN(from, x, y), void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y)
WAITS(cudaMemcpy2DArrayToArray, IN(to, to_x, to_y), IN(from, x, y), cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t x,
      size_t y)
