/* machine.c: see machine.h. */
#include "tests/sim/machine.h"

CUcontext machine_context;

void machine_begin(void)
{
    setenv("CENOTE_SIM", "quiet:1", 0); /* the tests make mistakes on purpose */
    REQUIRE_OK(cuInit(0));
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&machine_context, 0));
    REQUIRE_OK(cuCtxSetCurrent(machine_context));
}

void machine_end(void)
{
    EXPECT_OK(cuCtxSetCurrent(NULL));
    EXPECT_OK(cuDevicePrimaryCtxRelease(0));
}

CUcontext machine_new_context(void)
{
    CUcontext context = NULL;
#if CUDA_VERSION >= 13000
    REQUIRE_OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    REQUIRE_OK(cuCtxCreate(&context, 0, 0));
#endif
    return context;
}

cuuint64_t machine_capture_id(CUstream stream)
{
    cuuint64_t id = 0;
    CUstreamCaptureStatus status;
#if CUDA_VERSION >= 13000
    EXPECT_OK(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
#else
    EXPECT_OK(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL));
#endif
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

CUmemAllocationProp machine_memory_of(CUdevice device)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

size_t machine_granularity(void)
{
    size_t granularity = 0;
    CUmemAllocationProp prop = machine_memory_of(0);
    REQUIRE_OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return granularity;
}

CUmemGenericAllocationHandle machine_create_page(void)
{
    CUmemGenericAllocationHandle page = 0;
    CUmemAllocationProp prop = machine_memory_of(0);
    REQUIRE_OK(cuMemCreate(&page, machine_granularity(), &prop, 0));
    return page;
}

void machine_allow(CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc who = {.location = machine_memory_of(0).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE_OK(cuMemSetAccess(at, bytes, &who, 1));
}

void machine_map_page(CUdeviceptr at)
{
    CUmemGenericAllocationHandle page = machine_create_page();
    REQUIRE_OK(cuMemMap(at, machine_granularity(), 0, page, 0));
    REQUIRE_OK(cuMemRelease(page));
    machine_allow(at, machine_granularity());
}

struct machine_range machine_map(size_t pages)
{
    struct machine_range range = {.page = machine_granularity()};
    range.bytes = pages * range.page;
    REQUIRE_OK(cuMemAddressReserve(&range.at, range.bytes, 0, 0, 0));
    for (size_t i = 0; i < pages; i++)
        machine_map_page(range.at + i * range.page);
    return range;
}

void machine_unmap(struct machine_range range)
{
    EXPECT_OK(cuMemUnmap(range.at, range.bytes));
    EXPECT_OK(cuMemAddressFree(range.at, range.bytes));
}
