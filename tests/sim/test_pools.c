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
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, nowhere = {.type = CU_MEM_LOCATION_TYPE_NONE};
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
    EXPECT_EQ(cuMemGetDefaultMemPool(&said, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemGetDefaultMemPool(&said, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemGetDefaultMemPool(&said, &here, CU_MEM_ALLOCATION_TYPE_MANAGED), CUDA_ERROR_NOT_SUPPORTED);
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

SUITE_MAIN_AROUND("simulated driver: pools", begin, end)
