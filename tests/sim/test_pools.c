/* test_pools.c: stream-ordered allocation. CUDA driver API only. */
#include "tests/sim/machine.h"

static CUmemoryPool pool;

static void begin(void)
{
    machine_begin();
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE_OK(cuMemPoolCreate(&pool, &properties));
}

static void end(void)
{
    EXPECT_OK(cuMemPoolDestroy(pool));
    machine_end();
}

static cuuint64_t attribute(CUmemPool_attribute name)
{
    cuuint64_t value = 0;
    EXPECT_OK(cuMemPoolGetAttribute(pool, name, &value));
    return value;
}

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr at = 0;
    REQUIRE_OK(cuMemAllocFromPoolAsync(&at, bytes, pool, CU_STREAM_PER_THREAD));
    return at;
}

static void give(CUdeviceptr at)
{
    EXPECT_OK(cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
}

CASE(a_device_has_a_default_pool)
{
    CUmemoryPool standard, current;
    EXPECT_OK(cuDeviceGetDefaultMemPool(&standard, 0));
    EXPECT_OK(cuDeviceGetMemPool(&current, 0));
    EXPECT_EQ(standard, current);
    EXPECT_EQ(cuMemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 13000
CASE(a_place_has_the_pools_of_its_device)
{
    CUmemoryPool standard, said;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, none = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 99};
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_NONE};
    REQUIRE_OK(cuDeviceGetDefaultMemPool(&standard, 0));
    EXPECT_OK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    EXPECT_OK(cuMemGetDefaultMemPool(&said, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT_EQ(said, standard);
    EXPECT_OK(cuMemGetMemPool(&said, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT_EQ(said, pool);
    EXPECT_OK(cuDeviceGetMemPool(&said, 0));
    EXPECT_EQ(said, pool);
    EXPECT_OK(cuDeviceSetMemPool(0, standard));
    EXPECT_OK(cuMemGetMemPool(&said, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT_EQ(said, standard);
    EXPECT_EQ(cuMemGetMemPool(&said, &none, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMemGetMemPool(&said, &nowhere, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemGetMemPool(&said, &here, CU_MEM_ALLOCATION_TYPE_INVALID), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemGetMemPool(&said, NULL, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE);
}

static CUmemoryPool pool_of(CUmemAllocationType type, CUmemLocationType place)
{
    CUmemoryPool made = NULL;
    CUmemPoolProps props = {.allocType = type, .location = {.type = place}};
    REQUIRE_OK(cuMemPoolCreate(&made, &props));
    return made;
}

static unsigned told(CUdeviceptr at, CUpointer_attribute attribute)
{
    unsigned value = 99;
    EXPECT_OK(cuPointerGetAttribute(&value, attribute, at));
    return value;
}

CASE(managed_memory_of_a_pool_is_in_place_for_host_and_device)
{
    static const CUmemLocationType places[] = {CU_MEM_LOCATION_TYPE_NONE, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST};
    size_t before, after, total;
    EXPECT_OK(cuMemGetInfo(&before, &total));
    for (int i = 0; i < 3; i++) {
        CUmemoryPool managed = pool_of(CU_MEM_ALLOCATION_TYPE_MANAGED, places[i]), of;
        CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
        CUdeviceptr at;
        REQUIRE_OK(cuMemAllocFromPoolAsync(&at, 5000, managed, CU_STREAM_PER_THREAD));
        EXPECT_EQ(told(at, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
        EXPECT_EQ(told(at, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
        EXPECT_OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
        EXPECT_EQ(of, managed);
        EXPECT_OK(cuMemsetD8Async(at, 7, 5000, CU_STREAM_PER_THREAD));
        EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        EXPECT_EQ(((unsigned char *)at)[4999], 7);
        EXPECT_OK(cuMemPrefetchAsync(at, 5000, device, 0, CU_STREAM_PER_THREAD));
        EXPECT_OK(cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
        EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        EXPECT_OK(cuMemPoolDestroy(managed));
    }
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before);
}

CASE(memory_of_a_pool_of_the_host_is_the_hosts)
{
    CUmemoryPool host = pool_of(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
    CUdeviceptr at, big;
    cuuint64_t used, reserved;
    REQUIRE_OK(cuMemAllocFromPoolAsync(&at, 64, host, CU_STREAM_PER_THREAD));
    REQUIRE_OK(cuMemAllocFromPoolAsync(&big, 33 << 20, host, CU_STREAM_PER_THREAD));
    EXPECT_EQ(told(at, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_HOST);
    EXPECT_EQ(told(at, CU_POINTER_ATTRIBUTE_IS_MANAGED), 0);
    EXPECT_OK(cuMemsetD32Async(at, 11, 16, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(*(uint32_t *)at, 11);
    EXPECT_OK(cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemFree(big));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemPoolGetAttribute(host, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    EXPECT_OK(cuMemPoolGetAttribute(host, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(used, 0);
    EXPECT_EQ(reserved, 0);     /* given back while the device was waited for */
    EXPECT_OK(cuMemPoolDestroy(host));
}

CASE(each_place_has_a_default_pool_and_a_current_one)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, nowhere = {.type = CU_MEM_LOCATION_TYPE_NONE};
    CUmemoryPool managed = pool_of(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_NONE), standard, said;
    EXPECT_OK(cuMemGetDefaultMemPool(&said, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT_OK(cuMemGetDefaultMemPool(&standard, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
    EXPECT(said != standard);
    EXPECT_EQ(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, managed), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuDeviceSetMemPool(0, managed), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemSetMemPool(&nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED, managed));
    EXPECT_OK(cuMemGetMemPool(&said, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
    EXPECT_EQ(said, managed);
    EXPECT_OK(cuMemPoolDestroy(managed));
    EXPECT_OK(cuMemGetMemPool(&said, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
    EXPECT_EQ(said, standard);
    EXPECT_EQ(cuMemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
}

CASE(no_graph_takes_memory_of_the_host)
{
    CUmemoryPool host = pool_of(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
    CUgraph graph;
    CUdeviceptr at;
    EXPECT_OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cuMemAllocFromPoolAsync(&at, 64, host, CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
    EXPECT_OK(cuGraphDestroy(graph));
    EXPECT_OK(cuMemPoolDestroy(host));
}
#endif

CASE(the_current_pool_can_be_chosen)
{
    CUmemoryPool standard, current;
    CUdeviceptr at;
    REQUIRE_OK(cuDeviceGetDefaultMemPool(&standard, 0));
    EXPECT_OK(cuDeviceSetMemPool(0, pool));
    EXPECT_OK(cuDeviceGetMemPool(&current, 0));
    EXPECT_EQ(current, pool);
    EXPECT_OK(cuMemAllocAsync(&at, 1 << 20, CU_STREAM_PER_THREAD));
    EXPECT(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 1 << 20);
    give(at);
    EXPECT_OK(cuDeviceSetMemPool(0, standard));
}

CASE(pool_memory_is_used_in_stream_order)
{
    uint32_t word = 0;
    CUdeviceptr at = take(4096);
    EXPECT_OK(cuMemsetD32Async(at, 9, 1024, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemcpyDtoHAsync(&word, at + 4092, 4, CU_STREAM_PER_THREAD));
    give(at);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(word, 9);
}

CASE(used_and_reserved_are_told)
{
    CUdeviceptr at = take(3 << 20);
    EXPECT(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 3 << 20);
    EXPECT(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    give(at);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    EXPECT(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= 3 << 20);
}

CASE(high_marks_are_reset_to_what_is_current)
{
    cuuint64_t zero = 0, one = 1;
    give(take(3 << 20));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_release_threshold_keeps_memory_over_a_synchronise)
{
    cuuint64_t most = ~0ull;
    EXPECT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most));
    give(take(3 << 20));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 3 << 20);
    EXPECT_OK(cuMemPoolTrimTo(pool, 0));
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

CASE(without_a_threshold_a_synchronise_gives_memory_back)
{
    give(take(3 << 20));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

CASE(trimming_leaves_what_is_in_use)
{
    CUdeviceptr at = take(3 << 20);
    EXPECT_OK(cuMemPoolTrimTo(pool, 0));
    EXPECT(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 3 << 20);
    give(at);
}

CASE(pool_memory_may_be_freed_without_a_stream)
{
    CUdeviceptr at = take(4096);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
}

CASE(an_address_knows_its_pool)
{
    CUmemoryPool of = NULL;
    CUdeviceptr at = take(4096);
    EXPECT_OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    EXPECT_EQ(of, pool);
    give(at);
}

CASE(a_pool_is_accessible_to_its_device)
{
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemLocation here = machine_memory_of(0).location;
    EXPECT_OK(cuMemPoolGetAccess(&flags, pool, &here));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* As with a reset: nothing of the process is left on the device. */
CASE(memory_of_a_pool_ends_with_the_last_release_of_the_context)
{
    CUcontext again;
    take(40 << 20);
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuDevicePrimaryCtxRelease(0));
    EXPECT_OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    EXPECT_EQ(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

SUITE_MAIN_AROUND("simulated driver: pools", begin, end)
