/*
 * regions.c: copies and fills of rows and layers, and copies between devices.
 *
 * Of device memory and host memory: there are no arrays. As in copies.c a call is checked as far as the addresses are known when it is made,
 * and again row by row when it runs; copies from and to host memory that is not pinned are waited for.
 */
#include "sim/memory/region.h"

#include "sim/memory/memory.h"

/* One side of a copy. */
struct side {
    CUmemorytype type;
    uint64_t     host, device;
    CUarray      array;
    size_t       x, y, z, level, pitch, height;
};

struct rows {
    uint64_t first;             /* address */
    uint64_t pitch, layer;
    bool     pinned;
};

static bool overflows(uint64_t a, uint64_t b)
{
    return a && b > UINT64_MAX / 4 / a;
}

static CUresult find_rows(const struct side *s, const CUDA_MEMCPY3D *c, const char *call, struct rows *r)
{
    bool on_host = s->type == CU_MEMORYTYPE_HOST;
    if (s->type == CU_MEMORYTYPE_ARRAY)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "%s: %p is no array: the simulated GPU has none", call, (void *)s->array);
    if (!on_host && s->type != CU_MEMORYTYPE_DEVICE && s->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = on_host ? s->host : s->device;
    r->pitch = s->pitch ? s->pitch : s->x + c->WidthInBytes;
    uint64_t height = s->height ? s->height : s->y + c->Height;
    bool small = overflows(r->pitch, height) || overflows(r->pitch * height, s->z + c->Depth) || s->x + c->WidthInBytes < s->x;
    if (!base || s->level || small || r->pitch < s->x + c->WidthInBytes || (c->Depth > 1 && height < s->y + c->Height))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: pitch %zu and height %zu do not hold the rows", call, s->pitch, s->height);
    r->layer = r->pitch * height;
    r->first = base + s->z * r->layer + s->y * r->pitch + s->x;
    uint64_t extent = (c->Depth - 1) * r->layer + (c->Height - 1) * r->pitch + c->WidthInBytes;
    r->pinned = memory_is_known(r->first, extent);
    if (!r->pinned && (s->type == CU_MEMORYTYPE_DEVICE || virtual_is_device_address(r->first)))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx, %llu bytes: not memory of the device", call,
                            (unsigned long long)r->first, (unsigned long long)extent);
    return CUDA_SUCCESS;
}

CUresult region_copy(const CUDA_MEMCPY3D *c, const char *call, struct work *work)
{
    struct rows to, from;
    struct side source = {c->srcMemoryType, (uint64_t)c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY, c->srcZ, c->srcLOD,
                          c->srcPitch, c->srcHeight};
    struct side target = {c->dstMemoryType, (uint64_t)c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes, c->dstY, c->dstZ, c->dstLOD,
                          c->dstPitch, c->dstHeight};
    *work = (struct work){.kind = &work_copy, .name = call};
    if (!c->WidthInBytes || !c->Height || !c->Depth)
        return CUDA_SUCCESS;
    CUresult result = find_rows(&source, c, call, &from);
    if (!result)
        result = find_rows(&target, c, call, &to);
    if (result)
        return result;
    *work = (struct work){.kind = &work_copy, .name = call, .to = to.first, .from = from.first, .bytes = c->WidthInBytes, .rows = c->Height,
        .layers = c->Depth, .to_pitch = to.pitch, .from_pitch = from.pitch, .to_layer = to.layer, .from_layer = from.layer,
        .pinned = to.pinned && from.pinned};
    return CUDA_SUCCESS;
}

/* What a side of a copy is, by its address. */
static struct side side_of(uint64_t at, const struct work *w, uint64_t pitch, uint64_t layer)
{
    bool device = virtual_is_device_address(at);
    struct side s = {.type = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, .pitch = pitch ? pitch : w->bytes};
    s.device = device ? at : 0;
    s.host = device ? 0 : at;
    s.height = layer ? layer / s.pitch : w->rows ? w->rows : 1;
    return s;
}

