/*
 * settings.c: limits and preferences of contexts, which are kept and have no effect; and the older ways to ask about devices.
 */
#include "sim/machine/settings.h"

#include <stdio.h>
#include <string.h>

#define LIMITS 10               /* of CUlimit */

struct settings {
    uint64_t      context;      /* id of the context they are of: its place may have been another's */
    size_t        limits[LIMITS];
    CUfunc_cache  cache;
    CUsharedconfig banks;
};

/* 0 in `most`: the device has no such limit. */
static const struct {
    size_t standard, most;
} limits[LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = {1024, 512 << 10},
    [CU_LIMIT_PRINTF_FIFO_SIZE] = {1 << 20, SIZE_MAX},
    [CU_LIMIT_MALLOC_HEAP_SIZE] = {8 << 20, SIZE_MAX},
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = {2048, SIZE_MAX},
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = {64, 128},
    [CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = {0, SIZE_MAX},
};

static struct settings all[CONTEXTS_MAX];

static struct settings *current(void)
{
    uint32_t number = context_current();
    struct settings *s = &all[number];
    if (s->context == context_at(number)->id)
        return s;
    memset(s, 0, sizeof *s);
    s->context = context_at(number)->id;
    for (int i = 0; i < LIMITS; i++)
        s->limits[i] = limits[i].standard;
    return s;
}

static CUresult check(CUlimit limit)
{
    if ((unsigned)limit >= LIMITS)
        return CUDA_ERROR_INVALID_VALUE;
    return limits[limit].most ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

CUresult setting_limit(size_t *value, CUlimit limit)
{
    CUresult result = value ? check(limit) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *value = current()->limits[limit];
    return result;
}

/* Sizes that the device rounds are kept as they were given; the cache can set aside no more than the device says. */
CUresult setting_set_limit(CUlimit limit, size_t value)
{
    CUresult result = check(limit);
    if (result)
        return result;
    if (value > limits[limit].most)
        return CUDA_ERROR_INVALID_VALUE;
    int most = 0;
    device_attribute(&most, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, context_at(context_current())->device);
    if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE && value > (size_t)most)
        value = (size_t)most;
    current()->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult setting_cache(CUfunc_cache *config)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = current()->cache;
    return CUDA_SUCCESS;
}

CUresult setting_set_cache(CUfunc_cache config)
{
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    current()->cache = config;
    return CUDA_SUCCESS;
}

CUresult setting_banks(CUsharedconfig *config)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = current()->banks;
    return CUDA_SUCCESS;
}

CUresult setting_set_banks(CUsharedconfig config)
{
    if ((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    current()->banks = config;
    return CUDA_SUCCESS;
}

/* Nothing was ever set aside in the cache. */
CUresult setting_reset_cache(void)
{
    return CUDA_SUCCESS;
}

CUresult device_p2p(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)
{
    int can = 0;
    if (!device_exists(from) || !device_exists(to) || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = value ? context_can_access_peer(&can, from, to) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    switch ((int)attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = can;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:   /* there are no arrays */
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static int ask(CUdevice_attribute attribute, CUdevice device)
{
    int value = 0;
    device_attribute(&value, attribute, device);
    return value;
}

CUresult device_capability(int *major, int *minor, CUdevice device)
{
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    *minor = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return CUDA_SUCCESS;
}

CUresult device_properties(CUdevprop *p, CUdevice device)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    p->maxThreadsPerBlock = ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = ask((CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i), device);
        p->maxGridSize[i] = ask((CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i), device);
    }
    p->sharedMemPerBlock = ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device);
    p->totalConstantMemory = ask(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, device);
    p->SIMDWidth = ask(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    p->memPitch = ask(CU_DEVICE_ATTRIBUTE_MAX_PITCH, device);
    p->regsPerBlock = ask(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
    p->clockRate = ask(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
    p->textureAlign = ask(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device);
    return CUDA_SUCCESS;
}

/* What NVIDIA's own libraries ask each other for, undocumented. Says so once, because the program will only say that its first call failed. */
CUresult device_secret_table(void)
{
    static bool said;
    if (!said && !model.quiet)
        fprintf(stderr, "simulated GPU: the program asks the driver for a private table of NVIDIA's, which is not simulated. A CUDA runtime that was "
                        "linked into a program asks for it, and its first call fails with cudaErrorNotSupported (docs/simulated-gpu.md)\n");
    said = said || !model.quiet;
    return CUDA_ERROR_NOT_SUPPORTED;
}
