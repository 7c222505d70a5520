/* test_visible.c: CUDA_VISIBLE_DEVICES: which devices a process sees, in what order, and what it shares with processes that see others. */
#include <unistd.h>

#include "tests/sim/agent.h"

#define MIB (1ull << 20)
#define CONTEXT (64 * MIB)
#define CAPACITY (1024 * MIB)
#define DEVICES 4

static char shape[256];

/* This process starts anew, as a program that finds these variables. */
static void see(const char *list)
{
    if (list)
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
    sim_reset(NULL);
    sim_set_quiet(true);
}

/* All of this program's processes are on one machine that no other run of it has. */
static void begin(void)
{
    static int runs;
    snprintf(shape, sizeof shape, "capacity:1GiB,context_bytes:64MiB,devices:4,machine:visible-%d-%d", (int)getpid(), ++runs);
    setenv("CENOTE_SIM", shape, 1);
    see(NULL);
}

static void end(void)
{
    struct sim_shape alone = simulated_shape();
    sim_reset(&alone);
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static int index_of(CUdevice device)
{
    char id[16];
    unsigned bus = 0;
    EXPECT_OK(cuDeviceGetPCIBusId(id, sizeof id, device));
    EXPECT_EQ(sscanf(id, "0000:%x", &bus), 1);
    return (int)bus - 1;
}

static uint64_t used(int index)
{
    struct sim_device device;
    REQUIRE(sim_device(index, &device));
    EXPECT_EQ(device.total, CAPACITY);
    return device.used;
}

/* Indices of what this process sees, as digits. "": cuInit says that there is none. */
static const char *seen(void)
{
    static char text[DEVICES + 1];
    int count = 0;
    memset(text, 0, sizeof text);
    CUresult result = cuInit(0);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_NO_DEVICE);
    EXPECT_EQ(cuDeviceGetCount(&count), result ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS);
    for (int i = 0; i < count && i < DEVICES; i++)
        text[i] = (char)('0' + index_of(i));
    return text;
}

CASE(the_list_says_which_devices_and_in_what_order)
{
    static const struct { const char *list, *seen; } rows[] = {
        {NULL, "0123"}, {"2,0", "20"}, {"3", "3"}, {"3,2,1,0", "3210"}, {" 3 , 1", "31"}, {"+1,00", "10"}, {"2nd,1st", "21"},
        /* the first that is none ends it */
        {"0,2,-1,1", "02"}, {"1,4,0", "1"}, {"3,", "3"}, {"3,,1", "3"}, {"0-2", "0"}, {"1,x,2", "1"},
        {"", ""}, {"-1", ""}, {"-1,0", ""}, {",1", ""}, {"none", ""}, {"4", ""}, {"99999999999999999999", ""}, {"4294967296", ""},
        /* twice */
        {"1,1", ""}, {"0,1,0", ""}, {"2,-1,2", "2"},
        /* UUIDs, as far as they fit one */
        {"GPU-73696d02", "2"}, {"GPU-73696d02,GPU-73696d00-75", "20"}, {"GPU-73696d03-756c-6174-6564-2047", "3"},
        {"GPU-73696d01,GPU-73696d0,GPU-73696d02", "1"}, {"GPU-", ""},
        {"GPU-73696d04", ""}, {"gpu-73696d02", ""}, {"GPU-73696d01,GPU-73696d01-7", ""}, {"GPU-73696d02,0", "2"}, {"0,GPU-73696d02", "0"},
        {"MIG-GPU-73696d01/0/0", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        see(rows[i].list);
        const char *got = seen();
        if (strcmp(got, rows[i].seen))
            printf("CUDA_VISIBLE_DEVICES=\"%s\": \"%s\"\n", rows[i].list, got);
        EXPECT(strcmp(got, rows[i].seen) == 0);
    }
}

/* It differs from machine to machine, but not in its beginning. */
CASE(a_whole_uuid_is_one_and_a_longer_text_is_none)
{
    char text[64] = "GPU-";
    CUuuid uuid;
    see(NULL);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetUuid(&uuid, 3), CUDA_SUCCESS);
    for (int i = 0; i < 16; i++)
        sprintf(text + strlen(text), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
    see(text);
    EXPECT_TEXT_EQ(seen(), "3");
    strcat(text, "0");
    see(text);
    EXPECT_TEXT_EQ(seen(), "");
}

CASE(a_device_keeps_its_name_among_processes)
{
    CUuuid all, here;
    CUdevice device;
    int bus = 0, group = -1;
    REQUIRE_OK(cuInit(0));
    EXPECT_OK(cuDeviceGetUuid(&all, 2));
    see("2,0");
    REQUIRE_OK(cuInit(0));
    EXPECT_OK(cuDeviceGetUuid(&here, 0));
    EXPECT(memcmp(&all, &here, sizeof all) == 0);
    EXPECT_OK(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    EXPECT_OK(cuDeviceGetAttribute(&group, CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, 1));
    EXPECT_EQ(bus, 3);
    EXPECT_EQ(group, 0);
    EXPECT_OK(cuDeviceGetByPCIBusId(&device, "0000:01:00.0"));
    EXPECT_EQ(device, 1);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "0000:02:00.0"), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "0000:ff:00.0"), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "0000:00:00.0"), CUDA_ERROR_INVALID_DEVICE);
}

