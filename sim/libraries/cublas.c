/*
 * cublas.c: what cuBLAS does beside putting kernels on a stream: a handle's device memory and modes, copies between host and device, and
 * the answers a program goes on from (scalars, info). Not here: any arithmetic.
 *
 * A handle owns a pool of device memory from cublasCreate to cublasDestroy, as the documentation says; it is not the program's
 * allocator's, so only cuMemGetInfo shows it. Its size is not documented for each device: see pool_bytes.
 *
 * Scalars: in host pointer mode the call waits for the stream and the host reads 0; in device pointer mode the stream writes 0. A rotation
 * turns by nothing. Info is 0: success.
 *
 * LOCKING: none; a handle is used by one thread at a time, as with the real library.
 */
#include <ctype.h>
#include <stdlib.h>

#include "sim/libraries/answer.h"
#include "sim/libraries/blas_status.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define WORKSPACE_ALIGNMENT 256

struct cublas {
    struct handle base;
    CUdeviceptr   pool;
    int           math_mode;
    int           on_device;    /* pointer mode: where scalars are */
    int           sm_target;
};

static const char zeros[16];

/* The primary context of device 0 is what the first call of a program without a context makes. */
static bool has_context(void)
{
    CUcontext context = NULL;
    if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context)
        return true;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

/* CUBLAS_WORKSPACE_CONFIG is pairs ":KiB:count"; 0: not understood, which the real library ignores. */
static uint64_t configured_bytes(const char *text)
{
    uint64_t bytes = 0;
    while (text && *text == ':' && isdigit((unsigned char)text[1])) {
        char *end;
        uint64_t size = strtoull(text + 1, &end, 10);
        if (*end != ':' || !isdigit((unsigned char)end[1]))
            return 0;
        uint64_t count = strtoull(end + 1, &end, 10);
        if (size > 1u << 20 || count > 1u << 10)
            return 0;
        bytes += (size << 10) * count;
        text = end;
    }
    return text && !*text ? bytes : 0;
}

/* 32 MiB from compute capability 9 on, else :4096:2:16:8, which is 8 MiB and 128 KiB. */
static uint64_t pool_bytes(void)
{
    uint64_t chosen = configured_bytes(getenv("CUBLAS_WORKSPACE_CONFIG"));
    CUdevice device = 0;
    int major = 0;
    if (chosen)
        return chosen;
    if (cuCtxGetDevice(&device) || cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
        return 0;
    return major >= 9 ? 32u << 20 : (8u << 20) + (128u << 10);
}

int cublasCreate_v2(void **handle)
{
    if (!handle)
        return status.invalid;
    if (!has_context())
        return status.no_handle;
    struct cublas *h = (struct cublas *)handle_open(sizeof *h);
    if (!h)
        return status.no_memory;
    uint64_t bytes = pool_bytes();
    CUresult result = bytes ? cuMemAlloc(&h->pool, bytes) : CUDA_ERROR_NOT_INITIALIZED;
    if (result) {
        handle_close(&h->base);
        return result == CUDA_ERROR_OUT_OF_MEMORY ? status.no_memory : status.no_handle;
    }
    *handle = h;
    return 0;
}

/* The context may be gone with all its memory: then nothing is left to free. */
int cublasDestroy_v2(void *handle)
{
    struct cublas *h = handle;
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (cuCtxPushCurrent(h->base.context) == CUDA_SUCCESS) {
        CUcontext context;
        cuMemFree(h->pool);
        cuCtxPopCurrent(&context);
    }
    handle_close(&h->base);
    return 0;
}

const char *cublasGetStatusName(int number)
{
    return blas_status(number, 1);
}

const char *cublasGetStatusString(int number)
{
    return blas_status(number, 0);
}

int cublasGetVersion_v2(const void *handle, int *version)
{
    (void)handle; /* may be NULL */
    if (!version)
        return status.invalid;
    *version = version_cublas.major * 10000 + version_cublas.minor * 100 + version_cublas.patch;
    return 0;
}

/* The pool of the handle serves until now and again after the next cublasSetStream; no kernel reads either, so it is not kept. */
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    return (uintptr_t)workspace % WORKSPACE_ALIGNMENT || (!workspace && bytes) ? status.invalid : 0;
}

#define MODE(name, field, is_one)                                                       \
    int cublasSet##name(void *handle, int value)                                        \
    {                                                                                   \
        if (!handle_is_valid(handle))                                                   \
            return status.no_handle;                                                    \
        if (!(is_one))                                                                  \
            return status.invalid;                                                      \
        ((struct cublas *)handle)->field = value;                                       \
        return 0;                                                                       \
    }                                                                                   \
    int cublasGet##name(void *handle, int *value)                                       \
    {                                                                                   \
        if (!handle_is_valid(handle))                                                   \
            return status.no_handle;                                                    \
        if (!value)                                                                     \
            return status.invalid;                                                      \
        *value = ((struct cublas *)handle)->field;                                      \
        return 0;                                                                       \
    }
