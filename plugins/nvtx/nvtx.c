/*
 * nvtx.c: libcenote_nvtx.so. NVIDIA's tools hear of a pool's memory and of its blocks (option sanitize), so that
 * compute-sanitizer finds what is read or written beside a block, or before anything was written there. It sees the
 * driver's allocations alone otherwise.
 *
 *     segment taken     a heap of the memory extension of NVTX (nvToolsExtMem.h)
 *     block begins      a region of that heap, as long as was asked for; named by its tag, if it has one
 *     block grows       the region is resized
 *     block ends        the region is unregistered
 *     segment goes      the heap is unregistered
 *
 * It is a watch function (cenote_pool_watch) and no more; stats/report/nvtx.c loads it. It is a library of its own
 * because NVTX's headers bring the whole of NVTX along, which is not worth 17 KB of libcenote.so. NVTX loads the tool
 * by itself; without one its calls do nothing. The tool's guide names memory of cudaMalloc and cuMemAlloc for heaps,
 * and no other: so the pool has provider plain.
 *
 * LOCKING: the caller's: `watching` of the pool.
 */
#include <stdlib.h>

#include "stats/report/nvtx_library.h"

#define NVTX_AS_SYSTEM_HEADER
#define getenv secure_getenv    /* which tool is loaded is not for the caller of a set-uid program to say */
#include <nvtx3/nvToolsExtMem.h>
#undef getenv

#define EXPORT __attribute__((visibility("default")))

struct heap_of_nvtx {
    char               *at;
    uint64_t            bytes;
    nvtxMemHeapHandle_t handle;
};

struct nvtx {
    nvtxDomainHandle_t   domain;
    nvtx_tag_fn         *tag;
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
    char name[256] = "";
    n->tag(name, sizeof name);
    if (!*name)
        return;
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

EXPORT void cenote_nvtx_hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
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

EXPORT void *cenote_nvtx_open(nvtx_tag_fn *tag)
{
    struct nvtx *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->tag = tag;
    n->domain = nvtxDomainCreateA("cenote");
    return n;
}

EXPORT void cenote_nvtx_close(void *opened)
{
    struct nvtx *n = opened;
    while (n->count)
        remove_heap(n, n->heaps);
    nvtxDomainDestroy(n->domain);
    free(n->heaps);
    free(n);
}
