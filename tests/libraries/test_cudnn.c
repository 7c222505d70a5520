/*
 * test_cudnn.c: the simulated cuDNN, as its documentation has it: descriptors, what fits together, scratch memory, and the stream that work
 * goes to. Numbers of cuDNN's lists are written out here: its headers are not needed to build.
 */
#include "tests/libraries/device.h"

#include "sim/libraries/cudnn/cudnn.h"

typedef void *handle;
typedef void *descriptor;

size_t cudnnGetVersion(void);
size_t cudnnGetCudartVersion(void);
int cudnnGetProperty(int which, int *value);
const char *cudnnGetErrorString(int error);
void cudnnGetLastErrorString(char *message, size_t size);
int cudnnCreate(handle *h);
int cudnnDestroy(handle h);
int cudnnSetStream(handle h, CUstream stream);
int cudnnGetStream(handle h, CUstream *stream);
int cudnnCreateTensorDescriptor(descriptor *d);
int cudnnDestroyTensorDescriptor(descriptor d);
int cudnnSetTensorNdDescriptor(descriptor d, int type, int count, const int *dims, const int *strides);
int cudnnGetTensorNdDescriptor(descriptor d, int room, int *type, int *count, int *dims, int *strides);
int cudnnCreateFilterDescriptor(descriptor *d);
int cudnnSetFilterNdDescriptor(descriptor d, int type, int format, int count, const int *dims);
int cudnnGetFilterNdDescriptor(descriptor d, int room, int *type, int *format, int *count, int *dims);
int cudnnCreateConvolutionDescriptor(descriptor *d);
int cudnnSetConvolutionNdDescriptor(descriptor d, int n, const int *pad, const int *stride, const int *dilation, int mode, int type);
int cudnnSetConvolutionGroupCount(descriptor d, int groups);
int cudnnSetConvolutionMathType(descriptor d, int math);
int cudnnCreateDropoutDescriptor(descriptor *d);
int cudnnSetDropoutDescriptor(descriptor d, handle h, float rate, void *states, size_t bytes, unsigned long long seed);
int cudnnDropoutGetStatesSize(handle h, size_t *size);
int cudnnCreateRNNDescriptor(descriptor *d);
int cudnnCreateRNNDataDescriptor(descriptor *d);
int cudnnSetRNNDescriptor_v8(descriptor d, int algorithm, int cell, int bias, int direction, int input_mode, int type, int precision,
    int math, int input, int hidden, int projection, int layers, descriptor dropout, unsigned flags);
int cudnnSetRNNDataDescriptor(descriptor d, int type, int layout, int steps, int batch, int vector, const int *lengths, void *padding);
int cudnnGetRNNWeightSpaceSize(handle h, descriptor d, size_t *size);
int cudnnGetRNNWeightParams(handle h, descriptor d, int pseudo, size_t bytes, const void *weights, int linear, descriptor m, void **m_at,
    descriptor b, void **b_at);
int cudnnGetRNNTempSpaceSizes(handle h, descriptor d, int mode, descriptor x, size_t *work, size_t *reserve);
int cudnnRNNForward(handle h, descriptor d, int mode, const int *lengths, descriptor x, const void *x_data, descriptor y, void *y_data,
    descriptor hidden, const void *hx, void *hy, descriptor cell, const void *cx, void *cy, size_t weight_bytes, const void *weights,
    size_t work_bytes, void *work, size_t reserve_bytes, void *reserve);
int cudnnCreateCTCLossDescriptor(descriptor *d);
int cudnnSetCTCLossDescriptor_v9(descriptor d, int type, int normalization, int gradient, int most);
int cudnnGetCTCLossWorkspaceSize(handle h, descriptor p, descriptor g, const int *labels, const int *lengths, const int *steps,
    int algorithm, descriptor c, size_t *size);
int cudnnGetCTCLossWorkspaceSize_v8(handle h, int algorithm, descriptor c, descriptor p, descriptor g, size_t *size);
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle h, int mode, int operations, descriptor a, descriptor x, size_t *size);
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle h, int mode, int operations, descriptor x, descriptor z, descriptor y,
    descriptor scale, descriptor a, size_t *size);

struct performance {
    int    algorithm, error;
    float  milliseconds;
    size_t bytes;
    int    deterministic, math, reserved[3];
};
int cudnnGetConvolutionForwardAlgorithm_v7(handle, descriptor x, descriptor w, descriptor c, descriptor y, int, int *,
    struct performance *);
