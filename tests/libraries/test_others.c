/*
 * test_others.c: entry points of the math libraries that JAX and ONNX Runtime call and PyTorch does not. Prototypes are written out here.
 */
#include "tests/libraries/device.h"

typedef void *handle;

size_t cublasLtGetVersion(void);
int cublasGetProperty(int, int *);
int cublasLtGetProperty(int, int *);
int cufftGetProperty(int, int *);
int cufftGetVersion(int *);
int cusolverGetProperty(int, int *);
int cusolverGetVersion(int *);
int cusparseGetProperty(int, int *);
int cudnnGraphVersionCheck(void);
const char *cublasGetStatusName(int);
const char *cublasGetStatusString(int);
const char *cublasLtGetStatusName(int);
const char *cublasLtGetStatusString(int);
int cublasLtCreate(handle *);
int cublasLtDestroy(handle);
int cublasLtMatmulDescCreate(handle *, int, int);
int cublasLtMatmulDescDestroy(handle);
int cublasLtMatmulDescGetAttribute(handle, int, void *, size_t, size_t *);
int cublasLtMatrixLayoutCreate(handle *, int, uint64_t rows, uint64_t columns, int64_t step);
int cublasLtMatrixLayoutDestroy(handle);
int cublasLtMatrixLayoutGetAttribute(handle, int, void *, size_t, size_t *);
int cublasLtMatmulPreferenceCreate(handle *);
int cublasLtMatmulPreferenceDestroy(handle);
int cublasLtMatmulPreferenceSetAttribute(handle, int, const void *, size_t);
int cublasLtMatmulPreferenceGetAttribute(handle, int, void *, size_t, size_t *);
int cublasLtMatrixTransformDescCreate(handle *, int);
int cublasLtMatrixTransformDescDestroy(handle);
int cublasLtMatrixTransformDescSetAttribute(handle, int, const void *, size_t);
int cublasLtMatrixTransform(handle, handle, const void *, const void *, handle, const void *, const void *, handle, void *, handle, CUstream);
int cublasCreate_v2(handle *);
int cublasDestroy_v2(handle);
int cublasSetStream_v2(handle, CUstream);
int cublasDgeam(handle, ...);
int cublasSdgmm(handle, ...);
int cublasDsbmv_v2(handle, ...);
int cublasStpttr(handle, ...);
int cublasDtrttp(handle, ...);
int cublasZmatinvBatched(handle, int n, const void *const *, int, void *const *, int, int *info, int batch);
int cublasSgetriBatched(handle, int n, const float *const *, int, const int *pivots, float *const *, int, int *info, int batch);
int cufftCreate(int *);
int cufftDestroy(int);
int cufftSetAutoAllocation(int, int);
int cufftSetStream(int, CUstream);
int cufftSetWorkArea(int, void *);
int cufftExecR2C(int, void *, void *);
int cufftExecZ2Z(int, void *, void *, int);
int cufftMakePlanMany(int, int, const int *, const int *, int, int, const int *, int, int, int, int, size_t *);
int cufftMakePlanMany64(int, int, long long *, long long *, long long, long long, long long *, long long, long long, int, long long, size_t *);

/* JAX does not use a library whose version it cannot ask for. */
CASE(libraries_say_which_version_they_are)
{
    int major = 0, minor = 0, version = 0;
    OK(cublasLtGetProperty(0, &major));
    EXPECT_EQ((size_t)major, cublasLtGetVersion() / 10000);
    OK(cublasGetProperty(1, &minor));
    EXPECT_EQ((size_t)minor, cublasLtGetVersion() / 100 % 100);
    EXPECT_EQ(cublasGetProperty(3, &minor), 7);
    EXPECT_EQ(cublasGetProperty(-1, &minor), 7);
    EXPECT_EQ(cublasGetProperty(0, NULL), 7);
    OK(cusolverGetVersion(&version));
    OK(cusolverGetProperty(0, &major));
    EXPECT_EQ(version / 1000, major);
    EXPECT_EQ(cusolverGetVersion(NULL), 3);
    OK(cufftGetVersion(&version));
    OK(cufftGetProperty(0, &major));
    EXPECT_EQ(version / 1000, major);
    OK(cusparseGetProperty(0, &major));
    EXPECT_EQ(major, 12); /* as in the name of the library */
    OK(cudnnGraphVersionCheck());
}

