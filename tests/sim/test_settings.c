/* test_settings.c: limits and preferences of contexts, older questions about devices, callbacks of streams. */
#include "tests/sim/simulated.h"

#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* what is deprecated is still called */

static void begin(void)
{
    struct sim_shape shape = simulated_shape();
    shape.devices = 2;
    simulated_begin_as(&shape);
}

CASE(limits_are_kept_for_each_context)
{
    size_t value = 0;
    EXPECT_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(value, 1024);
    EXPECT_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    EXPECT_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(value, 4096);
    CUcontext context = machine_new_context();
    EXPECT_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(value, 1024);
    EXPECT_OK(cuCtxDestroy(context));
}

CASE(a_limit_that_the_device_lacks_or_exceeds_is_refused)
{
    size_t value = 0;
    EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH), CUDA_ERROR_UNSUPPORTED_LIMIT);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 129), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuCtxGetLimit(&value, (CUlimit)77), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 30));
    EXPECT_OK(cuCtxGetLimit(&value, CU_LIMIT_PERSISTING_L2_CACHE_SIZE));
    EXPECT_EQ(value, 32768000);     /* what the device has */
}

CASE(preferences_are_kept)
{
    CUfunc_cache cache = CU_FUNC_CACHE_PREFER_EQUAL;
    EXPECT_OK(cuCtxGetCacheConfig(&cache));
    EXPECT_EQ(cache, CU_FUNC_CACHE_PREFER_NONE);
    EXPECT_OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    EXPECT_OK(cuCtxGetCacheConfig(&cache));
    EXPECT_EQ(cache, CU_FUNC_CACHE_PREFER_L1);
    EXPECT_EQ(cuCtxSetCacheConfig((CUfunc_cache)4), CUDA_ERROR_INVALID_VALUE);
}

CASE(the_device_is_an_H100)
{
    int major = 0, minor = 1, value = 0;
    CUdevprop properties;
    EXPECT_OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    EXPECT_OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    EXPECT(major == 9 && minor == 0);
    EXPECT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    EXPECT_EQ(value, 132);
    EXPECT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    EXPECT_EQ(value, 0);
    EXPECT_OK(cuDeviceGetProperties(&properties, 0));
    EXPECT_EQ(properties.maxThreadsDim[2], 64);
    EXPECT_EQ(properties.SIMDWidth, 32);
    EXPECT_EQ(cuDeviceGetProperties(&properties, 7), CUDA_ERROR_INVALID_DEVICE);
}

CASE(devices_are_peers)
{
    int value = 0;
    EXPECT_OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    EXPECT_EQ(value, 1);
    EXPECT_EQ(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)99, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

static int calls;
static void CUDA_CB call(CUstream stream, CUresult status, void *argument)
{
    calls += stream == argument && status == CUDA_SUCCESS;
}

CASE(a_callback_is_called_in_stream_order_and_not_captured)
{
    CUstream stream = simulated_stream();
    CUgraph graph;
    calls = 0;
    sim_set_lag(1000);
    EXPECT_OK(cuStreamAddCallback(stream, call, stream, 0));
    EXPECT_EQ(calls, 0);
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(cuStreamAddCallback(stream, NULL, stream, 0), CUDA_ERROR_INVALID_VALUE);
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuStreamAddCallback(stream, call, stream, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

CASE(tables_of_secrets_are_not_given)
{
    const void *table = NULL;
    CUuuid id = {{1, 2, 3}};
    char said[400] = "";
    FILE *file = tmpfile();
    REQUIRE(file);
    int kept = dup(2);
    dup2(fileno(file), 2);
    EXPECT(cuGetExportTable(&table, &id) != CUDA_SUCCESS); /* quiet: nothing is said */
    sim_set_quiet(false);
    EXPECT(cuGetExportTable(&table, &id) != CUDA_SUCCESS);
    EXPECT(cuGetExportTable(&table, &id) != CUDA_SUCCESS);
    sim_set_quiet(true);
    dup2(kept, 2);
    close(kept);
    rewind(file);
    EXPECT(fgets(said, sizeof said, file) && strstr(said, "private table"));
    EXPECT(!fgets(said, sizeof said, file)); /* once */
    fclose(file);
    EXPECT_EQ(table, NULL);
}

SUITE_MAIN_AROUND("simulated driver: settings", begin, machine_end)