int cudnnFindConvolutionForwardAlgorithmEx(handle, descriptor x, const void *, descriptor w, const void *, descriptor c, descriptor y,
    void *, int, int *, struct performance *, void *, size_t);
int cudnnGetConvolutionForwardWorkspaceSize(handle, descriptor x, descriptor w, descriptor c, descriptor y, int algorithm, size_t *);
int cudnnConvolutionForward(handle, const void *alpha, descriptor x, const void *, descriptor w, const void *, descriptor c, int algorithm,
    void *workspace, size_t bytes, const void *beta, descriptor y, void *);

static char data; /* an address: never read */

static handle open_handle(void)
{
    handle h = NULL;
    begin();
    MUST(cudnnCreate(&h));
    MUST(cudnnSetStream(h, stream));
    return h;
}

/* Packed, the last dimension next to each other; or channels (dimension 1) next to each other. */
static descriptor tensor(int type, int count, const int *dims, bool channels_last)
{
    int strides[CUDNN_DIMS_MAX], next = channels_last ? dims[1] : 1;
    for (int i = count - 1; i >= 0; i--) {
        strides[i] = channels_last && i == 1 ? 1 : next;
        next *= channels_last && i == 1 ? 1 : dims[i];
    }
    descriptor d = NULL;
    MUST(cudnnCreateTensorDescriptor(&d));
    MUST(cudnnSetTensorNdDescriptor(d, type, count, dims, strides));
    return d;
}

/* --- the library */

CASE(versions_agree_with_each_other)
{
    int major = 0, minor = 0, patch = 0;
    OK(cudnnGetProperty(0, &major));
    OK(cudnnGetProperty(1, &minor));
    OK(cudnnGetProperty(2, &patch));
    EXPECT_EQ(cudnnGetVersion(), major * 10000 + minor * 100 + patch);
    EXPECT(cudnnGetVersion() >= 92600);
    EXPECT(cudnnGetCudartVersion() >= 13000);
    EXPECT_EQ(cudnnGetProperty(3, &major), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetProperty(0, NULL), CUDNN_BAD_PARAM);
}

CASE(errors_have_names_and_the_last_one_has_words)
{
    char words[256];
    EXPECT_TEXT_EQ(cudnnGetErrorString(0), "CUDNN_STATUS_SUCCESS");
    EXPECT_TEXT_EQ(cudnnGetErrorString(3000), "CUDNN_STATUS_NOT_SUPPORTED");
    EXPECT_TEXT_EQ(cudnnGetErrorString(-7), "CUDNN_UNKNOWN_STATUS");
    EXPECT_EQ(cudnnGetProperty(9, NULL), CUDNN_BAD_PARAM);
    cudnnGetLastErrorString(words, sizeof words);
    EXPECT_TEXT_EQ(words, "property 9");
    cudnnGetLastErrorString(words, sizeof words);
    EXPECT_TEXT_EQ(words, "");
    cudnnGetLastErrorString(NULL, 4);
}

CASE(tensors_give_back_what_was_set)
{
    int dims[] = {2, 3, 5, 7}, strides[] = {105, 35, 7, 1}, got[4], got_strides[4], type, count, format;
    descriptor t = tensor(DATA_HALF, 4, dims, false), f = NULL;
    OK(cudnnGetTensorNdDescriptor(t, 4, &type, &count, got, got_strides));
    EXPECT_EQ(type, DATA_HALF);
    EXPECT_EQ(count, 4);
    EXPECT(!memcmp(got, dims, sizeof dims) && !memcmp(got_strides, strides, sizeof strides));
    got[2] = -1;
    OK(cudnnGetTensorNdDescriptor(t, 2, NULL, &count, got, NULL));
    EXPECT_EQ(count, 4);
    EXPECT_EQ(got[2], -1);
    EXPECT_EQ(cudnnGetTensorNdDescriptor(t, 9, NULL, NULL, got, NULL), CUDNN_BAD_PARAM);
    MUST(cudnnCreateFilterDescriptor(&f));
    EXPECT_EQ(cudnnGetFilterNdDescriptor(f, 4, &type, &format, &count, got), CUDNN_BAD_PARAM);
    OK(cudnnSetFilterNdDescriptor(f, DATA_FLOAT, 1, 4, dims));
    OK(cudnnGetFilterNdDescriptor(f, 4, &type, &format, &count, got));
    EXPECT_EQ(format, 1);
    EXPECT(!memcmp(got, dims, sizeof dims));
}

