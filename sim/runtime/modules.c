/*
 * modules.c: device code loaded at run time (cudaLibrary_t), handed on to the driver. LOCKING: none.
 */
#include "sim/runtime/runtime.h"

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values, unsigned count,
                                enum cudaLibraryOption *library_options, void **library_values, unsigned library_count)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryLoadData((CUlibrary *)library, code, (CUjit_option *)options, values, count,
                                                           (CUlibraryOption *)library_options, library_values, library_count));
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *library, const char *file, enum cudaJitOption *options, void **values, unsigned count,
                                    enum cudaLibraryOption *library_options, void **library_values, unsigned library_count)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryLoadFromFile((CUlibrary *)library, file, (CUjit_option *)options, values, count,
                                                               (CUlibraryOption *)library_options, library_values, library_count));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryUnload((CUlibrary)library));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryGetKernel((CUkernel *)kernel, (CUlibrary)library, name));
}

cudaError_t cudaLibraryGetGlobal(void **at, size_t *bytes, cudaLibrary_t library, const char *name)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryGetGlobal((CUdeviceptr *)at, bytes, (CUlibrary)library, name));
}

cudaError_t cudaLibraryGetManaged(void **at, size_t *bytes, cudaLibrary_t library, const char *name)
{
    (void)at, (void)bytes, (void)library, (void)name;
    return runtime_fail(cudaErrorNotSupported);
}

cudaError_t cudaLibraryGetUnifiedFunction(void **function, cudaLibrary_t library, const char *name)
{
    (void)function, (void)library, (void)name;
    return runtime_fail(cudaErrorNotSupported);
}

cudaError_t cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library)
{
    CUresult result = runtime_begin();
    return runtime_end(result ? result : cuLibraryGetKernelCount(count, (CUlibrary)library));
}
