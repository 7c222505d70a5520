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

CUresult entries_driver_version(int *version);
CUresult entries_find(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult entries_find_1(const char *symbol, void **function, int version, cuuint64_t flags);

#endif