CASE(bad_descriptors_are_refused)
{
    int dims[] = {2, 3, 5, 7}, bad[] = {2, 0, 5, 7};
    descriptor t = tensor(DATA_FLOAT, 4, dims, false), f = NULL;
    MUST(cudnnCreateFilterDescriptor(&f));
    EXPECT_EQ(cudnnSetTensorNdDescriptor(t, DATA_FLOAT, 4, bad, dims), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnSetTensorNdDescriptor(t, DATA_FLOAT, 9, dims, dims), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnSetTensorNdDescriptor(t, 99, 4, dims, dims), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnSetTensorNdDescriptor(t, DATA_FLOAT, 4, NULL, dims), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(cudnnSetTensorNdDescriptor(t, DATA_FLOAT, 4, dims, NULL), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(cudnnSetTensorNdDescriptor(f, DATA_FLOAT, 4, dims, dims), CUDNN_BAD_PARAM); /* a filter */
    EXPECT_EQ(cudnnDestroyTensorDescriptor(f), CUDNN_BAD_PARAM);
    OK(cudnnDestroyTensorDescriptor(t));
    EXPECT_EQ(cudnnGetTensorNdDescriptor(t, 0, NULL, NULL, NULL, NULL), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnDestroyTensorDescriptor(t), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnCreateTensorDescriptor(NULL), CUDNN_BAD_PARAM_NULL_POINTER);
    OK(cudnnDestroyTensorDescriptor(NULL));
}

/* --- convolutions, the older interface */

struct scene {
    handle     h;
    descriptor x, w, c, y;
};

/* 3 x 3, padded by one: the output has the input's extent. */
static struct scene convolution(int type, int batch, int in, int out, int side, bool channels_last)
{
    struct scene s = {.h = open_handle()};
    int x[] = {batch, in, side, side}, y[] = {batch, out, side, side}, w[] = {out, in, 3, 3}, one[] = {1, 1};
    s.x = tensor(type, 4, x, channels_last);
    s.y = tensor(type, 4, y, channels_last);
    MUST(cudnnCreateFilterDescriptor(&s.w));
    MUST(cudnnSetFilterNdDescriptor(s.w, type, channels_last, 4, w));
    MUST(cudnnCreateConvolutionDescriptor(&s.c));
    MUST(cudnnSetConvolutionNdDescriptor(s.c, 2, one, one, one, 1, DATA_FLOAT));
    return s;
}

static int forward(const struct scene *s, int algorithm, void *workspace, size_t bytes)
{
    float one = 1;
    return cudnnConvolutionForward(s->h, &one, s->x, &data, s->w, &data, s->c, algorithm, workspace, bytes, &one, s->y, &data);
}

CASE(algorithms_say_what_they_need)
{
    struct scene s = convolution(DATA_FLOAT, 8, 16, 32, 28, false);
    struct performance list[8];
    int count = 0;
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count, list));
    REQUIRE(count >= 3);
    bool free_one = false;
    for (int i = 0; i < count; i++) {
        size_t bytes = 1;
        OK(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, s.y, list[i].algorithm, &bytes));
        EXPECT_EQ(bytes, list[i].bytes);
        EXPECT(i == 0 || list[i].milliseconds > list[i - 1].milliseconds);
        for (int j = 0; j < i; j++)
            EXPECT(list[i].algorithm != list[j].algorithm);
        free_one |= bytes == 0;
    }
    EXPECT(free_one);
    EXPECT(list[0].bytes > 0);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, s.y, 3, &list[0].bytes), CUDNN_NOT_SUPPORTED);
    EXPECT_EQ(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 0, &count, list), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 1, NULL, list), CUDNN_BAD_PARAM_NULL_POINTER);
}

CASE(a_search_lists_what_fits_its_workspace)
{
    struct scene s = convolution(DATA_FLOAT, 8, 16, 32, 28, false);
    struct performance all[8], some[8];
    int count_all = 0, count = 0;
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count_all, all));
    MUST(cudnnFindConvolutionForwardAlgorithmEx(s.h, s.x, &data, s.w, &data, s.c, s.y, &data, 8, &count, some, &data, all[0].bytes - 1));
    EXPECT(count > 0 && count < count_all);
    for (int i = 0; i < count; i++)
        EXPECT(some[i].bytes < all[0].bytes);
    MUST(cudnnFindConvolutionForwardAlgorithmEx(s.h, s.x, &data, s.w, &data, s.c, s.y, &data, 8, &count, some, NULL, 0));
    EXPECT_EQ(some[0].bytes, 0);
}

