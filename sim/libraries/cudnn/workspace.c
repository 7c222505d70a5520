/*
 * workspace.c: how much scratch memory cuDNN asks for. A MODEL: cuDNN's own sizes differ from version to version, by device, and are not
 * published. These are of the right order, grow with the problem, and follow from what each algorithm must keep. Every figure of the
 * simulated cuDNN that costs device memory is here.
 *
 * Convolutions (engines.def says which engine uses which):
 *     none            implicit gemm forms no matrix: the documentation says no workspace.
 *     indices         implicit gemm with precomputed indices: 32 bits for each filter tap and channel, and for each output position.
 *     columns         gemm of an explicit matrix: the columns of one image, taps * channels * output positions.
 *     transposed      tensor cores want channels last; other layouts are copied: x, w and y once more. Nothing if they are channels last.
 *     split           a weight gradient sums over all output positions, in slices of 16384 and 16 at most, each a copy of dw in float.
 *     winograd        F(4x4, 3x3), not fused: 36 values in float for each 4 x 4 output tile and channel of x and of y, and for each filter
 *                     (profiles show its kernels as winograd_nonfused::winogradForwardData4x4).
 *     fft             tiles of 32 x 32: 32 * 17 complex values for each tile and channel of x and of y, and for each filter.
 *
 * Recurrent networks: per layer and direction T steps of B sequences with H hidden units, elements of e bytes. Two figures were measured
 * (github.com/pytorch/pytorch/issues/2895: float, 4 layers, input 123, H 320; the sizes fit T * B = 25000, B = 25): an LSTM keeps
 * 736,000,000 bytes for the backward pass and needs 17,730,560 of scratch, a GRU 864,000,000 and 13,169,920. The formulas give these
 * four to the byte; what a ReLU or tanh cell keeps, projections and dropout are by analogy:
 *     reserve         T * B * H * e * (layers * per cell + layers - 1): what is kept of each cell - 5 for an LSTM (4 gates and the
 *                     cell), 6 for a GRU (3 gates and their recurrent parts), 1 otherwise - and the outputs between layers. With dropout
 *                     a bit more for each of these outputs (soumith/cudnn.torch#182: "stores masks in binary format").
 *     scratch         the matrices once more in the order the kernels want, and for each layer the gates of 10 steps that run as one
 *                     product: B * H * e * (10 * gates + states), with 4 states for an LSTM, 2 for a GRU, 1 otherwise.
 *
 * Attention, backward: dq summed in float, and for each query the sum of do * o in float (FlashAttention-2, algorithm 2). Forward: none.
 * Batch normalisation: two float sums per channel and slice of 4096 positions. It keeps a bit per element if a ReLU is fused.
 * CTC: the probabilities in float, and alpha and beta for 2 * labels + 1 states of each step.
 * Dropout: one XORWOW generator (48 bytes, curandState) for each thread that the device holds at a time.
 *
 * LOCKING: none, nothing is kept.
 */
#include "sim/libraries/cudnn/workspace.h"

#define TILE_PIECE(size) (((size) + 255) / 256 * 256) /* parts of a workspace begin at 256 bytes */
#define SLICE 16384
#define SLICES_MAX 16
#define STEPS_AT_A_TIME 10

/* Sums and products stop at the top: no caller can have that much, and none gets a small size by overflow. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t c;
    return __builtin_mul_overflow(a, b, &c) || c > INT64_MAX ? INT64_MAX : c;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t c = a + b; /* neither is more than INT64_MAX */
    return c > INT64_MAX ? INT64_MAX : c;
}

