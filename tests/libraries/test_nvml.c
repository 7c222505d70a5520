/* test_nvml.c: the simulated management library: which devices there are, their memory and which process has it, and what it does not know. */
#include <cuda.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define DEVICES 3
#define MIB (1ull << 20)

enum { FINE, UNINITIALIZED, ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, MISMATCH = 25 };

typedef struct device *device;
struct memory {
    unsigned long long total, left, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, left, used;
};
struct process_v1 {
    unsigned process;
    unsigned long long bytes;
};
struct process_v3 {
    unsigned process;
    unsigned long long bytes;
    unsigned instance, compute_instance;
};
struct bus {
    char short_id[16];
    unsigned domain, bus, device, kind, subsystem;
    char id[32];
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int error);
int nvmlSystemGetDriverVersion(char *text, unsigned room);
int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *device);
int nvmlDeviceGetHandleByUUID(const char *uuid, device *device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, device *device);
int nvmlDeviceGetIndex(device device, unsigned *index);
int nvmlDeviceGetUUID(device device, char *text, unsigned room);
int nvmlDeviceGetName(device device, char *text, unsigned room);
int nvmlDeviceGetPciInfo_v3(device device, struct bus *bus);
int nvmlDeviceGetMemoryInfo(device device, struct memory *memory);
int nvmlDeviceGetMemoryInfo_v2(device device, struct memory_v2 *memory);
int nvmlDeviceGetComputeRunningProcesses(device device, unsigned *count, struct process_v1 *list);
int nvmlDeviceGetComputeRunningProcesses_v3(device device, unsigned *count, struct process_v3 *list);
int nvmlDeviceGetGraphicsRunningProcesses_v3(device device, unsigned *count, struct process_v3 *list);
int nvmlDeviceGetClockInfo(device device, unsigned clock, unsigned *mhz);
int nvmlDeviceGetUtilizationRates(device device, unsigned rates[2]);
int nvmlDeviceGetCudaComputeCapability(device device, int *major, int *minor);
int nvmlDeviceGetTemperature(device device, unsigned sensor, unsigned *degrees);
int nvmlDeviceGetCurrPcieLinkGeneration(device device, unsigned *generation);
int nvmlDeviceGetPowerUsage(device device, unsigned *mw);
int nvmlDeviceGetP2PStatus(device a, device b, unsigned what, int *answer);
int nvmlDeviceGetGpuFabricInfo(device device, void *info);
int nvmlDeviceGetGpuFabricInfoV(device device, void *info);

#define OK(call) EXPECT_EQ(call, FINE)
#define MUST(call) REQUIRE_EQ(call, FINE)

static void begin(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.devices = DEVICES;
    shape.capacity = 1024 * MIB;
    shape.context_bytes = 100 * MIB;
    sim_reset(&shape);
    sim_set_quiet(true);
    MUST(nvmlInit_v2());
}

static void end(void)
{
    nvmlShutdown();
}

static device handle(unsigned index)
{
    device found = NULL;
    MUST(nvmlDeviceGetHandleByIndex_v2(index, &found));
    return found;
}

CASE(it_has_to_be_initialised)
{
    unsigned count;
    device first = handle(0);
    OK(nvmlInit_v2());
    OK(nvmlShutdown());
    OK(nvmlDeviceGetCount_v2(&count));
    OK(nvmlShutdown());
    EXPECT_EQ(nvmlDeviceGetCount_v2(&count), UNINITIALIZED);
    EXPECT_EQ(nvmlDeviceGetIndex(first, &count), UNINITIALIZED);
    EXPECT_EQ(nvmlShutdown(), UNINITIALIZED);
    EXPECT_TEXT_EQ(nvmlErrorString(UNINITIALIZED), "Uninitialized");
}

CASE(counting_does_not_start_the_driver)
{
    unsigned count = 0;
    int devices;
    OK(nvmlDeviceGetCount_v2(&count));
    EXPECT_EQ(count, DEVICES);
    EXPECT(handle(2) != NULL);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(DEVICES, &(device){NULL}), ARGUMENT);
    EXPECT_EQ(cuDeviceGetCount(&devices), CUDA_ERROR_NOT_INITIALIZED);
}

