/*
 * test_math.c: the simulated cuBLAS, cuBLASLt, cuSOLVER and cuFFT, as their documentation has them: handles, device memory they take,
 * sizes they ask for, answers they give. Prototypes are written out here: their headers are not needed to build.
 */
#include "tests/libraries/device.h"

typedef void *handle;

int cublasCreate_v2(handle *h);
int cublasDestroy_v2(handle h);
int cublasSetStream_v2(handle h, CUstream stream);
int cublasGetStream_v2(handle h, CUstream *stream);
int cublasSetWorkspace_v2(handle h, void *at, size_t bytes);
int cublasSetMathMode(handle h, int mode);
int cublasGetMathMode(handle h, int *mode);
int cublasSetPointerMode_v2(handle h, int mode);
int cublasGetPointerMode_v2(handle h, int *mode);
int cublasHgemm(handle h, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *, void *, int);
int cublasSgemm_v2(handle h, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);
int cublasSdot_v2(handle h, int n, const float *x, int, const float *y, int, float *result);
int cublasDznrm2_v2(handle h, int n, const void *x, int, double *result);
int cublasDrotg_v2(handle h, double *a, double *b, double *c, double *s);
int cublasSetMatrixAsync(int, int, int, const void *, int, void *, int, CUstream);
int cublasGetMatrixAsync(int, int, int, const void *, int, void *, int, CUstream);
int cublasGetVectorAsync(int, int, const void *, int, void *, int, CUstream);
int cublasSgetrfBatched(handle h, int n, float *const *, int, int *pivots, int *info, int batch);
int cublasSgetrsBatched(handle h, int, int, int, const float *const *, int, const int *, float *const *, int, int *info, int);

/* --- cuBLAS */

CASE(a_cublas_handle_takes_a_pool_and_gives_it_back)
{
    handle one, two;
    begin();
    uint64_t before = in_use();
    MUST(cublasCreate_v2(&one));
    EXPECT_EQ(in_use() - before, 32 * MIB);
    MUST(cublasCreate_v2(&two));
    EXPECT_EQ(in_use() - before, 64 * MIB);
    OK(cublasDestroy_v2(one));
    OK(cublasDestroy_v2(two));
    EXPECT_EQ(in_use(), before);
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8", 1);
    MUST(cublasCreate_v2(&one));
    EXPECT_EQ(in_use() - before, 10 * MIB); /* 8 MiB and 128 KiB, in pages of 2 MiB */
    OK(cublasDestroy_v2(one));
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:", 1);
    MUST(cublasCreate_v2(&one));
    EXPECT_EQ(in_use() - before, 32 * MIB);
    OK(cublasDestroy_v2(one));
}

CASE(a_cublas_handle_needs_room_for_its_pool)
{
    handle h = NULL;
    begin_with(16 * MIB);
    EXPECT_EQ(cublasCreate_v2(&h), 3); /* CUBLAS_STATUS_ALLOC_FAILED */
    EXPECT(!h);
    EXPECT_EQ(cublasCreate_v2(NULL), 7);
}

CASE(cublas_makes_a_context_where_there_is_none)
{
    handle h;
    CUcontext now = NULL;
    begin();
    MUST(cuCtxSetCurrent(NULL));
    MUST(cublasCreate_v2(&h));
    OK(cuCtxGetCurrent(&now));
    EXPECT_EQ(now, context);
    OK(cublasDestroy_v2(h));
}

CASE(a_capture_refuses_the_pool_of_a_handle)
{
    handle h = NULL;
    CUgraph graph = NULL;
    begin();
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cublasCreate_v2(&h) != 0);
    EXPECT(!h);
    cuStreamEndCapture(stream, &graph);
}

CASE(cublas_keeps_what_is_set)
{
    handle h;
    CUstream got = NULL;
    int mode = -1;
    begin();
    MUST(cublasCreate_v2(&h));
    OK(cublasGetPointerMode_v2(h, &mode));
    EXPECT_EQ(mode, 0);
    OK(cublasSetStream_v2(h, stream));
    OK(cublasGetStream_v2(h, &got));
    EXPECT_EQ(got, stream);
    OK(cublasSetMathMode(h, 3));
    OK(cublasGetMathMode(h, &mode));
    EXPECT_EQ(mode, 3);
    OK(cublasSetPointerMode_v2(h, 1));
    OK(cublasGetPointerMode_v2(h, &mode));
    EXPECT_EQ(mode, 1);
    EXPECT_EQ(cublasSetPointerMode_v2(h, 2), 7);
    EXPECT_EQ(cublasSetWorkspace_v2(h, (void *)257, 4096), 7); /* not aligned to 256 bytes */
    OK(cublasSetWorkspace_v2(h, (void *)512, 4096));
    OK(cublasDestroy_v2(h));
}

