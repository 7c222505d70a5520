/* test_allocations.c: cuMemAlloc, and what an address says of itself. CUDA driver API only. */
#include "tests/sim/machine.h"

CASE(nothing_is_not_allocated)
{
    CUdeviceptr at;
    EXPECT_EQ(cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc(NULL, 512), CUDA_ERROR_INVALID_VALUE);
}

CASE(freeing_nothing_is_fine)
{
    EXPECT_OK(cuMemFree(0));
    EXPECT_OK(cuMemFreeHost(NULL));
}

CASE(allocations_are_aligned_and_apart)
{
    CUdeviceptr at[64];
    for (int i = 0; i < 64; i++) {
        REQUIRE_OK(cuMemAlloc(&at[i], 1000));
        EXPECT_EQ(at[i] % 256, 0);
        for (int k = 0; k < i; k++)
            EXPECT(at[i] >= at[k] + 1000 || at[k] >= at[i] + 1000);
    }
    for (int i = 0; i < 64; i++)
        EXPECT_OK(cuMemFree(at[i]));
}

CASE(memory_comes_back_with_the_last_free)
{
    CUdeviceptr at[3];
    size_t before, after, total;
    REQUIRE_OK(cuMemGetInfo(&before, &total));
    for (int i = 0; i < 3; i++)
        REQUIRE_OK(cuMemAlloc(&at[i], 100 << 20));
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT(before - after >= 300 << 20);
    for (int i = 0; i < 3; i++)
        EXPECT_OK(cuMemFree(at[i]));
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before);
}

CASE(more_than_there_is_cannot_be_allocated)
{
    CUdeviceptr at;
    size_t left, total;
    REQUIRE_OK(cuMemGetInfo(&left, &total));
    EXPECT_EQ(cuMemAlloc(&at, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

CASE(a_range_is_found_from_inside)
{
    CUdeviceptr at, start = 0;
    size_t size = 0;
    REQUIRE_OK(cuMemAlloc(&at, 8192));
    EXPECT_OK(cuMemGetAddressRange(&start, &size, at + 5000));
    EXPECT_EQ(start, at);
    EXPECT(size >= 8192);
    EXPECT_OK(cuMemFree(at));
}

CASE(a_range_of_pinned_memory_is_found)
{
    CUdeviceptr start = 0;
    void *host;
    size_t size = 0;
    REQUIRE_OK(cuMemAllocHost(&host, 8192));
    EXPECT_OK(cuMemGetAddressRange(&start, &size, (CUdeviceptr)host + 5000));
    EXPECT_EQ(start, (CUdeviceptr)host);
    EXPECT(size >= 8192);
    EXPECT_OK(cuMemFreeHost(host));
    EXPECT_EQ(cuMemGetAddressRange(&start, &size, (CUdeviceptr)host), CUDA_ERROR_NOT_FOUND);
}

CASE(attributes_tell_device_from_host)
{
    CUdeviceptr at;
    void *host;
    unsigned type = 0;
    int device = -1;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    REQUIRE_OK(cuMemAllocHost(&host, 4096));
    EXPECT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
    EXPECT_OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at + 100));
    EXPECT_EQ(device, 0);
    EXPECT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)host));
    EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
    EXPECT_OK(cuMemFreeHost(host));
    EXPECT_OK(cuMemFree(at));
}

CASE(buffer_ids_are_unique)
{
    CUdeviceptr at;
    unsigned long long one = 0, two = 0;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    EXPECT_OK(cuPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    EXPECT_OK(cuMemFree(at));
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    EXPECT_OK(cuPointerGetAttribute(&two, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    EXPECT(one != two);
    EXPECT_OK(cuMemFree(at));
}

CASE(an_unknown_address_has_no_attributes_but_many_may_be_asked)
{
    static char local[64];
    unsigned type = 7;
    CUdeviceptr device = 7;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&type, &device};
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)local), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuPointerGetAttributes(2, attributes, values, (CUdeviceptr)local));
    EXPECT_EQ(type, 0);
    EXPECT_EQ(device, 0);
}

SUITE_MAIN_AROUND("simulated driver: allocations", machine_begin, machine_end)