static uint64_t align(uint64_t bytes)
{
    return bytes > INT64_MAX - 256 ? INT64_MAX : TILE_PIECE(bytes);
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t extent(const struct convolution *c, const int64_t *dims)
{
    uint64_t product = 1;
    for (int i = 0; i < c->spatial; i++)
        product = times(product, (uint64_t)dims[i]);
    return product;
}

static uint64_t of_type(const struct convolution *c, uint64_t elements)
{
    return times(elements, data_bytes(c->type, 1));
}

/* --- convolutions: which engine suits */

static bool suits_all(const struct convolution *c)
{
    (void)c;
    return true;
}

static bool is_plain_2d(const struct convolution *c)
{
    return c->spatial == 2 && c->groups == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1 && c->dilation[1] == 1 &&
        (c->type == DATA_FLOAT || c->type == DATA_HALF);
}

static bool suits_tensor_cores(const struct convolution *c)
{
    bool type = c->type == DATA_FLOAT || c->type == DATA_HALF || c->type == DATA_BFLOAT16 || c->type == DATA_INT8;
    return c->tensor_cores && type && c->spatial <= 3;
}

static bool suits_winograd(const struct convolution *c)
{
    return is_plain_2d(c) && c->w[0] == 3 && c->w[1] == 3;
}

/* A filter of one tap is a product of matrices already: in frequencies it would be one for each of 32 * 17 of them. */
static bool suits_fft(const struct convolution *c)
{
    return is_plain_2d(c) && c->w[0] * c->w[1] > 1 && c->w[0] <= 32 && c->w[1] <= 32;
}

static bool suits_ungrouped(const struct convolution *c)
{
    return c->groups == 1;
}

/* --- convolutions: what an engine needs */

static uint64_t bytes_none(const struct convolution *c)
{
    (void)c;
    return 0;
}

static uint64_t taps(const struct convolution *c)
{
    return times(extent(c, c->w), (uint64_t)(c->in / c->groups));
}

static uint64_t bytes_indices(const struct convolution *c)
{
    return align(times(plus(taps(c), extent(c, c->y)), 4));
}

static uint64_t bytes_columns(const struct convolution *c)
{
    return align(of_type(c, times(taps(c), extent(c, c->y))));
}

static uint64_t bytes_transposed(const struct convolution *c)
{
    if (c->channels_last)
        return 0;
    uint64_t x = of_type(c, times(times((uint64_t)c->batch, (uint64_t)c->in), extent(c, c->x)));
    uint64_t y = of_type(c, times(times((uint64_t)c->batch, (uint64_t)c->out), extent(c, c->y)));
    uint64_t w = of_type(c, times((uint64_t)c->out, taps(c)));
    return plus(plus(align(x), align(y)), align(w));
}

static uint64_t bytes_transposed_and_split(const struct convolution *c)
{
    uint64_t slices = divide_up(times((uint64_t)c->batch, extent(c, c->y)), SLICE);
    if (slices > SLICES_MAX)
        slices = SLICES_MAX;
    uint64_t dw = align(times(times((uint64_t)c->out, taps(c)), 4));
    return plus(bytes_transposed(c), slices > 1 ? times(slices, dw) : 0);
}

/* Planes of x and of y for each image, and of each filter: the channels that a transformation has values of. */
static uint64_t transformed(const struct convolution *c, uint64_t tiles, uint64_t bytes)
{
    uint64_t planes = times(times((uint64_t)c->batch, plus((uint64_t)c->in, (uint64_t)c->out)), tiles);
    uint64_t filters = times((uint64_t)c->in, (uint64_t)c->out);
    return align(times(plus(planes, filters), bytes));
}

static uint64_t bytes_winograd(const struct convolution *c)
{
    return transformed(c, times(divide_up((uint64_t)c->y[0], 4), divide_up((uint64_t)c->y[1], 4)), 36 * sizeof(float));
}

static uint64_t bytes_fft(const struct convolution *c)
{
    uint64_t down = divide_up((uint64_t)c->y[0], (uint64_t)(33 - c->w[0])), across = divide_up((uint64_t)c->y[1], (uint64_t)(33 - c->w[1]));
    return transformed(c, times(down, across), 32 * 17 * 2 * sizeof(float));
}

static const struct engine engines[] = {
#define ENGINE(kind, algorithm, name, notes, suits, workspace) {kind, algorithm, name, notes, suits, workspace},
#include "sim/libraries/cudnn/engines.def"
#undef ENGINE
};

int engines_of(const struct convolution *c, const struct engine *list[ENGINES_MAX])
{
    int count = 0;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        if (engines[i].kind == c->kind && engines[i].suits(c) && count < ENGINES_MAX)
            list[count++] = &engines[i];
    return count;
}

int engine_index(const struct engine *e)
{
    int later = 0;
    for (const struct engine *other = e + 1; other < engines + sizeof engines / sizeof *engines; other++)
        later += other->kind == e->kind;
    return later;
}

int engines_count(enum convolution_kind kind)
{
    int count = 0;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        count += engines[i].kind == kind;
    return count;
}

/* --- everything else */

uint64_t attention_backward_workspace(const struct attention *a)
{
    uint64_t rows = times(times((uint64_t)a->batch, (uint64_t)a->heads), (uint64_t)a->queries);
    return plus(align(times(times(rows, (uint64_t)a->size), 4)), align(times(rows, 4)));
}

uint64_t norm_workspace(const struct tensor *x)
{
    uint64_t channels = x->count > 1 ? (uint64_t)x->dims[1] : 1;
    return align(times(times(channels, divide_up(tensor_elements(x) / channels, 4096)), 2 * sizeof(float)));
}

uint64_t norm_reserve(const struct tensor *x, bool has_activation)
{
    return has_activation ? align(divide_up(tensor_elements(x), 8)) : 0;
}

uint64_t ctc_workspace(int64_t steps, int64_t batch, int64_t alphabet, int64_t labels)
{
    uint64_t places = times((uint64_t)steps, (uint64_t)batch);
    uint64_t states = times(times(places, 2 * (uint64_t)labels + 1), 2 * sizeof(float));
    return plus(align(times(times(places, (uint64_t)alphabet), sizeof(float))), align(states));
}

uint64_t dropout_states_bytes(void)
{
    CUdevice device;
    int processors = 0, threads = 0;
    if (cuCtxGetDevice(&device) || cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ||
        cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device))
        return 0;
    return (uint64_t)processors * (uint64_t)threads * 48;
}

