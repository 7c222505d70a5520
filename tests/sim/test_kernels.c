/* test_kernels.c: modules, functions and launches of kernels that do nothing. */
#include "tests/sim/simulated.h"

static CUstream stream;
static CUmodule module;
static CUfunction function;

static void begin(void)
{
    simulated_begin();
    stream = simulated_stream();
    REQUIRE_OK(cuModuleLoadData(&module, "any image"));
    REQUIRE_OK(cuModuleGetFunction(&function, module, "add"));
}

static CUresult launch(unsigned grid, unsigned block, unsigned shared)
{
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, NULL, NULL);
}

CASE(a_launched_kernel_is_counted_and_is_done_in_stream_order)
{
    sim_set_lag(1000);
    REQUIRE_OK(sim_launch_kernel(stream, "nothing"));
    EXPECT_OK(launch(1, 1, 0));
    EXPECT_EQ(simulated_books().kernels, 2);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    sim_advance(1000);
    EXPECT_OK(cuStreamQuery(stream));
}

CASE(no_kernel_is_launched_in_a_lost_context)
{
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(sim_launch_kernel(stream, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(launch(1, 1, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(simulated_books().kernels, 0);
}

CASE(kernels_of_a_capture_run_at_its_replay)
{
    CUgraph graph;
    CUgraphExec exec;
    size_t count = 0;
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_OK(sim_launch_kernel(stream, "one"));
    EXPECT_OK(launch(1, 1, 0));
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(simulated_books().kernels, 0);
    EXPECT_OK(cuGraphGetNodes(graph, NULL, &count));
    EXPECT_EQ(count, 2);
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(simulated_books().kernels, 4);
}

CASE(the_default_stream_launches_no_kernel_while_a_blocking_stream_captures)
{
    CUstream blocking;
    REQUIRE_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    REQUIRE_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(sim_launch_kernel(NULL, "nothing"), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CASE(the_size_of_a_launch_has_limits)
{
    EXPECT_OK(launch(2147483647u, 1024, 49152));
    EXPECT_EQ(launch(2147483648u, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(0, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(1, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(1, 1025, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(1, 1, 49153), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(function, 1, 65536, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 32, 2, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 65, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(simulated_books().kernels, 1);
}

/* The calls of before CUDA 4, which cuda.h says are deprecated. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CASE(the_block_of_a_function_has_the_same_limits)
{
    EXPECT_OK(cuFuncSetBlockShape(function, 32, 16, 2));
    EXPECT_EQ(cuFuncSetBlockShape(function, 32, 32, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuFuncSetBlockShape(function, -1, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuFuncSetBlockShape((CUfunction)stream, 1, 1, 1), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuFuncSetSharedSize(function, 49152));
    EXPECT_EQ(cuFuncSetSharedSize(function, 49153), CUDA_ERROR_INVALID_VALUE);
}
#pragma GCC diagnostic pop

CASE(more_shared_memory_has_to_be_asked_for)
{
    EXPECT_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
    EXPECT_OK(launch(1, 128, 232448));
    EXPECT_EQ(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 16), CUDA_ERROR_INVALID_VALUE);
}

CASE(functions_end_with_their_module)
{
    CUfunction again;
    EXPECT_OK(cuModuleGetFunction(&again, module, "add"));
    EXPECT_EQ(again, function);
    EXPECT_OK(cuModuleGetFunction(&again, module, "subtract"));
    EXPECT(again != function);
    EXPECT_OK(cuModuleUnload(module));
    EXPECT_EQ(launch(1, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuModuleGetFunction(&again, module, "add"), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

CASE(modules_and_their_variables_end_with_their_context)
{
    CUmodule other;
    CUdeviceptr at;
    uint64_t used = simulated_books().used;
    CUcontext context = machine_new_context();
    REQUIRE_OK(cuModuleLoadData(&other, "any image"));
    REQUIRE_OK(cuModuleGetGlobal(&at, NULL, other, "state"));
    EXPECT(simulated_books().used > used);
    EXPECT_OK(cuCtxDestroy(context));
    EXPECT_EQ(simulated_books().used, used);
    EXPECT_EQ(simulated_books().allocations, 0);
    EXPECT_EQ(cuModuleUnload(other), CUDA_ERROR_INVALID_HANDLE);
}

CASE(a_function_is_launched_in_its_own_context_only)
{
    CUstream foreign;
    REQUIRE_OK(cuModuleGetFunction(&function, module, "add"));
    machine_new_context();
    REQUIRE_OK(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, foreign, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

CASE(a_variable_is_device_memory_of_zeroes)
{
    CUdeviceptr at, again;
    size_t bytes = 0;
    uint64_t word = 1;
    REQUIRE_OK(cuModuleGetGlobal(&at, &bytes, module, "counter"));
    EXPECT_EQ(bytes, 65536);
    EXPECT_OK(cuMemcpyDtoH(&word, at + bytes - 8, 8));
    EXPECT_EQ(word, 0);
    EXPECT_OK(cuMemsetD8(at, 7, bytes));
    EXPECT_OK(cuModuleGetGlobal(&again, NULL, module, "counter"));
    EXPECT_EQ(again, at);
    EXPECT_OK(cuModuleGetGlobal(&again, NULL, module, "other"));
    EXPECT(again != at);
    EXPECT_EQ(cuModuleGetGlobal(NULL, NULL, module, "other"), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuModuleUnload(module));
    EXPECT_EQ(simulated_books().allocations, 0);
}

CASE(kernels_of_a_library_are_launched_in_any_context)
{
    CUlibrary library;
    CUkernel kernel;
    CUmodule of_library;
    const char *name = NULL;
    unsigned count = 0;
    REQUIRE_OK(cuLibraryLoadData(&library, "any image", NULL, NULL, 0, NULL, NULL, 0));
    REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "multiply"));
    EXPECT_OK(cuKernelGetName(&name, kernel));
    EXPECT_TEXT_EQ(name, "multiply");
    EXPECT_OK(cuLibraryGetKernelCount(&count, library));
    EXPECT_EQ(count, 1);
    EXPECT_OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel, 0));
    machine_new_context();
    REQUIRE_OK(cuKernelGetFunction(&function, kernel));
    EXPECT_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 65536, NULL, NULL, NULL));
    EXPECT_OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT_OK(cuLibraryGetModule(&of_library, library));
    EXPECT_EQ(cuModuleUnload(of_library), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_OK(cuLibraryUnload(library));
    EXPECT_EQ(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
}

CASE(wrong_images_files_and_handles_are_refused)
{
    CUfunction wild = (CUfunction)0x1234;
    EXPECT_EQ(cuModuleLoadData(&module, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuModuleLoad(&module, "/nowhere/at/all"), CUDA_ERROR_FILE_NOT_FOUND);
    EXPECT_EQ(cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuModuleGetFunction(&wild, module, ""), CUDA_ERROR_NOT_FOUND);
}

static CUlaunchConfig config_with(CUlaunchAttribute *attribute)
{
    return (CUlaunchConfig){.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1, .blockDimZ = 1,
                            .hStream = stream, .attrs = attribute, .numAttrs = attribute ? 1 : 0};
}

CASE(clusters_divide_the_grid_and_are_not_too_large)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    cluster.value.clusterDim.x = 2;
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
    CUlaunchConfig config = config_with(&cluster);
    EXPECT_OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    cluster.value.clusterDim.x = 3;
    EXPECT_EQ(cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    config.gridDimX = cluster.value.clusterDim.x = 16;
    EXPECT_EQ(cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EXPECT_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    EXPECT_OK(cuLaunchKernelEx(&config, function, NULL, NULL));
}

CASE(an_event_of_a_launch_is_recorded)
{
    CUevent event;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUlaunchAttribute completion = {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT};
    completion.value.launchCompletionEvent.event = event;
    CUlaunchConfig config = config_with(&completion);
    sim_set_lag(1000);
    EXPECT_OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

CASE(cooperative_launches_have_to_fit_on_the_device)
{
    int blocks = 0, multiprocessors = 0;
    EXPECT_OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    EXPECT_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1024, 0));
    EXPECT_EQ(blocks, 2);
    unsigned most = (unsigned)(blocks * multiprocessors);
    EXPECT_OK(cuLaunchCooperativeKernel(function, most, 1, 1, 1024, 1, 1, 0, stream, NULL));
    EXPECT_EQ(cuLaunchCooperativeKernel(function, most + 1, 1, 1, 1024, 1, 1, 0, stream, NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

CASE(occupancy_follows_threads_blocks_and_shared_memory)
{
    int blocks = 0;
    EXPECT_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0));
    EXPECT_EQ(blocks, 32);      /* as many blocks as there may be */
    EXPECT_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
    EXPECT_EQ(blocks, 8);       /* threads */
    EXPECT_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 48 << 10));
    EXPECT_EQ(blocks, 4);       /* shared memory: 228 KiB / 49 KiB */
    EXPECT_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 64 << 10));
    EXPECT_EQ(blocks, 0);       /* not allowed to the function */
    EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

static size_t CUDA_CB shared_of(int block)
{
    CUstreamCaptureStatus status;
    EXPECT_OK(cuStreamIsCapturing(stream, &status)); /* the driver's lock is not held */
    return block > 256 ? 1 << 20 : 0;
}

CASE(the_best_block_is_found_with_the_programs_own_rule)
{
    int grid = 0, block = 0;
    EXPECT_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 0));
    EXPECT_EQ(block, 1024);
    EXPECT_EQ(grid, 2 * 132);
    EXPECT_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, shared_of, 0, 0));
    EXPECT_EQ(block, 256);
    EXPECT_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 100));
    EXPECT_EQ(block, 64); /* 21 blocks of 96 threads are fewer than 32 of 64 */
}

CASE(the_linker_makes_an_image_that_loads)
{
    CUlinkState state;
    void *image = NULL;
    size_t bytes = 0;
    REQUIRE_OK(cuLinkCreate(0, NULL, NULL, &state));
    EXPECT_EQ(cuLinkComplete(state, &image, &bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)"text", 5, "name", 0, NULL, NULL));
    EXPECT_OK(cuLinkComplete(state, &image, &bytes));
    EXPECT(bytes > 0);
    EXPECT_OK(cuModuleLoadData(&module, image));
    EXPECT_OK(cuLinkDestroy(state));
    EXPECT_EQ(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);
}

CASE(logs_of_the_compiler_are_empty)
{
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    char log[16];
    void *values[] = {log, (void *)sizeof log};
    EXPECT_OK(cuModuleLoadDataEx(&module, "any image", 2, options, values));
    EXPECT_EQ(values[1], 0);
    EXPECT_EQ(cuModuleLoadDataEx(&module, "any image", 2, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

CASE(tensor_maps_keep_to_their_limits)
{
    CUtensorMap map;
    cuuint64_t extent[] = {256, 256}, stride[] = {512};
    cuuint32_t box[] = {64, 64}, step[] = {1, 1};
    EXPECT_OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)0x1000, extent, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    box[0] = 257;
    EXPECT_EQ(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)0x1000, extent, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_ERROR_INVALID_VALUE);
}

/* Before, the process that simulates it wrote to the address. */
CASE(a_kernel_that_writes_to_no_memory_loses_its_context)
{
    uint64_t place = 0, words = 1, pattern = 7;
    void *parameters[] = {&place, &words, &pattern};
    CUfunction write;
    REQUIRE_OK(cuModuleGetFunction(&write, module, "pattern_write"));
    REQUIRE_OK(cuMemHostAlloc((void **)&place, 8, 0));
    EXPECT_OK(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(*(uint64_t *)place, 7); /* what is pinned it reaches */
    place = 0;
    sim_set_lag(1000);
    EXPECT_OK(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    sim_advance(1000);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(a_launch_is_cheap)
{
    for (int i = 0; i < 100000; i++)
        REQUIRE_OK(sim_launch_kernel(stream, "nothing"));
    EXPECT_EQ(simulated_books().kernels, 100000);
}

SUITE_MAIN_AROUND("simulated driver: kernels", begin, machine_end)