MODE(MathMode, math_mode, value >= 0 && value < 32)
MODE(PointerMode_v2, on_device, value == 0 || value == 1)
MODE(SmCountTarget, sm_target, value >= 0)

/* --- copies: columns one by one where they do not lie together; the stream is the caller's, not the handle's */

static int copy_columns(char *to, size_t to_step, const char *from, size_t from_step, size_t bytes, size_t columns, bool to_device,
                        CUstream stream)
{
    if (bytes == to_step && bytes == from_step) {
        bytes *= columns;
        columns = columns != 0;
    }
    for (size_t i = 0; bytes && i < columns; i++, to += to_step, from += from_step)
        if (to_device ? cuMemcpyHtoDAsync((CUdeviceptr)to, from, bytes, stream) : cuMemcpyDtoHAsync(to, (CUdeviceptr)from, bytes, stream))
            return 11; /* CUBLAS_STATUS_MAPPING_ERROR, what the real library calls it */
    return 0;
}

static int copy_matrix(int rows, int columns, int size, const void *from, int from_step, void *to, int to_step, bool to_device,
                       CUstream stream)
{
    if (rows < 0 || columns < 0 || size <= 0 || from_step <= 0 || to_step <= 0 || from_step < rows || to_step < rows)
        return status.invalid;
    if (!rows || !columns)
        return 0;
    if (!from || !to)
        return status.invalid;
    size_t unit = (size_t)size;
    return copy_columns(to, (size_t)to_step * unit, from, (size_t)from_step * unit, (size_t)rows * unit, (size_t)columns, to_device,
                        stream);
}

static int copy_vector(int count, int size, const void *from, int from_step, void *to, int to_step, bool to_device, CUstream stream)
{
    return from_step <= 0 || to_step <= 0 ? status.invalid : copy_matrix(1, count, size, from, from_step, to, to_step, to_device, stream);
}

int cublasSetMatrixAsync(int rows, int columns, int size, const void *from, int from_step, void *to, int to_step, CUstream stream)
{
    return copy_matrix(rows, columns, size, from, from_step, to, to_step, true, stream);
}

int cublasGetMatrixAsync(int rows, int columns, int size, const void *from, int from_step, void *to, int to_step, CUstream stream)
{
    return copy_matrix(rows, columns, size, from, from_step, to, to_step, false, stream);
}

int cublasSetVectorAsync(int count, int size, const void *from, int from_step, void *to, int to_step, CUstream stream)
{
    return copy_vector(count, size, from, from_step, to, to_step, true, stream);
}

int cublasGetVectorAsync(int count, int size, const void *from, int from_step, void *to, int to_step, CUstream stream)
{
    return copy_vector(count, size, from, from_step, to, to_step, false, stream);
}

/* --- scalars */

static int scalar(const struct cublas *h, const char *name, void *result, size_t bytes)
{
    int answer = library_launch(h, name);
    return answer ? answer : answer_bytes(h, h->on_device, result, zeros, bytes);
}