CASE(scratch_memory_grows_with_the_problem)
{
    struct performance small[8], large[8];
    int count = 0;
    struct scene s = convolution(DATA_FLOAT, 4, 16, 32, 28, false);
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count, small));
    s = convolution(DATA_FLOAT, 8, 16, 32, 28, false);
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count, large));
    for (int i = 0; i < count; i++)
        EXPECT(small[i].algorithm == large[i].algorithm && large[i].bytes >= small[i].bytes);
    EXPECT(large[0].bytes > small[0].bytes);
    s = convolution(DATA_HALF, 8, 16, 32, 28, true); /* channels last: nothing is copied */
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count, small));
    EXPECT_EQ(small[0].bytes, 0);
    s = convolution(DATA_HALF, 8, 16, 32, 28, false);
    MUST(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &count, small));
    EXPECT_EQ(small[0].bytes, 2 * (8 * 16 + 8 * 32) * 28 * 28 + 2 * 16 * 32 * 9);
}

CASE(a_workspace_that_is_too_small_is_refused)
{
    struct scene s = convolution(DATA_FLOAT, 8, 16, 32, 28, false);
    size_t bytes = 0;
    MUST(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, s.y, 1, &bytes));
    uint64_t before = kernels();
    EXPECT_EQ(forward(&s, 1, &data, bytes - 1), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(forward(&s, 1, NULL, bytes), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(kernels(), before);
    OK(forward(&s, 1, &data, bytes));
    OK(forward(&s, 0, NULL, 0));
    EXPECT_EQ(kernels() - before, 2);
}

CASE(what_does_not_fit_is_refused)
{
    struct scene s = convolution(DATA_FLOAT, 8, 16, 32, 28, false);
    size_t bytes;
    int other[] = {8, 32, 27, 28}, one[] = {1, 1}, bad[] = {1, -1};
    descriptor y = tensor(DATA_FLOAT, 4, other, false), unset = NULL;
    MUST(cudnnCreateConvolutionDescriptor(&unset));
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, y, 0, &bytes), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.y, s.w, s.c, s.y, 0, &bytes), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, unset, s.y, 0, &bytes), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.x, s.y, 0, &bytes), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(NULL, s.x, s.w, s.c, s.y, 0, &bytes), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, NULL, s.w, s.c, s.y, 0, &bytes), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(cudnnSetConvolutionNdDescriptor(s.c, 2, bad, one, one, 1, DATA_FLOAT), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnSetConvolutionMathType(s.c, 4), CUDNN_BAD_PARAM);
    OK(cudnnSetConvolutionGroupCount(s.c, 2)); /* the filter has no groups */
    EXPECT_EQ(cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, s.y, 0, &bytes), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
}

CASE(work_goes_to_the_handles_stream)
{
    struct scene s = convolution(DATA_FLOAT, 1, 4, 4, 8, false);
    CUstream other, got = NULL;
    CUgraph graph;
    size_t nodes = 0;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(forward(&s, 0, NULL, 0));
    OK(cudnnSetStream(s.h, other)); /* not captured: runs at once */
    OK(cudnnGetStream(s.h, &got));
    EXPECT_EQ(got, other);
    OK(forward(&s, 0, NULL, 0));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT_EQ(nodes, 1);
    MUST(cuStreamDestroy(other));
    EXPECT_EQ(forward(&s, 0, NULL, 0), CUDNN_EXECUTION_FAILED);
    OK(cudnnDestroy(s.h));
}

/* --- recurrent networks */

enum { RELU, TANH, LSTM, GRU };

struct network {
    int cell, bias, directions, input, hidden, projection, layers;
};

static descriptor network(const struct network *n, int type, descriptor dropout)
{
    descriptor d = NULL;
    MUST(cudnnCreateRNNDescriptor(&d));
    MUST(cudnnSetRNNDescriptor_v8(d, 0, n->cell, n->bias, n->directions - 1, 0, type, DATA_FLOAT, 0, n->input, n->hidden, n->projection,
        n->layers, dropout, 0));
    return d;
}

