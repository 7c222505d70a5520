/*
 * launch.c: kernels put on streams, and what a program may ask about one. A kernel does nothing, but it is work: it takes its place in stream order
 * and in captures, and it fails as CUDA says.
 *
 * What is asked of a kernel (registers, how many fit on a multiprocessor) is answered for one that uses 32 registers and no shared memory.
 * LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/kernels.h"
#include "sim/sim.h"

#define MODELLED_REGISTERS 32
#define THREADS_MOST 1024
#define BLOCK_Z_MOST 64
#define GRID_YZ_MOST 65535
#define SHARED_DEFAULT_MOST (48u << 10)
#define SHARED_MOST (227u << 10)
#define SHARED_PER_SM (228u << 10)
#define SHARED_RESERVED 1024
#define SM_THREADS 2048
#define SM_BLOCKS 32

/* Of the <<<>>> syntax: the compiler's code pushes the configuration and the kernel's stub pops it. */
unsigned    __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **arguments);
cudaError_t cudaLaunchCooperativeKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                             cudaStream_t stream);

#define CONFIGURATIONS_MOST 16

struct configuration {
    dim3   grid;
    dim3   block;
    size_t shared;
    void  *stream;
};

static _Thread_local struct configuration pushed[CONFIGURATIONS_MOST];
static _Thread_local unsigned pushed_count;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    if (pushed_count == CONFIGURATIONS_MOST)
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

static bool fits(dim3 grid, dim3 block, size_t shared)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return threads && threads <= THREADS_MOST && block.x <= THREADS_MOST && block.y <= THREADS_MOST && block.z <= BLOCK_Z_MOST && grid.x &&
           grid.x <= INT32_MAX && grid.y && grid.y <= GRID_YZ_MOST && grid.z && grid.z <= GRID_YZ_MOST && shared <= SHARED_MOST;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    CUresult result = runtime_begin();
    if (result)
        return runtime_end(result);
    const struct kernel *k = kernel_find(function);
    if (!k)
        return runtime_fail(cudaErrorInvalidDeviceFunction);
    if (!fits(grid, block, shared))
        return runtime_fail(cudaErrorInvalidConfiguration);
    return runtime_end(sim_launch_kernel(stream, k->name));
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments;
    return launch(function, grid, block, shared, stream);
}

cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments;
    return launch(function, grid, block, shared, stream ? stream : cudaStreamPerThread);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments;
    return launch(kernel, grid, block, shared, stream);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments;
    return launch(kernel, grid, block, shared, stream ? stream : cudaStreamPerThread);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    (void)arguments;
    return launch(function, grid, block, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                             cudaStream_t stream)
{
    (void)arguments;
    return launch(function, grid, block, shared, stream ? stream : cudaStreamPerThread);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    (void)arguments;
    if (!config)
        return runtime_fail(cudaErrorInvalidValue);
    return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    (void)arguments;
    if (!config)
        return runtime_fail(cudaErrorInvalidValue);
    return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                  config->stream ? config->stream : cudaStreamPerThread);
}

/* --- what a kernel is like */

static cudaError_t known(const void *function)
{
    CUresult result = runtime_begin();
    if (result)
        return runtime_end(result);
    return kernel_find(function) ? cudaSuccess : runtime_fail(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    if (!attributes)
        return runtime_fail(cudaErrorInvalidValue);
    cudaError_t error = known(function);
    if (error)
        return error;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = THREADS_MOST;
    attributes->numRegs = MODELLED_REGISTERS;
    attributes->ptxVersion = 90;
    attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = (int)SHARED_DEFAULT_MOST;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && (value < 0 || value > (int)SHARED_MOST))
        return runtime_fail(cudaErrorInvalidValue);
    return known(function);
}

cudaError_t cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config)
{
    (void)config;
    return known(function);
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device)
{
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}

cudaError_t cudaFuncGetName(const char **name, const void *function)
{
    const struct kernel *k = kernel_find(function);
    if (!k || !name)
        return runtime_fail(name ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    *name = k->name;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared,
                                                                   unsigned flags)
{
    (void)flags;
    if (!blocks || threads <= 0)
        return runtime_fail(cudaErrorInvalidValue);
    cudaError_t error = known(function);
    if (error)
        return error;
    int by_threads = threads <= THREADS_MOST ? SM_THREADS / threads : 0;
    int by_shared = (int)(SHARED_PER_SM / (shared + SHARED_RESERVED));
    int most = by_threads < by_shared ? by_threads : by_shared;
    *blocks = most < SM_BLOCKS ? most : SM_BLOCKS;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *function, int blocks, int threads)
{
    if (!shared || blocks <= 0 || threads <= 0)
        return runtime_fail(cudaErrorInvalidValue);
    cudaError_t error = known(function);
    if (error)
        return error;
    size_t each = SHARED_PER_SM / (size_t)blocks;
    *shared = each <= SHARED_RESERVED ? 0 : each - SHARED_RESERVED < SHARED_MOST ? each - SHARED_RESERVED : SHARED_MOST;
    return cudaSuccess;
}
