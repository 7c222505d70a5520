/*
 * nvtx.c: NVIDIA's tools hear of the pool's memory and of its blocks (option sanitize), so that compute-sanitizer finds
 * what is read or written beside a block, or before anything was written there. It sees the driver's allocations alone
 * otherwise.
 *
 *     segment taken     a heap of the memory extension of NVTX (nvToolsExtMem.h)
 *     block begins      a region of that heap, as long as was asked for; named by its tag, if it has one
 *     block grows       the region is resized
 *     block ends        the region is unregistered
 *     segment goes      the heap is unregistered
 *
 * It is a watch function like the program's own, and no other room knows of it. NVTX loads the tool by itself; without
 * one its calls do nothing. The tool's guide names memory of cudaMalloc and cuMemAlloc for heaps, and no other: so the
 * pool has provider plain.
 *
 * LOCKING: `watching` of the pool, which is held while it is told of something.
 */
#include "stats/report/nvtx.h"

#include <stdlib.h>
#include <string.h>

#include "pool/life/watch.h"
#include "stats/account/label.h"

#if CENOTE_HAS_NVTX
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>

struct heap_of_nvtx {
    char               *at;
    uint64_t            bytes;
    nvtxMemHeapHandle_t handle;
};

struct nvtx {
    nvtxDomainHandle_t   domain;
    struct heap_of_nvtx *heaps;     /* in no order: segments are few */
    uint32_t             count, room;
};

static void add_heap(struct nvtx *n, char *at, uint64_t bytes)
{
    const nvtxMemVirtualRangeDesc_t range = {.size = bytes, .ptr = at};
    const nvtxMemHeapDesc_t heap = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                    .structSize = sizeof heap,
                                    .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
                                    .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                    .typeSpecificDescSize = sizeof range,
                                    .typeSpecificDesc = &range};
    if (n->count == n->room) {
        uint32_t room = n->room ? n->room * 2 : 16;
        struct heap_of_nvtx *more = realloc(n->heaps, room * sizeof *more);
        if (!more)
            return; /* the tool takes the segment for an allocation of the program's own */
        n->heaps = more;
        n->room = room;
    }
    nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(n->domain, &heap);
    if (handle && handle != NVTX_MEM_HEAP_HANDLE_NO_TOOL)
        n->heaps[n->count++] = (struct heap_of_nvtx){at, bytes, handle};
}

static struct heap_of_nvtx *heap_at(const struct nvtx *n, const char *at)
{
    for (uint32_t i = 0; i < n->count; i++)
        if (at >= n->heaps[i].at && at < n->heaps[i].at + n->heaps[i].bytes)
            return &n->heaps[i];
    return NULL;
}

static void remove_heap(struct nvtx *n, struct heap_of_nvtx *heap)
{
    nvtxMemHeapUnregister(n->domain, heap->handle);
    *heap = n->heaps[--n->count];
}

static void add_region(const struct nvtx *n, const struct heap_of_nvtx *heap, const cenote_notice *block)
{
    const nvtxMemVirtualRangeDesc_t range = {.size = block->bytes, .ptr = block->address};
    const nvtxMemRegionsRegisterBatch_t regions = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                   .structSize = sizeof regions,
                                                   .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                                   .heap = heap->handle,
                                                   .regionCount = 1,
                                                   .regionDescElementSize = sizeof range,
                                                   .regionDescElements = &range};
    nvtxMemRegionsRegister(n->domain, &regions);
}

static void resize_region(const struct nvtx *n, const cenote_notice *block)
{
    const nvtxMemVirtualRangeDesc_t range = {.size = block->bytes, .ptr = block->address};
    const nvtxMemRegionsResizeBatch_t regions = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                 .structSize = sizeof regions,
                                                 .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                                 .regionDescCount = 1,
                                                 .regionDescElementSize = sizeof range,
                                                 .regionDescElements = &range};
    nvtxMemRegionsResize(n->domain, &regions);
}

static void remove_region(const struct nvtx *n, const cenote_notice *block)
{
    const nvtxMemRegionRef_t region = {.pointer = block->address};
    const nvtxMemRegionsUnregisterBatch_t regions = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                     .structSize = sizeof regions,
                                                     .refType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                                     .refCount = 1,
                                                     .refElementSize = sizeof region,
                                                     .refElements = &region};
    nvtxMemRegionsUnregister(n->domain, &regions);
}

/* The thread that allocates runs this, so that its tag is the block's. */
static void name_region(const struct nvtx *n, const cenote_notice *block)
{
    char name[256];
    uint32_t tag = mark_tag(label_now());
    if (!tag)
        return;
    label_path(tag, name, sizeof name);
    const nvtxMemRegionNameDesc_t named = {.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                           .nameType = NVTX_MESSAGE_TYPE_ASCII,
                                           .region.pointer = block->address,
                                           .name.ascii = name};
    const nvtxMemRegionsNameBatch_t regions = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                               .structSize = sizeof regions,
                                               .regionCount = 1,
                                               .regionElementSize = sizeof named,
                                               .regionElements = &named};
    nvtxMemRegionsName(n->domain, &regions);
}

static void hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct nvtx *n = arg;
    struct heap_of_nvtx *heap = heap_at(n, notice->address);
    (void)pool;
    if (notice->change == CENOTE_MAPPED)
        add_heap(n, notice->address, notice->bytes);
    else if (heap && notice->change == CENOTE_UNMAPPING)
        remove_heap(n, heap);
    else if (heap && notice->change == CENOTE_ALLOCATED) {
        add_region(n, heap, notice);
        name_region(n, notice);
    } else if (heap && notice->change == CENOTE_EXTENDED)
        resize_region(n, notice);
    else if (heap && notice->change == CENOTE_ENDED)
        remove_region(n, notice);
}

/* LOCKING: none, the pool is not open yet. */
int nvtx_open(cenote_pool *pool)
{
    struct nvtx *n = pool->config.options.sanitize ? calloc(1, sizeof *n) : NULL;
    if (!pool->config.options.sanitize)
        return CENOTE_OK;
    if (!n)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for what NVTX is told of");
    n->domain = nvtxDomainCreateA("cenote");
    pool->report.nvtx = n;
    return watch_set(pool,
                     CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_ALLOCATED | CENOTE_EXTENDED | CENOTE_ENDED, hear, n);
}

/* LOCKING: none, no thread gets into the pool any more. */
void nvtx_close(cenote_pool *pool)
{
    struct nvtx *n = pool->report.nvtx;
    if (!n)
        return;
    while (n->count)
        remove_heap(n, n->heaps);
    nvtxDomainDestroy(n->domain);
    free(n->heaps);
    free(n);
    pool->report.nvtx = NULL;
}

#else

int nvtx_open(cenote_pool *pool)
{
    return pool->config.options.sanitize ?
               error_set(CENOTE_NOT_SUPPORTED, 0, "sanitize:1: this library was built without nvtx3/nvToolsExtMem.h, which CUDA 13 has") :
               CENOTE_OK;
}

void nvtx_close(cenote_pool *pool)
{
    (void)pool;
}

#endif