/* norms, sums and indices */
#define REDUCE(symbol, bytes)                                                           \
    int symbol(const void *handle, int n, const void *x, int step, void *result)        \
    {                                                                                   \
        (void)n, (void)x, (void)step;                                                   \
        return scalar(handle, #symbol, result, bytes);                                  \
    }
REDUCE(cublasSnrm2_v2, 4)
REDUCE(cublasDnrm2_v2, 8)
REDUCE(cublasScnrm2_v2, 4)
REDUCE(cublasDznrm2_v2, 8)
REDUCE(cublasSasum_v2, 4)
REDUCE(cublasDasum_v2, 8)
REDUCE(cublasScasum_v2, 4)
REDUCE(cublasDzasum_v2, 8)
REDUCE(cublasIsamax_v2, 4)
REDUCE(cublasIdamax_v2, 4)
REDUCE(cublasIcamax_v2, 4)
REDUCE(cublasIzamax_v2, 4)
REDUCE(cublasIsamin_v2, 4)
REDUCE(cublasIdamin_v2, 4)
REDUCE(cublasIcamin_v2, 4)
REDUCE(cublasIzamin_v2, 4)

#define DOT(symbol, bytes)                                                                                      \
    int symbol(const void *handle, int n, const void *x, int x_step, const void *y, int y_step, void *result)   \
    {                                                                                                           \
        (void)n, (void)x, (void)x_step, (void)y, (void)y_step;                                                  \
        return scalar(handle, #symbol, result, bytes);                                                          \
    }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasZdotu_v2, 16)
DOT(cublasZdotc_v2, 16)

int cublasDotEx(const void *handle, int n, const void *x, int x_type, int x_step, const void *y, int y_type, int y_step, void *result,
                int result_type, int compute_type)
{
    (void)n, (void)x, (void)x_type, (void)x_step, (void)y, (void)y_type, (void)y_step, (void)compute_type;
    uint64_t bytes = type_bytes(result_type);
    return bytes > 1 ? scalar(handle, "cublasDotEx", result, bytes) : status.unsupported;
}

/* A rotation by nothing: cosine 1, sine 0; a and b stay. */
#define ROTATION(symbol, real, sine_bytes)                                                          \
    int symbol(const void *handle, void *a, void *b, void *cosine, void *sine)                      \
    {                                                                                               \
        static const real one = 1;                                                                  \
        (void)a, (void)b;                                                                           \
        int answer = library_launch(handle, #symbol);                                               \
        const struct cublas *h = handle;                                                            \
        if (!answer)                                                                                \
            answer = answer_bytes(h, h->on_device, cosine, &one, sizeof one);                       \
        return answer ? answer : answer_bytes(h, h->on_device, sine, zeros, sine_bytes);            \
    }
ROTATION(cublasSrotg_v2, float, 4)
ROTATION(cublasDrotg_v2, double, 8)
ROTATION(cublasCrotg_v2, float, 8)
ROTATION(cublasZrotg_v2, double, 16)

/* The same for the modified rotation: flag -2 stands for the identity. */
#define MODIFIED_ROTATION(symbol, real)                                                             \
    int symbol(const void *handle, void *d1, void *d2, void *x1, const void *y1, void *parameters)  \
    {                                                                                               \
        static const real identity[5] = {-2};                                                       \
        (void)d1, (void)d2, (void)x1, (void)y1;                                                     \
        int answer = library_launch(handle, #symbol);                                               \
        const struct cublas *h = handle;                                                            \
        return answer ? answer : answer_bytes(h, h->on_device, parameters, identity, sizeof identity); \
    }
MODIFIED_ROTATION(cublasSrotmg_v2, float)
MODIFIED_ROTATION(cublasDrotmg_v2, double)

/* --- batched solvers: info says whether it went well; some keep it on the device, some on the host */

#define BATCHED(type)                                                                                                       \
    int cublas##type##getrfBatched(const void *handle, int n, void *const *a, int step, int *pivots, int *info, int batch)  \
    {                                                                                                                       \
        (void)a, (void)step, (void)pivots;                                                                                  \
        if (n < 0 || batch < 0 || !info)                                                                                    \
            return status.invalid;                                                                                          \
        int answer = library_launch(handle, "cublas" #type "getrfBatched");                                                 \
        return answer ? answer : answer_words(handle, info, 0, batch);                                                      \
    }                                                                                                                       \
    int cublas##type##getrsBatched(const void *handle, int trans, int n, int columns, const void *const *a, int a_step,     \
                                   const int *pivots, void *const *b, int b_step, int *info, int batch)                     \
    {                                                                                                                       \
        (void)trans, (void)n, (void)columns, (void)a, (void)a_step, (void)pivots, (void)b, (void)b_step, (void)batch;       \
        return host_info(handle, "cublas" #type "getrsBatched", info);                                                      \
    }                                                                                                                       \
    int cublas##type##getriBatched(const void *handle, int n, const void *const *a, int a_step, const int *pivots,          \
                                   void *const *c, int c_step, int *info, int batch)                                        \
    {                                                                                                                       \
        (void)a, (void)a_step, (void)pivots, (void)c, (void)c_step;                                                         \
        if (n < 0 || batch < 0 || !info)                                                                                    \
            return status.invalid;                                                                                          \
        int answer = library_launch(handle, "cublas" #type "getriBatched");                                                 \
        return answer ? answer : answer_words(handle, info, 0, batch);                                                      \
    }                                                                                                                       \
    int cublas##type##matinvBatched(const void *handle, int n, const void *const *a, int a_step, void *const *inverse,      \
                                    int inverse_step, int *info, int batch)                                                 \
    {                                                                                                                       \
        (void)a, (void)a_step, (void)inverse, (void)inverse_step;                                                           \
        if (n < 0 || n > 32 || batch < 0 || !info)                                                                          \
            return status.invalid;                                                                                          \
        int answer = library_launch(handle, "cublas" #type "matinvBatched");                                                \
        return answer ? answer : answer_words(handle, info, 0, batch);                                                      \
    }                                                                                                                       \
    int cublas##type##geqrfBatched(const void *handle, int m, int n, void *const *a, int step, void *const *tau, int *info, \
                                   int batch)                                                                               \
    {                                                                                                                       \
        (void)m, (void)n, (void)a, (void)step, (void)tau, (void)batch;                                                      \
        return host_info(handle, "cublas" #type "geqrfBatched", info);                                                      \
    }                                                                                                                       \
    int cublas##type##gelsBatched(const void *handle, int trans, int m, int n, int columns, void *const *a, int a_step,     \
                                  void *const *c, int c_step, int *info, int *device_info, int batch)                       \
    {                                                                                                                       \
        (void)trans, (void)m, (void)n, (void)columns, (void)a, (void)a_step, (void)c, (void)c_step;                         \
        int answer = host_info(handle, "cublas" #type "gelsBatched", info);                                                 \
        return answer || !device_info ? answer : answer_words(handle, device_info, 0, batch);                               \
    }

static int host_info(const void *handle, const char *name, int *info)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!info)
        return status.invalid;
    *info = 0;
    return library_launch(handle, name);
}
BATCHED(S)
BATCHED(D)
BATCHED(C)
BATCHED(Z)