CASE(what_is_not_seen_does_not_exist)
{
    CUdevice device;
    CUcontext context;
    CUmemGenericAllocationHandle handle;
    int can;
    see("2,0");
    machine_begin();
    CUmemAllocationProp prop = machine_memory_of(2);
    EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuDeviceCanAccessPeer(&can, 0, 1));
    prop = machine_memory_of(1);
    REQUIRE_OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    EXPECT_EQ(used(0), 2 * MIB);
    EXPECT_EQ(used(2), CONTEXT);
    EXPECT_OK(cuMemRelease(handle));
}

CASE(cuInit_reads_it_and_settles_it)
{
    EXPECT_EQ(sim_processes(3, NULL, 0), 0); /* to look at the machine settles nothing */
    setenv("CUDA_VISIBLE_DEVICES", "3", 1);
    EXPECT(strcmp(seen(), "3") == 0);
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    EXPECT(strcmp(seen(), "3") == 0);
    see("-1");
    EXPECT(strcmp(seen(), "") == 0);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    EXPECT(strcmp(seen(), "1") == 0);
}

CASE(a_shape_of_sim_reset_shows_all_devices)
{
    struct sim_shape two = simulated_shape();
    two.devices = 2;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    sim_reset(&two);
    EXPECT(strcmp(seen(), "01") == 0);
}

CASE(the_order_of_the_bus_is_the_order)
{
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    see("1,0");
    EXPECT(strcmp(seen(), "10") == 0);
    unsetenv("CUDA_DEVICE_ORDER");
}

/* As NVML needs it: without cuInit, whatever is seen. */
CASE(the_machine_is_described_whatever_is_seen)
{
    struct sim_device device;
    CUuuid uuid;
    int bus = 0;
    struct agent a;
    CUdeviceptr at;
    REQUIRE_OK(cuInit(0));
    EXPECT_OK(cuDeviceGetUuid(&uuid, 1));
    agent_start_seeing(&a, shape, "1");
    REQUIRE_OK(agent_alloc(&a, 10 * MIB, &at));
    see("");
    REQUIRE(sim_device(1, &device));
    EXPECT_EQ(device.ordinal, -1);
    EXPECT_EQ(device.total, CAPACITY);
    EXPECT_EQ(device.used, CONTEXT + 10 * MIB);
    EXPECT(memcmp(&device.uuid, &uuid, sizeof uuid) == 0);
    EXPECT(strcmp(device.name, "Simulated GPU 1024 MiB") == 0);
    EXPECT(strcmp(device.bus_id, "0000:02:00.0") == 0);
    EXPECT_EQ(device.bus, 2);
    EXPECT(sim_device_attribute(1, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &bus));
    EXPECT_EQ(bus, 2);
    EXPECT(!sim_device_attribute(DEVICES, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &bus));
    EXPECT_EQ(sim_device_count(), DEVICES);
    EXPECT(!sim_device(DEVICES, &device));
    EXPECT(!sim_device(-1, &device));
    EXPECT_EQ(sim_processes(DEVICES, NULL, 0), -1);
    EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
    see("3,1");
    REQUIRE(sim_device(1, &device));
    EXPECT_EQ(device.ordinal, 1);
    agent_end(&a);
}

CASE(foreign_memory_is_in_the_description)
{
    see("3,1");
    machine_begin();
    sim_set_foreign(1, 100 * MIB); /* an ordinal */
    EXPECT_EQ(used(1), 100 * MIB);
    EXPECT_EQ(used(3), CONTEXT);
    sim_set_foreign(1, 3 * CAPACITY);
    EXPECT_EQ(used(1), CAPACITY);
}

