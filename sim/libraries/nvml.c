/*
 * nvml.c: the simulated management library: the devices as nvidia-smi would see them. Memory is what the driver's books say, of all
 * processes of the machine. A figure that has a meaning without a device is answered: clocks are those of the device's attributes, and
 * utilisation is 0, for kernels take no time. What has none (temperature, power, energy, fans, links, errors of memory) is "not
 * supported", as on devices without such a sensor: a number would be taken for a measurement.
 *
 * Like the real one it never starts the driver, so a program may ask anything, fork, and use CUDA in the child. Devices go by their index
 * on the machine, whatever CUDA_VISIBLE_DEVICES says.
 *
 * LOCKING: none; how often it was initialised is atomic.
 */
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/library.h"
#include "sim/sim.h"

#define HANDLES_MAX 64             /* devices that there are handles for */
#define PROCESSES_MAX (1 << 20)    /* that a caller has room for */
#define NO_INSTANCE 0xffffffffu     /* of a device that is not divided */
#define MEMORY_V2 0x02000028u
#define DRIVER_VERSION "580.65.06"  /* the first that knows CUDA 13 */
#define LIBRARY_VERSION "13.580.65.06"

enum nvml {
    NVML_SUCCESS, NVML_UNINITIALIZED, NVML_INVALID_ARGUMENT, NVML_NOT_SUPPORTED, NVML_NO_PERMISSION, NVML_ALREADY_INITIALIZED,
    NVML_NOT_FOUND, NVML_INSUFFICIENT_SIZE, NVML_MEMORY = 20, NVML_VERSION_MISMATCH = 25, NVML_UNKNOWN = 999
};

static const struct error {
    int code;
    const char *text;
} errors[] = {
    {NVML_SUCCESS, "Success"}, {NVML_UNINITIALIZED, "Uninitialized"}, {NVML_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_NOT_SUPPORTED, "Not Supported"}, {NVML_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ALREADY_INITIALIZED, "Already Initialized"}, {NVML_NOT_FOUND, "Not Found"}, {NVML_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_MEMORY, "Insufficient Memory"}, {NVML_VERSION_MISMATCH, "Argument Version Mismatch"}, {NVML_UNKNOWN, "Unknown Error"},
};

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
    char     short_id[16];
    unsigned domain, bus, device, kind, subsystem;
    char     id[32];
};

/* What programs hold: its address stands for the device. */
struct nvml_device {
    char nothing;
};

static struct nvml_device devices[HANDLES_MAX];
static _Atomic int initialised;

/* Which device; -1: none, and `result` says why. */
static int find(const struct nvml_device *device, enum nvml *result)
{
    *result = !atomic_load(&initialised) ? NVML_UNINITIALIZED : NVML_SUCCESS;
    uintptr_t index = ((uintptr_t)device - (uintptr_t)devices) / sizeof *devices;
    if (!*result && (index >= HANDLES_MAX || (int)index >= sim_device_count()))
        *result = NVML_INVALID_ARGUMENT;
    return *result ? -1 : (int)index;
}

static enum nvml count_devices(int *count)
{
    *count = 0;
    if (!atomic_load(&initialised))
        return NVML_UNINITIALIZED;
    *count = sim_device_count();
    if (*count > HANDLES_MAX)
        *count = HANDLES_MAX;
    return NVML_SUCCESS;
}

static enum nvml describe(const struct nvml_device *device, struct sim_device *out)
{
    enum nvml result;
    int index = find(device, &result);
    if (!result && !sim_device(index, out))
        result = NVML_UNKNOWN;
    return result;
}

static enum nvml copy_text(char *to, unsigned room, const char *text)
{
    if (!to)
        return NVML_INVALID_ARGUMENT;
    if (strlen(text) >= room)
        return NVML_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

static enum nvml attribute(const struct nvml_device *device, int *value, CUdevice_attribute which)
{
    enum nvml result;
    int index = find(device, &result);
    if (!result && !value)
        result = NVML_INVALID_ARGUMENT;
    if (!result && !sim_device_attribute(index, which, value))
        result = NVML_UNKNOWN;
    return result;
}

static void write_uuid(char text[41], const CUuuid *uuid)
{
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid->bytes[i]);
}

