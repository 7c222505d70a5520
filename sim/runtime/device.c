/*
 * device.c: devices as the runtime describes them, versions, and the driver's functions by name. LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/runtime.h"

static const struct {
    size_t              offset;
    size_t              size;
    CUdevice_attribute  attribute;
} properties[] = {
#define PROPERTY(field, attribute)                                                                                           \
    {offsetof(struct cudaDeviceProp, field), sizeof ((struct cudaDeviceProp *)NULL)->field, CU_DEVICE_ATTRIBUTE_##attribute},
#include "sim/runtime/properties.def"
#undef PROPERTY
};

static CUresult fill_properties(struct cudaDeviceProp *prop, int device)
{
    memset(prop, 0, sizeof *prop);
    CUresult result = cuDeviceGetName(prop->name, (int)sizeof prop->name, device);
    if (!result)
        result = cuDeviceGetUuid((CUuuid *)&prop->uuid, device);
    if (!result)
        result = cuDeviceTotalMem(&prop->totalGlobalMem, device);
    for (size_t i = 0; i < sizeof properties / sizeof properties[0] && !result; i++) {
        int value = 0;
        result = cuDeviceGetAttribute(&value, properties[i].attribute, device);
        size_t wide = (size_t)value;
        memcpy((char *)prop + properties[i].offset, &wide, properties[i].size);
    }
    prop->ipcEventSupported = 1;
    return result;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    CUresult result = runtime_start();
    if (!result && !prop)
        result = CUDA_ERROR_INVALID_VALUE;
    return runtime_end(result ? result : fill_properties(prop, device));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return runtime_fail(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* Both make the peer's context, which stays. */
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    CUresult result = runtime_begin();
    if (!result)
        result = runtime_primary(peer, &context);
    return runtime_end(result ? result : cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context;
    CUresult result = runtime_begin();
    if (!result)
        result = runtime_primary(peer, &context);
    return runtime_end(result ? result : cuCtxDisablePeerAccess(context));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = runtime_start();
    if (!result)
        result = cuGetProcAddress(symbol, function, (int)version, flags, &status);
    if (found)
        *found = (enum cudaDriverEntryPointQueryResult)status;
    if (result == CUDA_ERROR_NOT_FOUND && function) {   /* the runtime says so in `found` and succeeds */
        *function = NULL;
        result = CUDA_SUCCESS;
    }
    return runtime_end(result);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, found);
}
