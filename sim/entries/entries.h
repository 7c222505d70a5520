/* entries.h: what the exported functions need beside the model. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_ENTRIES_H
#define CENOTE_SIM_ENTRIES_H

#include "sim/machine/model.h"

/* cuda.h turns these names into their newest variant; entries.def means the oldest. */
#undef cuDeviceGetUuid
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
#undef cuEventElapsedTime
#undef cuGraphAddDependencies
#undef cuGraphAddKernelNode
#undef cuGraphAddNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphGetEdges
#undef cuGraphInstantiate
#undef cuGraphKernelNodeGetParams
#undef cuGraphKernelNodeSetParams
#undef cuGraphNodeGetDependencies
#undef cuGraphNodeGetDependentNodes
#undef cuGraphRemoveDependencies
#undef cuGetProcAddress
#undef cuIpcOpenMemHandle
#undef cuMemAdvise
#undef cuMemHostRegister
#undef cuMemPrefetchAsync
#undef cuStreamBeginCapture
#undef cuStreamGetCaptureInfo
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuDeviceGetDevResource
#undef cuStreamBatchMemOp
#undef cuStreamUpdateCaptureDependencies

struct entry_address {      /* a row of entries.def */
    const char *name;
    int         since;
    void       *legacy;
    void       *per_thread;
};

/* --- lookup.c */
void     lookup_reset(void);               /* nothing is hidden */
bool     lookup_hide(const char *name);    /* false: too many */
CUresult lookup_driver_version(int *version);
CUresult lookup_find(const struct entry_address *table, size_t count, const char *symbol, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status);
CUresult not_there(const char *call, const char *what);     /* takes the lock itself */

/* --- entries.c */
uint64_t entries_calls(void);              /* driver calls since the reset */

#endif
