/*
 * test_pools.c: pools that a program makes (cuMemPoolCreate), the default ones, and what they say of themselves.
 */
#include "tests/preload/card.h"

static CUmemoryPool pool_with(CUmemAllocationHandleType handles, size_t most)
{
    CUmemoryPool pool = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handles, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                            .maxSize = most};
    DONE(cuMemPoolCreate(&pool, &props));
    REQUIRE(pool);
    return pool;
}

static CUmemoryPool plain_pool(void)
{
    return pool_with(CU_MEM_HANDLE_TYPE_NONE, 0);
}

static uint64_t told(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = UINT64_MAX;
    DONE(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static struct held pool_take(CUmemoryPool pool, size_t bytes, CUstream stream)
{
    CUdeviceptr at = 0;
    DONE(cuMemAllocFromPoolAsync(&at, bytes, pool, stream));
    REQUIRE(at);
    return held_of((void *)(uintptr_t)at, bytes, stream);
}

static void give(const struct held *held, CUstream stream)
{
    held_expect(held, stream);
    DONE(cuMemFreeAsync(at_of(held), stream));
}

ON_CARD(a_pool_of_the_program_is_a_group)
{
    CUmemoryPool pool = plain_pool();
    cenote_block first, second;
    struct held a = pool_take(pool, 3 * MIB, card.stream[A]), b = stream_take(3 * MIB, card.stream[A]);
    DONE(cenote_find(a.at, &first));
    DONE(cenote_find(b.at, &second));
    EXPECT(first.group && !second.group);
    CUmemoryPool said = NULL;
    DONE(cuPointerGetAttribute(&said, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at_of(&a)));
    EXPECT_EQ(said, pool);
    give(&a, card.stream[A]);
    give(&b, card.stream[A]);
    DONE(cuMemPoolDestroy(pool));
    EXPECT_EQ(driver_allocations(), 0);
}

/* The pool that the program sets is the one that cuMemAllocAsync means, until it is destroyed. */
static CUresult set_for_device(CUmemoryPool pool)
{
    return cuDeviceSetMemPool(0, pool);
}

#if CUDA_VERSION >= 13000
static CUresult set_for_location(CUmemoryPool pool)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    return cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}
#endif

static void set_before_and_after(CUresult (*set)(CUmemoryPool pool), bool is_first)
{
    CUmemoryPool pool = plain_pool(), now = NULL;
    cenote_block block;
    struct held before = {0};
    if (!is_first)
        before = stream_take(MIB, card.stream[A]);
    DONE(set(pool));
    struct held held = stream_take(MIB, card.stream[A]);
    DONE(cenote_find(held.at, &block));
    EXPECT(block.group);
    give(&held, card.stream[A]);
    DONE(cuMemPoolDestroy(pool));
    DONE(cuDeviceGetMemPool(&now, 0));
    held = stream_take(MIB, card.stream[A]);
    DONE(cenote_find(held.at, &block));
    EXPECT(!block.group);
    give(&held, card.stream[A]);
    if (!is_first)
        give(&before, card.stream[A]);
}

ON_CARD(a_pool_that_is_set_first) { set_before_and_after(set_for_device, true); }
ON_CARD(a_pool_that_is_set_later) { set_before_and_after(set_for_device, false); }
#if CUDA_VERSION >= 13000
ON_CARD(a_pool_that_is_set_for_a_place) { set_before_and_after(set_for_location, false); }
#endif

/* Blocks outlive their pool; so they do in the driver. */
ON_CARD(a_pool_destroyed_with_live_blocks)
{
    CUmemoryPool pool = plain_pool();
    struct held held = pool_take(pool, 3 * MIB, card.stream[A]);
    DONE(cuMemPoolDestroy(pool));
    CUmemoryPool next = plain_pool(); /* it may have the handle of the first one */
    struct held other = pool_take(next, 3 * MIB, card.stream[B]);
    EXPECT_EQ(told(next, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * MIB);
    held_linger(&held, card.stream[A]);
    give(&held, card.stream[A]);
    EXPECT_EQ(told(next, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * MIB);
    give(&other, card.stream[B]);
    DONE(cuMemPoolDestroy(next));
}

#if CUDA_VERSION >= 12080
/* RMM makes its pool so, whatever the device has. Where it has an engine, cenote's memory is for it, as the driver's would be. */
static void take_for_decompression(uint64_t quirks)
{
    struct sim_shape shape = scene_card(CAPACITY);
    shape.quirks = quirks;
    scene_open_card(&card, &shape);
    CUmemoryPool pool = NULL;
    cenote_block block;
    bool takes = !quirks;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                            .usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS};
    DONE(cuMemPoolCreate(&pool, &props));
    struct held held = pool_take(pool, MIB, card.stream[A]);
    DONE(cenote_find(held.at, &block));
    EXPECT(block.group);
    DONE(cuPointerGetAttribute(&takes, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, at_of(&held)));
    EXPECT_EQ(takes, quirks != 0);
    give(&held, card.stream[A]);
    DONE(cuMemPoolDestroy(pool));
    card_close();
}

ENDS_WITH(a_pool_for_decompression, 0) { take_for_decompression(0); }
ENDS_WITH(a_pool_for_decompression_and_an_engine, 0) { take_for_decompression(SIM_QUIRK(DECOMPRESSION)); }
#endif

ON_CARD(what_a_pool_says)
{
    CUmemoryPool pools[2] = {NULL, plain_pool()};
    DONE(cuDeviceGetDefaultMemPool(&pools[0], 0));
    for (int i = 0; i < 2; i++) {
        cuuint64_t zero = 0, threshold = 123;
        struct held one = pool_take(pools[i], 20 * MIB, card.stream[A]), two = pool_take(pools[i], 10 * MIB, card.stream[B]);
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 30 * MIB);
        EXPECT(told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 30 * MIB);
        give(&one, card.stream[A]);
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 10 * MIB);
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH), 30 * MIB);
        EXPECT(told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= 30 * MIB);
        DONE(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH), 10 * MIB);
        DONE(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 123);
        DONE(cuCtxSynchronize());
        DONE(cuMemPoolTrimTo(pools[i], 0));
        EXPECT(told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) < 20 * MIB);
        give(&two, card.stream[B]);
        DONE(cuCtxSynchronize());
        DONE(cuMemPoolTrimTo(pools[i], 0));
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    }
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.used, 0); /* all went back to the driver */
    DONE(cuMemPoolDestroy(pools[1]));
}

