/*
 * textures.c: texture and surface objects of the runtime, which are the driver's. LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/arrays.h"

_Static_assert(sizeof(struct cudaResourceViewDesc) == sizeof(CUDA_RESOURCE_VIEW_DESC), "the two interfaces share their structures");

/* False: elements that there are not. */
static bool resource_of(const struct cudaResourceDesc *r, CUDA_RESOURCE_DESC *d)
{
    *d = (CUDA_RESOURCE_DESC){.resType = (CUresourcetype)r->resType, .flags = r->flags};
    switch (r->resType) {
    case cudaResourceTypeArray:
        d->res.array.hArray = (CUarray)r->res.array.array;
        return true;
    case cudaResourceTypeMipmappedArray:
        d->res.mipmap.hMipmappedArray = (CUmipmappedArray)r->res.mipmap.mipmap;
        return true;
    case cudaResourceTypeLinear:
        d->res.linear.devPtr = (CUdeviceptr)r->res.linear.devPtr;
        d->res.linear.sizeInBytes = r->res.linear.sizeInBytes;
        return format_of(&r->res.linear.desc, &d->res.linear.format, &d->res.linear.numChannels);
    case cudaResourceTypePitch2D:
        d->res.pitch2D.devPtr = (CUdeviceptr)r->res.pitch2D.devPtr;
        d->res.pitch2D.width = r->res.pitch2D.width;
        d->res.pitch2D.height = r->res.pitch2D.height;
        d->res.pitch2D.pitchInBytes = r->res.pitch2D.pitchInBytes;
        return format_of(&r->res.pitch2D.desc, &d->res.pitch2D.format, &d->res.pitch2D.numChannels);
    default:
        return true; /* the driver refuses it */
    }
}

static void resource_tell(const CUDA_RESOURCE_DESC *d, struct cudaResourceDesc *r)
{
    memset(r, 0, sizeof *r);
    r->resType = (enum cudaResourceType)d->resType;
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        r->res.array.array = (cudaArray_t)d->res.array.hArray;
        break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        r->res.mipmap.mipmap = (cudaMipmappedArray_t)d->res.mipmap.hMipmappedArray;
        break;
    case CU_RESOURCE_TYPE_LINEAR:
        r->res.linear.devPtr = (void *)d->res.linear.devPtr;
        r->res.linear.sizeInBytes = d->res.linear.sizeInBytes;
        r->res.linear.desc = format_tell(d->res.linear.format, d->res.linear.numChannels);
        break;
    default:
        r->res.pitch2D.devPtr = (void *)d->res.pitch2D.devPtr;
        r->res.pitch2D.width = d->res.pitch2D.width;
        r->res.pitch2D.height = d->res.pitch2D.height;
        r->res.pitch2D.pitchInBytes = d->res.pitch2D.pitchInBytes;
        r->res.pitch2D.desc = format_tell(d->res.pitch2D.format, d->res.pitch2D.numChannels);
    }
}

static CUDA_TEXTURE_DESC description_of(const struct cudaTextureDesc *t)
{
    CUDA_TEXTURE_DESC d = {
        .filterMode = (CUfilter_mode)t->filterMode, .maxAnisotropy = t->maxAnisotropy, .mipmapFilterMode = (CUfilter_mode)t->mipmapFilterMode,
        .mipmapLevelBias = t->mipmapLevelBias, .minMipmapLevelClamp = t->minMipmapLevelClamp, .maxMipmapLevelClamp = t->maxMipmapLevelClamp,
    };
    for (int i = 0; i < 3; i++)
        d.addressMode[i] = (CUaddress_mode)t->addressMode[i];
    memcpy(d.borderColor, t->borderColor, sizeof d.borderColor);
    d.flags = (t->readMode == cudaReadModeElementType ? CU_TRSF_READ_AS_INTEGER : 0) | (t->normalizedCoords ? CU_TRSF_NORMALIZED_COORDINATES : 0) |
              (t->sRGB ? CU_TRSF_SRGB : 0) | (t->disableTrilinearOptimization ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0) |
              (t->seamlessCubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0);
    return d;
}

static void description_tell(const CUDA_TEXTURE_DESC *d, struct cudaTextureDesc *t)
{
    *t = (struct cudaTextureDesc){
        .filterMode = (enum cudaTextureFilterMode)d->filterMode, .maxAnisotropy = d->maxAnisotropy,
        .mipmapFilterMode = (enum cudaTextureFilterMode)d->mipmapFilterMode, .mipmapLevelBias = d->mipmapLevelBias,
        .minMipmapLevelClamp = d->minMipmapLevelClamp, .maxMipmapLevelClamp = d->maxMipmapLevelClamp,
        .readMode = d->flags & CU_TRSF_READ_AS_INTEGER ? cudaReadModeElementType : cudaReadModeNormalizedFloat,
        .normalizedCoords = !!(d->flags & CU_TRSF_NORMALIZED_COORDINATES), .sRGB = !!(d->flags & CU_TRSF_SRGB),
        .disableTrilinearOptimization = !!(d->flags & CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION),
        .seamlessCubemap = !!(d->flags & CU_TRSF_SEAMLESS_CUBEMAP),
    };
    for (int i = 0; i < 3; i++)
        t->addressMode[i] = (enum cudaTextureAddressMode)d->addressMode[i];
    memcpy(t->borderColor, d->borderColor, sizeof t->borderColor);
}

cudaError_t cudaCreateTextureObject(cudaTextureObject_t *texture, const struct cudaResourceDesc *r, const struct cudaTextureDesc *t,
                                    const struct cudaResourceViewDesc *v)
{
    CUDA_RESOURCE_DESC of;
    CUDA_RESOURCE_VIEW_DESC view;
    CUresult result = runtime_begin();
    if (result || !texture || !r || !t)
        return runtime_end(result ? result : CUDA_ERROR_INVALID_VALUE);
    if (!resource_of(r, &of))
        return runtime_fail(cudaErrorInvalidChannelDescriptor);
    if (v)
        memcpy(&view, v, sizeof view);
    CUDA_TEXTURE_DESC how = description_of(t);
    return runtime_end(cuTexObjectCreate(texture, &of, &how, v ? &view : NULL));
}

cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc *r, cudaTextureObject_t texture)
{
    CUDA_RESOURCE_DESC of;
    CUresult result = runtime_begin();
    if (!result)
        result = r ? cuTexObjectGetResourceDesc(&of, texture) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        resource_tell(&of, r);
    return runtime_end(result);
}

cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc *t, cudaTextureObject_t texture)
{
    CUDA_TEXTURE_DESC how;
    CUresult result = runtime_begin();
    if (!result)
        result = t ? cuTexObjectGetTextureDesc(&how, texture) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        description_tell(&how, t);
    return runtime_end(result);
}

cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *surface, const struct cudaResourceDesc *r)
{
    CUDA_RESOURCE_DESC of;
    CUresult result = runtime_begin();
    if (result || !r)
        return runtime_end(result ? result : CUDA_ERROR_INVALID_VALUE);
    return resource_of(r, &of) ? runtime_end(cuSurfObjectCreate(surface, &of)) : runtime_fail(cudaErrorInvalidChannelDescriptor);
}

cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc *r, cudaSurfaceObject_t surface)
{
    CUDA_RESOURCE_DESC of;
    CUresult result = runtime_begin();
    if (!result)
        result = r ? cuSurfObjectGetResourceDesc(&of, surface) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        resource_tell(&of, r);
    return runtime_end(result);
}