CASE(no_handle_is_an_error_and_no_crash)
{
    uint64_t junk[16] = {1, 2, 3};
    int value = 0;
    float real = 0;
    begin();
    for (int i = 0; i < 2; i++) {
        handle h = i ? junk : NULL;
        EXPECT_EQ(cublasDestroy_v2(h), 1);
        EXPECT_EQ(cublasSetStream_v2(h, stream), 1);
        EXPECT_EQ(cublasSetMathMode(h, 0), 1);
        EXPECT_EQ(cublasGetMathMode(h, &value), 1);
        EXPECT_EQ(cublasSgemm_v2(h, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1), 1);
        EXPECT_EQ(cublasSdot_v2(h, 1, NULL, 1, NULL, 1, &real), 1);
        EXPECT_EQ(cublasSgetrfBatched(h, 1, NULL, 1, NULL, &value, 1), 1);
        EXPECT_EQ(cublasSgetrsBatched(h, 0, 1, 1, NULL, 1, NULL, NULL, 1, &value, 1), 1);
    }
}

CASE(a_product_is_one_kernel_on_the_stream_of_its_handle)
{
    handle h;
    begin();
    MUST(cublasCreate_v2(&h));
    MUST(cublasSetStream_v2(h, stream));
    uint64_t before = kernels();
    sim_set_lag(1000);
    OK(cublasSgemm_v2(h, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1));
    OK(cublasHgemm(h, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1));
    EXPECT_EQ(kernels() - before, 2);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(NULL), CUDA_SUCCESS);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cublasSgemm_v2(h, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1), 13);
    OK(cublasDestroy_v2(h));
}

CASE(a_scalar_for_the_host_waits_and_reads_zero)
{
    handle h;
    float dot = 7;
    double norm = 7, cosine = 7, sine = 7;
    begin();
    MUST(cublasCreate_v2(&h));
    MUST(cublasSetStream_v2(h, stream));
    sim_set_lag(5000);
    uint64_t before = sim_now();
    OK(cublasSdot_v2(h, 1, NULL, 1, NULL, 1, &dot));
    EXPECT(dot == 0);
    EXPECT(sim_now() - before >= 5000);
    OK(cublasDznrm2_v2(h, 1, NULL, 1, &norm));
    EXPECT(norm == 0);
    OK(cublasDrotg_v2(h, NULL, NULL, &cosine, &sine));
    EXPECT(cosine == 1 && sine == 0);
    EXPECT_EQ(cublasSdot_v2(h, 1, NULL, 1, NULL, 1, NULL), 7);
    OK(cublasDestroy_v2(h));
}

CASE(a_scalar_on_the_device_is_zero_in_stream_order)
{
    handle h;
    begin();
    CUdeviceptr at = filled(64);
    MUST(cublasCreate_v2(&h));
    MUST(cublasSetStream_v2(h, stream));
    MUST(cublasSetPointerMode_v2(h, 1));
    sim_set_lag(5000);
    uint64_t before = sim_now();
    OK(cublasSdot_v2(h, 1, NULL, 1, NULL, 1, (float *)at));
    EXPECT_EQ(sim_now(), before);
    EXPECT_EQ(word(at, 0), 0);
    EXPECT_EQ(word(at, 1), UNTOUCHED);
    OK(cublasDrotg_v2(h, NULL, NULL, (double *)(at + 8), (double *)(at + 16)));
    EXPECT_EQ(word(at, 2), 0);
    EXPECT_EQ(word(at, 3), 0x3ff00000); /* 1.0 */
    EXPECT_EQ(word(at, 4), 0);
    OK(cublasDestroy_v2(h));
}

CASE(a_scalar_for_the_host_cannot_be_captured)
{
    handle h;
    CUgraph graph = NULL;
    float dot = 7;
    begin();
    MUST(cublasCreate_v2(&h));
    MUST(cublasSetStream_v2(h, stream));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cublasSgemm_v2(h, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1));
    EXPECT_EQ(cublasSdot_v2(h, 1, NULL, 1, NULL, 1, &dot), 13);
    EXPECT(dot == 7);
    cuStreamEndCapture(stream, &graph);
    OK(cublasDestroy_v2(h));
}

