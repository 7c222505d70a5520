/*
 * textures.c: texture and surface objects: what kernels would read arrays and device memory through. They are checked and kept, with their
 * descriptions; no kernel reads one.
 *
 *     created -> destroyed, or ended with its context
 *
 * What an object names may end before it, as on a real device, where kernels must not use it from then on.
 *
 * LOCKING: the model's lock.
 */
#include "sim/machine/model.h"
#include "sim/memory/arrays.h"
#include "sim/memory/memory.h"

#define TEXTURES_MAX (1u << 20)     /* as many as a device of today has; surfaces are apart */
#define ANISOTROPY_MOST 16

struct texture {
    uint32_t context;
    bool     has_view;
    CUDA_RESOURCE_DESC      of;
    CUDA_TEXTURE_DESC       how;
    CUDA_RESOURCE_VIEW_DESC view;
};

static struct slots textures, surfaces;

void textures_reset(void)
{
    if (!textures.items) {
        slots_open(&textures, sizeof(struct texture), TEXTURES_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&surfaces, sizeof(struct texture), TEXTURES_MAX, SLOTS_OLDEST_FIRST);
    }
    slots_clear(&textures);
    slots_clear(&surfaces);
}

static void close_in(struct slots *objects, uint32_t context)
{
    for (uint32_t i = 1; i < objects->used; i++)
        if (slots_is_live(objects, i) && ((struct texture *)slots_at(objects, i))->context == context)
            slots_give(objects, i);
}

void textures_close_all(uint32_t context)
{
    close_in(&textures, context);
    close_in(&surfaces, context);
}

static const struct texture *find(const struct slots *objects, unsigned long long handle)
{
    uint32_t number = slots_number(objects, (const void *)handle);
    return number ? slots_at(objects, number) : NULL;
}

/* --- what an object may name */

static uint64_t attribute(CUdevice_attribute name)
{
    int value;
    return device_attribute(&value, name, context_at(context_current())->device) ? 0 : (uint64_t)value;
}

static bool is_memory(CUdeviceptr at, uint64_t bytes)
{
    return bytes && at % attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) == 0 && memory_is_known(at, bytes);
}

static bool is_linear(const CUDA_RESOURCE_DESC *d)
{
    uint32_t element = array_element(d->res.linear.format, d->res.linear.numChannels);
    return element && d->res.linear.sizeInBytes / element <= attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH) &&
           is_memory(d->res.linear.devPtr, d->res.linear.sizeInBytes);
}

static bool is_pitched(const CUDA_RESOURCE_DESC *d)
{
    uint64_t row = d->res.pitch2D.width * array_element(d->res.pitch2D.format, d->res.pitch2D.numChannels);
    uint64_t pitch = d->res.pitch2D.pitchInBytes, rows = d->res.pitch2D.height;
    return row && rows && row <= pitch && pitch % attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) == 0 &&
           d->res.pitch2D.width <= attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) &&
           rows <= attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) &&
           pitch <= attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) &&
           is_memory(d->res.pitch2D.devPtr, (rows - 1) * pitch + row);
}

static bool is_resource(const CUDA_RESOURCE_DESC *d)
{
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return array_find(d->res.array.hArray);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return array_find_mipmapped(d->res.mipmap.hMipmappedArray);
    case CU_RESOURCE_TYPE_LINEAR:
        return is_linear(d);
    case CU_RESOURCE_TYPE_PITCH2D:
        return is_pitched(d);
    default:
        return false;
    }
}

static bool has_coordinates(const CUDA_RESOURCE_DESC *d)
{
    return d->resType == CU_RESOURCE_TYPE_ARRAY || d->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
}

static CUarray_format format_of(const CUDA_RESOURCE_DESC *d)
{
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return array_find(d->res.array.hArray)->shape.Format;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return array_find_mipmapped(d->res.mipmap.hMipmappedArray)->shape.Format;
    case CU_RESOURCE_TYPE_PITCH2D:
        return d->res.pitch2D.format;
    default:
        return d->res.linear.format;
    }
}

static bool is_integer(CUarray_format format)
{
    return format >= CU_AD_FORMAT_UNSIGNED_INT8 && format <= CU_AD_FORMAT_SIGNED_INT32;
}

