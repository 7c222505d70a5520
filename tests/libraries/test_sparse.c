/*
 * test_sparse.c: the simulated cuSPARSE and cuSPARSELt: descriptors, sizes and counts. Prototypes are written out here.
 */
#include "tests/libraries/device.h"

typedef void *handle;

int cusparseCreate(handle *);
int cusparseDestroy(handle);
int cusparseSetPointerMode(handle, int);
int cusparseCreateCsr(handle *, int64_t, int64_t, int64_t, void *, void *, void *, int, int, int, int);
int cusparseCreateDnMat(handle *, int64_t, int64_t, int64_t, void *, int, int);
int cusparseDestroySpMat(handle);
int cusparseDestroyDnMat(handle);
int cusparseSpMatGetSize(handle, int64_t *, int64_t *, int64_t *);
int cusparseSpMM_bufferSize(handle, int, int, const void *, handle, handle, const void *, handle, int, int, size_t *);
int cusparseSpMM(handle, int, int, const void *, handle, handle, const void *, handle, int, int, void *);
int cusparseSpSM_bufferSize(handle, int, int, const void *, handle, handle, handle, int, int, handle, size_t *);
int cusparseSpGEMM_workEstimation(handle, int, int, const void *, handle, handle, const void *, handle, int, int, handle, size_t *, void *);
int cusparseSpGEMM_compute(handle, int, int, const void *, handle, handle, const void *, handle, int, int, handle, size_t *, void *);
int cusparseXcsrgeam2Nnz(handle, int, int, handle, int, const int *, const int *, handle, int, const int *, const int *, handle, int *,
                         int *, void *);
int cusparseXbsrsv2_zeroPivot(handle, handle, int *);
int cusparseXcsrsort_bufferSizeExt(handle, int, int, int, const int *, const int *, size_t *);
const char *cusparseGetErrorString(int);
const char *cusparseGetErrorName(int);
int cusparseGetVersion(handle, int *);
int cusparseScsrilu02_bufferSize(handle, int, int, handle, float *, const int *, const int *, handle, int *);

CASE(sparse_products_know_their_size)
{
    handle h, a, b, c, dense;
    int64_t rows = 0, columns = 0, count = 7;
    size_t size = 0;
    begin();
    MUST(cusparseCreate(&h));
    MUST(cusparseCreateCsr(&a, 20, 30, 60, NULL, NULL, NULL, 2, 2, 0, 0));
    MUST(cusparseCreateCsr(&b, 30, 40, 120, NULL, NULL, NULL, 2, 2, 0, 0));
    MUST(cusparseCreateCsr(&c, 20, 40, 0, NULL, NULL, NULL, 2, 2, 0, 0));
    MUST(cusparseCreateDnMat(&dense, 30, 1000, 1000, NULL, 1, 2));
    OK(cusparseSpGEMM_workEstimation(h, 0, 0, NULL, a, b, NULL, c, 0, 0, NULL, &size, NULL));
    EXPECT_EQ(size, 256);
    OK(cusparseSpGEMM_compute(h, 0, 0, NULL, a, b, NULL, c, 0, 0, NULL, &size, NULL));
    EXPECT_EQ(size, 2048); /* 240 products of 8 bytes */
    OK(cusparseSpMatGetSize(c, &rows, &columns, &count));
    EXPECT_EQ(count, 0);
    OK(cusparseSpGEMM_compute(h, 0, 0, NULL, a, b, NULL, c, 0, 0, NULL, &size, &size));
    OK(cusparseSpMatGetSize(c, &rows, &columns, &count));
    EXPECT(rows == 20 && columns == 40 && count == 240);
    OK(cusparseSpMM_bufferSize(h, 0, 0, NULL, a, dense, NULL, dense, 0, 0, &size));
    EXPECT_EQ(size, 256);
    OK(cusparseSpSM_bufferSize(h, 0, 0, NULL, b, dense, dense, 0, 0, NULL, &size));
    EXPECT_EQ(size, 240384); /* two words for each of 30 rows, 30 x 1000 doubles */
    uint64_t before = kernels();
    OK(cusparseSpMM(h, 0, 0, NULL, a, dense, NULL, dense, 0, 0, NULL));
    EXPECT_EQ(kernels() - before, 1);
    EXPECT_EQ(cusparseSpMM(h, 0, 0, NULL, dense, dense, NULL, dense, 0, 0, NULL), 3);
    EXPECT_EQ(cusparseSpMM(NULL, 0, 0, NULL, a, dense, NULL, dense, 0, 0, NULL), 1);
    EXPECT_EQ(cusparseDestroySpMat(dense), 3);
    OK(cusparseDestroySpMat(a));
    OK(cusparseDestroySpMat(b));
    OK(cusparseDestroySpMat(c));
    OK(cusparseDestroyDnMat(dense));
    EXPECT_EQ(cusparseDestroyDnMat(NULL), 3);
    OK(cusparseDestroy(h));
}

