/*
 * physical.c: physical memory: what cuMemCreate hands out, and what the model takes for allocations.
 *
 * Physical memory lives while a handle or a mapping refers to it: cuMemRelease of a mapped handle is legal, the memory goes with the last
 * cuMemUnmap. A handle value carries a generation, so that an old one is detected.
 */
#include "sim/memory/memory.h"

#define PHYSICAL_MAX (1u << 22)        /* an 8 TiB machine in 2 MiB pieces */
#define HANDLE_TAG 0x51ull              /* in the top byte of a handle: a wild number rarely names something */

static struct slots pieces;
static uint32_t generation; /* of the last one made, over all resets */

void physical_reset(void)
{
    if (pieces.items)
        slots_clear(&pieces);
    else
        slots_open(&pieces, sizeof(struct physical), PHYSICAL_MAX, SLOTS_NEWEST_FIRST);
}

struct physical *physical_at(uint32_t number)
{
    return slots_at(&pieces, number);
}

uint32_t physical_enter(const struct physical *memory)
{
    uint32_t number = slots_take(&pieces);
    if (!number)
        return 0;
    *physical_at(number) = *memory;
    physical_at(number)->generation = ++generation & 0xffffff;
    return number;
}

uint32_t physical_next(uint32_t number)
{
    while (++number < pieces.used)
        if (slots_is_live(&pieces, number))
            return number;
    return 0;
}

CUresult physical_take(int device, uint64_t size, uint32_t *number)
{
    struct device *d = &model.devices[device];
    uint64_t offset;
    if (!device_take(device, size, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!ranges_take(&d->free, size, model.shape.granularity, &offset)) {
        device_give(device, size, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint32_t taken = physical_enter(&(struct physical){.offset = offset, .size = size, .device = device});
    if (!taken) {
        ranges_give(&d->free, offset, size);
        device_give(device, size, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    model.books.used += size;
    if (model.books.used_peak < model.books.used)
        model.books.used_peak = model.books.used;
    *number = taken;
    return CUDA_SUCCESS;
}

void physical_drop(uint32_t number)
{
    struct physical *p = physical_at(number);
    if (p->handles || p->mappings)
        return;
    if (p->shared) {
        p->drop(p);
    } else {
        contents_forget(p->offset, p->size);
        ranges_give(&model.devices[p->device].free, p->offset, p->size);
        device_give(p->device, p->size, false);
        model.books.used -= p->size;
    }
    slots_give(&pieces, number);
}

void physical_drop_mapping(uint32_t number)
{
    physical_at(number)->mappings--;
    physical_drop(number);
}

CUmemGenericAllocationHandle physical_handle(uint32_t number)
{
    return HANDLE_TAG << 56 | (uint64_t)physical_at(number)->generation << 32 | number;
}

uint32_t physical_find(CUmemGenericAllocationHandle handle)
{
    uint32_t number = (uint32_t)handle;
    if (!slots_is_live(&pieces, number) || physical_handle(number) != handle || !physical_at(number)->handles)
        return 0;
    return number;
}

bool location_area(const CUmemLocation *location, int *area)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *area = location->id;
        return device_exists(location->id);
    }
    *area = HOST_AREA;
    return location->type == CU_MEM_LOCATION_TYPE_HOST || (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id >= 0);
}

static CUresult check_properties(const CUmemAllocationProp *prop, int *area, const char *call)
{
    if (!model.shape.vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !location_area(&prop->location, area))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "%s: the properties name no memory of this machine", call);
    unsigned has = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (sim_quirk(FABRIC) || sim_quirk(FABRIC_NOT_PERMITTED) || sim_quirk(FABRIC_INVALID))
        has |= CU_MEM_HANDLE_TYPE_FABRIC;
    if (sim_quirk(ATTRIBUTE_LIES) && (prop->requestedHandleTypes || prop->allocFlags.gpuDirectRDMACapable))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (sim_quirk(DECOMPRESSION_REFUSED) && prop->allocFlags.usage)
        return CUDA_ERROR_NOT_SUPPORTED;
    return prop->requestedHandleTypes & ~has ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Handles that the attributes promise and the driver refuses. */
static CUresult refuse_fabric(const CUmemAllocationProp *prop)
{
    bool fabric = prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC;
    if (fabric && sim_quirk(FABRIC_NOT_PERMITTED))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fabric && sim_quirk(FABRIC_INVALID))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult physical_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    int area;
    CUresult result = check_properties(prop, &area, "cuMemCreate");
    if (result)
        return result;
    if (!handle || flags || !size || size % model.shape.granularity)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemCreate: %zu bytes are not a multiple of the granularity", size);
    uint32_t number;
    if (!(result = refuse_fabric(prop)))
        result = physical_take(area, size, &number);
    if (result)
        return result;
    struct physical *p = physical_at(number);
    p->prop = *prop;
    p->handles = 1;
    model.books.handles++;
    *handle = physical_handle(number);
    return CUDA_SUCCESS;
}

CUresult physical_release(CUmemGenericAllocationHandle handle)
{
    uint32_t number = physical_find(handle);
    if (!number)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemRelease: handle 0x%llx is released already or was never created", handle);
    struct physical *p = physical_at(number);
    p->handles--;
    model.books.handles--;
    physical_drop(number);
    return CUDA_SUCCESS;
}

CUresult physical_granularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    int area;
    CUresult result = check_properties(prop, &area, "cuMemGetAllocationGranularity");
    if (result)
        return result;
    if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = model.shape.granularity;
    return CUDA_SUCCESS;
}

CUresult physical_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    uint32_t number = physical_find(handle);
    if (!prop || !number)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemGetAllocationPropertiesFromHandle: 0x%llx is no handle", handle);
    *prop = physical_at(number)->prop;
    return CUDA_SUCCESS;
}

CUresult physical_info(size_t *free, size_t *total)
{
    int device = context_at(context_current())->device;
    if (free)
        *free = device_left(device) / (sim_quirk(UNIFIED_MEMORY) ? 2 : 1);
    if (total)
        *total = model.shape.capacity;
    return CUDA_SUCCESS;
}
