/*
 * device.c: the devices: how many there are, their names, attributes and memory. Calls name a device by its ordinal; its name and UUID follow from
 * its index on the machine (visible.c), so that they are the same in all processes.
 */
#include <stdio.h>
#include <string.h>

#include "sim/machine/machine.h"

bool device_exists(CUdevice device)
{
    return device >= 0 && device < visible_count();
}

CUresult device_count(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = visible_count();
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

/* `device` is what the table calls its number on the machine. */
int device_attribute_of(int device, CUdevice_attribute attribute)
{
    const struct sim_shape *shape = &model.shape;
    switch ((int)attribute) {
#define ATTRIBUTE(name, number)                 \
    case CU_DEVICE_ATTRIBUTE_##name:            \
        return (number);
#include "sim/machine/attributes.def"
#undef ATTRIBUTE
    }
    return 0;
}

CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = device_attribute_of(visible_index(device), attribute);
    return CUDA_SUCCESS;
}

void device_write_name(char *name, size_t room)
{
    snprintf(name, room, "Simulated GPU %llu MiB", (unsigned long long)(model.shape.capacity >> 20));
}

CUresult device_name(char *name, int size, CUdevice device)
{
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    device_write_name(name, (size_t)size);
    return CUDA_SUCCESS;
}

CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device_uuid_of(visible_index(device));
    return CUDA_SUCCESS;
}

int device_bus_of(int index)
{
    return index + 1;
}

void device_write_bus_id(char *id, size_t room, int index)
{
    snprintf(id, room, "0000:%02X:00.0", (unsigned)device_bus_of(index));
}

CUresult device_bus_id(char *id, int size, CUdevice device)
{
    if (!id || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    device_write_bus_id(id, (size_t)size, visible_index(device));
    return CUDA_SUCCESS;
}

CUresult device_by_bus_id(CUdevice *device, const char *id)
{
    unsigned domain, bus, slot, function;
    if (!device || !id)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 || domain || slot || function || bus > DEVICES_MOST)
        return CUDA_ERROR_INVALID_DEVICE;
    int ordinal = visible_ordinal((int)bus - 1);
    if (ordinal < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
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
    return model.shape.machine[0] && device != HOST_AREA;
}

static uint64_t own_left(const struct device *d)
{
    uint64_t taken = d->used + d->contexts_bytes + d->foreign;
    return taken < d->capacity ? d->capacity - taken : 0;
}

uint64_t device_left(int device)
{
    uint64_t left = own_left(&model.devices[device]);
    uint64_t others = is_shared(device) && machine_joined ? machine_others(visible_index(device)) : 0;
    return others < left ? left - others : 0;
}

bool device_take(int device, uint64_t bytes, bool for_context)
{
    struct device *d = &model.devices[device];
    if (own_left(d) < bytes)
        return false;
    if (is_shared(device) && !(machine_enter() && machine_take(visible_index(device), bytes, for_context, d->capacity - d->foreign)))
        return false;
    *(for_context ? &d->contexts_bytes : &d->used) += bytes;
    return true;
}

void device_give(int device, uint64_t bytes, bool for_context)
{
    struct device *d = &model.devices[device];
    *(for_context ? &d->contexts_bytes : &d->used) -= bytes;
    if (is_shared(device) && machine_joined)
        machine_give(visible_index(device), bytes, for_context);
}
