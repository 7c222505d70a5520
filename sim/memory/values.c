/*
 * values.c: words that streams write in their order (cuStreamWriteValue32) and wait for (cuStreamWaitValue32), and the parts of the driver that are
 * not simulated at all and say so: multicast memory, the driver's own log.
 *
 * A wait asks for the word each time that something may have changed it: see queue.c. In a capture each word is a node of its own, also those of one
 * cuStreamBatchMemOp. LOCKING: the model's lock.
 */
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define BATCH_MAX 256   /* cuda.h */
#define WAIT_FLAGS ((unsigned)CU_STREAM_WAIT_VALUE_NOR | (unsigned)CU_STREAM_WAIT_VALUE_FLUSH)

static CUresult check_word(const char *name, CUdeviceptr at, unsigned width)
{
    if (at % width)
        return CUDA_ERROR_INVALID_VALUE;
    if (!virtual_is_device_address(at) && !host_is_pinned(at, width))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is not memory of the device", name, (unsigned long long)at);
    return CUDA_SUCCESS;
}

static CUresult describe_write(struct work *w, CUdeviceptr at, uint64_t value, unsigned width, unsigned flags)
{
    if (flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.kind = &work_write_word, .name = width == 4 ? "cuStreamWriteValue32" : "cuStreamWriteValue64", .to = at, .bytes = width,
                       .pattern = value, .width = width};
    return check_word(w->name, at, width);
}

static CUresult describe_wait(struct work *w, CUdeviceptr at, uint64_t value, unsigned width, unsigned flags)
{
    if (flags & ~WAIT_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH)
        return CUDA_ERROR_NOT_SUPPORTED; /* the device says that it cannot flush what others have written */
    *w = (struct work){.kind = &work_wait_word, .name = width == 4 ? "cuStreamWaitValue32" : "cuStreamWaitValue64", .to = at, .bytes = width,
                       .pattern = value, .width = width, .number = flags};
    return check_word(w->name, at, width);
}

static CUresult put(CUstream stream, CUdeviceptr at, uint64_t value, unsigned width, unsigned flags,
                    CUresult (*describe)(struct work *w, CUdeviceptr at, uint64_t value, unsigned width, unsigned flags))
{
    struct stream *s;
    struct work work;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = describe(&work, at, value, width, flags);
    return result ? result : work_put(s, &work);
}

CUresult value_write_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return put(stream, at, value, sizeof value, flags, describe_write);
}

CUresult value_write_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    return put(stream, at, value, sizeof value, flags, describe_write);
}

CUresult value_wait_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return put(stream, at, value, sizeof value, flags, describe_wait);
}

CUresult value_wait_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    return put(stream, at, value, sizeof value, flags, describe_wait);
}

/* `w` without a kind: nothing is to be done. A barrier is there without being asked for: all work of a stream is done in order. */
static CUresult describe_part(struct work *w, const CUstreamBatchMemOpParams *p)
{
    w->kind = NULL;
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return describe_wait(w, p->waitValue.address, p->waitValue.value, sizeof p->waitValue.value, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return describe_wait(w, p->waitValue.address, p->waitValue.value64, sizeof p->waitValue.value64, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return describe_write(w, p->writeValue.address, p->writeValue.value, sizeof p->writeValue.value, p->writeValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return describe_write(w, p->writeValue.address, p->writeValue.value64, sizeof p->writeValue.value64, p->writeValue.flags);
    case CU_STREAM_MEM_OP_BARRIER:
        return p->memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* All parts are looked at before the first is put on the stream. */
CUresult value_batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *parts, unsigned flags)
{
    struct stream *s;
    struct work work;
    CUresult result = stream_find(stream, &s);
    if (!result && (!parts || !count || count > BATCH_MAX || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && !result; i++)
        result = describe_part(&work, &parts[i]);
    for (unsigned i = 0; i < count && !result; i++)
        if (!describe_part(&work, &parts[i]) && work.kind)
            result = work_put(s, &work);
    return result;
}