CASE(sparse_sums_count_their_entries)
{
    handle h;
    int count = 0, position = 7;
    size_t size = 0;
    begin();
    CUdeviceptr at = filled(64);
    MUST(cusparseCreate(&h));
    OK(cusparseXcsrgeam2Nnz(h, 20, 30, NULL, 60, NULL, NULL, NULL, 80, NULL, NULL, NULL, NULL, &count, NULL));
    EXPECT_EQ(count, 140);
    OK(cusparseXcsrgeam2Nnz(h, 10, 10, NULL, 60, NULL, NULL, NULL, 80, NULL, NULL, NULL, NULL, &count, NULL));
    EXPECT_EQ(count, 100);
    OK(cusparseXbsrsv2_zeroPivot(h, NULL, &position));
    EXPECT_EQ(position, -1);
    OK(cusparseSetPointerMode(h, 1));
    OK(cusparseXcsrgeam2Nnz(h, 20, 30, NULL, 60, NULL, NULL, NULL, 80, NULL, NULL, NULL, NULL, (int *)at, NULL));
    MUST(cuCtxSynchronize());
    EXPECT_EQ(word(at, 0), 140);
    OK(cusparseXcsrsort_bufferSizeExt(h, 20, 30, 100, NULL, NULL, &size));
    EXPECT_EQ(size, 1792);
    EXPECT_TEXT_EQ(cusparseGetErrorString(3), "invalid value");
    EXPECT(cusparseGetErrorString(-5) != NULL);
    OK(cusparseDestroy(h));
}

int cusparseLtInit(void *);
int cusparseLtStructuredDescriptorInit(const void *, void *, int64_t, int64_t, int64_t, uint32_t, int, int, int);
int cusparseLtDenseDescriptorInit(const void *, void *, int64_t, int64_t, int64_t, uint32_t, int, int);
int cusparseLtMatmulDescriptorInit(const void *, void *, int, int, const void *, const void *, const void *, const void *, int);
int cusparseLtMatmulAlgSelectionInit(const void *, void *, const void *, int);
int cusparseLtMatmulAlgSetAttribute(const void *, void *, int, const void *, size_t);
int cusparseLtMatmulPlanInit(const void *, void *, const void *, const void *);
int cusparseLtMatmulGetWorkspace(const void *, const void *, size_t *);
int cusparseLtSpMMACompressedSize2(const void *, const void *, size_t *, size_t *);

CASE(two_of_four_take_nine_sixteenths)
{
    char h[512], sparse[512], dense[512], product[512], choice[512], plan[512];
    size_t bytes = 0, buffer = 0;
    int parts = 3;
    begin();
    memset(h, 0, sizeof h);
    EXPECT_EQ(cusparseLtDenseDescriptorInit(h, dense, 64, 64, 64, 16, 2, 1), 1); /* no handle yet */
    MUST(cusparseLtInit(h));
    MUST(cusparseLtStructuredDescriptorInit(h, sparse, 128, 256, 256, 16, 2, 1, 0));
    OK(cusparseLtSpMMACompressedSize2(h, sparse, &bytes, &buffer));
    EXPECT_EQ(bytes, 128 * 256 * 2 * 9 / 16);
    MUST(cusparseLtStructuredDescriptorInit(h, sparse, 128, 256, 256, 16, 3, 1, 0));
    OK(cusparseLtSpMMACompressedSize2(h, sparse, &bytes, &buffer));
    EXPECT_EQ(bytes, 128 * 256 * 10 / 16);
    MUST(cusparseLtDenseDescriptorInit(h, dense, 128, 64, 64, 16, 2, 1));
    EXPECT_EQ(cusparseLtSpMMACompressedSize2(h, dense, &bytes, &buffer), 3);
    EXPECT_EQ(cusparseLtMatmulDescriptorInit(h, product, 0, 0, dense, dense, dense, dense, 0), 10);
    OK(cusparseLtMatmulDescriptorInit(h, product, 0, 0, sparse, dense, dense, dense, 0));
    OK(cusparseLtMatmulAlgSelectionInit(h, choice, product, 0));
    OK(cusparseLtMatmulPlanInit(h, plan, product, choice));
    OK(cusparseLtMatmulGetWorkspace(h, plan, &bytes));
    EXPECT_EQ(bytes, 0);
    OK(cusparseLtMatmulAlgSetAttribute(h, choice, 3, &parts, sizeof parts));
    OK(cusparseLtMatmulPlanInit(h, plan, product, choice));
    OK(cusparseLtMatmulGetWorkspace(h, plan, &bytes));
    EXPECT_EQ(bytes, 3 * 4 * 128 * 64);
}

/* CuPy asks for it, and makes an exception of what it says. */
CASE(what_is_not_simulated_says_so)
{
    handle h;
    int version = 0, bytes = 0;
    begin();
    MUST(cusparseCreate(&h));
    OK(cusparseGetVersion(h, &version));
    EXPECT_EQ(version, 12603);
    EXPECT_EQ(cusparseGetVersion(h, NULL), 3);
    int error = cusparseScsrilu02_bufferSize(h, 1, 1, NULL, NULL, NULL, NULL, NULL, &bytes);
    EXPECT(!strcmp(cusparseGetErrorName(error), "CUSPARSE_STATUS_NOT_SUPPORTED"));
    EXPECT(!strcmp(cusparseGetErrorString(error), "operation not supported"));
    EXPECT(!strcmp(cusparseGetErrorName(-1), cusparseGetErrorName(12)));
    OK(cusparseDestroy(h));
}

SUITE_MAIN("sparse")
