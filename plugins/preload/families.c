/*
 * families.c: the pools of the driver (CUmemoryPool) that cenote stands for: the default one of each device, and those that a program makes itself.
 * The driver has each of them, too: graphs take memory from it, settings are kept there, and its answers count what it handed out itself.
 *
 *     unknown ----cuMemPoolCreate----> known ----first allocation----> has a group of its own ----cuMemPoolDestroy----> unknown
 *
 * A pool that cenote cannot stand for stays unknown, and the driver serves it: one that other processes may open, that has a limit, or whose memory
 * is not the memory of a device.
 *
 * A group shares no memory with others while it lives. The memory in no group is that of the default pool and of cuMemAlloc together: what a default
 * pool has reserved is what it uses, and all that is free.
 *
 * LOCKING: `changing` guards the coming and going of families and of their groups. The handle of a family is written last, and read without it.
 */
#include "plugins/preload/families.h"

#include "plugins/preload/hooks.h"
#include "plugins/preload/peers.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

#define FAMILIES_MAX 1024 /* one more pool is the driver's alone */

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct family families[FAMILIES_MAX];
static _Atomic int families_used; /* slots that were ever taken */

/* --- finding */

static struct family *find_handle(CUmemoryPool pool)
{
    int used = atomic_load_explicit(&families_used, memory_order_acquire);
    for (int i = 0; i < used && pool; i++)
        if (atomic_load_explicit(&families[i].handle, memory_order_acquire) == pool)
            return &families[i];
    return NULL;
}

struct family *family_of_pool(struct place *p, CUmemoryPool pool)
{
    struct family *f = pool && pool == p->mempool ? &p->family : find_handle(pool);
    struct place *of_group = f ? atomic_load_explicit(&f->place, memory_order_acquire) : NULL;
    return f && f->device == p->device && (!of_group || of_group == p) ? f : NULL;
}

struct family *family_of_block(struct place *p, const cenote_block *block)
{
    int used = atomic_load_explicit(&families_used, memory_order_acquire);
    if (!block->group)
        return &p->family;
    for (int i = 0; i < used; i++)
        if (atomic_load_explicit(&families[i].group, memory_order_acquire) == block->group)
            return &families[i];
    return NULL;
}

/*
 * The place and the family of a pool, whichever device it is of; the place is visited. NULL: the pool is the driver's alone, or its device is not
 * served yet.
 */
static struct family *find_anywhere(CUmemoryPool pool, struct place **p)
{
    struct family *f = find_handle(pool);
    struct place *of_group = f ? atomic_load(&f->place) : NULL;
    if (f && (*p = of_group ? place_visit_there(of_group) : place_visit(f->device))) {
        if (atomic_load(&f->place) == of_group)
            return f;
        place_visit_end(*p); /* the group went with its context, just now */
    }
    if (f)
        return NULL;
    for (int i = 0; i < PLACES_MAX; i++) {
        if (!(*p = place_visit(i)))
            continue;
        if ((*p)->mempool == pool)
            return &(*p)->family;
        place_visit_end(*p);
    }
    return NULL;
}

/* --- counting: what the program asked for, as the driver's used memory */

static void raise_to(_Atomic uint64_t *high, uint64_t now)
{
    uint64_t before = atomic_load(high);
    while (now > before && !atomic_compare_exchange_weak(high, &before, now))
        ;
}

void family_count_taken(struct family *f, size_t bytes)
{
    uint64_t now = atomic_fetch_add(&f->used, bytes) + bytes;
    raise_to(&f->used_high, now);
    raise_to(&f->reserved_high, now);
}

void family_count_given(struct family *f, size_t bytes)
{
    CHECK(atomic_load(&f->used) >= bytes);
    atomic_fetch_sub(&f->used, bytes);
}

static void count_from_zero(struct family *f)
{
    atomic_store(&f->used, 0);
    atomic_store(&f->used_high, 0);
    atomic_store(&f->reserved_high, 0);
}

/* --- groups */

