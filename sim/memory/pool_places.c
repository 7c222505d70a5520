/*
 * pool_places.c: which pools there are: of each device, of the host, and of managed memory with each of these as its preferred location or with none.
 * Each place has a default pool, and one that is current. What a pool does: pools.c.
 *
 * LOCKING: the model's lock.
 */
#include <string.h>

#include "sim/memory/memory.h"

struct place {
    uint32_t standard;      /* 0: not asked for so far */
    uint32_t current;
};

static struct place pinned[NO_AREA], managed[NO_AREA + 1];

uint32_t pool_standard(int device)
{
    return pinned[device].standard;
}

uint32_t pool_chosen(int device)
{
    return pinned[device].current;
}

static enum residence residence_of(int area, bool is_managed)
{
    return is_managed ? MANAGED : area == HOST_AREA ? ON_HOST : ON_DEVICE;
}

static struct place *place_at(int area, bool is_managed)
{
    struct place *p = is_managed ? &managed[area] : &pinned[area];
    if (!p->standard)
        p->standard = p->current = pool_open(area, residence_of(area, is_managed), 0, false);
    return p;
}

void pool_places_reset(void)
{
    memset(pinned, 0, sizeof pinned);
    memset(managed, 0, sizeof managed);
    for (int i = 0; i < model.shape.devices; i++)
        place_at(i, false);
}

/* Which memory is meant. Memory that is managed may lie anywhere. */
static CUresult area_of(const CUmemLocation *location, CUmemAllocationType type, int *area, bool *is_managed)
{
    *is_managed = false;
#if CUDA_VERSION >= 13000
    *is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (location && *is_managed && location->type == CU_MEM_LOCATION_TYPE_NONE) {
        *area = NO_AREA;
        return CUDA_SUCCESS;
    }
#endif
    if (!location || (!*is_managed && type != CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    if (!location_area(location, area))
        return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    int area;
    bool is_managed, decompresses = false;
    if (!model.shape.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!pool || !properties || area_of(&properties->location, properties->allocType, &area, &is_managed))
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return is_managed || area == HOST_AREA ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12080
    decompresses = properties->usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
#endif
    uint32_t number = pool_open(area, residence_of(area, is_managed), properties->maxSize, decompresses);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    model.books.pools++;
    *pool = pool_handle(number);
    return CUDA_SUCCESS;
}

/* A place whose current pool this was has its default pool from now on. False: it is a default pool. */
static bool leave(struct place *places, int count, uint32_t number)
{
    for (int i = 0; i < count; i++) {
        if (places[i].standard == number)
            return false;
        if (places[i].current == number)
            places[i].current = places[i].standard;
    }
    return true;
}

CUresult pool_destroy(CUmemoryPool pool)
{
    uint32_t number = pool_find(pool, "cuMemPoolDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    if (!leave(pinned, NO_AREA, number) || !leave(managed, NO_AREA + 1, number))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemPoolDestroy: of a default pool");
    model.books.pools--;
    pool_close(number);
    return CUDA_SUCCESS;
}

CUresult pool_default(CUmemoryPool *pool, CUdevice device)
{
    if (!pool || !device_exists(device))
        return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if (!model.shape.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    *pool = pool_handle(pinned[device].standard);
    return CUDA_SUCCESS;
}

CUresult pool_current(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = pool_default(pool, device);
    if (!result)
        *pool = pool_handle(pinned[device].current);
    return result;
}

CUresult pool_set_current(CUdevice device, CUmemoryPool pool)
{
    uint32_t number = pool_find(pool, "cuDeviceSetMemPool");
    if (!number || !device_exists(device) || !pool_is_of(number, device, ON_DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    pinned[device].current = number;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
/* Of memory of a device the next three are the three above by another name. */
static CUresult find_place(const CUmemLocation *location, CUmemAllocationType type, struct place **place, int *area, bool *is_managed)
{
    CUresult result = area_of(location, type, area, is_managed);
    if (result)
        return result;
    if (!model.shape.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    *place = place_at(*area, *is_managed);
    return (*place)->standard ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_default_of(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type)
{
    struct place *place;
    int area;
    bool is_managed;
    CUresult result = pool ? find_place(location, type, &place, &area, &is_managed) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *pool = pool_handle(place->standard);
    return result;
}

CUresult pool_current_of(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type)
{
    struct place *place;
    int area;
    bool is_managed;
    CUresult result = pool ? find_place(location, type, &place, &area, &is_managed) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *pool = pool_handle(place->current);
    return result;
}

CUresult pool_set_current_of(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    struct place *place;
    int area;
    bool is_managed;
    CUresult result = find_place(location, type, &place, &area, &is_managed);
    if (result)
        return result;
    uint32_t number = pool_find(pool, "cuMemSetMemPool");
    if (!number || !pool_is_of(number, area, residence_of(area, is_managed)))
        return CUDA_ERROR_INVALID_VALUE;
    place->current = number;
    return CUDA_SUCCESS;
}
#endif