CASE(matrices_are_copied_by_columns)
{
    int from[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, to[12] = {0};
    begin();
    CUdeviceptr at = filled(64);
    OK(cublasSetMatrixAsync(2, 3, 4, from, 4, (void *)at, 3, stream)); /* rows 0 and 1 of a 4 x 3 matrix */
    EXPECT_EQ(word(at, 0), 0);
    EXPECT_EQ(word(at, 1), 1);
    EXPECT_EQ(word(at, 2), UNTOUCHED);
    EXPECT_EQ(word(at, 3), 4);
    EXPECT_EQ(word(at, 7), 9);
    OK(cublasGetMatrixAsync(2, 3, 4, (void *)at, 3, to, 2, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT(memcmp(to, (int[6]){0, 1, 4, 5, 8, 9}, 24) == 0);
    OK(cublasGetVectorAsync(3, 4, (void *)at, 3, to, 2, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT(to[0] == 0 && to[1] == 1 && to[2] == 4 && to[3] == 5 && to[4] == 8);
    EXPECT_EQ(cublasSetMatrixAsync(4, 3, 4, from, 3, (void *)at, 4, stream), 7); /* steps shorter than columns */
    EXPECT_EQ(cublasSetMatrixAsync(-1, 3, 4, from, 3, (void *)at, 4, stream), 7);
    EXPECT_EQ(cublasSetMatrixAsync(2, 3, 4, NULL, 4, (void *)at, 3, stream), 7);
    OK(cublasSetMatrixAsync(0, 3, 4, NULL, 4, NULL, 3, stream));
}

CASE(batched_solvers_say_that_all_went_well)
{
    handle h;
    int info = 7;
    begin();
    CUdeviceptr infos = filled(64);
    MUST(cublasCreate_v2(&h));
    MUST(cublasSetStream_v2(h, stream));
    OK(cublasSgetrfBatched(h, 8, NULL, 8, NULL, (int *)infos, 3));
    EXPECT_EQ(word(infos, 2), 0);
    EXPECT_EQ(word(infos, 3), UNTOUCHED);
    OK(cublasSgetrsBatched(h, 0, 8, 1, NULL, 8, NULL, NULL, 8, &info, 3));
    EXPECT_EQ(info, 0);
    OK(cublasDestroy_v2(h));
}

/* --- cuBLASLt */

struct found {
    uint64_t algo[8];
    size_t   workspace;
    int      state;
    float    waves;
    int      reserved[4];
};

size_t cublasLtGetVersion(void);
int cublasLtMatmulDescCreate(handle *, int, int);
int cublasLtMatmulDescDestroy(handle);
int cublasLtMatmulDescSetAttribute(handle, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(handle *, int, uint64_t rows, uint64_t columns, int64_t step);
int cublasLtMatrixLayoutDestroy(handle);
int cublasLtMatrixLayoutSetAttribute(handle, int, const void *, size_t);
int cublasLtMatmulPreferenceCreate(handle *);
int cublasLtMatmulPreferenceDestroy(handle);
int cublasLtMatmulPreferenceSetAttribute(handle, int, const void *, size_t);
int cublasLtMatmulAlgoGetHeuristic(handle, handle, handle, handle, handle, handle, handle, int, struct found *, int *);
int cublasLtMatmulAlgoConfigGetAttribute(const void *, int, void *, size_t, size_t *);
int cublasLtMatmulAlgoConfigSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulAlgoCheck(handle, handle, handle, handle, handle, handle, const void *, struct found *);
int cublasLtMatmul(handle, handle, const void *, const void *, handle, const void *, handle, const void *, const void *, handle, void *,
                   handle, const void *, void *, size_t, CUstream);

CASE(the_heuristic_finds_as_many_as_asked_within_the_workspace)
{
    handle h, what, layout, wish;
    struct found found[4], checked;
    int count = 0, batch = 10;
    uint64_t most = 1 * MIB;
    begin();
    MUST(cublasCreate_v2(&h));
    EXPECT_EQ(cublasLtGetVersion() / 10000, 13);
    MUST(cublasLtMatmulDescCreate(&what, 68, 0));
    MUST(cublasLtMatrixLayoutCreate(&layout, 0, 100, 50, 100));
    MUST(cublasLtMatmulPreferenceCreate(&wish));
    OK(cublasLtMatmulPreferenceSetAttribute(wish, 1, &most, sizeof most));
    OK(cublasLtMatmulAlgoGetHeuristic(h, what, layout, layout, layout, layout, wish, 4, found, &count));
    EXPECT_EQ(count, 4);
    EXPECT_EQ(found[0].workspace, 40192); /* two parts of 100 x 50 floats, rounded up to 256 */
    for (int i = 0; i < 4; i++)
        EXPECT(found[i].state == 0 && found[i].workspace <= most);
    OK(cublasLtMatmulAlgoCheck(h, what, layout, layout, layout, layout, &found[0].algo, &checked));
    EXPECT_EQ(checked.workspace, found[0].workspace);
    OK(cublasLtMatrixLayoutSetAttribute(layout, 5, &batch, sizeof batch));
    OK(cublasLtMatmulAlgoGetHeuristic(h, what, layout, layout, layout, layout, wish, 1, found, &count));
    EXPECT_EQ(found[0].workspace, 400128);
    most = 1024;
    OK(cublasLtMatmulPreferenceSetAttribute(wish, 1, &most, sizeof most));
    OK(cublasLtMatmulAlgoGetHeuristic(h, what, layout, layout, layout, layout, wish, 1, found, &count));
    EXPECT_EQ(found[0].workspace, 0);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(h, what, layout, layout, layout, layout, wish, 0, found, &count), 7);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(h, layout, layout, layout, layout, layout, wish, 1, found, &count), 7);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(NULL, what, layout, layout, layout, layout, wish, 1, found, &count), 1);
    uint64_t before = kernels();
    OK(cublasLtMatmul(h, what, &most, what, layout, what, layout, NULL, NULL, layout, what, layout, NULL, NULL, 0, stream));
    EXPECT_EQ(kernels() - before, 1);
    EXPECT_EQ(cublasLtMatmul(h, what, NULL, what, layout, what, layout, NULL, NULL, layout, what, layout, NULL, NULL, 0, stream), 7);
    OK(cublasLtMatmulDescDestroy(what));
    OK(cublasLtMatrixLayoutDestroy(layout));
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(wish), 7);
    OK(cublasLtMatmulPreferenceDestroy(wish));
    OK(cublasDestroy_v2(h));
}

CASE(an_algorithm_keeps_its_configuration)
{
    uint64_t algo[8] = {0};
    uint32_t tile = 15, got = 0;
    size_t size = 0;
    OK(cublasLtMatmulAlgoConfigSetAttribute(algo, 1, &tile, sizeof tile));
    OK(cublasLtMatmulAlgoConfigGetAttribute(algo, 1, NULL, 0, &size));
    EXPECT_EQ(size, 4);
    OK(cublasLtMatmulAlgoConfigGetAttribute(algo, 1, &got, sizeof got, &size));
    EXPECT_EQ(got, 15);
    EXPECT_EQ(cublasLtMatmulAlgoConfigSetAttribute(algo, 16, &tile, sizeof tile), 7);
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(NULL, 1, &tile, sizeof tile), 7);
}

/* --- cuSOLVER */

int cusolverDnCreate(handle *);
int cusolverDnDestroy(handle);
int cusolverDnSetStream(handle, CUstream);
int cusolverDnSpotrf_bufferSize(handle, int, int n, float *, int, int *);
int cusolverDnSpotrf(handle, int, int n, float *, int, float *, int, int *info);
int cusolverDnZpotrfBatched(handle, int, int n, void **, int, int *info, int batch);
int cusolverDnDsyevd_bufferSize(handle, int, int, int n, const double *, int, const double *, int *);
int cusolverDnCunmqr_bufferSize(handle, int, int, int m, int n, int, const void *, int, const void *, const void *, int, int *);
int cusolverDnXsyevd_bufferSize(handle, handle, int, int, int64_t, int, const void *, int64_t, int, const void *, int, size_t *, size_t *);
int cusolverDnXgeev_bufferSize(handle, handle, int, int, int64_t, int, const void *, int64_t, int, const void *, int, const void *, int64_t,
                               int, const void *, int64_t, int, size_t *, size_t *);
int cusolverDnXgeev(handle, handle, int, int, int64_t, int, void *, int64_t, int, void *, int, void *, int64_t, int, void *, int64_t, int,
                    void *, size_t, void *, size_t, int *info);

CASE(solvers_ask_for_what_their_algorithms_take)
{
    handle h;
    int count = 0;
    size_t device = 0, host = 1;
    begin();
    MUST(cusolverDnCreate(&h));
    OK(cusolverDnSpotrf_bufferSize(h, 0, 100, NULL, 100, &count));
    EXPECT_EQ(count, 6400);
    OK(cusolverDnDsyevd_bufferSize(h, 1, 0, 100, NULL, 100, NULL, &count));
    EXPECT_EQ(count, 20601); /* 1 + 6n + 2n^2 */
    OK(cusolverDnDsyevd_bufferSize(h, 0, 0, 100, NULL, 100, NULL, &count));
    EXPECT_EQ(count, 6601);
    OK(cusolverDnCunmqr_bufferSize(h, 1, 0, 30, 50, 20, NULL, 30, NULL, NULL, 30, &count));
    EXPECT_EQ(count, 1920);
    OK(cusolverDnXsyevd_bufferSize(h, NULL, 1, 0, 100, 1, NULL, 100, 1, NULL, 1, &device, &host));
    EXPECT_EQ(device, 164864); /* 20601 doubles, rounded up to 256 */
    EXPECT_EQ(host, 0);
    OK(cusolverDnXgeev_bufferSize(h, NULL, 0, 1, 100, 5, NULL, 100, 5, NULL, 5, NULL, 1, 5, NULL, 100, 5, &device, &host));
    EXPECT_EQ(device, 268800); /* n^2 + 64n + 4n complex doubles */
    EXPECT_EQ(host, device + 160000);
    EXPECT_EQ(cusolverDnSpotrf_bufferSize(h, 0, -1, NULL, 1, &count), 3);
    EXPECT_EQ(cusolverDnSpotrf_bufferSize(h, 0, 100, NULL, 100, NULL), 3);
    EXPECT_EQ(cusolverDnDsyevd_bufferSize(h, 1, 0, 40000, NULL, 40000, NULL, &count), 3); /* more than an int counts */
    EXPECT_EQ(cusolverDnXsyevd_bufferSize(h, NULL, 1, 0, INT64_MAX, 1, NULL, 1, 1, NULL, 1, &device, &host), 3);
    EXPECT_EQ(cusolverDnXsyevd_bufferSize(h, NULL, 1, 0, 100, 99, NULL, 1, 1, NULL, 1, &device, &host), 3);
    EXPECT_EQ(cusolverDnSpotrf_bufferSize(NULL, 0, 100, NULL, 100, &count), 1);
    OK(cusolverDnDestroy(h));
}

CASE(solvers_say_that_all_went_well)
{
    handle h;
    begin();
    CUdeviceptr info = filled(64);
    MUST(cusolverDnCreate(&h));
    OK(cusolverDnSetStream(h, stream));
    uint64_t before = kernels();
    OK(cusolverDnSpotrf(h, 0, 8, NULL, 8, NULL, 0, (int *)info));
    EXPECT_EQ(kernels() - before, 1);
    EXPECT_EQ(word(info, 0), 0);
    EXPECT_EQ(word(info, 1), UNTOUCHED);
    OK(cusolverDnZpotrfBatched(h, 0, 8, NULL, 8, (int *)(info + 4), 3));
    EXPECT_EQ(word(info, 3), 0);
    EXPECT_EQ(word(info, 4), UNTOUCHED);
    OK(cusolverDnXgeev(h, NULL, 0, 1, 8, 5, NULL, 8, 5, NULL, 5, NULL, 1, 5, NULL, 8, 5, NULL, 0, NULL, 0, (int *)(info + 16)));
    EXPECT_EQ(word(info, 4), 0);
    EXPECT_EQ(cusolverDnSpotrf(h, 0, 8, NULL, 8, NULL, 0, NULL), 3);
    EXPECT_EQ(cusolverDnSpotrf(NULL, 0, 8, NULL, 8, NULL, 0, (int *)info), 1);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cusolverDnSpotrf(h, 0, 8, NULL, 8, NULL, 0, (int *)info), 6);
    OK(cusolverDnDestroy(h));
}