/* Everything that a monitor asks; and then a child of fork has the device for itself. */
CASE(no_question_starts_the_driver)
{
    char text[96];
    struct memory memory;
    struct bus bus;
    struct process_v3 list[2];
    device found;
    unsigned value = 2;
    int devices, major, minor, status = -1;
    device first = handle(0);
    OK(nvmlDeviceGetName(first, text, sizeof text));
    OK(nvmlDeviceGetUUID(first, text, sizeof text));
    OK(nvmlDeviceGetHandleByUUID(text, &found));
    OK(nvmlDeviceGetPciInfo_v3(first, &bus));
    OK(nvmlDeviceGetHandleByPciBusId_v2(bus.id, &found));
    OK(nvmlDeviceGetMemoryInfo(first, &memory));
    OK(nvmlDeviceGetComputeRunningProcesses_v3(first, &value, list));
    OK(nvmlDeviceGetCudaComputeCapability(first, &major, &minor));
    OK(nvmlDeviceGetClockInfo(first, 1, &value));
    OK(nvmlDeviceGetP2PStatus(first, handle(1), 0, &devices));
    EXPECT_EQ(cuDeviceGetCount(&devices), CUDA_ERROR_NOT_INITIALIZED);
    pid_t child = fork();
    if (!child) {
        CUcontext context;
        CUdeviceptr at;
        bool fine = !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context) && !cuMemAlloc(&at, MIB);
        _exit(fine ? 42 : 1);
    }
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 42);
}

CASE(bus_ids_are_read_as_people_write_them)
{
    struct bus bus;
    device found = NULL;
    char text[64];
    OK(nvmlDeviceGetPciInfo_v3(handle(1), &bus));
    snprintf(text, sizeof text, "%x:%x.0", bus.bus, bus.device);
    OK(nvmlDeviceGetHandleByPciBusId_v2(text, &found));
    EXPECT_EQ((uintptr_t)found, (uintptr_t)handle(1));
    snprintf(text, sizeof text, "%04x:%02x:%02x", bus.domain, bus.bus, bus.device);
    OK(nvmlDeviceGetHandleByPciBusId_v2(text, &found));
    EXPECT_EQ((uintptr_t)found, (uintptr_t)handle(1));
    static const char *const none[] = {"", "0", "zz:00:00.0", "0000:ff:00.0", "0001:00:00.0", "0000:00:00.0 and more"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(none[i], &found), NOT_FOUND);
}

/* Index, memory and names are the machine's; the driver shows what it was told to show. */
CASE(hidden_devices_are_there)
{
    unsigned count = 0;
    int status = -1;
    pid_t child = fork();
    if (!child) {
        int devices = -1;
        char ours[96] = "", theirs[96] = "";
        CUuuid uuid;
        setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
        setenv("CENOTE_SIM", "devices:3", 1);
        sim_reset(NULL);
        bool fine = !cuInit(0) && !cuDeviceGetCount(&devices) && devices == 2 && !nvmlDeviceGetCount_v2(&count) && count == DEVICES;
        fine = fine && !cuDeviceGetUuid(&uuid, 0) && !nvmlDeviceGetUUID(handle(2), ours, sizeof ours);
        snprintf(theirs, sizeof theirs, "GPU-%02x%02x%02x%02x-", uuid.bytes[0] & 0xff, uuid.bytes[1] & 0xff, uuid.bytes[2] & 0xff,
                 uuid.bytes[3] & 0xff);
        _exit(fine && !strncmp(ours, theirs, 13) ? 42 : 1);
    }
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 42);
}

CASE(devices_are_those_of_the_driver)
{
    char text[96], name[96], small[4];
    CUuuid uuid;
    struct bus bus;
    device found = NULL;
    unsigned index = 0;
    int major, minor, version;
    device second = handle(1);
    MUST(cuInit(0));
    OK(nvmlDeviceGetName(second, text, sizeof text));
    MUST(cuDeviceGetName(name, sizeof name, 1));
    EXPECT_TEXT_EQ(text, name);
    EXPECT_EQ(nvmlDeviceGetName(second, small, sizeof small), TOO_SMALL);
    OK(nvmlDeviceGetUUID(second, text, sizeof text));
    MUST(cuDeviceGetUuid(&uuid, 1));
    snprintf(name, sizeof name, "GPU-%02x%02x%02x%02x-", uuid.bytes[0] & 0xff, uuid.bytes[1] & 0xff, uuid.bytes[2] & 0xff,
             uuid.bytes[3] & 0xff);
    EXPECT_EQ(strncmp(text, name, 13), 0);
    EXPECT_EQ(strlen(text), 40);
    OK(nvmlDeviceGetHandleByUUID(text, &found));
    EXPECT_EQ((uintptr_t)found, (uintptr_t)second);
    EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-none", &found), NOT_FOUND);
    OK(nvmlDeviceGetPciInfo_v3(second, &bus));
    OK(nvmlDeviceGetHandleByPciBusId_v2(bus.id, &found));
    EXPECT_EQ((uintptr_t)found, (uintptr_t)second);
    OK(nvmlDeviceGetIndex(found, &index));
    EXPECT_EQ(index, 1);
    EXPECT_EQ(nvmlDeviceGetIndex((device)(void *)&index, &index), ARGUMENT);
    OK(nvmlDeviceGetCudaComputeCapability(second, &major, &minor));
    EXPECT_EQ(major, 9);
    OK(nvmlSystemGetCudaDriverVersion_v2(&version));
    EXPECT_EQ(version, 13000);
    OK(nvmlSystemGetDriverVersion(text, sizeof text));
}

