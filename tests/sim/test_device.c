/* test_device.c: devices: count, attributes, names, memory. CUDA driver API only. */
#include "tests/sim/machine.h"

CASE(there_is_a_device)
{
    int count = 0;
    EXPECT_OK(cuDeviceGetCount(&count));
    EXPECT(count >= 1);
}

CASE(device_is_found_by_ordinal)
{
    CUdevice device = -1;
    EXPECT_OK(cuDeviceGet(&device, 0));
    EXPECT_EQ(device, 0);
}

CASE(ordinal_beyond_the_last_is_refused)
{
    int count;
    CUdevice device;
    REQUIRE_OK(cuDeviceGetCount(&count));
    EXPECT_EQ(cuDeviceGet(&device, count), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
}

CASE(virtual_memory_and_pools_are_supported)
{
    int vmm = 0, pools = 0, unified = 0;
    EXPECT_OK(cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    EXPECT_OK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    EXPECT_OK(cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    EXPECT_EQ(vmm, 1);
    EXPECT_EQ(pools, 1);
    EXPECT_EQ(unified, 1);
}

CASE(attribute_without_meaning_is_refused)
{
    int value;
    EXPECT_EQ(cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(name_is_cut_to_the_room_given)
{
    char name[8];
    memset(name, 'x', sizeof name);
    EXPECT_OK(cuDeviceGetName(name, sizeof name, 0));
    EXPECT(memchr(name, 0, sizeof name) != NULL);
}

CASE(uuid_is_stable)
{
    CUuuid one, two;
    EXPECT_OK(cuDeviceGetUuid(&one, 0));
    EXPECT_OK(cuDeviceGetUuid(&two, 0));
    EXPECT(memcmp(&one, &two, sizeof one) == 0);
}

CASE(bus_id_leads_back_to_the_device)
{
    char id[32];
    CUdevice device = -1;
    EXPECT_OK(cuDeviceGetPCIBusId(id, sizeof id, 0));
    EXPECT_OK(cuDeviceGetByPCIBusId(&device, id));
    EXPECT_EQ(device, 0);
}

CASE(free_memory_is_less_than_total)
{
    size_t left = 0, total = 0, whole = 0;
    EXPECT_OK(cuMemGetInfo(&left, &total));
    EXPECT_OK(cuDeviceTotalMem(&whole, 0));
    EXPECT(left > 0 && left <= total && total <= whole);
}

CASE(driver_version_is_that_of_the_header_or_newer)
{
    int version = 0;
    EXPECT_OK(cuDriverGetVersion(&version));
    EXPECT(version >= 12000);
}

CASE(errors_have_names_and_words)
{
    const char *text = NULL;
    EXPECT_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT_TEXT_EQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT_TEXT_EQ(text, "out of memory");
    EXPECT_OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT_TEXT_EQ(text, "an illegal memory access was encountered");
    EXPECT_EQ(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(text, NULL);
}

SUITE_MAIN_AROUND("simulated driver: devices", machine_begin, machine_end)