void region_tell_copy(const struct work *w, CUDA_MEMCPY3D *c)
{
    struct side from = side_of(w->from, w, w->from_pitch, w->from_layer), to = side_of(w->to, w, w->to_pitch, w->to_layer);
    *c = (CUDA_MEMCPY3D){
        .srcMemoryType = from.type, .srcHost = (const void *)from.host, .srcDevice = from.device, .srcPitch = from.pitch, .srcHeight = from.height,
        .dstMemoryType = to.type, .dstHost = (void *)to.host, .dstDevice = to.device, .dstPitch = to.pitch, .dstHeight = to.height,
        .WidthInBytes = w->bytes, .Height = w->rows ? w->rows : 1, .Depth = w->layers ? w->layers : 1,
    };
}

static CUresult put(const struct work *work, CUstream stream, bool waits)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result || !work->bytes)
        return result;
    result = work_put(s, work);
    if (result || s->capture || (!waits && work->pinned))
        return result;
    clock_go_to(s->done);
    return context_at(s->context)->lost;
}

CUresult region_copy_3d(const CUDA_MEMCPY3D *region, CUstream stream, bool waits)
{
    struct work work;
    CUresult result = region ? region_copy(region, "cuMemcpy3D", &work) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : put(&work, stream, waits);
}

/* The contexts must be alive; which device an address is of is known by itself. */
CUresult region_copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool waits)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D c = {.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcZ = p->srcZ, .srcLOD = p->srcLOD,
        .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost, .srcDevice = p->srcDevice, .srcArray = p->srcArray,
        .srcPitch = p->srcPitch, .srcHeight = p->srcHeight,
        .dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstZ = p->dstZ, .dstLOD = p->dstLOD, .dstMemoryType = p->dstMemoryType,
        .dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstArray = p->dstArray, .dstPitch = p->dstPitch, .dstHeight = p->dstHeight,
        .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = p->Depth};
    struct work work;
    CUresult result = region_copy(&c, "cuMemcpy3DPeer", &work);
    work.between_devices = true;
    return result ? result : put(&work, stream, waits);
}

CUresult region_copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool waits)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D c = {.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
        .srcDevice = p->srcDevice, .srcArray = p->srcArray, .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
        .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstArray = p->dstArray,
        .dstPitch = p->dstPitch, .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1};
    struct work work;
    CUresult result = region_copy(&c, "cuMemcpy2D", &work);
    return result ? result : put(&work, stream, waits);
}

CUresult region_copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream,
                          bool waits)
{
    CUresult result = context_usable(slots_number(&model.contexts, to_context));
    if (!result)
        result = context_usable(slots_number(&model.contexts, from_context));
    if (result || !bytes)
        return result;
    if (!memory_is_known(to, bytes) || !memory_is_known(from, bytes))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemcpyPeer: 0x%llx <- 0x%llx, %zu bytes: not memory of devices", to, from, bytes);
    struct work work = {.kind = &work_copy, .name = "cuMemcpyPeer", .to = to, .from = from, .bytes = bytes, .pinned = true,
        .between_devices = true};
    return put(&work, stream, waits);
}

CUresult region_fill(const CUDA_MEMSET_NODE_PARAMS_v2 *p, const char *call, struct work *work)
{
    uint64_t size = p->elementSize, bytes = p->width * size;
    bool width = (size == 1 || size == 2 || size == 4) && p->width && p->width <= UINT64_MAX / 8 && p->dst % size == 0;
    bool rows = width && p->height && (p->height == 1 || (p->pitch >= bytes && p->pitch % size == 0 && !overflows(p->pitch, p->height)));
    if (!rows || !memory_is_known(p->dst, (p->height - 1) * p->pitch + bytes))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx, %zu x %zu elements: not memory of the device, or not aligned", call,
                            (unsigned long long)p->dst, p->width, p->height);
    *work = (struct work){.kind = &work_fill, .name = call, .to = p->dst, .bytes = bytes, .pattern = p->value, .width = (unsigned)size,
        .rows = p->height, .layers = 1, .to_pitch = p->pitch};
    return CUDA_SUCCESS;
}

CUresult region_fill_2d(CUdeviceptr at, size_t pitch, unsigned value, unsigned size, size_t width, size_t height, CUstream stream)
{
    struct stream *s;
    struct work work;
    CUDA_MEMSET_NODE_PARAMS_v2 p = {.dst = at, .pitch = pitch, .value = value, .elementSize = size, .width = width, .height = height};
    CUresult result = stream_find(stream, &s);
    if (result || !width || !height)
        return result;
    result = region_fill(&p, "cuMemsetD2D", &work);
    return result ? result : work_put(s, &work);
}
