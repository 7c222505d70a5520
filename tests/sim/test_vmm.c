/* test_vmm.c: virtual memory management: reserve, create, map, set access, unmap, release. CUDA driver API only. */
#include <unistd.h>

#include "tests/sim/machine.h"

static uint32_t word_at(CUdeviceptr at)
{
    uint32_t word = 0;
    EXPECT_OK(cuMemcpyDtoH(&word, at, sizeof word));
    return word;
}

static size_t free_memory(void)
{
    size_t left = 0, total;
    EXPECT_OK(cuMemGetInfo(&left, &total));
    return left;
}

CASE(granularity_is_a_power_of_two)
{
    size_t granularity = machine_granularity();
    EXPECT(granularity >= 4096);
    EXPECT_EQ(granularity & (granularity - 1), 0);
}

CASE(sizes_that_are_no_multiple_of_it_are_refused)
{
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = machine_memory_of(0);
    EXPECT_EQ(cuMemCreate(&page, machine_granularity() / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(&page, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(created_memory_is_taken_and_released_memory_comes_back)
{
    size_t before = free_memory();
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT_EQ(before - free_memory(), machine_granularity());
    EXPECT_OK(cuMemRelease(page));
    EXPECT_EQ(free_memory(), before);
}

CASE(reservations_take_no_memory)
{
    size_t before = free_memory();
    CUdeviceptr at;
    size_t bytes = 1ull << 37;
    REQUIRE_OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    EXPECT_EQ(free_memory(), before);
    EXPECT_OK(cuMemAddressFree(at, bytes));
}

CASE(reservations_are_aligned_as_asked)
{
    CUdeviceptr at;
    size_t alignment = 1ull << 30;
    REQUIRE_OK(cuMemAddressReserve(&at, machine_granularity(), alignment, 0, 0));
    EXPECT_EQ(at % alignment, 0);
    EXPECT_OK(cuMemAddressFree(at, machine_granularity()));
    EXPECT_EQ(cuMemAddressReserve(&at, machine_granularity(), 3 << 20, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_reservation_is_freed_as_a_whole)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    REQUIRE_OK(cuMemAddressReserve(&at, 4 * page, 0, 0, 0));
    EXPECT_EQ(cuMemAddressFree(at, page), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAddressFree(at + page, 3 * page), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemAddressFree(at, 4 * page));
}

CASE(written_bytes_are_read_back)
{
    struct machine_range range = machine_map(3);
    EXPECT_OK(cuMemsetD32(range.at + range.page - 4, 0x12345678, 2)); /* over the edge of two pages */
    EXPECT_EQ(word_at(range.at + range.page - 4), 0x12345678);
    EXPECT_EQ(word_at(range.at + range.page), 0x12345678);
    machine_unmap(range);
}

CASE(two_mappings_of_one_page_show_the_same_bytes)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    CUmemGenericAllocationHandle handle = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, 4 * page, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, page, 0, handle, 0));
    REQUIRE_OK(cuMemMap(at + 2 * page, page, 0, handle, 0));
    machine_allow(at, page);
    machine_allow(at + 2 * page, page);
    EXPECT_OK(cuMemsetD32(at + 8, 77, 1));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(word_at(at + 2 * page + 8), 77);
    EXPECT_OK(cuMemUnmap(at, page));
    EXPECT_EQ(word_at(at + 2 * page + 8), 77);
    EXPECT_OK(cuMemUnmap(at + 2 * page, page));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_OK(cuMemAddressFree(at, 4 * page));
}

CASE(contents_follow_the_page_to_another_address)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    CUmemGenericAllocationHandle handle = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * page, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, page, 0, handle, 0));
    machine_allow(at, page);
    EXPECT_OK(cuMemsetD32(at, 99, 4));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemUnmap(at, page));
    REQUIRE_OK(cuMemMap(at + page, page, 0, handle, 0));
    machine_allow(at + page, page);
    EXPECT_EQ(word_at(at + page), 99);
    EXPECT_OK(cuMemUnmap(at + page, page));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_OK(cuMemAddressFree(at, 2 * page));
}

