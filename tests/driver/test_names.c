/* test_names.c: names of results and calls, and which results mean that the context is lost. */
#include "driver/driver.h"

#include "tests/harness.h"

CASE(names)
{
    EXPECT_TEXT_EQ(driver_result_name(CUDA_SUCCESS), "CUDA_SUCCESS");
    EXPECT_TEXT_EQ(driver_result_name(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_TEXT_EQ(driver_result_name(CUDA_ERROR_UNKNOWN), "CUDA_ERROR_UNKNOWN");
    EXPECT_TEXT_EQ(driver_result_name((CUresult)12345), "an unknown CUDA error");
}

/* Written down a second time, from cuda.h, so that a slip in results.def shows. */
CASE(results_that_lose_the_context)
{
    static const int lost[] = {4, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};
    unsigned next = 0;
    for (int code = -1; code < 1100; code++) {
        bool is_lost = next < sizeof(lost) / sizeof(lost[0]) && lost[next] == code;
        next += is_lost;
        EXPECT_EQ(driver_result_is_sticky((CUresult)code) ? code : 0, is_lost ? code : 0);
    }
    EXPECT_EQ(next, sizeof(lost) / sizeof(lost[0]));
}

CASE(calls_have_the_names_of_cuda_h_without_version)
{
    EXPECT_TEXT_EQ(driver_call_name(CALL_cuInit), "cuInit");
    EXPECT_TEXT_EQ(driver_call_name(CALL_cuMemAlloc), "cuMemAlloc");
    EXPECT_TEXT_EQ(driver_call_name(CALL_cuMemSetAccess), "cuMemSetAccess");
    EXPECT_TEXT_EQ(driver_call_name(DRIVER_CALLS), "no driver call");
}

SUITE_MAIN("driver names")
