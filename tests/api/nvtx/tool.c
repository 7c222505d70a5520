/*
 * tool.c: stands in for compute-sanitizer: a library that NVTX loads (NVTX_INJECTION64_PATH), and whose functions it calls
 * from the slots of the memory extension. It keeps heaps and regions, and faults what the tool's guide forbids.
 *
 * LOCKING: none: the test has one thread.
 */
#include "tests/api/nvtx/tool.h"

#include <stdio.h>

#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table);

#define REGIONS_MAX 64

struct range {
    const char *at;
    size_t      bytes;
    char        name[64];
};

static struct range heaps[REGIONS_MAX + 1], regions[REGIONS_MAX];   /* a heap's handle is its place, from 1 */
static int faults;

static struct range *region_at(const void *at)
{
    for (int i = 0; i < REGIONS_MAX; i++)
        if (regions[i].bytes && regions[i].at == at)
            return &regions[i];
    return NULL;
}

/* What memcheck would say of a byte: it lies in a heap, and in no region. */
bool nvtx_tool_is_foreign(const void *byte)
{
    bool in_heap = false, in_region = false;
    const char *at = byte;
    for (int i = 0; i < REGIONS_MAX; i++) {
        in_heap |= at >= heaps[i + 1].at && at < heaps[i + 1].at + heaps[i + 1].bytes;
        in_region |= at >= regions[i].at && at < regions[i].at + regions[i].bytes;
    }
    return in_heap && !in_region;
}

static int count_of(const struct range *ranges)
{
    int count = 0;
    for (int i = 0; i < REGIONS_MAX; i++)
        count += ranges[i].bytes != 0;
    return count;
}

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t *desc)
{
    const nvtxMemVirtualRangeDesc_t *range = desc->typeSpecificDesc;
    intptr_t i = 1;
    (void)domain;
    while (heaps[i].bytes)
        i++;
    faults += desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR || desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS ||
              desc->typeSpecificDescSize != sizeof *range || desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc;
    heaps[i] = (struct range){range->ptr, range->size, ""};
    return (nvtxMemHeapHandle_t)i; // NOLINT(performance-no-int-to-ptr)
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap)
{
    struct range *h = &heaps[(intptr_t)heap];
    (void)domain;
    for (int i = 0; i < REGIONS_MAX; i++) /* no block is left on it */
        faults += regions[i].bytes && regions[i].at >= h->at && regions[i].at < h->at + h->bytes;
    faults += !h->bytes;
    h->bytes = 0;
}

static void regions_register(nvtxDomainHandle_t domain, const nvtxMemRegionsRegisterBatch_t *desc)
{
    const nvtxMemVirtualRangeDesc_t *range = desc->regionDescElements;
    const struct range *h = &heaps[(intptr_t)desc->heap];
    int i = 0;
    (void)domain;
    while (i < REGIONS_MAX - 1 && regions[i].bytes)
        i++;
    faults += desc->regionCount != 1 || region_at(range->ptr) != NULL || regions[i].bytes || (const char *)range->ptr < h->at ||
              (const char *)range->ptr + range->size > h->at + h->bytes;
    regions[i] = (struct range){range->ptr, range->size, ""};
}

static void regions_resize(nvtxDomainHandle_t domain, const nvtxMemRegionsResizeBatch_t *desc)
{
    const nvtxMemVirtualRangeDesc_t *range = desc->regionDescElements;
    struct range *r = region_at(range->ptr);
    (void)domain;
    faults += !r || range->size <= r->bytes;
    if (r)
        r->bytes = range->size;
}

static void regions_unregister(nvtxDomainHandle_t domain, const nvtxMemRegionsUnregisterBatch_t *desc)
{
    struct range *r = region_at(desc->refElements->pointer);
    (void)domain;
    faults += !r || desc->refType != NVTX_MEM_REGION_REF_TYPE_POINTER || desc->refCount != 1;
    if (r)
        r->bytes = 0;
}

static void regions_name(nvtxDomainHandle_t domain, const nvtxMemRegionsNameBatch_t *desc)
{
    const nvtxMemRegionNameDesc_t *named = desc->regionElements;
    struct range *r = region_at(named->region.pointer);
    (void)domain;
    faults += !r || named->nameType != NVTX_MESSAGE_TYPE_ASCII;
    if (r)
        snprintf(r->name, sizeof r->name, "%s", named->name.ascii);
}

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    intptr_t *slots = module->segments->functionSlots;
    if (module->moduleId != NVTX_EXT_MODULEID_MEM)
        return 0;
    for (size_t i = 0; i < module->segments->slotCount; i++)
        slots[i] = NVTX_EXTENSION_DISABLED;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsResize] = (intptr_t)regions_resize;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsName] = (intptr_t)regions_name;
    return 1;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table)
{
    (void)table;
    return 1; /* nothing but the extension is of interest */
}

const char *nvtx_tool_name(const void *region)
{
    return region_at(region) ? region_at(region)->name : NULL;
}

int nvtx_tool_regions(void) { return count_of(regions); }
int nvtx_tool_heaps(void) { return count_of(heaps + 1); }
int nvtx_tool_faults(void) { return faults; }
