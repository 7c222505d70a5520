/* test_unexplained.c: what a library that follows a program above the driver hears of the rest, and the numbers that it answers copies with. */
#include "tests/sim/simulated.h"

static uint64_t count(void)
{
    return *sim_unexplained_count();
}

CASE(copies_and_fills_name_their_range)
{
    CUdeviceptr at;
    uint64_t word = 7;
    struct sim_range ranges[4];
    REQUIRE_OK(cuMemAlloc(&at, 64));
    uint64_t before = count();
    EXPECT_OK(cuMemcpyHtoD(at + 8, &word, 8));
    EXPECT_OK(cuMemsetD8(at, 1, 64));
    EXPECT_OK(cuMemcpyDtoH(&word, at, 8)); /* writes to the host alone */
    EXPECT_EQ(count() - before, 2);
    EXPECT_EQ(sim_unexplained(before, ranges, 4), 2u);
    EXPECT(ranges[0].from == at + 8 && ranges[0].to == at + 16);
    EXPECT(ranges[1].from == at && ranges[1].to == at + 64);
    EXPECT_EQ(sim_unexplained(before, ranges, 1), 1);
    EXPECT_OK(cuMemFree(at));
}

CASE(kernels_could_write_anywhere_unless_they_are_explained)
{
    struct sim_range range;
    uint64_t before = count();
    EXPECT(!sim_explain(true));
    EXPECT_OK(sim_launch_kernel(NULL, NULL));
    EXPECT(sim_explain(false));
    EXPECT_EQ(count(), before);
    EXPECT_OK(sim_launch_kernel(NULL, NULL));
    EXPECT_EQ(count() - before, 1);
    EXPECT_EQ(sim_unexplained(before, &range, 1), 1);
    EXPECT(range.from == 0 && range.to == UINT64_MAX);
}

CASE(what_is_no_longer_remembered_is_not_told)
{
    struct sim_range range;
    uint64_t before = count();
    for (int i = 0; i < 300; i++)
        EXPECT_OK(sim_launch_kernel(NULL, NULL));
    EXPECT_EQ(count() - before, 300);
    EXPECT_EQ(sim_unexplained(before, &range, 1), 0);
}

CASE(small_copies_to_the_host_take_the_answers)
{
    CUdeviceptr at;
    uint64_t word = 7, back = 0, large[2] = {0};
    uint64_t numbers[] = {41, 42};
    uint32_t half = 0;
    REQUIRE_OK(cuMemAlloc(&at, 64));
    EXPECT_OK(cuMemcpyHtoD(at, &word, 8));
    EXPECT_EQ(sim_answer(numbers, 2), 0);
    EXPECT_OK(cuMemcpyDtoH(large, at, 16)); /* too large for a number */
    EXPECT_EQ(large[0], 7);
    EXPECT_OK(cuMemcpyDtoH(&half, at, 4));
    EXPECT_EQ(half, 41);
    EXPECT_EQ(sim_answer(numbers, 1), 1);
    EXPECT_OK(cuMemcpyDtoHAsync(&back, at, 8, CU_STREAM_PER_THREAD));
    EXPECT_EQ(back, 41);
    EXPECT_OK(cuMemcpyDtoH(&back, at, 8));
    EXPECT_EQ(back, 7);
    EXPECT_OK(cuMemFree(at));
}

CASE(an_answer_for_pinned_memory_comes_with_the_copy)
{
    CUdeviceptr at;
    uint64_t *pinned, number = 41;
    REQUIRE_OK(cuMemAlloc(&at, 8));
    REQUIRE_OK(cuMemHostAlloc((void **)&pinned, 8, 0));
    *pinned = 0;
    EXPECT_OK(cuMemsetD8(at, 0, 8));
    sim_set_lag(1000000000);
    EXPECT_EQ(sim_answer(&number, 1), 0);
    EXPECT_OK(cuMemcpyDtoHAsync(pinned, at, 8, CU_STREAM_PER_THREAD));
    EXPECT_EQ(*pinned, 0);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(*pinned, 41);
    EXPECT_OK(cuMemFreeHost(pinned));
    EXPECT_OK(cuMemFree(at));
}

SUITE_MAIN_AROUND("simulated driver: what is unexplained", simulated_begin, NULL)
