/* functions.c: what can be asked of a function and set on it (functions.def), and how many blocks of it a multiprocessor would hold. */
#include "sim/code/kernel.h"
#include "sim/machine/numbers.h"

#define REGISTERS_STEP 256      /* registers are given to warps in units of it */
#define SHARED_STEP 128         /* shared memory is given to blocks in units of it */

static struct function *find(const void *handle, const char *call)
{
    uint32_t number = function_find(handle, call);
    return number ? function_at(number) : NULL;
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle, const char *call)
{
    const struct function *f = find(handle, call);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = f->attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value, const void *handle, const char *call)
{
    static const struct {
        int least, most;
    } bounds[CU_FUNC_ATTRIBUTE_MAX] = {
#define FUNCTION(name, standard, smallest, largest) [CU_FUNC_ATTRIBUTE_##name] = {smallest, largest},
#include "sim/code/functions.def"
#undef FUNCTION
    };
    struct function *f = find(handle, call);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX || value < bounds[attribute].least || value > bounds[attribute].most)
        return CUDA_ERROR_INVALID_VALUE;
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

CUresult function_attribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    return get_attribute(value, attribute, function, "cuFuncGetAttribute");
}

CUresult function_set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    return set_attribute(attribute, value, function, "cuFuncSetAttribute");
}

CUresult kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    return device_exists(device) ? get_attribute(value, attribute, kernel, "cuKernelGetAttribute") : CUDA_ERROR_INVALID_DEVICE;
}

/* Of all devices at once: they are alike. */
CUresult kernel_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    return device_exists(device) ? set_attribute(attribute, value, kernel, "cuKernelSetAttribute") : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult prefer(const void *handle, bool known, const char *call)
{
    if (!find(handle, call))
        return CUDA_ERROR_INVALID_HANDLE;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Preferences for a cache: without effect. */
CUresult function_set_cache(CUfunction function, CUfunc_cache config)
{
    return prefer(function, (unsigned)config <= CU_FUNC_CACHE_PREFER_EQUAL, "cuFuncSetCacheConfig");
}

CUresult kernel_set_cache(CUkernel kernel, CUfunc_cache config, CUdevice device)
{
    return prefer(kernel, (unsigned)config <= CU_FUNC_CACHE_PREFER_EQUAL && device_exists(device), "cuKernelSetCacheConfig");
}

CUresult function_set_banks(CUfunction function, CUsharedconfig config)
{
    return prefer(function, (unsigned)config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE, "cuFuncSetSharedMemConfig");
}

static CUresult get_name(const char **name, const void *handle, const char *call)
{
    const struct function *f = find(handle, call);
    if (!f || !name)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *name = f->name;
    return CUDA_SUCCESS;
}

CUresult function_name(const char **name, CUfunction function)
{
    return get_name(name, function, "cuFuncGetName");
}

CUresult kernel_name(const char **name, CUkernel kernel)
{
    return get_name(name, kernel, "cuKernelGetName");
}

CUresult kernel_function(CUfunction *function, CUkernel kernel)
{
    uint32_t number = function_find(kernel, "cuKernelGetFunction");
    if (!number || !function)
        return number ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *function = function_handle(number);
    return CUDA_SUCCESS;
}

static CUresult get_module(void **module, const void *handle, bool library, const char *call)
{
    const struct function *f = find(handle, call);
    if (!f || !f->module || (library && !module_is_library(f->module)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = module_handle(f->module);
    return CUDA_SUCCESS;
}

CUresult function_module(CUmodule *module, CUfunction function)
{
    return get_module((void **)module, function, false, "cuFuncGetModule");
}

CUresult kernel_library(CUlibrary *library, CUkernel kernel)
{
    return get_module((void **)library, kernel, true, "cuKernelGetLibrary");
}

CUresult function_load(CUfunction function)
{
    return prefer(function, true, "cuFuncLoad");
}

CUresult function_is_loaded(CUfunctionLoadingState *state, CUfunction function)
{
    CUresult result = prefer(function, state, "cuFuncIsLoaded");
    if (!result)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return result;
}

/* What limits how many blocks run at once on a multiprocessor. */
struct limits {
    int threads_per_block;
    int threads, blocks, registers, shared, reserved, warp, multiprocessors;
    int registers_per_thread, own_shared, shared_per_block;
};

static int ask(CUdevice_attribute attribute, int device)
{
    int value = 0;
    device_attribute(&value, attribute, device);
    return value;
}

static struct limits limits_of(const struct function *f, int device)
{
    return (struct limits){
        .threads_per_block = f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .threads = ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device),
        .blocks = ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device),
        .registers = ask(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device),
        .shared = ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device),
        .reserved = ask(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device),
        .warp = ask(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device),
        .multiprocessors = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
        .registers_per_thread = f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS],
        .own_shared = f->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES],
        .shared_per_block = f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES],
    };
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int blocks_of(const struct limits *l, int block, size_t shared)
{
    if (block > l->threads_per_block || shared > (size_t)l->shared_per_block)
        return 0;
    int warps = (block + l->warp - 1) / l->warp;
    int registers = warps * (int)round_up((uint64_t)l->registers_per_thread * (uint64_t)l->warp, REGISTERS_STEP);
    int bytes = (int)round_up((uint64_t)l->own_shared + shared + (uint64_t)l->reserved, SHARED_STEP);
    int blocks = least(l->blocks, l->threads / l->warp / warps);
    return least(blocks, least(l->registers / registers, l->shared / bytes));
}