CASE(statuses_have_names)
{
    EXPECT_TEXT_EQ(cublasGetStatusName(7), "CUBLAS_STATUS_INVALID_VALUE");
    EXPECT_TEXT_EQ(cublasLtGetStatusName(0), "CUBLAS_STATUS_SUCCESS");
    EXPECT_TEXT_EQ(cublasGetStatusName(2), "CUBLAS_STATUS_UNKNOWN");
    EXPECT_TEXT_EQ(cublasGetStatusName(-1), "CUBLAS_STATUS_UNKNOWN");
    EXPECT_TEXT_EQ(cublasLtGetStatusString(17), "an unknown status");
    EXPECT_TEXT_EQ(cublasGetStatusString(3), "there is no memory left");
}

CASE(a_handle_of_the_light_library_holds_no_memory)
{
    handle h;
    begin();
    uint64_t before = in_use();
    MUST(cublasLtCreate(&h));
    EXPECT_EQ(in_use(), before);
    OK(cublasLtDestroy(h));
    EXPECT_EQ(cublasLtDestroy(NULL), 1);
    EXPECT_EQ(cublasLtCreate(NULL), 7);
}

CASE(descriptors_give_back_what_was_set)
{
    handle what, layout, wish;
    int type = -1;
    uint64_t rows = 0, most = 1 * MIB, got = 0;
    size_t size = 0;
    MUST(cublasLtMatmulDescCreate(&what, 68, 5));
    MUST(cublasLtMatrixLayoutCreate(&layout, 2, 100, 50, 100));
    MUST(cublasLtMatmulPreferenceCreate(&wish));
    OK(cublasLtMatmulDescGetAttribute(what, 1, &type, sizeof type, &size));
    EXPECT(type == 5 && size == sizeof type);
    OK(cublasLtMatrixLayoutGetAttribute(layout, 2, &rows, sizeof rows, NULL));
    EXPECT_EQ(rows, 100);
    OK(cublasLtMatmulPreferenceGetAttribute(wish, 1, &got, sizeof got, &size)); /* the default */
    EXPECT(got == 0 && size == sizeof got);
    OK(cublasLtMatmulPreferenceSetAttribute(wish, 1, &most, sizeof most));
    OK(cublasLtMatmulPreferenceGetAttribute(wish, 1, NULL, 0, &size));
    EXPECT_EQ(size, sizeof most);
    OK(cublasLtMatmulPreferenceGetAttribute(wish, 1, &got, sizeof got, &size));
    EXPECT_EQ(got, most);
    EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(wish, 1, &type, sizeof type, &size), 7); /* too little room */
    EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(wish, 1, NULL, 0, NULL), 7);
    EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(wish, 64, &got, sizeof got, &size), 7);
    EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(layout, 1, &got, sizeof got, &size), 7);
    OK(cublasLtMatmulDescDestroy(what));
    OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cublasLtMatmulPreferenceDestroy(wish));
}

CASE(a_matrix_changes_its_layout)
{
    handle h, what, layout;
    int transposed = 1;
    float one = 1;
    begin();
    MUST(cublasLtCreate(&h));
    MUST(cublasLtMatrixTransformDescCreate(&what, 0));
    MUST(cublasLtMatrixLayoutCreate(&layout, 2, 100, 50, 100));
    OK(cublasLtMatrixTransformDescSetAttribute(what, 2, &transposed, sizeof transposed));
    uint64_t before = kernels();
    OK(cublasLtMatrixTransform(h, what, &one, what, layout, NULL, NULL, NULL, what, layout, stream));
    EXPECT_EQ(kernels() - before, 1);
    EXPECT_EQ(cublasLtMatrixTransform(h, what, &one, what, layout, NULL, what, NULL, what, layout, stream), 7);
    EXPECT_EQ(cublasLtMatrixTransform(h, layout, &one, what, layout, NULL, NULL, NULL, what, layout, stream), 7);
    EXPECT_EQ(cublasLtMatrixTransform(NULL, what, &one, what, layout, NULL, NULL, NULL, what, layout, stream), 1);
    EXPECT_EQ(cublasLtMatrixTransformDescDestroy(layout), 7);
    OK(cublasLtMatrixTransformDescDestroy(what));
    OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cublasLtDestroy(h));
}

