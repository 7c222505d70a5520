/*
 * copies.c: copies and fills, put on streams.
 *
 * A call is checked as far as a real driver can when it is made (is the address known at all?), and again byte by byte when it runs.
 * Copies from and to host memory that is not pinned are waited for: real drivers go through a buffer of their own.
 */
#include "sim/memory/memory.h"

bool memory_is_known(uint64_t at, uint64_t bytes)
{
    if (!virtual_is_device_address(at))
        return host_is_pinned(at, bytes);
    const struct range *own = virtual_own_reservation(at);
    return (virtual_mapping(at) && virtual_mapping(at + bytes - 1)) || (own && bytes <= own->start + own->size - at);
}

/* Of cuMemAlloc. Between devices without peer access drivers copy it by way of the host. */
static bool is_plain(uint64_t at)
{
    const struct mapping *m = virtual_is_device_address(at) ? virtual_mapping(at) : NULL;
    return m && m->owner == MAPPED_FOR_PLAIN;
}

/* Of a pool that this device may not read, or write. The driver knows that when the copy is put on a stream, and a kernel only finds out. */
static bool is_closed(uint64_t at, int device, bool write)
{
    const struct mapping *m = virtual_is_device_address(at) ? virtual_mapping(at) : NULL;
    return m && m->owner == MAPPED_FOR_POOL && !((write ? m->pool->writers : m->pool->readers) >> device & 1);
}

struct copy {
    const char *name;
    uint64_t    to, from;
    size_t      bytes;
    bool        to_any, from_any;   /* may be host memory that is not pinned */
    bool        waits;              /* the call returns when the copy is done */
};

static CUresult copy(const struct copy *c, CUstream stream)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result || !c->bytes)
        return result;
    bool to_known = memory_is_known(c->to, c->bytes), from_known = memory_is_known(c->from, c->bytes);
    bool to_wrong = !to_known && (!c->to_any || virtual_is_device_address(c->to));
    bool from_wrong = !from_known && (!c->from_any || virtual_is_device_address(c->from));
    if (to_wrong || from_wrong)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx <- 0x%llx, %zu bytes: not memory of the device", c->name,
                            (unsigned long long)c->to, (unsigned long long)c->from, c->bytes);
    int device = context_at(s->context)->device;
    if (is_closed(c->to, device, true) || is_closed(c->from, device, false))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx <- 0x%llx: in a pool without access for device %d", c->name,
                            (unsigned long long)c->to, (unsigned long long)c->from, device);
    bool pageable = !to_known || !from_known;
    struct work work = {.kind = &work_copy, .name = c->name, .to = c->to, .from = c->from, .bytes = c->bytes, .pinned = !pageable,
        .between_devices = is_plain(c->to) && is_plain(c->from)};
    if (!virtual_is_device_address(c->to) && virtual_is_device_address(c->from) && answer_take(c->bytes, &work.pattern)) {
        work.kind = &work_fill; /* with a number that a library knows */
        work.width = (unsigned)c->bytes;
    }
    result = work_put(s, &work);
    if (result || s->capture || (!c->waits && !pageable))
        return result;
    clock_go_to(s->done);
    return context_at(s->context)->lost;
}

CUresult copy_sync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpy", to, from, bytes, true, true, true}, stream);
}

CUresult copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyAsync", to, from, bytes, true, true, false}, stream);
}

CUresult copy_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyHtoD", to, (uint64_t)from, bytes, false, true, true}, stream);
}

CUresult copy_to_device_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyHtoDAsync", to, (uint64_t)from, bytes, false, true, false}, stream);
}

CUresult copy_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyDtoH", (uint64_t)to, from, bytes, true, false, true}, stream);
}

CUresult copy_to_host_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyDtoHAsync", (uint64_t)to, from, bytes, true, false, false}, stream);
}

CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyDtoD", to, from, bytes, false, false, false}, stream);
}

CUresult copy_on_device_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(&(struct copy){"cuMemcpyDtoDAsync", to, from, bytes, false, false, false}, stream);
}

static CUresult fill(const char *name, uint64_t at, uint64_t pattern, unsigned width, size_t count, CUstream stream)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result || !count)
        return result;
    uint64_t bytes = (uint64_t)count * width;
    if (at % width || bytes / width != count || !memory_is_known(at, bytes))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx, %zu elements: not memory of the device, or not aligned", name,
                            (unsigned long long)at, count);
    struct work work = {.kind = &work_fill, .name = name, .to = at, .bytes = bytes, .pattern = pattern, .width = width};
    return work_put(s, &work);
}

CUresult fill_8(CUdeviceptr at, unsigned char value, size_t count, CUstream stream)
{
    return fill("cuMemsetD8", at, value, 1, count, stream);
}

CUresult fill_16(CUdeviceptr at, unsigned short value, size_t count, CUstream stream)
{
    return fill("cuMemsetD16", at, value, 2, count, stream);
}

CUresult fill_32(CUdeviceptr at, unsigned int value, size_t count, CUstream stream)
{
    return fill("cuMemsetD32", at, value, 4, count, stream);
}
