/* nvml.h: which processes are on a device, as NVIDIA's management library says. See nvml.c. */
#ifndef CENOTE_DRIVER_NVML_H
#define CENOTE_DRIVER_NVML_H

#include "driver/driver.h"

#define NVML_UNKNOWN 0xffffffffffffffffull  /* bytes of a process: the library does not tell */
#define NVML_MAX    128                    /* processes that are looked at */

struct nvml_process {               /* nvmlProcessInfo_t */
    unsigned           pid;
    unsigned long long bytes;
    unsigned           instance, compute_instance;
};

struct nvml_memory {                /* nvmlMemory_t */
    unsigned long long total, left, used;
};

struct nvml {
#define NVML(result, name, symbol, parameters) result (*name) parameters;
#include "driver/nvml.def"
#undef NVML
};

/*
 * The processes that hold memory of a device, each once. NULL, or why they are not known, in words; then *count is 0. Makes no call of the
 * driver but for the name of the device's place on the bus: safe while a capture is open.
 */
const char *nvml_processes(const struct driver *driver, int ordinal, struct nvml_process list[NVML_MAX], unsigned *count);

/* Bytes of the device that are in use, by any process. False: not known. */
bool nvml_memory(const struct driver *driver, int ordinal, struct nvml_memory *memory);

/* Another library from now on, for tests; NULL: the real one. */
void nvml_interpose(const struct nvml *library);

#endif