/* --- cuFFT */

int cufftCreate(int *);
int cufftDestroy(int);
int cufftSetAutoAllocation(int, int);
int cufftSetStream(int, CUstream);
int cufftSetWorkArea(int, void *);
int cufftXtExec(int, void *, void *, int);
int cufftXtMakePlanMany(int, int, long long *, long long *, long long, long long, int, long long *, long long, long long, int, long long,
                        size_t *, int);

#define C32 4
static int make(int plan, int rank, long long *n, long long batch, size_t *work)
{
    return cufftXtMakePlanMany(plan, rank, n, NULL, 1, 1, C32, NULL, 1, 1, C32, batch, work, C32);
}

static size_t work_of(int rank, long long a, long long b, long long batch)
{
    int plan = 0;
    size_t work = 1;
    long long n[] = {a, b, 1};
    MUST(cufftCreate(&plan));
    OK(cufftSetAutoAllocation(plan, 0));
    OK(make(plan, rank, n, batch, &work));
    OK(cufftDestroy(plan));
    return work;
}

CASE(transforms_ask_for_a_copy_where_one_go_is_not_enough)
{
    begin();
    EXPECT_EQ(work_of(1, 4096, 0, 100), 0);
    EXPECT_EQ(work_of(1, 8192, 0, 100), 8192 * 100 * 8);
    EXPECT_EQ(work_of(1, 11, 0, 64), 11 * 64 * 8);          /* a factor that no single pass has */
    EXPECT_EQ(work_of(1, 1009, 0, 64), 2 * 2048 * 64 * 8);  /* a prime: twice a power of two above 2n - 1 */
    EXPECT_EQ(work_of(2, 64, 32, 3), 64 * 32 * 3 * 8);
}

