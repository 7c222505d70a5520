/*
 * faults.c: which driver call fails. A byte of the input says so by a table of its own: driver.def grows in any place, and an input that once
 * found something has to go on meaning what it meant.
 */
#include "fuzz/ops/world.h"

#include "driver/driver.h"

/* Of bytes below 210, six times over, and "any" after the last. Never changed. */
static const enum driver_call early[] = {
    CALL_cuInit, CALL_cuDriverGetVersion, CALL_cuDeviceGetCount, CALL_cuDeviceGet, CALL_cuDeviceGetAttribute, CALL_cuDeviceTotalMem,
    CALL_cuDevicePrimaryCtxRetain, CALL_cuDevicePrimaryCtxRelease, CALL_cuCtxPushCurrent, CALL_cuCtxPopCurrent, CALL_cuCtxSynchronize,
    CALL_cuCtxRecordEvent, CALL_cuMemGetInfo, CALL_cuStreamGetId, CALL_cuThreadExchangeStreamCaptureMode, CALL_cuEventCreate,
    CALL_cuEventDestroy, CALL_cuEventRecord, CALL_cuEventQuery, CALL_cuEventSynchronize, CALL_cuMemAlloc, CALL_cuMemFree, CALL_cuMemPoolCreate,
    CALL_cuMemPoolDestroy, CALL_cuMemPoolTrimTo, CALL_cuMemAllocFromPoolAsync, CALL_cuMemGetAllocationGranularity, CALL_cuMemAddressReserve,
    CALL_cuMemAddressFree, CALL_cuMemCreate, CALL_cuMemRelease, CALL_cuMemMap, CALL_cuMemUnmap, CALL_cuMemSetAccess,
};

/* Of the bytes from 210 on, "any" after the last. Appended to. */
static const enum driver_call late[] = {
    CALL_cuDeviceGetPCIBusId, CALL_cuDeviceCanAccessPeer, CALL_cuCtxGetDevice, CALL_cuCtxEnablePeerAccess, CALL_cuStreamGetCtx,
    CALL_cuStreamIsCapturing, CALL_cuMemHostRegister, CALL_cuMemHostUnregister, CALL_cuMemPoolSetAccess, CALL_cuMemExportToShareableHandle,
    CALL_cuMemImportFromShareableHandle, CALL_cuIpcGetMemHandle, CALL_cuIpcOpenMemHandle, CALL_cuIpcCloseMemHandle, CALL_cuCtxGetId,
    CALL_cuCtxGetCurrent, CALL_cuStreamGetCtx_v2,
};

#define EARLY (sizeof early / sizeof early[0])
#define LATE  (sizeof late / sizeof late[0])
_Static_assert(EARLY == 34 && LATE <= 46, "what a byte can say");

/* One driver call fails, once: the n-th of a name, or of any. */
void world_arm(struct world *w)
{
    static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_SUPPORTED};
    uint8_t choice = input_byte(w->in), how = input_byte(w->in);
    size_t row = choice < 6 * (EARLY + 1) ? choice % (EARLY + 1) : choice - 6 * (EARLY + 1);
    const enum driver_call *table = choice < 6 * (EARLY + 1) ? early : late;
    const char *name = row < (table == early ? EARLY : LATE) ? driver_call_name(table[row]) : NULL;
    world_say(w, "  %s, call %d", name ? name : "any", 1 + (how >> 2 & 15));
    fault_arm(name, 1 + (how >> 2 & 15), errors[how & 3], false);
}
