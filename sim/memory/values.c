/*
 * values.c: words that streams write in their order (cuStreamWriteValue32), and the parts of the driver that are not simulated at all and say
 * so: waiting for a word, multicast memory, the driver's own log. LOCKING: the model's lock.
 */
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

static CUresult write_value(const char *name, CUstream stream, CUdeviceptr at, uint64_t value, unsigned width, unsigned flags)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (at % width || flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_INVALID_VALUE;
    if (!virtual_is_device_address(at) && !host_is_pinned(at, width))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is not memory of the device", name, (unsigned long long)at);
    struct work work = {.kind = &work_fill, .name = name, .to = at, .bytes = width, .pattern = value, .width = width};
    return work_put(s, &work);
}

CUresult value_write_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return write_value("cuStreamWriteValue32", stream, at, value, sizeof value, flags);
}

CUresult value_write_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    return write_value("cuStreamWriteValue64", stream, at, value, sizeof value, flags);
}

CUresult not_there(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