/* Devices that the program has opened the driver's pool to may use cenote's memory as well. */
static int grant_as_the_driver(struct place *p, CUmemoryPool pool)
{
    const struct real *r = real();
    int devices = 0, error = CENOTE_OK;
    if (!r->cuMemPoolGetAccess || r->cuDeviceGetCount(&devices))
        return CENOTE_OK;
    for (int i = 0; i < devices && !error; i++) {
        CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i};
        if (i != p->device && !r->cuMemPoolGetAccess(&flags, pool, &location) && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            error = cenote_pool_grant(p->pool, i);
    }
    return error;
}

bool family_group(struct place *p, struct family *f, cenote_group **group)
{
    char name[32];
    *group = atomic_load_explicit(&f->group, memory_order_acquire);
    if (*group || (f == &p->family && atomic_load(&f->is_granted)))
        return true;
    pthread_mutex_lock(&changing);
    *group = atomic_load(&f->group);
    snprintf(name, sizeof name, "pool %d", (int)(f - families) + 1);
    int error = grant_as_the_driver(p, atomic_load(&f->handle));
    if (!error && !*group && f != &p->family)
        error = cenote_group_create(p->pool, name, 0, NULL, group);
    if (!error && *group) {
        atomic_store_explicit(&f->place, p, memory_order_release);
        atomic_store_explicit(&f->group, *group, memory_order_release);
    }
    atomic_store(&f->is_granted, !error);
    pthread_mutex_unlock(&changing);
    return !error;
}

static void close_group(struct family *f)
{
    cenote_group *group = atomic_exchange(&f->group, NULL);
    if (group)
        cenote_group_destroy(group);
    atomic_store(&f->place, NULL);
    count_from_zero(f);
}

void families_close(struct place *p)
{
    pthread_mutex_lock(&changing);
    for (int i = 0; i < atomic_load(&families_used); i++)
        if (atomic_load(&families[i].place) == p)
            close_group(&families[i]);
    pthread_mutex_unlock(&changing);
}

/* --- coming and going */

/*
 * Members that a newer cuda.h has, and that say more than this one knows, lie in what is reserved here: they have to be zero. A pool for hardware
 * decompression asks for what pages are made for anyway, if the device has the engine.
 */
static bool can_stand_for(const CUmemPoolProps *properties)
{
    static const CUmemPoolProps none;
    CUmemPoolProps rest = *properties;
    bool is_device = rest.allocType == CU_MEM_ALLOCATION_TYPE_PINNED && rest.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    rest.allocType = none.allocType;
    rest.location = none.location;
#if CUDA_VERSION >= 12080
    rest.usage &= (unsigned short)~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
#endif
    return is_device && !memcmp(&rest, &none, sizeof rest);
}

static void add(CUmemoryPool pool, int device)
{
    real_is_in_use();
    pthread_mutex_lock(&changing);
    int i = 0, used = atomic_load(&families_used);
    while (i < used && atomic_load(&families[i].handle))
        i++;
    if (i < FAMILIES_MAX) {
        families[i].device = device;
        count_from_zero(&families[i]);
        atomic_store(&families[i].is_granted, false);
        atomic_store_explicit(&families[i].handle, pool, memory_order_release);
        if (i == used)
            atomic_store_explicit(&families_used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
}

CUresult serve_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = real()->cuMemPoolCreate(pool, properties);
    if (!result && can_stand_for(properties))
        add(*pool, properties->location.id);
    return result;
}

/* Which pool cuMemAllocAsync means on this device, in each of its contexts, where it was `before`; NULL: whatever it was. */
static void set_current(CUdevice device, CUmemoryPool before, CUmemoryPool pool)
{
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        if (p->device == device && (!before || atomic_load(&p->current) == before))
            atomic_store(&p->current, pool);
        place_visit_end(p);
    }
}

/* Blocks that are live stay valid, as in the driver; what is free goes back to the device's other memory. */
CUresult serve_cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct real *r = real();
    CUmemoryPool current = NULL;
    CUresult result = r->cuMemPoolDestroy(pool);
    struct family *f = result ? NULL : find_handle(pool);
    if (!f)
        return result;
    pthread_mutex_lock(&changing);
    close_group(f);
    atomic_store_explicit(&f->handle, NULL, memory_order_release);
    pthread_mutex_unlock(&changing);
    if (!r->cuDeviceGetMemPool(&current, f->device))
        set_current(f->device, pool, current); /* the default one */
    return result;
}