CUresult occupancy_blocks(int *blocks, CUfunction function, int block, size_t shared, unsigned flags)
{
    const struct function *f = find(function, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || block <= 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    struct limits l = limits_of(f, context_at(context_current())->device);
    *blocks = blocks_of(&l, block, shared);
    return CUDA_SUCCESS;
}

uint64_t occupancy_resident(uint32_t function, int device, int block, size_t shared)
{
    struct limits l = limits_of(function_at(function), device);
    return (uint64_t)blocks_of(&l, block, shared) * (uint64_t)l.multiprocessors;
}

static CUresult limits_now(CUfunction function, struct limits *l)
{
    if (model_thread()->in_host_function)
        return model_refuse_call("cuOccupancyMaxPotentialBlockSize");
    model_lock();
    uint32_t context = model.initialised ? context_current() : 0;
    CUresult result = model.initialised ? context_usable(context) : CUDA_ERROR_NOT_INITIALIZED;
    const struct function *f = result ? NULL : find(function, "cuOccupancyMaxPotentialBlockSize");
    if (f)
        *l = limits_of(f, context_at(context)->device);
    model_unlock();
    return result || f ? result : CUDA_ERROR_INVALID_HANDLE;
}

/* The block with which most threads run, the largest of equals. */
CUresult occupancy_block_size(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int most,
                              unsigned flags)
{
    struct limits l = {0};
    CUresult result = limits_now(function, &l);
    if (result)
        return result;
    if (!grid || !block || most < 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    int best = 0;
    *grid = *block = 0;
    for (int size = most ? least(most, l.threads_per_block) : l.threads_per_block; size > 0; size = (size - 1) / l.warp * l.warp) {
        int blocks = blocks_of(&l, size, shared_of ? shared_of(size) : shared);
        if (blocks * size <= best)
            continue;
        best = blocks * size;
        *block = size;
        *grid = blocks * l.multiprocessors;
    }
    return CUDA_SUCCESS;
}

CUresult occupancy_shared(size_t *shared, CUfunction function, int blocks, int block)
{
    const struct function *f = find(function, "cuOccupancyAvailableDynamicSMemPerBlock");
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!shared || blocks <= 0 || block <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct limits l = limits_of(f, context_at(context_current())->device);
    if (blocks > blocks_of(&l, block, 0))
        return CUDA_ERROR_INVALID_VALUE;
    int left = l.shared / blocks / SHARED_STEP * SHARED_STEP - l.reserved - l.own_shared;
    *shared = (size_t)least(left, l.shared_per_block);
    return CUDA_SUCCESS;
}
