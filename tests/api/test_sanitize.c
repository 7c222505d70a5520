/*
 * test_sanitize.c: with sanitize:1 compute-sanitizer's interface hears of segments as heaps, and of blocks as regions on them. The tool that
 * stands in for it is a library, nvtx/tool.c.
 */
#include "tests/api/scene.h"

#ifdef NVTX_TOOL
#include <dlfcn.h>

#include "tests/api/nvtx/tool.h"

static __typeof__(&nvtx_tool_is_foreign) is_foreign;
static __typeof__(&nvtx_tool_name) name_of;
static __typeof__(&nvtx_tool_regions) regions, heaps, faults;

/* NVTX finds it by its path, and libcenote_nvtx.so is there already when cenote asks for it. */
static void load_tool(void)
{
    void *tool = dlopen(NVTX_TOOL, RTLD_NOW);
    REQUIRE(tool && dlopen(NVTX_LIBRARY, RTLD_NOW) && !setenv("NVTX_INJECTION64_PATH", NVTX_TOOL, 1));
    is_foreign = (__typeof__(is_foreign))dlsym(tool, "nvtx_tool_is_foreign");
    name_of = (__typeof__(name_of))dlsym(tool, "nvtx_tool_name");
    regions = (__typeof__(regions))dlsym(tool, "nvtx_tool_regions");
    heaps = (__typeof__(heaps))dlsym(tool, "nvtx_tool_heaps");
    faults = (__typeof__(faults))dlsym(tool, "nvtx_tool_faults");
    REQUIRE(is_foreign && name_of && regions && heaps && faults);
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
    load_tool();
    cenote_pool *pool = sanitized_pool();
    EXPECT_EQ(cenote_pool_provider(pool), CENOTE_PLAIN);
    DONE(cenote_tag_push("model"));
    DONE(cenote_tag_push("weights"));
    DONE(cenote_alloc(pool, MIB + 100, scene.stream[A], &weights));
    DONE(cenote_tag_pop());
    DONE(cenote_tag_pop());
    DONE(cenote_alloc(pool, 40 * KIB, scene.stream[A], &cache));
    EXPECT(name_of(weights) && !strcmp(name_of(weights), "model/weights"));
    EXPECT(name_of(cache) && !*name_of(cache));
    EXPECT(!is_foreign((char *)weights + MIB + 99) && is_foreign((char *)weights + MIB + 100)); /* to the byte, not to 512 */
    DONE(cenote_extend(cache, 40 * KIB + 300));
    EXPECT(!is_foreign((char *)cache + 40 * KIB + 299) && is_foreign((char *)cache + 40 * KIB + 300));
    DONE(cenote_free(weights));
    EXPECT(is_foreign(weights));
    DONE(cenote_free(cache));
    EXPECT_EQ(regions(), 0);
    EXPECT(heaps() > 0);
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(heaps(), 0);
    DONE(cenote_alloc(pool, 30 * MIB, scene.stream[A], &weights));
    EXPECT_EQ(heaps(), 1);
    DONE(cenote_free(weights));
    DONE(cenote_pool_destroy(pool));
    EXPECT_EQ(heaps(), 0);
    EXPECT_EQ(faults(), 0);
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
