/*
 * launch.c: kernels that the program's own code holds, put on streams and asked about. The driver does both: its function of a kernel is
 * fetched at first use from a library that stands for all code of the process. A kernel does nothing, but it is work: it takes its place in
 * stream order and in captures, and it fails as CUDA says.
 *
 * LOCKING: none; two threads that fetch the same function get the same.
 */
#include <string.h>

#include "sim/runtime/kernels.h"

#define BLOCK_MAX 1024
#define BLOCK_Z_MAX 64
#define GRID_YZ_MAX 65535

/* Of the <<<>>> syntax: the compiler's code pushes the configuration and the kernel's stub pops it. */
unsigned    __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

#define CONFIGURATIONS_MAX 16

struct configuration {
    dim3   grid;
    dim3   block;
    size_t shared;
    void  *stream;
};

static _Thread_local struct configuration pushed[CONFIGURATIONS_MAX];
static _Thread_local unsigned pushed_count;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    if (pushed_count == CONFIGURATIONS_MAX)
        return 1;
    pushed[pushed_count++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (!pushed_count)
        return runtime_fail(cudaErrorMissingConfiguration);
    const struct configuration *c = &pushed[--pushed_count];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    *(void **)stream = c->stream;
    return cudaSuccess;
}

/* --- the driver's function of a kernel */

static _Atomic(CUlibrary) program;  /* all code of the process; any image will do */

static CUresult fetch(struct kernel *k, CUfunction *function)
{
    CUlibrary library = atomic_load(&program), none = NULL;
    CUkernel code;
    CUresult result = CUDA_SUCCESS;
    if (!library) {
        result = cuLibraryLoadData(&library, "the program's own code", NULL, NULL, 0, NULL, NULL, 0);
        if (!result && !atomic_compare_exchange_strong(&program, &none, library)) {
            cuLibraryUnload(library);
            library = none;
        }
    }
    if (!result)
        result = cuLibraryGetKernel(&code, library, k->name);
    if (!result)
        result = cuKernelGetFunction(function, code);
    if (!result)
        atomic_store(&k->code, *function);
    return result;
}

/* Begins a call about a kernel: one of the program's own, or of a library that was loaded at run time, which is the driver's handle. */
static cudaError_t begin(const void *host, CUfunction *function)
{
    CUresult result = runtime_begin();
    if (result)
        return runtime_end(result);
    struct kernel *k = kernel_find(host);
    if (!k)
        return host && !cuKernelGetFunction(function, (CUkernel)(uintptr_t)host) ? cudaSuccess : runtime_fail(cudaErrorInvalidDeviceFunction);
    *function = atomic_load_explicit(&k->code, memory_order_relaxed);
    return *function ? cudaSuccess : runtime_end(fetch(k, function));
}

/* The driver calls such a configuration an invalid value; the runtime has a name for it. */
static bool is_configuration(dim3 grid, dim3 block)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return threads && threads <= BLOCK_MAX && block.z <= BLOCK_Z_MAX && grid.x && grid.x <= INT32_MAX && grid.y && grid.y <= GRID_YZ_MAX &&
           grid.z && grid.z <= GRID_YZ_MAX;
}

typedef CUresult launch_function(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared, CUstream stream, void **arguments);

static CUresult plain(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, CUstream stream, void **arguments)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, NULL);
}

static cudaError_t launch(launch_function *how, const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    CUfunction function;
    cudaError_t error = begin(host, &function);
    if (error)
        return error;
    if (!is_configuration(grid, block))
        return runtime_fail(cudaErrorInvalidConfiguration);
    if (shared > UINT32_MAX)
        return runtime_fail(cudaErrorInvalidValue);
    return runtime_end(how(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments));
}

/* Each also as symbol_ptsz, in which stream 0 is the per-thread default stream. */
#define LAUNCH(symbol, type, how)                                                                                            \
    cudaError_t symbol(type function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);          \
    cudaError_t symbol(type function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)           \
    {                                                                                                                        \
        return launch(how, function, grid, block, arguments, shared, stream);                                                \
    }                                                                                                                        \
    cudaError_t symbol##_ptsz(type function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);   \
    cudaError_t symbol##_ptsz(type function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)    \
    {                                                                                                                        \
        return launch(how, function, grid, block, arguments, shared, stream ? stream : cudaStreamPerThread);                 \
    }