CASE(inverses_say_that_all_went_well)
{
    handle h;
    int infos[3] = {7, 7, 7};
    begin();
    MUST(cublasCreate_v2(&h));
    OK(cublasSetStream_v2(h, stream));
    CUdeviceptr info = filled(sizeof infos);
    OK(cublasSgetriBatched(h, 8, NULL, 8, NULL, NULL, 8, (int *)info, 3));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(infos, info, sizeof infos));
    EXPECT(!infos[0] && !infos[1] && !infos[2]);
    EXPECT_EQ(cublasSgetriBatched(h, -1, NULL, 8, NULL, NULL, 8, (int *)info, 3), 7);
    OK(cuMemsetD8(info, 7, sizeof infos));
    OK(cublasZmatinvBatched(h, 32, NULL, 32, NULL, 32, (int *)info, 2));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(infos, info, sizeof infos));
    EXPECT(!infos[0] && !infos[1] && infos[2]);
    EXPECT_EQ(cublasZmatinvBatched(h, 33, NULL, 33, NULL, 33, (int *)info, 2), 7); /* cuBLAS: up to 32 rows */
    EXPECT_EQ(cublasZmatinvBatched(NULL, 4, NULL, 4, NULL, 4, (int *)info, 2), 1);
    uint64_t before = kernels();
    OK(cublasDgeam(h, 0, 0, 4, 4, NULL, NULL, 4, NULL, NULL, 4, NULL, 4));
    OK(cublasSdgmm(h, 0, 4, 4, NULL, 4, NULL, 1, NULL, 4));
    OK(cublasDsbmv_v2(h, 0, 4, 1, NULL, NULL, 2, NULL, 1, NULL, NULL, 1));
    OK(cublasStpttr(h, 0, 4, NULL, NULL, 4));
    OK(cublasDtrttp(h, 0, 4, NULL, 4, NULL));
    EXPECT_EQ(kernels() - before, 5);
    OK(cublasDestroy_v2(h));
}

CASE(a_transform_is_planned_by_its_type)
{
    int plan = 0, other = 0, n32[] = {8192};
    long long n[] = {8192};
    size_t work = 0, wider = 0;
    begin();
    MUST(cufftCreate(&plan));
    MUST(cufftCreate(&other));
    OK(cufftSetAutoAllocation(plan, 0));
    OK(cufftSetAutoAllocation(other, 0));
    EXPECT_EQ(cufftMakePlanMany64(plan, 1, n, NULL, 1, 1, NULL, 1, 1, 0x2b, 100, &work), 3); /* no such type */
    EXPECT_EQ(cufftMakePlanMany(plan, 4, n32, NULL, 1, 1, NULL, 1, 1, 0x2a, 100, &work), 4);
    EXPECT_EQ(cufftMakePlanMany(plan, 1, NULL, NULL, 1, 1, NULL, 1, 1, 0x2a, 100, &work), 4);
    OK(cufftMakePlanMany64(plan, 1, n, NULL, 1, 1, NULL, 1, 1, 0x2a, 100, &work));          /* from real numbers, float */
    OK(cufftMakePlanMany(other, 1, n32, NULL, 1, 1, NULL, 1, 1, 0x69, 100, &wider));        /* complex, double */
    EXPECT_EQ(work, 8192 * 100 * 8);
    EXPECT_EQ(wider, 2 * work);
    OK(cufftSetStream(plan, stream));
    EXPECT_EQ(cufftExecR2C(plan, n, n), 13); /* CUFFT_NO_WORKSPACE */
    OK(cufftSetWorkArea(plan, n));
    OK(cufftSetWorkArea(other, n));
    uint64_t before = kernels();
    OK(cufftExecR2C(plan, n, n));
    OK(cufftExecZ2Z(other, n, n, -1));
    EXPECT_EQ(kernels() - before, 2);
    EXPECT_EQ(cufftExecR2C(12345, n, n), 1);
    OK(cufftDestroy(plan));
    OK(cufftDestroy(other));
}

SUITE_MAIN("others")