CASE(a_plan_has_a_life)
{
    int plan = 0, other = 0;
    size_t work = 0;
    long long n[] = {1 << 20, 0, 1};
    begin();
    uint64_t before = in_use();
    EXPECT_EQ(cufftXtExec(12345, &n, &n, -1), 1);
    EXPECT_EQ(cufftDestroy(0), 1);
    EXPECT_EQ(cufftDestroy(-7), 1);
    MUST(cufftCreate(&plan));
    MUST(cufftCreate(&other));
    EXPECT(plan != other);
    EXPECT_EQ(cufftXtExec(plan, &n, &n, -1), 1);
    EXPECT_EQ(make(plan, 4, n, 1, &work), 4);
    EXPECT_EQ(make(plan, 2, n, 1, &work), 8);
    EXPECT_EQ(make(plan, 1, n, 0, &work), 8);
    EXPECT_EQ(make(plan, 1, (long long[]){INT64_MAX}, 1, &work), 8);
    EXPECT_EQ(make(plan, 1, n, INT64_MAX, &work), 8);
    EXPECT_EQ(cufftXtMakePlanMany(plan, 1, n, NULL, 1, 1, 99, NULL, 1, 1, C32, 1, &work, C32), 3);
    OK(make(plan, 1, n, 1, &work));
    EXPECT_EQ(in_use() - before, 8 * MIB); /* it allocates by itself */
    OK(cufftSetStream(plan, stream));
    uint64_t launched = kernels();
    sim_set_lag(1000);
    OK(cufftXtExec(plan, &n, &n, -1));
    EXPECT_EQ(kernels() - launched, 1);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(make(plan, 1, n, 1, &work), 1); /* once */
    OK(cufftSetWorkArea(plan, n));
    EXPECT_EQ(in_use(), before); /* another's area takes the place of its own */
    OK(cufftSetAutoAllocation(other, 0));
    OK(make(other, 1, n, 1, &work));
    EXPECT_EQ(cufftXtExec(other, &n, &n, -1), 13); /* CUFFT_NO_WORKSPACE */
    OK(cufftDestroy(plan));
    EXPECT_EQ(cufftDestroy(plan), 1);
    OK(cufftDestroy(other));
    EXPECT_EQ(in_use(), before);
}

CASE(a_plan_without_room_is_not_made)
{
    int plan = 0;
    size_t work = 0;
    long long n[] = {1 << 24};
    begin_with(64 * MIB);
    MUST(cufftCreate(&plan));
    EXPECT_EQ(make(plan, 1, n, 1, &work), 2); /* CUFFT_ALLOC_FAILED */
    EXPECT_EQ(cufftXtExec(plan, &n, &n, -1), 1);
    OK(cufftDestroy(plan));
}

SUITE_MAIN("math")
