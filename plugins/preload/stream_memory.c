/*
 * stream_memory.c: memory in the order of streams: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync.
 *
 * A block is cenote's block of that stream. It may be freed on another stream than it was taken on, and memory of cuMemAlloc may be freed here, too:
 * that stream is then one that uses the block, and the block waits for it. cenote compares the two by the driver's id of a stream: a handle is given
 * again to the next stream.
 *
 * On a stream that is being captured memory is a part of the graph: taken by a node, given back by a node, at addresses that the graph owns. That is
 * the driver's, and so is its refusal to free there what is not of a graph.
 *
 * LOCKING: none.
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/relay.h"

/* PASSES: served, and *result is what the program is told. Else why it is left to the driver. `pool` is NULL for the one that is set. */
static enum pass take_at(struct place *p, CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream, CUresult *result)
{
    if (!p)
        return PASS_CONTEXT;
    if (place_has_stream(p, stream)) {
        *result = CUDA_ERROR_INVALID_HANDLE;
        return PASSES;
    }
    struct family *family = family_of_pool(p, pool ? pool : atomic_load(&p->current));
    if (!family)
        return PASS_POOL;
    return memory_take(p, family, at, size, stream, result) ? PASSES : PASS_REFUSED;
}

/* The place of a created stream. NULL: a default stream, which is the current context's, or a stream of a context that is not served. */
static struct place *place_of_stream(CUstream stream)
{
    CUcontext context = NULL;
    return stream_is_default(stream) || real()->cuStreamGetCtx(stream, &context) ? NULL : place_of_context(context);
}

/*
 * Memory of cuMemAllocAsync is of the device that the stream is of, whatever is current. That is nearly always the current one, and the driver need
 * not be asked: cenote refuses a stream of another device.
 */
static enum pass take(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream, CUresult *result)
{
    struct place *here = at && size ? place_here() : NULL, *there;
    if (captures_have(stream))
        return PASS_CAPTURE;
    enum pass why = take_at(here, at, size, pool, stream, result);
    if (why == PASSES || !at || !size || !(there = place_of_stream(stream)) || there == here)
        return why;
    return take_at(there, at, size, pool, stream, result);
}

CUresult serve_cuMemAllocAsync(CUdeviceptr *at, size_t size, CUstream stream)
{
    CUresult result;
    enum pass why = take(at, size, NULL, stream, &result);
    if (why == PASSES)
        return result;
    result = real()->cuMemAllocAsync(at, size, stream);
    return place_passed(why, place_lacks_room(result) ? real()->cuMemAllocAsync(at, size, stream) : result);
}

CUresult serve_cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUresult result;
    enum pass why = pool ? take(at, size, pool, stream, &result) : PASS_POOL;
    if (why == PASSES)
        return result;
    result = real()->cuMemAllocFromPoolAsync(at, size, pool, stream);
    return place_passed(why, place_lacks_room(result) ? real()->cuMemAllocFromPoolAsync(at, size, pool, stream) : result);
}

/* The process exits: no block is handed out any more, so a free succeeds as long as there is a driver. */
static CUresult said_at_exit(void)
{
    CUcontext context;
    CUresult result = real()->cuCtxGetCurrent(&context);
    return result == CUDA_ERROR_DEINITIALIZED ? result : CUDA_SUCCESS;
}

/*
 * The block waits for the stream. A default stream is that of the current context, whichever device the block is of. Of other contexts than that of
 * the pool cenote knows the primary ones of other devices.
 */
static CUresult use(struct place *p, const cenote_block *of, CUstream stream)
{
    CUdevice device;
    void *block = of->start;
    bool is_default = stream_is_default(stream);
    struct place *there = is_default ? place_here() : stream == of->stream ? p : place_of_stream(stream);
    CUresult result = there || !is_default ? CUDA_SUCCESS : real()->cuCtxGetDevice(&device);
    if (!there || (there != p && (!place_is_primary(there) || there->device == p->device)))
        return result ? result : relay_use(p, block, stream);
    int error = there == p ? cenote_use(block, stream) : cenote_use_on_device(block, there->device, stream);
    if (error == CENOTE_EXITING)
        return said_at_exit();
    return error == CENOTE_INVALID || error == CENOTE_NOT_SUPPORTED ? relay_use(p, block, stream) : memory_said(error);
}

CUresult serve_cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    cenote_block block;
    struct place *p = place_of_block(at, &block);
    if (!p || captures_have(stream))
        return real()->cuMemFreeAsync(at, stream);
    if ((CUdeviceptr)(uintptr_t)block.start != at || memory_is_kept(block.start))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = use(p, &block, stream);
    return result ? result : memory_said(memory_give(p, &block));
}
