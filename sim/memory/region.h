/* region.h: copies and fills of rows and layers, and between devices; see regions.c. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_REGION_H
#define CENOTE_SIM_REGION_H

#include "sim/order/stream.h"

CUresult region_copy(const CUDA_MEMCPY3D *region, const char *call, struct work *work);    /* checked */
CUresult region_fill(const CUDA_MEMSET_NODE_PARAMS_v2 *region, const char *call, struct work *work);
void     region_tell_copy(const struct work *work, CUDA_MEMCPY3D *region);
CUresult region_copy_3d(const CUDA_MEMCPY3D *region, CUstream stream, bool waits);
CUresult region_copy_3d_peer(const CUDA_MEMCPY3D_PEER *region, CUstream stream, bool waits);
CUresult region_copy_2d(const CUDA_MEMCPY2D *region, CUstream stream, bool waits);
CUresult region_copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream,
                          bool waits);
CUresult region_fill_2d(CUdeviceptr at, size_t pitch, unsigned value, unsigned size, size_t width, size_t height, CUstream stream);

#endif
