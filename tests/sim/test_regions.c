/* test_regions.c: copies and fills of rows and layers, copies between devices, pitched and managed memory. */
#include "tests/sim/simulated.h"

static CUstream stream;
static CUdeviceptr memory;

static void begin(void)
{
    struct sim_shape shape = simulated_shape();
    shape.devices = 2;
    simulated_begin_as(&shape);
    stream = simulated_stream();
    REQUIRE_OK(cuMemAlloc(&memory, 1 << 20));
    REQUIRE_OK(cuMemsetD8(memory, 0, 1 << 20));
}

static unsigned char byte_at(CUdeviceptr at)
{
    unsigned char value = 0;
    EXPECT_OK(cuMemcpyDtoH(&value, at, 1));
    return value;
}

CASE(rows_go_to_their_places)
{
    unsigned char rows[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}}, back[3][4] = {{0}};
    CUDA_MEMCPY2D there = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = rows, .srcPitch = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = memory, .dstPitch = 256, .dstXInBytes = 16, .dstY = 1, .WidthInBytes = 4, .Height = 3};
    EXPECT_OK(cuMemcpy2D(&there));
    EXPECT_EQ(byte_at(memory + 256 + 16), 1);
    EXPECT_EQ(byte_at(memory + 3 * 256 + 16 + 3), 12);
    EXPECT_EQ(byte_at(memory + 256 + 20), 0);
    CUDA_MEMCPY2D again = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = memory, .srcPitch = 256, .srcXInBytes = 16, .srcY = 1,
                           .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .dstPitch = 4, .WidthInBytes = 4, .Height = 3};
    EXPECT_OK(cuMemcpy2DAsync(&again, stream));     /* waits: the host's memory is not pinned */
    EXPECT_EQ(memcmp(rows, back, sizeof rows), 0);
}

CASE(layers_go_to_their_places)
{
    unsigned char box[2][2][2] = {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = box, .srcPitch = 2, .srcHeight = 2,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstPitch = 64, .dstHeight = 8, .dstZ = 1,
                          .WidthInBytes = 2, .Height = 2, .Depth = 2};
    EXPECT_OK(cuMemcpy3D(&copy));
    EXPECT_EQ(byte_at(memory + 512), 1);
    EXPECT_EQ(byte_at(memory + 512 + 64 + 1), 4);
    EXPECT_EQ(byte_at(memory + 1024 + 64 + 1), 8);
}

CASE(regions_that_do_not_fit_are_refused)
{
    unsigned char row[16];
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = row, .srcPitch = 8, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = memory, .dstPitch = 16, .WidthInBytes = 16, .Height = 1};
    EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);     /* a row is longer than the pitch */
    copy.srcPitch = 16;
    copy.Height = 1 << 20;
    copy.dstPitch = SIZE_MAX / 2;
    EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
    copy.Height = 1;
    copy.dstDevice = 0;
    EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_HANDLE);    /* there are no arrays */
    copy.Height = 0;
    EXPECT_OK(cuMemcpy2D(&copy));
    EXPECT_EQ(cuMemcpy3D(NULL), CUDA_ERROR_INVALID_VALUE);
}