/* Of integers that are read as integers, and of all of 32 bits, there is no mean. */
static bool has_means(const CUDA_RESOURCE_DESC *d, const CUDA_TEXTURE_DESC *t)
{
    CUarray_format format = format_of(d);
    bool whole = format == CU_AD_FORMAT_UNSIGNED_INT32 || format == CU_AD_FORMAT_SIGNED_INT32;
    return !is_integer(format) || !(whole || t->flags & CU_TRSF_READ_AS_INTEGER);
}

static bool is_description(const CUDA_RESOURCE_DESC *d, const CUDA_TEXTURE_DESC *t)
{
    const unsigned flags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                           CU_TRSF_SEAMLESS_CUBEMAP;
    if (t->flags & ~flags || t->filterMode > CU_TR_FILTER_MODE_LINEAR || t->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR)
        return false;
    for (int i = 0; i < 3; i++)
        if (t->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
            return false;
    return t->filterMode == CU_TR_FILTER_MODE_POINT || d->resType == CU_RESOURCE_TYPE_LINEAR || has_means(d, t);
}

/* --- the objects */

static CUresult add(struct slots *objects, const struct texture *t, unsigned long long *handle)
{
    uint32_t number = slots_take(objects);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct texture *added = slots_at(objects, number);
    *added = *t;
    added->context = context_current();
    *handle = (unsigned long long)slots_handle(objects, number);
    return CUDA_SUCCESS;
}

static CUresult destroy(struct slots *objects, unsigned long long handle, const char *call)
{
    uint32_t number = slots_number(objects, (const void *)handle);
    if (!number)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is no such object", call, handle);
    slots_give(objects, number);
    return CUDA_SUCCESS;
}

CUresult texture_create(CUtexObject *handle, const CUDA_RESOURCE_DESC *of, const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view)
{
    if (!handle || !of || !how || of->flags || (view && !has_coordinates(of)) || !is_resource(of) || !is_description(of, how))
        return CUDA_ERROR_INVALID_VALUE;
    struct texture t = {.of = *of, .how = *how, .has_view = view};
    if (t.how.maxAnisotropy > ANISOTROPY_MOST)
        t.how.maxAnisotropy = ANISOTROPY_MOST;
    if (view)
        t.view = *view;
    return add(&textures, &t, handle);
}

CUresult texture_destroy(CUtexObject handle)
{
    return destroy(&textures, handle, "cuTexObjectDestroy");
}

CUresult texture_resource(CUDA_RESOURCE_DESC *of, CUtexObject handle)
{
    const struct texture *t = find(&textures, handle);
    if (!of || !t)
        return CUDA_ERROR_INVALID_VALUE;
    *of = t->of;
    return CUDA_SUCCESS;
}

CUresult texture_description(CUDA_TEXTURE_DESC *how, CUtexObject handle)
{
    const struct texture *t = find(&textures, handle);
    if (!how || !t)
        return CUDA_ERROR_INVALID_VALUE;
    *how = t->how;
    return CUDA_SUCCESS;
}

CUresult texture_view(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle)
{
    const struct texture *t = find(&textures, handle);
    if (!view || !t || !t->has_view)
        return CUDA_ERROR_INVALID_VALUE;
    *view = t->view;
    return CUDA_SUCCESS;
}

/* Only of an array that was made for it. */
CUresult surface_create(CUsurfObject *handle, const CUDA_RESOURCE_DESC *of)
{
    if (!handle || !of || of->flags || of->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    const struct array *a = array_find(of->res.array.hArray);
    if (!a || !(a->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_INVALID_VALUE;
    return add(&surfaces, &(struct texture){.of = *of}, handle);
}

CUresult surface_destroy(CUsurfObject handle)
{
    return destroy(&surfaces, handle, "cuSurfObjectDestroy");
}

CUresult surface_resource(CUDA_RESOURCE_DESC *of, CUsurfObject handle)
{
    const struct texture *t = find(&surfaces, handle);
    if (!of || !t)
        return CUDA_ERROR_INVALID_VALUE;
    *of = t->of;
    return CUDA_SUCCESS;
}