/* --- recurrent networks, in the order of cuDNN's cell numbers: ReLU, tanh, LSTM, GRU */
static const struct { int gates, kept, states; } cells[] = {{1, 1, 1}, {1, 1, 1}, {4, 5, 4}, {3, 6, 2}};

int rnn_gates(const struct rnn *r)
{
    return cells[r->cell].gates;
}

static uint64_t output_size(const struct rnn *r)
{
    return (uint64_t)(r->projection < r->hidden ? r->projection : r->hidden);
}

uint64_t rnn_matrix_elements(const struct rnn *r)
{
    uint64_t hidden = (uint64_t)r->hidden, out = output_size(r), elements = 0;
    for (int layer = 0; layer < r->layers; layer++) {
        uint64_t in = layer ? out * (uint64_t)r->directions : r->input_mode ? 0 : (uint64_t)r->input;
        uint64_t one = times(times((uint64_t)rnn_gates(r), hidden), plus(in, out));
        one = plus(one, out < hidden ? times(out, hidden) : 0);
        elements = plus(elements, times(one, (uint64_t)r->directions));
    }
    return elements;
}

uint64_t rnn_workspace(const struct rnn *r, const struct rnn_data *x)
{
    uint64_t bytes = data_bytes(r->type, 1), layers = (uint64_t)r->layers * (uint64_t)r->directions;
    uint64_t steps = (uint64_t)(x->most_steps < STEPS_AT_A_TIME ? x->most_steps : STEPS_AT_A_TIME);
    uint64_t values = (uint64_t)cells[r->cell].gates * steps + (uint64_t)cells[r->cell].states;
    uint64_t one = times(times((uint64_t)x->batch, (uint64_t)r->hidden), times(values, bytes));
    return plus(align(times(rnn_matrix_elements(r), bytes)), align(times(layers, one)));
}

uint64_t rnn_reserve(const struct rnn *r, const struct rnn_data *x)
{
    uint64_t bytes = data_bytes(r->type, 1), directions = (uint64_t)r->directions;
    uint64_t cell = times(times(x->steps, directions), times((uint64_t)r->hidden, bytes));
    uint64_t between = times(times(x->steps, directions), times(output_size(r), (uint64_t)r->layers - 1));
    uint64_t kept = times(cell, (uint64_t)r->layers * (uint64_t)cells[r->cell].kept);
    uint64_t masks = r->dropout > 0 ? align(divide_up(between, 8)) : 0;
    return plus(align(plus(kept, times(between, bytes))), masks);
}
