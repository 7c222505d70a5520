/*
 * ipc.c: memory of one process in another, by handles of cuIpcGetMemHandle. A handle of a block is a share of cenote's (cenote/share.h), which has as
 * many bytes; any other handle is the driver's. So both processes have to run under the preload.
 *
 * LOCKING: none.
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/memory.h"

#include <cenote/share.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(sizeof(cenote_share) == sizeof(CUipcMemHandle), "a share travels in place of a handle");

static _Atomic uint64_t own_name; /* of this process in its shares; 0: none was made */

static CUresult said(int error)
{
    switch (error) {
    case CENOTE_GONE:
        return CUDA_ERROR_INVALID_HANDLE;
    case CENOTE_NOT_SUPPORTED:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CENOTE_BUSY:
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* imports are closed when no capture is open */
    default:
        return memory_said(error);
    }
}

/*
 * The handle is of the whole block, whichever address of it was named, as the driver's is of the whole allocation. Memory in stream order has no
 * handle in the driver, and says so (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE): nor has a block. What a program has freed has none either.
 */
CUresult serve_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
    cenote_block block;
    cenote_share share;
    struct place *p = handle ? place_of_block(at, &block) : NULL;
    if (!p)
        return real()->cuIpcGetMemHandle(handle, at);
    CUresult result = memory_ask(p);
    if (!result && (!place_is_for_all(p, &block) || memory_is_kept(block.start)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    int error = cenote_export(block.start, &share);
    if (!error) {
        atomic_store(&own_name, share.words[1]);
        memcpy(handle, &share, sizeof share);
    }
    return said(error);
}

/* The driver opens no process its own memory, also not what was freed; cenote would. */
static bool is_own(const cenote_share *share)
{
    uint64_t name = atomic_load(&own_name);
    return name && share->words[1] == name;
}

static CUresult open(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags, CUresult (*of_driver)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
    cenote_share share;
    void *address;
    memcpy(&share, &handle, sizeof share);
    struct place *p = at && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? place_here() : NULL;
    CUresult result = p ? memory_ask(p) : CUDA_SUCCESS;
    if (result || (p && is_own(&share)))
        return result ? result : CUDA_ERROR_INVALID_CONTEXT;
    int error = !p ? CENOTE_INVALID
              : place_is_primary(p) ? cenote_import(&share, sizeof share, p->device, &address)
              : cenote_pool_import(p->pool, &share, sizeof share, &address);
    if (error == CENOTE_INVALID) /* these bytes are no share */
        return of_driver(at, handle, flags);
    if (!error)
        *at = (CUdeviceptr)(uintptr_t)address;
    return said(error);
}

CUresult serve_cuIpcOpenMemHandle(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags)
{
    return open(at, handle, flags, real()->cuIpcOpenMemHandle);
}

CUresult serve_cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags)
{
    return open(at, handle, flags, real()->cuIpcOpenMemHandle_v2);
}

/* While a capture is open the driver is asked first, as in open: a refusal, and what it does to the capture, are the driver's. */
CUresult serve_cuIpcCloseMemHandle(CUdeviceptr at)
{
    struct place *p = captures_may_be_open() ? place_here() : NULL;
    CUresult result = p ? memory_ask(p) : CUDA_SUCCESS;
    if (result)
        return result;
    int error = at ? cenote_import_close((void *)(uintptr_t)at) : CENOTE_INVALID;
    if (error == CENOTE_EXITING)
        return CUDA_SUCCESS; /* it goes with the process */
    return error == CENOTE_INVALID || error == CENOTE_NOT_OURS ? real()->cuIpcCloseMemHandle(at) : said(error);
}