CASE(memory_of_a_released_handle_lives_while_it_is_mapped)
{
    size_t before = free_memory();
    struct machine_range range = machine_map(1); /* the handle is released */
    EXPECT_EQ(before - free_memory(), range.page);
    EXPECT_OK(cuMemsetD32(range.at, 5, 1));
    EXPECT_EQ(word_at(range.at), 5);
    machine_unmap(range);
    EXPECT_EQ(free_memory(), before);
}

CASE(handle_of_a_mapping_can_be_had_again)
{
    struct machine_range range = machine_map(1);
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop;
    EXPECT_OK(cuMemRetainAllocationHandle(&handle, (void *)(range.at + 100)));
    EXPECT_OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    EXPECT_EQ(prop.location.id, 0);
    EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    machine_unmap(range);
    EXPECT_OK(cuMemRelease(handle));
}

CASE(what_is_mapped_is_not_mapped_over)
{
    struct machine_range range = machine_map(1);
    CUmemGenericAllocationHandle page = machine_create_page();
    EXPECT(cuMemMap(range.at, range.page, 0, page, 0) != CUDA_SUCCESS);
    EXPECT_OK(cuMemRelease(page));
    machine_unmap(range);
}

CASE(mapping_beyond_the_handle_is_refused)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    CUmemGenericAllocationHandle handle = machine_create_page();
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * page, 0, 0, 0));
    EXPECT_EQ(cuMemMap(at, 2 * page, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_OK(cuMemAddressFree(at, 2 * page));
}

CASE(part_of_a_mapping_is_not_unmapped)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = machine_memory_of(0);
    REQUIRE_OK(cuMemCreate(&handle, 2 * page, &prop, 0));
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * page, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, 2 * page, 0, handle, 0));
    EXPECT_EQ(cuMemUnmap(at, page), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemUnmap(at + page, page), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemUnmap(at, 2 * page));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_OK(cuMemAddressFree(at, 2 * page));
}

CASE(neighbouring_mappings_are_unmapped_in_one_call)
{
    struct machine_range range = machine_map(5);
    EXPECT_OK(cuMemUnmap(range.at + range.page, 3 * range.page));
    EXPECT_OK(cuMemUnmap(range.at, range.page));
    EXPECT_OK(cuMemUnmap(range.at + 4 * range.page, range.page));
    EXPECT_OK(cuMemAddressFree(range.at, range.bytes));
}

CASE(access_can_be_asked)
{
    struct machine_range range = machine_map(1);
    unsigned long long flags = 0;
    CUmemLocation here = machine_memory_of(0).location;
    EXPECT_OK(cuMemGetAccess(&flags, &here, range.at));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    machine_unmap(range);
}

CASE(access_of_what_is_not_mapped_is_refused)
{
    CUdeviceptr at;
    size_t page = machine_granularity();
    CUmemAccessDesc who = {.location = machine_memory_of(0).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE_OK(cuMemAddressReserve(&at, page, 0, 0, 0));
    EXPECT_EQ(cuMemSetAccess(at, page, &who, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemAddressFree(at, page));
}

CASE(more_than_there_is_cannot_be_created)
{
    size_t total = 0, left, page = machine_granularity();
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = machine_memory_of(0);
    REQUIRE_OK(cuMemGetInfo(&left, &total));
    EXPECT_EQ(cuMemCreate(&handle, (total / page + 1) * page, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(free_memory(), left);
}

CASE(an_exported_handle_names_the_same_memory)
{
    int file = -1;
    size_t page = machine_granularity();
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle, imported;
    CUmemAllocationProp prop = machine_memory_of(0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    REQUIRE_OK(cuMemCreate(&handle, page, &prop, 0));
    REQUIRE_OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    REQUIRE_OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    REQUIRE_OK(cuMemAddressReserve(&at, 2 * page, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, page, 0, handle, 0));
    REQUIRE_OK(cuMemMap(at + page, page, 0, imported, 0));
    machine_allow(at, 2 * page);
    EXPECT_OK(cuMemsetD32(at, 31, 1));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(word_at(at + page), 31);
    EXPECT_OK(cuMemUnmap(at, 2 * page));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_OK(cuMemRelease(imported));
    EXPECT_OK(cuMemAddressFree(at, 2 * page));
    close(file);
}

SUITE_MAIN_AROUND("simulated driver: virtual memory", machine_begin, machine_end)