/* Each of the two peaks begins again by itself, from what is there then. */
ON_CARD(a_new_peak)
{
    CUmemoryPool pools[2] = {NULL, plain_pool()};
    DONE(cuDeviceGetDefaultMemPool(&pools[0], 0));
    for (int i = 0; i < 2; i++) {
        cuuint64_t zero = 0;
        cenote_block block;
        struct held one = pool_take(pools[i], 30 * MIB, card.stream[A]);
        give(&one, card.stream[A]);
        DONE(cuCtxSynchronize());
        DONE(cuMemPoolTrimTo(pools[i], 0));
        DONE(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0);
        EXPECT_EQ(told(pools[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH), 30 * MIB);
        one = pool_take(pools[i], 20 * MIB, card.stream[A]); /* between two questions */
        DONE(cenote_find(one.at, &block));
        give(&one, card.stream[A]);
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_trim(block.pool, 0, 0));
        uint64_t high = told(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
        EXPECT(high >= 20 * MIB && high < 30 * MIB);
    }
    DONE(cuMemPoolDestroy(pools[1]));
}

/* Nothing of a pool is left to one that is made later, whether it has the same handle or not. */
ON_CARD(a_new_pool_begins_at_zero)
{
    CUmemoryPool pool = plain_pool();
    struct held one = pool_take(pool, 30 * MIB, card.stream[A]);
    EXPECT(told(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= 30 * MIB);
    give(&one, card.stream[A]);
    DONE(cuMemPoolDestroy(pool));
    pool = plain_pool();
    EXPECT_EQ(told(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    EXPECT_EQ(told(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0);
    DONE(cuMemPoolDestroy(pool));
}

/* A trim keeps what it is told to. */
ON_CARD(a_trim_keeps_what_it_is_told)
{
    CUmemoryPool pool = NULL;
    DONE(cuDeviceGetDefaultMemPool(&pool, 0));
    struct held one = stream_take(60 * MIB, card.stream[A]);
    give(&one, card.stream[A]);
    DONE(cuCtxSynchronize());
    DONE(cuMemPoolTrimTo(pool, 20 * MIB));
    uint64_t left = told(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    EXPECT(left >= 18 * MIB && left <= 22 * MIB);
}

/* A limit is the driver's to keep; a pool that other processes may open is not simulated, and is the driver's by the same row. */
ON_CARD(a_pool_with_a_limit_is_the_drivers)
{
    CUmemoryPool pool = pool_with(CU_MEM_HANDLE_TYPE_NONE, 64 * MIB);
    CUdeviceptr at = 0, more = 0;
    DONE(cuMemAllocFromPoolAsync(&at, 40 * MIB, pool, card.stream[A]));
    EXPECT(at && !is_ours(at));
    EXPECT_EQ(cuMemAllocFromPoolAsync(&more, 40 * MIB, pool, card.stream[A]), CUDA_ERROR_OUT_OF_MEMORY);
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cuMemPoolDestroy(pool));
}

/* Memory that cenote keeps and no block uses does not stand in the way of memory that is the driver's. */
ON_CARD(room_for_memory_of_the_driver)
{
    struct held one = plain_take(200 * MIB, card.stream[A]);
    CUdeviceptr managed = 0;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    sim_set_quiet(true);
    EXPECT_EQ(cuMemCreate(&page, 200 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    DONE(cuMemFree(at_of(&one)));
    DONE(cuMemCreate(&page, 200 * MIB, &prop, 0));
    DONE(cuMemRelease(page));
    one = plain_take(200 * MIB, card.stream[A]);
    DONE(cuMemFree(at_of(&one)));
    DONE(cuMemAllocManaged(&managed, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    DONE(cuMemFree(managed));
}

/* The same for requests of every kind that are passed on to the driver. */
static void hold_and_free(size_t bytes)
{
    struct held one = plain_take(bytes, card.stream[A]);
    REQUIRE(one.at && is_ours(at_of(&one)));
    DONE(cuMemFree(at_of(&one)));
}

ON_CARD(room_for_what_is_passed_on)
{
    CUcontext green, popped;
    CUgreenCtx part;
    CUdevResource whole;
    CUdevResourceDesc described;
    CUdeviceptr at = 0;
    size_t pitch;
    CUmemoryPool limited = pool_with(CU_MEM_HANDLE_TYPE_NONE, 220 * MIB);
    hold_and_free(200 * MIB);
    DONE(cuMemAllocFromPoolAsync(&at, 200 * MIB, limited, card.stream[A]));
    EXPECT(!is_ours(at));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    hold_and_free(200 * MIB);
    DONE(cuDeviceSetMemPool(0, limited));
    DONE(cuMemAllocAsync(&at, 200 * MIB, card.stream[A]));
    EXPECT(!is_ours(at));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuMemPoolDestroy(limited));
    DONE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM)); /* contexts of this kind are not served */
    DONE(cuDevResourceGenerateDesc(&described, &whole, 1));
    DONE(cuGreenCtxCreate(&part, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DONE(cuCtxFromGreenCtx(&green, part));
    for (int way = 0; way < 2; way++) {
        hold_and_free(200 * MIB);
        DONE(cuCtxPushCurrent(green));
        DONE(way == 0 ? cuMemAlloc(&at, 200 * MIB) : cuMemAllocPitch(&at, &pitch, 2 * MIB, 100, 4));
        EXPECT(!is_ours(at));
        DONE(cuMemFree(at));
        DONE(cuCtxPopCurrent(&popped));
    }
    DONE(cuGreenCtxDestroy(part));
}

ON_CARD(room_for_a_graph)
{
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUdeviceptr at = 0;
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cuMemAllocAsync(&at, 200 * MIB, card.stream[A]));
    DONE(sim_launch_touch(card.stream[A], at, 200 * MIB));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    hold_and_free(200 * MIB);
    DONE(cuGraphInstantiate(&exec, graph, 0));
    hold_and_free(40 * MIB);
    DONE(cuGraphLaunch(exec, card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
}

/* A kernel needs local memory on the device when it is launched. */
static void launch_in_shortage(int way)
{
    CUmodule module;
    CUfunction function;
    struct sim_shape shape = scene_card(CAPACITY);
    shape.quirks = SIM_QUIRK(LOCAL_MEMORY);
    scene_open_card(&card, &shape);
    DONE(cuModuleLoadData(&module, "any image"));
    DONE(cuModuleGetFunction(&function, module, "kernel"));
    hold_and_free(CAPACITY - 16 * MIB);
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = card.stream[A]};
    if (way == 0)
        DONE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, card.stream[A], NULL, NULL));
    else if (way == 1)
        DONE(cuLaunchKernelEx(&config, function, NULL, NULL));
    else
        DONE(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, card.stream[A], NULL));
    DONE(cuModuleUnload(module));
    card_close();
}

ENDS_WITH(room_for_a_kernel, 0) { launch_in_shortage(0); }
ENDS_WITH(room_for_a_kernel_with_attributes, 0) { launch_in_shortage(1); }
ENDS_WITH(room_for_a_cooperative_kernel, 0) { launch_in_shortage(2); }

ENDS_WITH(room_for_a_context, 0)
{
    CUcontext own;
    struct sim_shape shape = scene_card(CAPACITY);
    shape.context_bytes = 60 * MIB;
    scene_open_card(&card, &shape);
    hold_and_free(190 * MIB);
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuCtxDestroy(own));
    card_close();
}

PRELOAD_MAIN("pools")