/* Fills what the caller has room for; with too little room, says how many there are. */
static enum nvml processes(const struct nvml_device *device, unsigned *count, void *list, bool v1)
{
    enum nvml result;
    int index = find(device, &result);
    if (!result && !count)
        result = NVML_INVALID_ARGUMENT;
    if (result)
        return result;
    int room = !list ? 0 : *count > PROCESSES_MAX ? PROCESSES_MAX : (int)*count;
    struct sim_process *found = room ? calloc((size_t)room, sizeof *found) : NULL;
    if (room && !found)
        return NVML_MEMORY;
    int there = sim_processes(index, found, room);
    *count = there > 0 ? (unsigned)there : 0;
    for (int i = 0; i < there && there <= room; i++)
        if (v1)
            ((struct process_v1 *)list)[i] = (struct process_v1){(unsigned)found[i].process, found[i].bytes};
        else
            ((struct process_v3 *)list)[i] = (struct process_v3){(unsigned)found[i].process, found[i].bytes, NO_INSTANCE, NO_INSTANCE};
    free(found);
    return there > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static enum nvml tell(const struct nvml_device *device, unsigned *to, unsigned what)
{
    enum nvml result;
    find(device, &result);
    if (!result && !to)
        result = NVML_INVALID_ARGUMENT;
    if (!result)
        *to = what;
    return result;
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    atomic_fetch_add(&initialised, 1);
    return NVML_SUCCESS;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    int before = atomic_load(&initialised);
    while (before && !atomic_compare_exchange_weak(&initialised, &before, before - 1))
        ;
    return before ? NVML_SUCCESS : NVML_UNINITIALIZED;
}

const char *nvmlErrorString(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].text;
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned room)
{
    return atomic_load(&initialised) ? (int)copy_text(text, room, DRIVER_VERSION) : NVML_UNINITIALIZED;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned room)
{
    return atomic_load(&initialised) ? (int)copy_text(text, room, LIBRARY_VERSION) : NVML_UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return NVML_INVALID_ARGUMENT;
    return cuDriverGetVersion(version) ? NVML_UNKNOWN : NVML_SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

int nvmlSystemGetProcessName(unsigned process, char *text, unsigned room)
{
    char path[40], name[4096];
    snprintf(path, sizeof path, "/proc/%u/cmdline", process);
    FILE *file = fopen(path, "r");
    if (!file)
        return NVML_NOT_FOUND;
    size_t got = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    name[got] = 0;
    return (int)copy_text(text, room, name);
}

/* --- which devices there are */

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int there;
    enum nvml result = count ? count_devices(&there) : NVML_INVALID_ARGUMENT;
    if (!result)
        *count = (unsigned)there;
    return (int)result;
}

int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **device)
{
    int there;
    enum nvml result = device ? count_devices(&there) : NVML_INVALID_ARGUMENT;
    if (!result && index >= (unsigned)there)
        result = NVML_INVALID_ARGUMENT;
    if (!result)
        *device = &devices[index];
    return (int)result;
}

int nvmlDeviceGetHandleByIndex(unsigned index, struct nvml_device **device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct nvml_device **device)
{
    int there;
    enum nvml result = uuid && device ? count_devices(&there) : NVML_INVALID_ARGUMENT;
    for (int i = 0; !result && i < there; i++) {
        struct sim_device one;
        char text[41];
        if (!sim_device(i, &one))
            return NVML_UNKNOWN;
        write_uuid(text, &one.uuid);
        if (strcmp(text, uuid))
            continue;
        *device = &devices[i];
        return NVML_SUCCESS;
    }
    return result ? (int)result : NVML_NOT_FOUND;
}