CASE(rows_are_filled)
{
    EXPECT_OK(cuMemsetD2D16(memory, 64, 0x0102, 2, 3));
    EXPECT_EQ(byte_at(memory), 2);
    EXPECT_EQ(byte_at(memory + 128 + 3), 1);
    EXPECT_EQ(byte_at(memory + 4), 0);
    EXPECT_EQ(byte_at(memory + 192), 0);
    EXPECT_OK(cuMemsetD2D32Async(memory, 64, 7, 1, 1, stream));
    EXPECT_OK(cuMemsetD2D8Async(memory + 1, 64, 9, 1, 2, stream));
    EXPECT_EQ(byte_at(memory), 7);
    EXPECT_EQ(byte_at(memory + 65), 9);
    EXPECT_EQ(cuMemsetD2D32(memory, 6, 7, 2, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD2D8(memory, 1ull << 40, 7, 2, 2), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_captured_region_is_replayed)
{
    CUgraph graph;
    CUgraphExec exec;
    REQUIRE_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_OK(cuMemsetD2D8Async(memory, 64, 5, 1, 3, stream));
    REQUIRE_OK(cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(byte_at(memory), 0);
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cuGraphLaunch(exec, stream));
    EXPECT_EQ(byte_at(memory + 128), 5);
}

CASE(devices_copy_to_each_other_without_peer_access)
{
    CUcontext second;
    CUdeviceptr far;
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 1));
    REQUIRE_OK(cuCtxPushCurrent(second));
    REQUIRE_OK(cuMemAlloc(&far, 4096));
    REQUIRE_OK(cuMemsetD8(far, 3, 4096));
    REQUIRE_OK(cuCtxPopCurrent(NULL));
    EXPECT_OK(cuMemcpyPeer(memory, machine_context, far, second, 4096));
    EXPECT_EQ(byte_at(memory + 4095), 3);
    EXPECT_OK(cuMemcpyPeerAsync(far, second, memory + 8192, machine_context, 16, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_OK(cuMemcpyPeer(memory, machine_context, far, second, 16));
    EXPECT_EQ(byte_at(memory), 0);
    EXPECT_EQ(cuMemcpyPeer(memory, machine_context, far, NULL, 16), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_OK(cuCtxPushCurrent(second));
    EXPECT_OK(cuMemFree(far));
    EXPECT_OK(cuCtxPopCurrent(NULL));
    EXPECT_OK(cuDevicePrimaryCtxRelease(1));
}

CASE(pitched_memory_begins_each_row_well)
{
    CUdeviceptr at;
    size_t pitch = 0;
    EXPECT_OK(cuMemAllocPitch(&at, &pitch, 1000, 7, 4));
    EXPECT_EQ(pitch, 1024);
    EXPECT_OK(cuMemsetD2D8(at, pitch, 1, 1000, 7));
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(cuMemAllocPitch(&at, &pitch, 1000, 7, 3), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocPitch(&at, &pitch, 1 << 20, SIZE_MAX / 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

CASE(managed_memory_is_read_and_written_by_both)
{
    CUdeviceptr at;
    unsigned managed = 0, type = 0;
    uint64_t used = simulated_books().used;
    REQUIRE_OK(cuMemAllocManaged(&at, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(simulated_books().used, used);
    *(int *)at = 42;
    EXPECT_OK(cuMemcpyDtoD(memory, at, 4));
    EXPECT_EQ(byte_at(memory), 42);
    EXPECT_OK(cuMemsetD32Async(at, 7, 1, stream));
    EXPECT_OK(cuStreamSynchronize(stream));
    EXPECT_EQ(*(int *)at, 7);
    EXPECT_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    EXPECT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    EXPECT_EQ(managed, 1);
    EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
    EXPECT_EQ(cuMemFreeHost((void *)at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAllocManaged(&at, 1 << 20, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(advice_and_prefetches_are_for_managed_memory)
{
    CUdeviceptr at;
    CUmemLocation device = machine_memory_of(1).location, nowhere = machine_memory_of(5).location;
    REQUIRE_OK(cuMemAllocManaged(&at, 1 << 20, CU_MEM_ATTACH_GLOBAL));
#if CUDA_VERSION >= 13000
    EXPECT_OK(cuMemPrefetchAsync(at, 4096, device, 0, stream));
    EXPECT_EQ(cuMemPrefetchAsync(at, 2 << 20, device, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemPrefetchAsync(at, 4096, nowhere, 0, stream), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMemPrefetchAsync(memory, 4096, device, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemAdvise(at, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
    EXPECT_EQ(cuMemAdvise(at, 4096, (CUmem_advise)99, device), CUDA_ERROR_INVALID_VALUE);
#else
    EXPECT_OK(cuMemPrefetchAsync_v2(at, 4096, device, 0, stream));
    EXPECT_EQ(cuMemPrefetchAsync_v2(at, 2 << 20, device, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemPrefetchAsync_v2(at, 4096, nowhere, 0, stream), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMemPrefetchAsync(memory, 4096, 0, stream), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemAdvise(at, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
    EXPECT_EQ(cuMemAdvise(at, 4096, (CUmem_advise)99, 0), CUDA_ERROR_INVALID_VALUE);
#endif
    EXPECT_OK(cuMemFree(at));
}

SUITE_MAIN_AROUND("simulated driver: regions", begin, machine_end)
