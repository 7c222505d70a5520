/*
 * nvml.c: NVIDIA's management library, opened when a thread asks what a device's memory is used for, never before: it costs milliseconds.
 *
 * What it says has limits that the callers put into words: in a container it lists ids of processes of the host, or none; for a device that
 * is divided (MIG) it may refuse; Windows' driver model knows no amounts.
 *
 * LOCKING: none; the library is opened once, by the thread that asks first, and is safe to call from any thread.
 */
#include "driver/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define BUS_ID 32

static struct nvml found;
static const char *refusal;                 /* why there is none; NULL: `found` is complete and initialised */
static _Atomic(const struct nvml *) other;  /* of a test */

/* C has no cast from void * to a function pointer; POSIX makes them the same bits. */
static void set_function(void *slot, const void *function)
{
    memcpy(slot, &function, sizeof function);
}

static void open_library(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    refusal = library ? NULL : "libnvidia-ml.so.1 is not there";
#define NVML(result, name, symbol, parameters)                     \
    set_function(&found.name, library ? dlsym(library, #symbol) : NULL); \
    if (library && !found.name)                                    \
        refusal = "libnvidia-ml.so.1 lacks " #symbol;
#include "driver/nvml.def"
#undef NVML
    int result = refusal ? 0 : found.init();
    if (result)
        refusal = found.words(result);
}

void nvml_interpose(const struct nvml *library)
{
    atomic_store(&other, library);
}

/* NULL and why not. */
static const struct nvml *library_in_use(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct nvml *mine = atomic_load(&other);
    if (mine)
        return mine;
    pthread_once(&once, open_library);
    *why = refusal;
    return refusal ? NULL : &found;
}

static const struct nvml *library_for(const struct driver *driver, int ordinal, void **device, const char **why)
{
    char bus[BUS_ID];
    CUdevice handle;
    if (!driver->cuDeviceGetPCIBusId || driver->cuDeviceGet(&handle, ordinal) || driver->cuDeviceGetPCIBusId(bus, sizeof bus, handle)) {
        *why = "the driver does not name the device's place on the bus";
        return NULL;
    }
    const struct nvml *n = library_in_use(why);
    int result = n ? n->device(bus, device) : 0;
    if (result)
        *why = n->words(result);
    return result ? NULL : n;
}

bool nvml_memory(const struct driver *driver, int ordinal, struct nvml_memory *memory)
{
    const char *why;
    void *device;
    const struct nvml *n = library_for(driver, ordinal, &device, &why);
    return n && !n->memory(device, memory);
}

/* A process that computes and draws is on both lists. */
static unsigned without_doubles(struct nvml_process *list, unsigned first, unsigned count)
{
    unsigned kept = first;
    for (unsigned i = first; i < count; i++) {
        unsigned known = 0;
        while (known < first && list[known].pid != list[i].pid)
            known++;
        if (known == first)
            list[kept++] = list[i];
    }
    return kept;
}

const char *nvml_processes(const struct driver *driver, int ordinal, struct nvml_process list[NVML_MAX], unsigned *count)
{
    const char *why = NULL;
    void *device;
    const struct nvml *n = library_for(driver, ordinal, &device, &why);
    *count = 0;
    if (!n)
        return why;
    unsigned computing = NVML_MAX;
    int result = n->computing(device, &computing, list);
    if (result || computing > NVML_MAX)
        return result ? n->words(result) : "it lists more processes than there is room for";
    unsigned drawing = NVML_MAX - computing;
    if (n->drawing(device, &drawing, list + computing) || drawing > NVML_MAX - computing)
        drawing = 0;
    *count = without_doubles(list, computing, computing + drawing);
    return NULL;
}
