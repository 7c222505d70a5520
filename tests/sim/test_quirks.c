/* test_quirks.c: the simulated machine does what the rows of sim/quirks.def say, and nothing of it without being asked. */
#include "tests/sim/simulated.h"

static void begin(uint64_t quirks)
{
    struct sim_shape shape = simulated_shape();
    shape.quirks = quirks;
    simulated_begin_as(&shape);
}

static int asked(CUdevice_attribute attribute)
{
    int value = -1;
    EXPECT_OK(cuDeviceGetAttribute(&value, attribute, 0));
    return value;
}

static int says_rdma(void)
{
    return asked(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
}

static int says_fabric(void)
{
    return asked(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
}

/* What a page of these properties comes to: the first refusal on its way until the device may use it. `rdma`: what its address says then. */
static CUresult page_of(int types, bool is_for_rdma, unsigned *rdma)
{
    CUmemGenericAllocationHandle page;
    CUdeviceptr at = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    prop.requestedHandleTypes = (CUmemAllocationHandleType)types;
    prop.allocFlags.gpuDirectRDMACapable = is_for_rdma;
    CUresult result = cuMemAddressReserve(&at, SIMULATED_PAGE, 0, 0, 0);
    if (result)
        return result;
    if (!(result = cuMemCreate(&page, SIMULATED_PAGE, &prop, 0))) {
        EXPECT_OK(cuMemMap(at, SIMULATED_PAGE, 0, page, 0));
        result = cuMemSetAccess(at, SIMULATED_PAGE, &access, 1);
        EXPECT_OK(cuPointerGetAttribute(rdma, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at));
        EXPECT_OK(cuMemUnmap(at, SIMULATED_PAGE));
        EXPECT_OK(cuMemRelease(page));
    }
    EXPECT_OK(cuMemAddressFree(at, SIMULATED_PAGE));
    return result;
}

static CUresult made(int types, bool is_for_rdma)
{
    unsigned rdma;
    return page_of(types, is_for_rdma, &rdma);
}

enum { NONE = CU_MEM_HANDLE_TYPE_NONE, FILES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, FABRIC = CU_MEM_HANDLE_TYPE_FABRIC };

CASE(without_a_quirk_nothing_is_odd)
{
    begin(0);
    EXPECT_EQ(says_rdma(), 0);
    EXPECT_EQ(says_fabric(), 0);
    EXPECT_EQ(made(FILES, false), CUDA_SUCCESS);
    EXPECT_EQ(made(FILES | FABRIC, false), CUDA_ERROR_NOT_SUPPORTED);
}

CASE(rdma_of_wsl_fails_at_the_access)
{
    begin(SIM_QUIRK(WSL_RDMA));
    EXPECT_EQ(says_rdma(), 1);
    EXPECT_EQ(made(FILES, true), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(made(FILES, false), CUDA_SUCCESS);
}

CASE(rdma_has_to_be_asked_for)
{
    unsigned rdma = 2;
    begin(SIM_QUIRK(RDMA_REQUIRED));
    EXPECT_EQ(says_rdma(), 1);
    EXPECT_EQ(page_of(FILES, true, &rdma), CUDA_SUCCESS);
    EXPECT_EQ(rdma, 1);
    EXPECT_EQ(page_of(FILES, false, &rdma), CUDA_SUCCESS);
    EXPECT_EQ(rdma, 0);
}

CASE(fabric_is_there_or_refused)
{
    begin(SIM_QUIRK(FABRIC));
    EXPECT_EQ(says_fabric(), 1);
    EXPECT_EQ(made(FILES | FABRIC, false), CUDA_SUCCESS);
    begin(SIM_QUIRK(FABRIC_NOT_PERMITTED));
    EXPECT_EQ(says_fabric(), 1);
    EXPECT_EQ(made(FILES | FABRIC, false), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(made(FILES, false), CUDA_SUCCESS);
    begin(SIM_QUIRK(FABRIC_INVALID));
    EXPECT_EQ(says_fabric(), 1);
    EXPECT_EQ(made(FABRIC, false), CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 12080
static bool engine_takes(CUdeviceptr at)
{
    bool takes = false;
    EXPECT_OK(cuPointerGetAttribute(&takes, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, at));
    return takes;
}

static bool engine_takes_pool(unsigned short usage)
{
    CUmemoryPool pool;
    CUdeviceptr at;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .usage = usage};
    EXPECT_OK(cuMemPoolCreate(&pool, &props));
    EXPECT_OK(cuMemAllocFromPoolAsync(&at, 4096, pool, NULL));
    bool takes = engine_takes(at);
    EXPECT_OK(cuMemFreeAsync(at, NULL));
    EXPECT_OK(cuMemPoolDestroy(pool));
    return takes;
}

CASE(decompression_has_to_be_asked_for)
{
    CUdeviceptr at;
    begin(0);
    EXPECT_EQ(asked(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK), 0);
    EXPECT(!engine_takes_pool(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS));
    begin(SIM_QUIRK(DECOMPRESSION));
    EXPECT(asked(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK));
    EXPECT(engine_takes_pool(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) && !engine_takes_pool(0));
    EXPECT_OK(cuMemAlloc(&at, 4096));
    EXPECT(engine_takes(at));
    EXPECT_OK(cuMemFree(at));
}
#endif

CASE(attributes_lie)
{
    begin(SIM_QUIRK(ATTRIBUTE_LIES));
    EXPECT_EQ(says_rdma(), 1);
    EXPECT_EQ(asked(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
    EXPECT_EQ(made(FILES, false), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(made(NONE, true), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(made(NONE, false), CUDA_SUCCESS);
    begin(SIM_QUIRK(VMM_LIES));
    EXPECT_EQ(asked(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
    EXPECT_EQ(made(NONE, false), CUDA_ERROR_NOT_SUPPORTED);
}

/* Three mappings of one page, of which two are opened. */
static CUresult third_access(uint64_t quirk, uint64_t most)
{
    struct sim_shape shape = simulated_shape();
    CUmemGenericAllocationHandle page;
    CUdeviceptr at;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    shape.quirks = quirk;
    shape.mapping_ceiling = shape.handle_ceiling = most;
    simulated_begin_as(&shape);
    EXPECT_OK(cuMemAddressReserve(&at, (size_t)3 * SIMULATED_PAGE, 0, 0, 0));
    EXPECT_OK(cuMemCreate(&page, SIMULATED_PAGE, &prop, 0));
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < 3; i++) {
        EXPECT_EQ(result, CUDA_SUCCESS);
        EXPECT_OK(cuMemMap(at + i * SIMULATED_PAGE, SIMULATED_PAGE, 0, page, 0));
        result = cuMemSetAccess(at + i * SIMULATED_PAGE, SIMULATED_PAGE, &access, 1);
    }
    return result;
}

CASE(mappings_have_a_ceiling)
{
    EXPECT_EQ(third_access(0, 2), CUDA_SUCCESS);
    EXPECT_EQ(third_access(SIM_QUIRK(MAPPING_CEILING), 3), CUDA_SUCCESS);
    EXPECT_EQ(third_access(SIM_QUIRK(MAPPING_CEILING), 2), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(third_access(SIM_QUIRK(HANDLE_CEILING), 2), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Words that differ when a page that is mapped twice is written at the first address and read at that, and then at the second. */
static uint64_t differ_through(uint64_t quirk, bool elsewhere)
{
    CUmemGenericAllocationHandle page;
    CUdeviceptr at;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    begin(quirk);
    EXPECT_OK(cuMemAddressReserve(&at, (size_t)2 * SIMULATED_PAGE, 0, 0, 0));
    EXPECT_OK(cuMemCreate(&page, SIMULATED_PAGE, &prop, 0));
    for (size_t i = 0; i < 2; i++)
        EXPECT_OK(cuMemMap(at + i * SIMULATED_PAGE, SIMULATED_PAGE, 0, page, 0));
    EXPECT_OK(cuMemSetAccess(at, (size_t)2 * SIMULATED_PAGE, &access, 1));
    EXPECT_OK(sim_launch_fill(NULL, at, 7, SIMULATED_PAGE));
    EXPECT_OK(sim_launch_expect(NULL, at + (elsewhere ? SIMULATED_PAGE : 0), 7, SIMULATED_PAGE));
    EXPECT_OK(cuCtxSynchronize());
    return sim_mismatches();
}

CASE(aliases_are_stale)
{
    EXPECT_EQ(differ_through(0, true), 0);
    EXPECT_EQ(differ_through(SIM_QUIRK(STALE_ALIASES), false), 0);
    EXPECT_EQ(differ_through(SIM_QUIRK(STALE_ALIASES), true), SIMULATED_PAGE / 8);
}

SUITE_MAIN("sim/quirks")