LAUNCH(cudaLaunchKernel, const void *, plain)
LAUNCH(__cudaLaunchKernel, cudaKernel_t, plain)
LAUNCH(cudaLaunchCooperativeKernel, const void *, cuLaunchCooperativeKernel)

_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute), "the two interfaces share their structures");

static cudaError_t launch_with(const cudaLaunchConfig_t *c, const void *host, void **arguments, cudaStream_t otherwise)
{
    CUfunction function;
    if (!c)
        return runtime_fail(cudaErrorInvalidValue);
    cudaError_t error = begin(host, &function);
    if (error)
        return error;
    if (!is_configuration(c->gridDim, c->blockDim))
        return runtime_fail(cudaErrorInvalidConfiguration);
    if (c->dynamicSmemBytes > UINT32_MAX)
        return runtime_fail(cudaErrorInvalidValue);
    CUlaunchConfig same = {
        .gridDimX = c->gridDim.x, .gridDimY = c->gridDim.y, .gridDimZ = c->gridDim.z,
        .blockDimX = c->blockDim.x, .blockDimY = c->blockDim.y, .blockDimZ = c->blockDim.z,
        .sharedMemBytes = (unsigned)c->dynamicSmemBytes, .hStream = c->stream ? c->stream : otherwise,
        .attrs = (CUlaunchAttribute *)c->attrs, .numAttrs = c->numAttrs,
    };
    return runtime_end(cuLaunchKernelEx(&same, function, arguments, NULL));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    return launch_with(config, function, arguments, NULL);
}

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **arguments);
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    return launch_with(config, function, arguments, cudaStreamPerThread);
}

/* --- what a kernel is like */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host)
{
    int local, shared, constant, carveout;
    const struct {
        CUfunction_attribute attribute;
        int                 *value;
    } fields[] = {
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &attributes->maxThreadsPerBlock},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &attributes->numRegs},
        {CU_FUNC_ATTRIBUTE_PTX_VERSION, &attributes->ptxVersion},
        {CU_FUNC_ATTRIBUTE_BINARY_VERSION, &attributes->binaryVersion},
        {CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, &attributes->cacheModeCA},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &attributes->maxDynamicSharedSizeBytes},
        {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &carveout},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &local},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &shared},
        {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &constant},
    };
    CUfunction function;
    if (!attributes)
        return runtime_fail(cudaErrorInvalidValue);
    cudaError_t error = begin(host, &function);
    if (error)
        return error;
    memset(attributes, 0, sizeof *attributes);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        CUresult result = cuFuncGetAttribute(fields[i].value, fields[i].attribute, function);
        if (result)
            return runtime_end(result);
    }
    attributes->localSizeBytes = (size_t)local;
    attributes->sharedSizeBytes = (size_t)shared;
    attributes->constSizeBytes = (size_t)constant;
    attributes->preferredShmemCarveout = carveout;
    return cudaSuccess;
}

#define ASK(symbol, parameters, call)                                          \
    cudaError_t symbol parameters                                              \
    {                                                                          \
        CUfunction function;                                                   \
        cudaError_t error = begin(host, &function);                            \
        return error ? error : runtime_end(call);                              \
    }
ASK(cudaFuncSetAttribute, (const void *host, enum cudaFuncAttribute attribute, int value),
    cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value))
ASK(cudaFuncSetCacheConfig, (const void *host, enum cudaFuncCache config), cuFuncSetCacheConfig(function, (CUfunc_cache)config))
ASK(cudaGetFuncBySymbol, (cudaFunction_t *code, const void *host), code ? (*code = function, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)
ASK(cudaFuncGetName, (const char **name, const void *host), cuFuncGetName(name, function))
ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, const void *host, int threads, size_t shared),
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared))
ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *blocks, const void *host, int threads, size_t shared, unsigned flags),
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, flags))
ASK(cudaOccupancyAvailableDynamicSMemPerBlock, (size_t *shared, const void *host, int blocks, int threads),
    cuOccupancyAvailableDynamicSMemPerBlock(shared, function, blocks, threads))

/* A kernel of a library loaded at run time is the driver's own handle. */
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device)
{
    if (kernel_find(kernel))
        return cudaFuncSetAttribute(kernel, attribute, value);
    CUresult result = runtime_start();
    return runtime_end(result ? result : cuKernelSetAttribute((CUfunction_attribute)attribute, value, (CUkernel)kernel, device));
}
