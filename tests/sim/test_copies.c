/* test_copies.c: copies and fills, plain and pinned host memory. CUDA driver API only. */
#include "tests/sim/machine.h"

#define BYTES (300 << 10)

static void fill_with_numbers(uint32_t *words)
{
    for (uint32_t i = 0; i < BYTES / 4; i++)
        words[i] = i * 2654435761u;
}

CASE(what_is_copied_there_comes_back)
{
    CUdeviceptr at;
    uint32_t *there = malloc(BYTES), *back = calloc(1, BYTES);
    fill_with_numbers(there);
    REQUIRE_OK(cuMemAlloc(&at, BYTES));
    EXPECT_OK(cuMemcpyHtoD(at, there, BYTES));
    EXPECT_OK(cuMemcpyDtoH(back, at, BYTES));
    EXPECT(memcmp(there, back, BYTES) == 0);
    EXPECT_OK(cuMemFree(at));
    free(there);
    free(back);
}

CASE(copies_on_the_device_follow_the_order_of_the_stream)
{
    CUdeviceptr from, to;
    uint32_t *there = malloc(BYTES), *back = calloc(1, BYTES);
    fill_with_numbers(there);
    REQUIRE_OK(cuMemAlloc(&from, BYTES));
    REQUIRE_OK(cuMemAlloc(&to, BYTES));
    EXPECT_OK(cuMemcpyHtoDAsync(from, there, BYTES, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemcpyDtoDAsync(to, from, BYTES, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemcpyDtoHAsync(back, to, BYTES, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT(memcmp(there, back, BYTES) == 0);
    EXPECT_OK(cuMemFree(from));
    EXPECT_OK(cuMemFree(to));
    free(there);
    free(back);
}

CASE(unified_copies_know_both_sides_by_address)
{
    CUdeviceptr at;
    uint64_t there = 0x1122334455667788, back = 0;
    REQUIRE_OK(cuMemAlloc(&at, 8));
    EXPECT_OK(cuMemcpy(at, (CUdeviceptr)&there, 8));
    EXPECT_OK(cuMemcpy((CUdeviceptr)&back, at, 8));
    EXPECT_EQ(back, there);
    EXPECT_OK(cuMemFree(at));
}

CASE(fills_have_three_widths)
{
    CUdeviceptr at;
    uint8_t back[16];
    REQUIRE_OK(cuMemAlloc(&at, 16));
    EXPECT_OK(cuMemsetD8(at, 0x11, 4));
    EXPECT_OK(cuMemsetD16(at + 4, 0x2233, 2));
    EXPECT_OK(cuMemsetD32(at + 8, 0x44556677, 2));
    EXPECT_OK(cuMemcpyDtoH(back, at, 16));
    static const uint8_t expected[16] = {0x11, 0x11, 0x11, 0x11, 0x33, 0x22, 0x33, 0x22, 0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44};
    EXPECT(memcmp(back, expected, 16) == 0);
    EXPECT_OK(cuMemFree(at));
}

CASE(fills_are_aligned_to_their_width)
{
    CUdeviceptr at;
    REQUIRE_OK(cuMemAlloc(&at, 16));
    EXPECT_EQ(cuMemsetD32(at + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemFree(at));
}

CASE(addresses_nobody_gave_are_refused)
{
    uint64_t word = 0;
    EXPECT_EQ(cuMemcpyHtoD(4096, &word, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoH(&word, 4096, 8), CUDA_ERROR_INVALID_VALUE);
}

CASE(pinned_memory_is_read_and_written_by_the_host)
{
    uint32_t *words = NULL;
    CUdeviceptr seen = 0;
    unsigned flags = 0;
    REQUIRE_OK(cuMemHostAlloc((void **)&words, BYTES, CU_MEMHOSTALLOC_PORTABLE));
    fill_with_numbers(words);
    EXPECT_OK(cuMemHostGetDevicePointer(&seen, words, 0));
    EXPECT_EQ(seen, (CUdeviceptr)words);
    EXPECT_OK(cuMemHostGetFlags(&flags, words));
    EXPECT(flags & CU_MEMHOSTALLOC_PORTABLE);
    EXPECT_OK(cuMemFreeHost(words));
}

CASE(memory_is_registered_once)
{
    void *memory = aligned_alloc(4096, 8192);
    EXPECT_OK(cuMemHostRegister(memory, 8192, 0));
    EXPECT_EQ(cuMemHostRegister(memory, 8192, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_OK(cuMemHostUnregister(memory));
    EXPECT_EQ(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    free(memory);
}

CASE(pinned_copies_are_done_at_their_time)
{
    CUdeviceptr at;
    uint32_t *words;
    REQUIRE_OK(cuMemAlloc(&at, 4096));
    REQUIRE_OK(cuMemAllocHost((void **)&words, 4096));
    EXPECT_OK(cuMemsetD32Async(at, 6, 1024, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemcpyDtoHAsync(words, at, 4096, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(words[1023], 6);
    EXPECT_OK(cuMemFreeHost(words));
    EXPECT_OK(cuMemFree(at));
}

SUITE_MAIN_AROUND("simulated driver: copies", machine_begin, machine_end)
