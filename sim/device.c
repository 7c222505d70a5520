/* device.c: the devices of the machine: how many, what they are called, what they can, how much memory they have. */
#include <stdio.h>
#include <string.h>

#include "sim/machine.h"

bool device_exists(CUdevice device)
{
    return device >= 0 && device < model.shape.devices;
}

CUresult device_count(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = model.shape.devices;
    return CUDA_SUCCESS;
}

CUresult device_get(CUdevice *device, int ordinal)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    const struct sim_shape *shape = &model.shape;
    switch ((int)attribute) {
#define ATTRIBUTE(name, number)                 \
    case CU_DEVICE_ATTRIBUTE_##name:            \
        *value = (number);                      \
        return CUDA_SUCCESS;
#include "sim/attributes.def"
#undef ATTRIBUTE
    }
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult device_name(char *name, int size, CUdevice device)
{
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)size, "Simulated GPU %llu MiB", (unsigned long long)(model.shape.capacity >> 20));
    return CUDA_SUCCESS;
}

CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "simulated GPU  ", sizeof uuid->bytes);
    uuid->bytes[sizeof uuid->bytes - 1] = (char)device;
    return CUDA_SUCCESS;
}

CUresult device_bus_id(char *id, int size, CUdevice device)
{
    if (!id || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)size, "0000:%02X:00.0", (unsigned)device + 1);
    return CUDA_SUCCESS;
}

CUresult device_by_bus_id(CUdevice *device, const char *id)
{
    unsigned domain, bus, slot, function;
    if (!device || !id)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 || domain || slot || function || !device_exists((int)bus - 1))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}

CUresult device_total(size_t *bytes, CUdevice device)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = model.shape.capacity;
    return CUDA_SUCCESS;
}

/* Memory of the host is not part of what processes share. */
static bool is_shared(int device)
{
    return machine_joined && device != HOST_AREA;
}

static uint64_t own_left(const struct device *d)
{
    uint64_t taken = d->used + d->contexts_bytes + d->foreign;
    return taken < d->capacity ? d->capacity - taken : 0;
}

uint64_t device_left(int device)
{
    uint64_t left = own_left(&model.devices[device]);
    uint64_t others = is_shared(device) ? machine_others(device) : 0;
    return others < left ? left - others : 0;
}

bool device_take(int device, uint64_t bytes, bool for_context)
{
    struct device *d = &model.devices[device];
    if (own_left(d) < bytes || (is_shared(device) && !machine_take(device, bytes, for_context, d->capacity - d->foreign)))
        return false;
    *(for_context ? &d->contexts_bytes : &d->used) += bytes;
    return true;
}

void device_give(int device, uint64_t bytes, bool for_context)
{
    struct device *d = &model.devices[device];
    *(for_context ? &d->contexts_bytes : &d->used) -= bytes;
    if (is_shared(device))
        machine_give(device, bytes, for_context);
}

CUresult device_memory(size_t *free, size_t *total)
{
    int device = context_at(context_current())->device;
    if (free)
        *free = device_left(device);
    if (total)
        *total = model.shape.capacity;
    return CUDA_SUCCESS;
}
