/*
 * device.c: opens devices and enters their context. See device.h.
 *
 * Which way memory can be had is asked once, from device attributes, never found out by failing.
 */
#include "driver/device.h"

#include "base/check.h"
#include "base/error.h"
#include "cenote/cenote.h"

static struct device devices[DEVICES_MAX];

static bool attribute(const struct device *d, CUdevice_attribute which)
{
    int value = 0;
    return d->driver->cuDeviceGetAttribute(&value, which, d->handle) == CUDA_SUCCESS && value;
}

CUmemAllocationProp device_page_prop(const struct device *d)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = d->ordinal;
    prop.allocFlags.gpuDirectRDMACapable = d->has_rdma;
    return prop;
}

CUmemAccessDesc device_access(const struct device *d)
{
    CUmemAccessDesc access = {0};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = d->ordinal;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

static bool has_vmm_calls(const struct driver *t)
{
    return t->cuMemCreate && t->cuMemRelease && t->cuMemMap && t->cuMemUnmap && t->cuMemSetAccess && t->cuMemAddressReserve &&
           t->cuMemAddressFree && t->cuMemGetAllocationGranularity;
}

static void ask_abilities(struct device *d)
{
    const struct driver *t = d->driver;
    d->has_rdma = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    d->has_pools = t->cuMemPoolCreate && t->cuMemPoolDestroy && t->cuMemPoolSetAttribute && t->cuMemAllocFromPoolAsync &&
                   t->cuMemFreeAsync && attribute(d, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    d->granularity = 0;
    if (has_vmm_calls(t) && attribute(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        size_t granularity = 0;
        CUmemAllocationProp prop = device_page_prop(d);
        if (t->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
            granularity && !(granularity & (granularity - 1)))
            d->granularity = granularity;
    }
}

static int open_first(struct device *d, int ordinal)
{
    int error;
    const struct driver *t = driver_table(&error);
    if (!t)
        return error_set(error, 0, "%s", driver_load_message());

    int count = 0;
    CUresult result = t->cuDeviceGetCount(&count);
    if (result || ordinal >= count || ordinal >= DEVICES_MAX)
        return error_set(CENOTE_NO_DEVICE, result, "device %d does not exist: the driver has %d", ordinal, count);
    d->driver = t;
    d->ordinal = ordinal;
    size_t capacity = 0;
    if (!(result = t->cuDeviceGet(&d->handle, ordinal)) && !(result = t->cuDeviceTotalMem(&capacity, d->handle)))
        result = t->cuDevicePrimaryCtxRetain(&d->context, d->handle);
    if (result)
        return error_set(CENOTE_NO_DEVICE, result, "device %d cannot be used: %s", ordinal, driver_result_name(result));
    d->capacity = capacity;
    ask_abilities(d);
    return CENOTE_OK;
}

struct device *device_open(int ordinal, int *error)
{
    if (ordinal < 0 || ordinal >= DEVICES_MAX) {
        *error = error_set(CENOTE_NO_DEVICE, 0, "device %d does not exist", ordinal);
        return NULL;
    }
    struct device *d = &devices[ordinal];
    *error = d->opened ? CENOTE_OK : open_first(d, ordinal);
    if (*error)
        return NULL;
    d->opened++;
    return d;
}

void device_close(struct device *d)
{
    CHECK(d->opened);
    if (--d->opened == 0 && !driver_is_exiting() && !driver_is_forked())
        d->driver->cuDevicePrimaryCtxRelease(d->handle);
}

bool device_enter(struct device *d, struct device_scope *scope)
{
    scope->device = d;
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (driver_is_exiting() || driver_is_forked() || d->driver->cuCtxPushCurrent(d->context))
        return false;
    scope->has_mode = d->driver->cuThreadExchangeStreamCaptureMode(&scope->mode) == CUDA_SUCCESS;
    return true;
}

void device_leave(struct device_scope *scope)
{
    CUcontext popped;
    if (scope->has_mode)
        scope->device->driver->cuThreadExchangeStreamCaptureMode(&scope->mode);
    scope->device->driver->cuCtxPopCurrent(&popped);
}