/* "domain:bus:device.function" in as many digits as one likes, the function or the domain left out too. */
static bool read_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device)
{
    char end;
    int got = sscanf(text, "%x:%x:%x.%*x%c", domain, bus, device, &end);
    if (got == 3)
        return true;
    *domain = 0;
    return got == 2 && sscanf(text, "%x:%x.%*x%c", bus, device, &end) == 2;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct nvml_device **device)
{
    int there;
    unsigned wanted[3], has[3];
    enum nvml result = count_devices(&there);
    if (!result && (!id || !device))
        result = NVML_INVALID_ARGUMENT;
    bool is_id = !result && read_bus_id(id, &wanted[0], &wanted[1], &wanted[2]);
    for (int i = 0; is_id && i < there; i++) {
        struct sim_device one;
        if (!sim_device(i, &one) || !read_bus_id(one.bus_id, &has[0], &has[1], &has[2]) || memcmp(wanted, has, sizeof has))
            continue;
        *device = &devices[i];
        return NVML_SUCCESS;
    }
    return result ? (int)result : NVML_NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId(const char *id, struct nvml_device **device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

int nvmlDeviceGetIndex(const struct nvml_device *device, unsigned *index)
{
    return (int)tell(device, index, (unsigned)(device - devices));
}

int nvmlDeviceGetMinorNumber(const struct nvml_device *device, unsigned *number)
{
    return (int)tell(device, number, (unsigned)(device - devices));
}

int nvmlDeviceGetUUID(const struct nvml_device *device, char *text, unsigned room)
{
    char uuid[41];
    struct sim_device one;
    enum nvml result = describe(device, &one);
    if (result)
        return (int)result;
    write_uuid(uuid, &one.uuid);
    return (int)copy_text(text, room, uuid);
}

int nvmlDeviceGetName(const struct nvml_device *device, char *text, unsigned room)
{
    struct sim_device one;
    enum nvml result = describe(device, &one);
    return (int)(result ? result : copy_text(text, room, one.name));
}

int nvmlDeviceGetPciInfo_v3(const struct nvml_device *device, struct bus *bus)
{
    struct sim_device one;
    enum nvml result = describe(device, &one);
    if (!result && !bus)
        result = NVML_INVALID_ARGUMENT;
    if (result)
        return (int)result;
    memset(bus, 0, sizeof *bus);
    read_bus_id(one.bus_id, &bus->domain, &bus->bus, &bus->device);
    snprintf(bus->short_id, sizeof bus->short_id, "%04X:%02X:%02X.0", bus->domain & 0xffff, bus->bus & 0xff, bus->device & 0xff);
    snprintf(bus->id, sizeof bus->id, "%08X:%02X:%02X.0", bus->domain, bus->bus & 0xff, bus->device & 0xff);
    return NVML_SUCCESS;
}

int nvmlDeviceGetPciInfo_v2(const struct nvml_device *device, struct bus *bus)
{
    return nvmlDeviceGetPciInfo_v3(device, bus);
}

/* --- memory, and which process has it */

int nvmlDeviceGetMemoryInfo(const struct nvml_device *device, struct memory *memory)
{
    struct sim_device one;
    enum nvml result = describe(device, &one);
    if (!result && !memory)
        result = NVML_INVALID_ARGUMENT;
    if (!result)
        *memory = (struct memory){one.total, one.total - one.used, one.used};
    return (int)result;
}

int nvmlDeviceGetMemoryInfo_v2(const struct nvml_device *device, struct memory_v2 *memory)
{
    struct memory plain;
    if (memory && memory->version != MEMORY_V2)
        return NVML_VERSION_MISMATCH;
    int result = memory ? nvmlDeviceGetMemoryInfo(device, &plain) : NVML_INVALID_ARGUMENT;
    if (!result)
        *memory = (struct memory_v2){MEMORY_V2, plain.total, 0, plain.left, plain.used};
    return result;
}

int nvmlDeviceGetComputeRunningProcesses(const struct nvml_device *device, unsigned *count, struct process_v1 *list)
{
    return (int)processes(device, count, list, true);
}

int nvmlDeviceGetComputeRunningProcesses_v2(const struct nvml_device *device, unsigned *count, struct process_v3 *list)
{
    return (int)processes(device, count, list, false);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const struct nvml_device *device, unsigned *count, struct process_v3 *list)
{
    return (int)processes(device, count, list, false);
}

/* --- what it can */

int nvmlDeviceGetCudaComputeCapability(const struct nvml_device *device, int *major, int *minor)
{
    enum nvml result = attribute(device, major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    return (int)(result ? result : attribute(device, minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

int nvmlDeviceGetClockInfo(const struct nvml_device *device, unsigned clock, unsigned *mhz)
{
    static const CUdevice_attribute rates[] = {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
                                               CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE};
    int khz;
    if (!mhz || clock > 3)
        return NVML_INVALID_ARGUMENT;
    enum nvml result = clock == 3 ? NVML_NOT_SUPPORTED : attribute(device, &khz, rates[clock]);
    if (!result)
        *mhz = (unsigned)khz / 1000;
    return (int)result;
}

int nvmlDeviceGetMaxClockInfo(const struct nvml_device *device, unsigned clock, unsigned *mhz)
{
    return nvmlDeviceGetClockInfo(device, clock, mhz);
}

int nvmlDeviceGetUtilizationRates(const struct nvml_device *device, unsigned rates[2])
{
    enum nvml result = tell(device, rates, 0);
    return (int)(result ? result : tell(device, rates + 1, 0));
}

/* Any two devices of the machine reach each other's memory, as the driver says too, over a bus without NVLink. */
int nvmlDeviceGetP2PStatus(const struct nvml_device *device, const struct nvml_device *peer, unsigned what, int *answer)
{
    enum { READ, WRITE, NVLINK, ATOMICS, PROPERTY, FINE = 0, NOT_SUPPORTED = 5 };
    enum nvml result, other;
    int a = find(device, &result), b = find(peer, &other);
    if (result || other || !answer || what > PROPERTY)
        return result ? (int)result : NVML_INVALID_ARGUMENT;
    *answer = a != b && what != NVLINK && what != ATOMICS ? FINE : NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* A device of compute capability 9.0 says whether it is attached to a fabric of NVLinks. These are not: 0 is "not supported" in each field. */
static enum nvml without_fabric(const struct nvml_device *device, void *fields, size_t size)
{
    enum nvml result;
    find(device, &result);
    if (!result && !fields)
        result = NVML_INVALID_ARGUMENT;
    if (!result)
        memset(fields, 0, size);
    return result;
}

int nvmlDeviceGetGpuFabricInfo(const struct nvml_device *device, void *info)
{
    enum { SIZE = 28 };
    return (int)without_fabric(device, info, SIZE);
}

/* The version, which the caller writes first, has the size of the structure in its lower three bytes. */
int nvmlDeviceGetGpuFabricInfoV(const struct nvml_device *device, unsigned *info)
{
    enum { V2 = 2 << 24 | 36, V3 = 3 << 24 | 40 };
    if (info && *info != V2 && *info != V3)
        return NVML_VERSION_MISMATCH;
    return (int)without_fabric(device, info ? info + 1 : NULL, info ? (*info & 0xffffff) - sizeof *info : 0);
}

/* PLAIN(name, value): one number, the same for every device. UNKNOWN(name): there is no such thing to measure or to set. */
#define PLAIN(name, value) \
    int nvmlDeviceGet##name(const struct nvml_device *device, unsigned *to) { return (int)tell(device, to, (value)); }
#define UNKNOWN(name)                                                          \
    int nvmlDeviceGet##name(const struct nvml_device *device)                  \
    {                                                                          \
        enum nvml result;                                                      \
        find(device, &result);                                                 \
        return (int)(result ? result : NVML_NOT_SUPPORTED);                    \
    }
#include "sim/libraries/nvml.def"