/* --- which one cuMemAllocAsync means */

CUresult serve_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult result = real()->cuDeviceSetMemPool(device, pool);
    if (!result)
        set_current(device, NULL, pool);
    return result;
}

#if CUDA_VERSION >= 13000
CUresult serve_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUresult result = real()->cuMemSetMemPool(location, type, pool);
    bool is_device = !result && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
    if (is_device)
        set_current(location->id, NULL, pool);
    return result;
}
#endif

/* --- what it is like */

/* Physical memory that lies in the pool now. */
static uint64_t look_at_reserved(struct place *p, struct family *f)
{
    cenote_stats stats;
    uint64_t bytes = 0;
    cenote_group *group = atomic_load(&f->group);
    if (group)
        return cenote_group_reserved(group, &bytes) ? 0 : bytes;
    if (f != &p->family || (cenote_pool_stats)(p->pool, &stats, CENOTE_STATS_COUNTED))
        return 0;
    return atomic_load(&f->used) + stats.cached.current;
}

/* The highest is the highest that was seen: groups do not know it, so it is looked at whenever a program asks what is reserved, and is at least what
   was used. */
static uint64_t reserved_of(struct place *p, struct family *f)
{
    uint64_t now = look_at_reserved(p, f);
    raise_to(&f->reserved_high, now);
    return now;
}

/* What the pool has of cenote's, beside what the driver says of its own. */
static uint64_t attribute_of(struct place *p, struct family *f, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return atomic_load(&f->used);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return atomic_load(&f->used_high);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return reserved_of(p, f);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        reserved_of(p, f);
        return atomic_load(&f->reserved_high);
    }
    return 0;
}

CUresult serve_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    struct place *p;
    CUresult result = real()->cuMemPoolGetAttribute(pool, attribute, value);
    struct family *f = result ? NULL : find_anywhere(pool, &p);
    uint64_t more = f ? attribute_of(p, f, attribute) : 0;
    if (f)
        place_visit_end(p);
    if (more)
        *(cuuint64_t *)value += more;
    return result;
}

/* The driver keeps all settings; the two that begin a new peak (only 0 is allowed there) begin it here, too. */
CUresult serve_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    struct place *p;
    CUresult result = real()->cuMemPoolSetAttribute(pool, attribute, value);
    struct family *f = result ? NULL : find_anywhere(pool, &p);
    if (f && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        atomic_store(&f->used_high, atomic_load(&f->used));
    if (f && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        atomic_store(&f->reserved_high, look_at_reserved(p, f));
    if (f)
        place_visit_end(p);
    return result;
}

CUresult serve_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct place *p;
    uint64_t guests = 0;
    CUresult result = real()->cuMemPoolSetAccess(pool, map, count);
    for (size_t i = 0; i < count && !result; i++) {
        bool is_device = map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
        guests |= is_device && map[i].location.id < DEVICES_SERVED ? 1ull << map[i].location.id : 0;
    }
    peers_let_in(guests);
    struct family *f = result ? NULL : find_anywhere(pool, &p);
    int error = f ? grant_as_the_driver(p, pool) : CENOTE_OK;
    if (f)
        place_visit_end(p);
    return error && error != CENOTE_EXITING ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : result;
}

/* The whole of cenote's pool gives back, the oldest first, but no more than this one may lose. */
CUresult serve_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    struct place *p;
    cenote_stats stats;
    CUresult result = real()->cuMemPoolTrimTo(pool, keep);
    struct family *f = result ? NULL : find_anywhere(pool, &p);
    if (f && !(cenote_pool_stats)(p->pool, &stats, CENOTE_STATS_COUNTED)) {
        uint64_t own = reserved_of(p, f), loss = own > keep ? own - keep : 0;
        if (loss)
            cenote_pool_trim(p->pool, stats.reserved.current > loss ? stats.reserved.current - loss : 0, 0);
    }
    if (f)
        place_visit_end(p);
    return result;
}