static descriptor sequences(int type, int layout, int steps, int batch, int vector, const int *lengths)
{
    int same[64];
    for (int i = 0; i < batch; i++)
        same[i] = steps;
    descriptor d = NULL;
    MUST(cudnnCreateRNNDataDescriptor(&d));
    MUST(cudnnSetRNNDataDescriptor(d, type, layout, steps, batch, vector, lengths ? lengths : same, NULL));
    return d;
}

/* Counts each element of the weight space that the shape at `at` covers. */
static void cover(unsigned char *seen, size_t elements, const float *base, descriptor shape, const void *at)
{
    int dims[3] = {0}, count = 0;
    MUST(cudnnGetTensorNdDescriptor(shape, 3, NULL, &count, dims, NULL));
    REQUIRE_EQ(count, 3);
    size_t first = (size_t)((const float *)at - base), size = (size_t)dims[0] * (size_t)dims[1] * (size_t)dims[2];
    REQUIRE(first + size <= elements);
    for (size_t i = first; i < first + size; i++)
        seen[i]++;
}

static void expect_tiled(handle h, const struct network *n)
{
    static const int gates[] = {1, 1, 4, 3};
    static float weights[1 << 16];
    static unsigned char seen[1 << 16];
    descriptor d = network(n, DATA_FLOAT, NULL), m = NULL, b = NULL;
    size_t bytes = 0;
    MUST(cudnnCreateTensorDescriptor(&m));
    MUST(cudnnCreateTensorDescriptor(&b));
    MUST(cudnnGetRNNWeightSpaceSize(h, d, &bytes));
    REQUIRE(bytes <= sizeof weights);
    memset(seen, 0, sizeof seen);
    for (int pseudo = 0; pseudo < n->layers * n->directions; pseudo++)
        for (int linear = 0; linear <= 2 * gates[n->cell]; linear++) {
            void *matrix = &data, *bias = &data;
            MUST(cudnnGetRNNWeightParams(h, d, pseudo, bytes, weights, linear, m, &matrix, b, &bias));
            bool projection = linear == 2 * gates[n->cell], recurrent = linear >= gates[n->cell];
            EXPECT_EQ(!matrix, projection && n->projection == n->hidden);
            EXPECT_EQ(!bias, projection || n->bias == 0 || n->bias == (recurrent ? 1 : 3));
            if (matrix)
                cover(seen, bytes / 4, weights, m, matrix);
            if (bias)
                cover(seen, bytes / 4, weights, b, bias);
        }
    size_t once = 0;
    for (size_t i = 0; i < bytes / 4; i++)
        once += seen[i] == 1;
    EXPECT_EQ(once, bytes / 4);
}

CASE(matrices_and_biases_tile_the_weight_space)
{
    handle h = open_handle();
    for (int cell = RELU; cell <= GRU; cell++)
        for (int bias = 0; bias < 4; bias++)
            for (int directions = 1; directions <= 2; directions++)
                for (int layers = 1; layers <= 3; layers++)
                    expect_tiled(h, &(struct network){cell, bias, directions, 5, 7, 7, layers});
    expect_tiled(h, &(struct network){LSTM, 2, 2, 5, 7, 3, 3});
}

