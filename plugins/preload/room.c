/*
 * room.c: memory that stays the driver's, by calls which are not served: where the driver has none left for it, cenote gives back what no block uses,
 * and the driver is asked once more.
 *
 * LOCKING: none.
 */
#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

#define ROOM(symbol, parameters, arguments)                                     \
    CUresult serve_##symbol parameters                                          \
    {                                                                           \
        CUresult result = real()->symbol arguments;                             \
        if (result == CUDA_ERROR_OUT_OF_MEMORY && place_make_room())            \
            result = real()->symbol arguments;                                  \
        return result;                                                          \
    }

ROOM(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
     (handle, size, prop, flags))
ROOM(cuMemAllocManaged, (CUdeviceptr *at, size_t size, unsigned int flags), (at, size, flags))
ROOM(cuArrayCreate_v2, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description), (array, description))
ROOM(cuArray3DCreate_v2, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description), (array, description))
ROOM(cuMipmappedArrayCreate, (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels), (array, description, levels))
