/*
 * test_sanitize.c: with sanitize:1 compute-sanitizer's interface hears of segments as heaps, and of blocks as regions on them.
 *
 * The tool is in this program: NVTX finds it by its name, and calls what it puts into the slots of the memory extension. It keeps the
 * regions, and says of an address what memcheck would: mine, or nobody's.
 */
#include "tests/api/scene.h"

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>

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
static bool is_foreign(const void *byte)
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

static int NVTX_API attach(nvtxExtModuleInfo_t *module)
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

static cenote_pool *sanitized_pool(void)
{
    cenote_options options = scene_options();
    cenote_pool *pool = NULL;
    options.provider = CENOTE_AUTO;
    options.sanitize = 1;
    DONE(cenote_pool_create(0, &options, &pool));
    return pool;
}

CASE(what_a_kernel_may_touch_is_what_blocks_have)
{
    struct scene scene;
    void *weights, *cache;
    scene_open(&scene, 256 * MIB);
    InitializeInjectionNvtxExtension_fnptr = attach; /* as a tool that is linked into the program sets it */
    cenote_pool *pool = sanitized_pool();
    EXPECT_EQ(cenote_pool_provider(pool), CENOTE_PLAIN);
    DONE(cenote_tag_push("model"));
    DONE(cenote_tag_push("weights"));
    DONE(cenote_alloc(pool, MIB + 100, scene.stream[A], &weights));
    DONE(cenote_tag_pop());
    DONE(cenote_tag_pop());
    DONE(cenote_alloc(pool, 40 * KIB, scene.stream[A], &cache));
    EXPECT(region_at(weights) && !strcmp(region_at(weights)->name, "model/weights"));
    EXPECT(region_at(cache) && !*region_at(cache)->name);
    EXPECT(!is_foreign((char *)weights + MIB + 99) && is_foreign((char *)weights + MIB + 100)); /* to the byte, not to 512 */
    DONE(cenote_extend(cache, 40 * KIB + 300));
    EXPECT(!is_foreign((char *)cache + 40 * KIB + 299) && is_foreign((char *)cache + 40 * KIB + 300));
    DONE(cenote_free(weights));
    EXPECT(is_foreign(weights));
    DONE(cenote_free(cache));
    EXPECT_EQ(count_of(regions), 0);
    EXPECT(count_of(heaps + 1) > 0);
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(count_of(heaps + 1), 0);
    DONE(cenote_alloc(pool, 30 * MIB, scene.stream[A], &weights));
    EXPECT_EQ(count_of(heaps + 1), 1);
    DONE(cenote_free(weights));
    DONE(cenote_pool_destroy(pool));
    EXPECT_EQ(count_of(heaps + 1), 0);
    EXPECT_EQ(faults, 0);
    scene_close(&scene);
}

CASE(memory_that_is_no_plain_allocation_is_refused)
{
    struct scene scene;
    cenote_pool *pool;
    scene_open(&scene, 64 * MIB);
    cenote_options options = scene_options();
    options.sanitize = 1;
    const int others[] = {CENOTE_VMM, CENOTE_ASYNC, CENOTE_GUARD};
    for (int i = 0; i < 3; i++) {
        options.provider = others[i];
        EXPECT_EQ(cenote_pool_create(0, &options, &pool), CENOTE_INVALID);
        EXPECT(strstr(cenote_message(), "provider:plain"));
    }
    scene_close(&scene);
}
#else
CASE(the_option_is_refused)
{
    struct scene scene;
    cenote_pool *pool;
    scene_open(&scene, 64 * MIB);
    cenote_options options = scene_options();
    options.sanitize = 1;
    EXPECT_EQ(cenote_pool_create(0, &options, &pool), CENOTE_NOT_SUPPORTED);
    scene_close(&scene);
}
#endif

SCENES_MAIN("compute-sanitizer hears of blocks")