CASE(processes_meet_on_the_same_device)
{
    struct agent a, b;
    CUdeviceptr at, more;
    struct sim_process list[4];
    size_t left = 0, total;
    see("2,0");
    machine_begin(); /* on 2 */
    agent_start_seeing(&a, shape, "2");
    agent_start_seeing(&b, shape, "1,2");
    REQUIRE_OK(agent_alloc(&a, 300 * MIB, &at));
    EXPECT_OK(cuMemGetInfo(&left, &total));
    EXPECT_EQ(left, CAPACITY - 2 * CONTEXT - 300 * MIB);
    EXPECT_EQ(agent_left(&a), left);
    EXPECT_EQ(agent_left(&b), CAPACITY - CONTEXT);
    EXPECT_EQ(sim_processes(2, list, 4), 2);
    EXPECT_EQ(list[list[1].process == a.process].bytes, CONTEXT + 300 * MIB);
    EXPECT_EQ(sim_processes(1, list, 4), 1);
    EXPECT_EQ(list[0].process, b.process);
    EXPECT_EQ(sim_processes(0, list, 4), 0);
    EXPECT_EQ(cuMemAlloc(&more, 700 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_OK(agent_free(&a, at));
    EXPECT_OK(cuMemAlloc(&more, 700 * MIB));
    agent_kill(&a);
    EXPECT_EQ(used(2), CONTEXT + 700 * MIB);
    agent_end(&b);
}

CASE(imported_memory_is_where_it_was_exported)
{
    struct agent a, b;
    CUdeviceptr at, there;
    CUmemGenericAllocationHandle handle, same;
    CUmemAllocationProp prop;
    int file;
    see("3,1");
    machine_begin();
    agent_start_seeing(&a, shape, "1"); /* its 0 is our 1 */
    agent_start_seeing(&b, shape, "0,2,1");
    REQUIRE_OK(agent_create(&a, 100 * MIB, &at, &file));
    EXPECT_OK(agent_fill(&a, at, 42, 4096));
    REQUIRE_OK(agent_import(&b, file, 100 * MIB, &there));
    EXPECT_EQ(agent_differ(&b, there, 42, 4096), 0);
    REQUIRE_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    REQUIRE_OK(cuMemImportFromShareableHandle(&same, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    EXPECT_OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    EXPECT_EQ(prop.location.id, 1);
    EXPECT_EQ(used(1), CONTEXT + 100 * MIB); /* once */
    agent_kill(&a);
    EXPECT_EQ(used(1), 100 * MIB); /* an orphan */
    agent_end(&b);
    EXPECT_EQ(used(1), 100 * MIB);
    EXPECT_OK(cuMemRelease(same));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(used(1), 0);
    for (int i = 0; i < DEVICES; i++)
        EXPECT_EQ(used(i), i == 3 ? CONTEXT : 0);
}

CASE(memory_that_only_a_descriptor_kept_is_charged_where_it_is)
{
    struct agent a;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    int file;
    see("3,2,1");
    machine_begin();
    agent_start_seeing(&a, shape, "1");
    REQUIRE_OK(agent_create(&a, 50 * MIB, &at, &file));
    EXPECT_OK(agent_unmap(&a, at, 50 * MIB));
    agent_end(&a);
    EXPECT_EQ(used(1), 0);
    REQUIRE_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_EQ(used(1), 50 * MIB);
    close(file);
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(used(1), 0);
}

CASE(opened_memory_is_where_it_was_exported)
{
    struct agent a;
    CUdeviceptr at, here;
    CUipcMemHandle handle;
    CUdevice device = -1;
    see("3,1");
    machine_begin();
    agent_start_seeing(&a, shape, "1");
    REQUIRE_OK(agent_alloc(&a, 8 * MIB, &at));
    EXPECT_OK(agent_fill(&a, at, 7, 4096));
    REQUIRE_OK(agent_get(&a, at, &handle));
    REQUIRE_OK(cuIpcOpenMemHandle(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_EQ(own_differ(here, 7, 4096), 0);
    EXPECT_OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here));
    EXPECT_EQ(device, 1);
    EXPECT_EQ(used(1), CONTEXT + 8 * MIB);
    EXPECT_OK(cuIpcCloseMemHandle(here));
    agent_end(&a);
    EXPECT_EQ(used(1), 0);
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(memory_of_a_device_that_is_not_seen_is_refused)
{
    struct agent a;
    CUdeviceptr at, here;
    CUipcMemHandle handle;
    CUmemGenericAllocationHandle created;
    int file;
    see("3,1");
    machine_begin();
    agent_start_seeing(&a, shape, "0,1"); /* its 0 is no device of this process */
    REQUIRE_OK(agent_alloc(&a, 8 * MIB, &at));
    REQUIRE_OK(agent_get(&a, at, &handle));
    EXPECT_EQ(cuIpcOpenMemHandle(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE_OK(agent_create(&a, 8 * MIB, &at, &file));
    EXPECT_EQ(cuMemImportFromShareableHandle(&created, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_DEVICE);
    EXPECT(strstr(sim_last_violation(), "CUDA_VISIBLE_DEVICES hides") != NULL);
    EXPECT_EQ(simulated_violations(), 2);
    EXPECT_EQ(used(0), CONTEXT + 16 * MIB);
    close(file);
    agent_end(&a);
    EXPECT_EQ(used(0), 0); /* no process of this machine held it */
}

/* Without a machine every process has devices of its own, but they have the same indices. */
CASE(without_a_machine_as_well)
{
    struct agent a, b, c;
    CUdeviceptr at, there;
    CUipcMemHandle handle;
    static const char alone[] = ALONE ",devices:3";
    agent_start_seeing(&a, alone, "2");
    agent_start_seeing(&b, alone, "0,2");
    agent_start_seeing(&c, alone, "0,1");
    REQUIRE_OK(agent_alloc(&a, 8 * MIB, &at));
    EXPECT_OK(agent_fill(&a, at, 7, 4096));
    REQUIRE_OK(agent_get(&a, at, &handle));
    REQUIRE_OK(agent_open(&b, handle, &there));
    EXPECT_EQ(agent_differ(&b, there, 7, 4096), 0);
    EXPECT_EQ(agent_open(&c, handle, &there), CUDA_ERROR_INVALID_DEVICE);
    agent_end(&a);
    agent_end(&b);
    agent_end(&c);
}

AGENT_MAIN_AROUND("simulated device: what a process sees", begin, end)
