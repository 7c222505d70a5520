/*
 * probe.c: what the pages of a device can be, found out with one page. The attributes of some drivers promise what their calls refuse: RDMA,
 * hardware decompression, handles for other processes, or virtual memory management as a whole.
 *
 *     not proven ---> a page was created, mapped and opened to the device: proven, of the first kind with which that worked
 *         |    +----> every kind was refused, and cuMemAlloc works: refused, the device has no pages
 *         +---------> neither: the device is full, or the driver fails in another way. The next thread tries again, and a climb whenever it looks
 *                     again. The kinds that were refused are out, so that what a full device answers is out of memory
 *
 * Nothing is written through the page: a write that fails is a fault, and ends the program's context. `cenote doctor` writes, in its own process.
 * No call waits for the device, but cuMemFree where no page works (rule 12). No work has used the page, so it is unmapped while a capture is
 * open, too (rule 5).
 *
 * LOCKING: `proving`; the thread is inside the device.
 */
#include "base/lock.h"
#include "driver/device.h"

#define FILES CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC

enum { PAGES_KIND = 0xff, PAGES_PROVEN = 0x100, PAGES_REFUSED = 0x200 }; /* in device.pages */

/* The best kind comes first. */
static const struct page_kind {
    unsigned handles;
    bool     rdma, decompression;
} kinds[] = {
#define WITH(handles) {handles, true, true}, {handles, true, false}, {handles, false, true}, {handles, false, false}
    WITH(FILES | FABRIC), WITH(FILES), WITH(0),
#undef WITH
};
#define KINDS ((unsigned)(sizeof kinds / sizeof kinds[0]))

static LOCK_OF_PROCESS struct lock proving = LOCK_INITIALIZER(LOCK_CONTEXT);

/* The next kind from `kind` on that the attributes promise and the pool wants. The last one is always there. */
static unsigned promised(const struct device *d, bool fabric, unsigned kind)
{
    unsigned handles = fabric ? d->handles : d->handles & ~(unsigned)FABRIC;
    while (kind < KINDS && (kinds[kind].handles & ~handles || kinds[kind].rdma > d->has_rdma || kinds[kind].decompression > d->has_decompression))
        kind++;
    return kind;
}

static CUmemAllocationProp prop_of(const struct device *d, unsigned kind)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = d->ordinal;
    prop.allocFlags.gpuDirectRDMACapable = kinds[kind].rdma;
    prop.allocFlags.usage = kinds[kind].decompression ? FOR_DECOMPRESSION : 0;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)kinds[kind].handles;
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

CUmemAllocationProp device_page_prop(const struct device *d, bool fabric)
{
    return prop_of(d, atomic_load(&d->pages[fabric]) & PAGES_KIND);
}

bool device_has_pages(const struct device *d)
{
    return d->granularity && !((atomic_load(&d->pages[0]) | atomic_load(&d->pages[1])) & PAGES_REFUSED);
}

bool device_knows_pages(const struct device *d, bool fabric)
{
    return atomic_load_explicit(&d->pages[fabric], memory_order_acquire) & (PAGES_PROVEN | PAGES_REFUSED);
}

bool device_lost_handles(const struct device *d, bool fabric)
{
    unsigned kind = atomic_load(&d->pages[fabric]) & PAGES_KIND;
    return kinds[kind].handles != kinds[promised(d, fabric, 0)].handles;
}

/* These say that memory cannot be so, 999 in the place of one of them. Others say nothing about the page. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_INVALID_VALUE ||
           result == CUDA_ERROR_UNKNOWN;
}

/* The granularity may depend on the kind, and a driver may refuse a kind here already. */
CUresult device_ask_granularity(struct device *d)
{
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    unsigned kind = promised(d, false, 0);
    size_t granularity = 0;
    for (; kind < KINDS; kind = promised(d, false, kind + 1)) {
        CUmemAllocationProp prop = prop_of(d, kind);
        result = d->driver->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (result != CUDA_ERROR_NOT_SUPPORTED && result != CUDA_ERROR_NOT_PERMITTED)
            break;
    }
    if (result || !granularity || granularity & (granularity - 1))
        return result;
    d->granularity = granularity;
    atomic_store(&d->pages[0], kind);
    atomic_store(&d->pages[1], promised(d, true, 0));
    return CUDA_SUCCESS;
}

/* What the page was mapped as goes back at once. A refusal is asked for once more; what is refused again is left to the end of the process. */
static CUresult map_and_open(const struct device *d, CUdeviceptr at, CUmemGenericAllocationHandle page)
{
    const struct driver *t = d->driver;
    CUmemAccessDesc access = device_access(d);
    CUresult result = t->cuMemMap(at, d->granularity, 0, page, 0);
    if (result)
        return result;
    result = t->cuMemSetAccess(at, d->granularity, &access, 1);
    if (t->cuMemUnmap(at, d->granularity))
        t->cuMemUnmap(at, d->granularity);
    return result;
}

static CUresult try_page(const struct device *d, unsigned kind)
{
    const struct driver *t = d->driver;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = prop_of(d, kind);
    CUdeviceptr at;
    CUresult result = t->cuMemAddressReserve(&at, d->granularity, 0, 0, 0);
    if (result)
        return result;
    if (!(result = t->cuMemCreate(&page, d->granularity, &prop, 0))) {
        result = map_and_open(d, at, page);
        if (t->cuMemRelease(page))
            t->cuMemRelease(page);
    }
    if (t->cuMemAddressFree(at, d->granularity))
        t->cuMemAddressFree(at, d->granularity);
    return result;
}

/* Otherwise the driver fails as a whole, and pages are not the reason. */
static bool has_plain_memory(const struct device *d)
{
    CUdeviceptr at;
    if (d->driver->cuMemAlloc(&at, d->granularity))
        return false;
    if (d->driver->cuMemFree(at))
        d->driver->cuMemFree(at);
    return true;
}

/* A kind that was refused is asked for once more: the answer stays for the life of the process. LOCKING: `proving`. */
static void prove(struct device *d, bool fabric)
{
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    unsigned kind = atomic_load(&d->pages[fabric]) & PAGES_KIND;
    for (; kind < KINDS; kind = promised(d, fabric, kind + 1)) {
        result = try_page(d, kind);
        if (is_refusal(result))
            result = try_page(d, kind);
        if (!is_refusal(result))
            break;
    }
    if (!result)
        atomic_store(&d->pages[fabric], kind | PAGES_PROVEN);
    else if (kind < KINDS)
        atomic_store(&d->pages[fabric], kind);
    else if (has_plain_memory(d))
        atomic_store(&d->pages[fabric], (KINDS - 1) | PAGES_REFUSED);
}

void device_prove_pages(struct device *d, bool fabric)
{
    lock_take(&proving);
    if (!device_knows_pages(d, fabric))
        prove(d, fabric);
    lock_give(&proving);
}