CASE(a_weight_space_holds_the_parameters)
{
    handle h = open_handle();
    size_t bytes = 0;
    descriptor d = network(&(struct network){LSTM, 2, 2, 10, 20, 20, 2}, DATA_HALF, NULL);
    MUST(cudnnGetRNNWeightSpaceSize(h, d, &bytes));
    EXPECT_EQ(bytes, 2 * 2 * (4 * 20 * (10 + 20 + 2) + 4 * 20 * (40 + 20 + 2))); /* half, both directions, two layers */
    char weights[4];
    EXPECT_EQ(cudnnGetRNNWeightParams(h, d, 0, bytes - 1, weights, 0, NULL, NULL, NULL, NULL), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(cudnnGetRNNWeightParams(h, d, 4, bytes, weights, 0, NULL, NULL, NULL, NULL), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetRNNWeightParams(h, d, 0, bytes, weights, 9, NULL, NULL, NULL, NULL), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnGetRNNWeightParams(h, d, 0, bytes, weights, -1, NULL, NULL, NULL, NULL), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnSetRNNDescriptor_v8(d, 0, GRU, 2, 0, 0, DATA_FLOAT, DATA_FLOAT, 0, 10, 20, 5, 1, NULL, 0), CUDNN_NOT_SUPPORTED);
    EXPECT_EQ(cudnnSetRNNDescriptor_v8(d, 0, 7, 2, 0, 0, DATA_FLOAT, DATA_FLOAT, 0, 10, 20, 20, 1, NULL, 0), CUDNN_BAD_PARAM);
}

/* github.com/pytorch/pytorch/issues/2895: 4 layers, input 123, hidden 320, 1000 steps of 25 sequences, float */
CASE(temporary_spaces_are_what_was_measured)
{
    static const struct { int cell; size_t work, reserve; } measured[] = {{LSTM, 17730560, 736000000}, {GRU, 13169920, 864000000}};
    handle h = open_handle();
    descriptor x = sequences(DATA_FLOAT, 0, 1000, 25, 123, NULL);
    for (int i = 0; i < 2; i++) {
        size_t work = 0, reserve = 0;
        descriptor d = network(&(struct network){measured[i].cell, 2, 1, 123, 320, 320, 4}, DATA_FLOAT, NULL);
        MUST(cudnnGetRNNTempSpaceSizes(h, d, 1, x, &work, &reserve));
        EXPECT_EQ(work, measured[i].work);
        EXPECT_EQ(reserve, measured[i].reserve);
        MUST(cudnnGetRNNTempSpaceSizes(h, d, 0, x, &work, &reserve));
        EXPECT_EQ(work, measured[i].work);
        EXPECT_EQ(reserve, 0); /* inference keeps nothing */
    }
}

CASE(packed_sequences_keep_what_they_have)
{
    handle h = open_handle();
    int lengths[] = {9, 4, 1}, rising[] = {1, 4, 9};
    size_t work, full = 0, packed = 0;
    descriptor d = network(&(struct network){LSTM, 2, 1, 16, 64, 64, 1}, DATA_FLOAT, NULL);
    MUST(cudnnGetRNNTempSpaceSizes(h, d, 1, sequences(DATA_FLOAT, 1, 9, 3, 16, NULL), &work, &full));
    descriptor x = sequences(DATA_FLOAT, 1, 9, 3, 16, lengths);
    MUST(cudnnGetRNNTempSpaceSizes(h, d, 1, x, &work, &packed));
    EXPECT_EQ(full, 27 * 64 * 5 * 4);
    EXPECT_EQ(packed, 14 * 64 * 5 * 4);
    EXPECT_EQ(cudnnSetRNNDataDescriptor(x, DATA_FLOAT, 1, 9, 3, 16, rising, NULL), CUDNN_NOT_SUPPORTED);
    EXPECT_EQ(cudnnSetRNNDataDescriptor(x, DATA_FLOAT, 0, 8, 3, 16, lengths, NULL), CUDNN_BAD_PARAM);
}

CASE(a_network_runs_with_all_its_spaces)
{
    handle h = open_handle();
    descriptor d = network(&(struct network){LSTM, 2, 1, 16, 64, 64, 1}, DATA_FLOAT, NULL);
    descriptor x = sequences(DATA_FLOAT, 0, 9, 3, 16, NULL), y = sequences(DATA_FLOAT, 0, 9, 3, 64, NULL);
    int dims[] = {1, 3, 64}, other[] = {2, 3, 64};
    descriptor state = tensor(DATA_FLOAT, 3, dims, false), bad = tensor(DATA_FLOAT, 3, other, false);
    size_t weights = 0, work = 0, reserve = 0;
    MUST(cudnnGetRNNWeightSpaceSize(h, d, &weights));
    MUST(cudnnGetRNNTempSpaceSizes(h, d, 1, x, &work, &reserve));
#define FORWARD(y, state, weights, work, reserve) cudnnRNNForward(h, d, 1, NULL, x, &data, y, &data, state, NULL, NULL, state, NULL, NULL, \
        weights, &data, work, &data, reserve, &data)
    uint64_t before = kernels();
    EXPECT_EQ(FORWARD(y, bad, weights, work, reserve), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
    EXPECT_EQ(FORWARD(x, state, weights, work, reserve), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
    EXPECT_EQ(FORWARD(y, state, weights - 1, work, reserve), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(FORWARD(y, state, weights, work - 1, reserve), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(FORWARD(y, state, weights, work, reserve - 1), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(kernels(), before);
    OK(FORWARD(y, state, weights, work, reserve));
    EXPECT_EQ(kernels() - before, 1);
#undef FORWARD
}

/* --- the rest of the older interface */

CASE(dropout_wants_a_generator_for_each_thread)
{
    handle h = open_handle();
    descriptor d = NULL;
    size_t bytes = 0;
    int processors = 0, threads = 0;
    MUST(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    MUST(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    MUST(cudnnDropoutGetStatesSize(h, &bytes));
    EXPECT_EQ(bytes, 48ull * (unsigned)processors * (unsigned)threads);
    MUST(cudnnCreateDropoutDescriptor(&d));
    EXPECT_EQ(cudnnSetDropoutDescriptor(d, h, 0.5f, &data, bytes - 1, 0), CUDNN_BAD_PARAM_SIZE_INSUFFICIENT);
    EXPECT_EQ(cudnnSetDropoutDescriptor(d, h, 1.5f, &data, bytes, 0), CUDNN_BAD_PARAM);
    uint64_t before = kernels();
    OK(cudnnSetDropoutDescriptor(d, h, 0, NULL, 0, 0));
    EXPECT_EQ(kernels(), before);
    OK(cudnnSetDropoutDescriptor(d, h, 0.5f, &data, bytes, 0));
    EXPECT_EQ(kernels() - before, 1);

    size_t work, plain = 0, dropping = 0;
    struct network n = {LSTM, 2, 1, 16, 64, 64, 2};
    descriptor x = sequences(DATA_FLOAT, 0, 9, 3, 16, NULL);
    MUST(cudnnGetRNNTempSpaceSizes(h, network(&n, DATA_FLOAT, NULL), 1, x, &work, &plain));
    MUST(cudnnGetRNNTempSpaceSizes(h, network(&n, DATA_FLOAT, d), 1, x, &work, &dropping));
    EXPECT(dropping > plain);
}

CASE(ctc_and_norm_say_what_they_need)
{
    handle h = open_handle();
    int probabilities[] = {20, 3, 10}, image[] = {4, 16, 8, 8}, channels[] = {1, 16, 1, 1};
    descriptor p = tensor(DATA_FLOAT, 3, probabilities, false), x = tensor(DATA_HALF, 4, image, true), c = NULL;
    descriptor scale = tensor(DATA_FLOAT, 4, channels, false);
    size_t few = 0, many = 0, bytes = 1;
    MUST(cudnnCreateCTCLossDescriptor(&c));
    EXPECT_EQ(cudnnGetCTCLossWorkspaceSize_v8(h, 0, c, p, p, &few), CUDNN_BAD_PARAM); /* not set */
    MUST(cudnnSetCTCLossDescriptor_v9(c, DATA_FLOAT, 1, 0, 5));
    MUST(cudnnGetCTCLossWorkspaceSize_v8(h, 0, c, p, p, &few));
    MUST(cudnnSetCTCLossDescriptor_v9(c, DATA_FLOAT, 1, 0, 50));
    MUST(cudnnGetCTCLossWorkspaceSize_v8(h, 0, c, p, p, &many));
    EXPECT(few > 20 * 3 * 10 * 4 && many > few);
    EXPECT_EQ(cudnnGetCTCLossWorkspaceSize_v8(h, 2, c, p, p, &bytes), CUDNN_BAD_PARAM);
    int labels[8] = {1}, lengths[] = {2, 5, 1}, steps[] = {20, 20, 20};
    OK(cudnnGetCTCLossWorkspaceSize(h, p, p, labels, lengths, steps, 0, c, &bytes)); /* the longest of them counts */
    EXPECT_EQ(bytes, few);
    EXPECT_EQ(cudnnGetCTCLossWorkspaceSize(h, p, p, labels, NULL, steps, 0, c, &bytes), CUDNN_BAD_PARAM_NULL_POINTER);
    MUST(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(h, 2, 0, NULL, x, &bytes));
    EXPECT_EQ(bytes, 0);
    MUST(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(h, 2, 0, x, NULL, x, scale, NULL, &bytes));
    EXPECT_EQ(bytes, 256); /* 16 channels, one slice, two floats, in pieces of 256 */
    EXPECT_EQ(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(h, 2, 1, NULL, x, &bytes), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(h, 5, 0, NULL, x, &bytes), CUDNN_BAD_PARAM);
}

SUITE_MAIN("cudnn")