CASE(memory_is_what_the_driver_says)
{
    struct memory memory;
    struct memory_v2 more = {.version = 0x02000028};
    struct process_v1 old;
    struct process_v3 list[2];
    CUcontext context;
    CUdeviceptr at;
    unsigned count = 0;
    OK(nvmlDeviceGetMemoryInfo(handle(1), &memory));
    EXPECT_EQ(memory.total, 1024 * MIB);
    EXPECT_EQ(memory.used, 0);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(handle(1), &count, NULL));
    EXPECT_EQ(count, 0);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&at, 200 * MIB));
    sim_set_foreign(1, 24 * MIB);
    OK(nvmlDeviceGetMemoryInfo(handle(1), &memory));
    EXPECT_EQ(memory.used, 324 * MIB);
    EXPECT_EQ(memory.left, 700 * MIB);
    OK(nvmlDeviceGetMemoryInfo_v2(handle(1), &more));
    EXPECT_EQ(more.used, 324 * MIB);
    more.version = 1;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(handle(1), &more), MISMATCH);
    OK(nvmlDeviceGetMemoryInfo(handle(0), &memory));
    EXPECT_EQ(memory.used, 0);
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle(1), &count, NULL), TOO_SMALL);
    EXPECT_EQ(count, 1);
    count = 2;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(handle(1), &count, list));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(list[0].process, (unsigned)getpid());
    EXPECT_EQ(list[0].bytes, 300 * MIB);
    OK(nvmlDeviceGetComputeRunningProcesses(handle(1), &count, &old));
    EXPECT_EQ(old.bytes, 300 * MIB);
    OK(nvmlDeviceGetGraphicsRunningProcesses_v3(handle(1), &count, NULL));
    EXPECT_EQ(count, 0);
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(NULL, &memory), ARGUMENT);
    MUST(cuDevicePrimaryCtxRelease(1));
}

CASE(what_cannot_be_measured_is_not_supported)
{
    unsigned value, rates[2] = {7, 7};
    int answer = -1;
    OK(nvmlDeviceGetUtilizationRates(handle(0), rates));
    EXPECT_EQ(rates[0] + rates[1], 0);
    OK(nvmlDeviceGetClockInfo(handle(0), 1, &value));
    EXPECT_EQ(value, 1980);
    EXPECT_EQ(nvmlDeviceGetClockInfo(handle(0), 9, &value), ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetTemperature(handle(0), 0, &value), NOT_SUPPORTED);
    EXPECT_EQ(nvmlDeviceGetPowerUsage(handle(0), &value), NOT_SUPPORTED);
    EXPECT_EQ(nvmlDeviceGetCurrPcieLinkGeneration(handle(0), &value), NOT_SUPPORTED);
    OK(nvmlDeviceGetP2PStatus(handle(0), handle(1), 0, &answer));
    EXPECT_EQ(answer, 0);
    OK(nvmlDeviceGetP2PStatus(handle(0), handle(1), 2, &answer));
    EXPECT_EQ(answer, 5);
}

/* PyTorch warns if a device of compute capability 9.0 does not know. */
CASE(a_device_knows_that_it_has_no_fabric)
{
    static const unsigned versions[] = {0x2000024, 0x3000028}; /* the lower bits: bytes */
    enum { WORDS = 11, LEFT = 0x7070707 };
    unsigned info[WORDS];
    for (int i = 0; i < 2; i++) {
        memset(info, 7, sizeof info);
        info[0] = versions[i];
        OK(nvmlDeviceGetGpuFabricInfoV(handle(0), info));
        EXPECT_EQ(info[0], versions[i]);
        for (unsigned at = 1; at < WORDS; at++)
            EXPECT_EQ(info[at], at * 4 < (versions[i] & 0xff) ? 0 : LEFT);
    }
    memset(info, 7, sizeof info);
    OK(nvmlDeviceGetGpuFabricInfo(handle(0), info));
    for (unsigned at = 0; at < WORDS; at++)
        EXPECT_EQ(info[at], at * 4 < 28 ? 0 : LEFT);
    EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(handle(0), info + 7), MISMATCH);
    EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(handle(0), NULL), ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetGpuFabricInfo(handle(0), NULL), ARGUMENT);
}

SUITE_MAIN_AROUND("nvml", begin, end)
