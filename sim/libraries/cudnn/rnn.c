/*
 * rnn.c: recurrent networks: their descriptors, where each matrix and bias lies in the weight space, and the calls.
 *
 * The weight space holds, without gaps: for each pseudo-layer (layer, then direction) the input matrices of all gates, the recurrent ones,
 * and the projection; then for each pseudo-layer the input biases and the recurrent ones. PyTorch checks that the matrices of one
 * pseudo-layer follow each other, and makes its parameters views of them. "linear layer" n of g gates is an input matrix or bias for
 * n < g, a recurrent one for n < 2 g, and the projection for n = 2 g.
 *
 * LOCKING: none. Descriptors belong to the program.
 */
#include "sim/libraries/cudnn/workspace.h"
#include "sim/libraries/cudnn/told.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { LSTM = 2 };
enum { NO_BIAS, INPUT_BIAS, BOTH_BIASES, RECURRENT_BIAS };
enum { PACKED_BY_STEP = 1 };
enum { TRAINING = 1 };

typedef const struct rnn *rnn_in;
typedef const struct rnn_data *data_in;
typedef const struct tensor *tensor_in;

/* --- descriptors */

int cudnnSetRNNDescriptor_v8(struct rnn *r, int algorithm, int cell, int bias, int direction, int input_mode, int type, int precision,
    int math, int32_t input, int32_t hidden, int32_t projection, int32_t layers, const struct dropout *dropout, uint32_t flags)
{
    if (!object_is(r, OBJECT_RNN))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of a recurrent network", (void *)r);
    int error = dropout ? object_check(dropout, OBJECT_DROPOUT) : 0;
    if (error)
        return error;
    if (algorithm < 0 || algorithm > 3 || cell < 0 || cell > 3 || bias < 0 || bias > 3 || direction < 0 || direction > 1 ||
        input_mode < 0 || input_mode > 1 || !data_bytes(type, 8) || !data_bytes(precision, 8) || math < 0 || math > 3)
        return cudnn_fail(CUDNN_BAD_PARAM, "recurrent network: algorithm %d, cell %d, bias %d, direction %d, type %d", algorithm, cell,
            bias, direction, type);
    if (input < 1 || hidden < 1 || layers < 1 || projection < 0 || projection > hidden || (input_mode && input != hidden))
        return cudnn_fail(CUDNN_BAD_PARAM, "recurrent network: input %d, hidden %d, projection %d, %d layers", input, hidden, projection,
            layers);
    if (projection && projection < hidden && cell != LSTM)
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "only an LSTM has projections");
    *r = (struct rnn){.object = r->object, .algorithm = algorithm, .cell = cell, .bias = bias, .directions = direction + 1,
        .input_mode = input_mode, .type = type, .precision = precision, .math = math, .input = input, .hidden = hidden,
        .projection = projection ? projection : hidden, .layers = layers, .dropout = dropout ? dropout->rate : 0, .flags = flags};
    r->object.is_set = true;
    return 0;
}

int cudnnSetRNNDataDescriptor(struct rnn_data *d, int type, int layout, int most_steps, int batch, int vector, const int *lengths,
    void *padding)
{
    (void)padding;
    if (!object_is(d, OBJECT_RNN_DATA))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of sequences", (void *)d);
    if (!lengths)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "sequences without lengths");
    if (!data_bytes(type, 8) || layout < 0 || layout > 2 || most_steps < 1 || batch < 1 || vector < 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "sequences: type %d, layout %d, %d steps of %d", type, layout, most_steps, batch);
    uint64_t steps = 0;
    for (int i = 0; i < batch; i++) {
        if (lengths[i] < 0 || lengths[i] > most_steps)
            return cudnn_fail(CUDNN_BAD_PARAM, "sequence %d has %d steps, %d at most", i, lengths[i], most_steps);
        if (layout == PACKED_BY_STEP && i && lengths[i] > lengths[i - 1])
            return cudnn_fail(CUDNN_NOT_SUPPORTED, "packed sequences must be in descending order");
        steps += (uint64_t)lengths[i];
    }
    *d = (struct rnn_data){.object = d->object, .type = type, .layout = layout, .most_steps = most_steps, .batch = batch, .vector = vector,
        .steps = steps};
    d->object.is_set = true;
    return 0;
}

/* --- the weight space */

/* Columns of an input matrix; 0: the input is taken as it is. */
static uint64_t input_size(rnn_in r, int layer)
{
    if (layer)
        return (uint64_t)r->projection * (uint64_t)r->directions;
    return r->input_mode ? 0 : (uint64_t)r->input;
}

static bool has_projection(rnn_in r)
{
    return r->projection < r->hidden;
}

static uint64_t matrices_of(rnn_in r, int layer)
{
    uint64_t hidden = (uint64_t)r->hidden, out = (uint64_t)r->projection;
    return (uint64_t)rnn_gates(r) * hidden * (input_size(r, layer) + out) + (has_projection(r) ? out * hidden : 0);
}

static int biases_per_gate(rnn_in r)
{
    return r->bias == NO_BIAS ? 0 : r->bias == BOTH_BIASES ? 2 : 1;
}

static uint64_t biases_of(rnn_in r)
{
    return (uint64_t)biases_per_gate(r) * (uint64_t)rnn_gates(r) * (uint64_t)r->hidden;
}

static uint64_t weight_elements(rnn_in r)
{
    return rnn_matrix_elements(r) + biases_of(r) * (uint64_t)r->layers * (uint64_t)r->directions;
}

struct place { /* in the weight space, in elements; no rows: there is no such thing */
    uint64_t at, rows, columns;
};

static struct place matrix_place(rnn_in r, int pseudo, int linear)
{
    int layer = pseudo / r->directions, gates = rnn_gates(r);
    uint64_t at = 0, hidden = (uint64_t)r->hidden, in = input_size(r, layer), out = (uint64_t)r->projection;
    for (int i = 0; i < pseudo; i++)
        at += matrices_of(r, i / r->directions);
    if (linear < gates)
        return (struct place){at + (uint64_t)linear * hidden * in, in ? hidden : 0, in};
    at += (uint64_t)gates * hidden * in;
    if (linear < 2 * gates)
        return (struct place){at + (uint64_t)(linear - gates) * hidden * out, hidden, out};
    at += (uint64_t)gates * hidden * out;
    return has_projection(r) ? (struct place){at, out, hidden} : (struct place){0};
}

static struct place bias_place(rnn_in r, int pseudo, int linear)
{
    int gates = rnn_gates(r);
    bool recurrent = linear >= gates;
    bool there = linear < 2 * gates && r->bias != NO_BIAS && r->bias != (recurrent ? INPUT_BIAS : RECURRENT_BIAS);
    if (!there)
        return (struct place){0};
    uint64_t at = rnn_matrix_elements(r) + (uint64_t)pseudo * biases_of(r);
    int before = r->bias == BOTH_BIASES ? linear : linear % gates;
    return (struct place){at + (uint64_t)before * (uint64_t)r->hidden, (uint64_t)r->hidden, 1};
}

/* Says where it is and what shape it has. Either may be left out; a place that does not exist is NULL and leaves the shape as it was. */
static int describe_place(rnn_in r, struct place p, const void *weights, struct tensor *shape, void **address)
{
    if (address)
        *address = p.rows ? (char *)(uintptr_t)weights + data_bytes(r->type, p.at) : NULL;
    if (!shape || !p.rows)
        return 0;
    if (!object_is(shape, OBJECT_TENSOR))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of a tensor", (void *)shape);
    int dims[] = {1, (int)p.rows, (int)p.columns}, strides[] = {(int)(p.rows * p.columns), (int)p.columns, 1};
    return tensor_set(shape, r->type, 3, dims, strides);
}

static int check(const void *handle, rnn_in r)
{
    int error = cudnn_check_handle(handle);
    return error ? error : object_check(r, OBJECT_RNN);
}

int cudnnGetRNNWeightSpaceSize(const void *handle, rnn_in r, size_t *size)
{
    int error = check(handle, r);
    if (error)
        return error;
    if (!size)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the size");
    *size = data_bytes(r->type, weight_elements(r));
    return 0;
}

static int check_weights(rnn_in r, size_t bytes, const void *weights)
{
    size_t needed = data_bytes(r->type, weight_elements(r));
    if (!weights)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no weight space");
    if (bytes < needed)
        return cudnn_fail(CUDNN_BAD_PARAM_SIZE_INSUFFICIENT, "a weight space of %zu bytes, %zu are needed", bytes, needed);
    return 0;
}

int cudnnGetRNNWeightParams(const void *handle, rnn_in r, int32_t pseudo, size_t bytes, const void *weights, int32_t linear,
    struct tensor *matrix_shape, void **matrix, struct tensor *bias_shape, void **bias)
{
    int error = check(handle, r);
    if (!error)
        error = check_weights(r, bytes, weights);
    if (error)
        return error;
    if (pseudo < 0 || pseudo >= r->layers * r->directions || linear < 0 || linear > 2 * rnn_gates(r))
        return cudnn_fail(CUDNN_BAD_PARAM, "no linear layer %d of pseudo-layer %d", linear, pseudo);
    error = describe_place(r, matrix_place(r, pseudo, linear), weights, matrix_shape, matrix);
    return error ? error : describe_place(r, bias_place(r, pseudo, linear), weights, bias_shape, bias);
}

/* --- the calls */

int cudnnGetRNNTempSpaceSizes(const void *handle, rnn_in r, int mode, data_in x, size_t *workspace, size_t *reserve)
{
    int error = check(handle, r);
    if (!error)
        error = object_check(x, OBJECT_RNN_DATA);
    if (error)
        return error;
    if (mode < 0 || mode > TRAINING)
        return cudnn_fail(CUDNN_BAD_PARAM, "forward mode %d", mode);
    if (!workspace && !reserve)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for a size");
    if (workspace) {
        *workspace = rnn_workspace(r, x);
        told_note(*workspace);
    }
    if (reserve)
        *reserve = mode == TRAINING ? rnn_reserve(r, x) : 0;
    return 0;
}

/* Sequences, and states if their descriptors are given: layers by batch by size, and maybe further dimensions of 1. */
static int check_shapes(rnn_in r, data_in x, data_in y, tensor_in h, tensor_in c)
{
    int error = object_check(x, OBJECT_RNN_DATA);
    if (!error)
        error = object_check(y, OBJECT_RNN_DATA);
    if (!error)
        error = CHECK_TENSORS(h, c);
    if (error)
        return error;
    if (x->vector != r->input || y->vector != r->projection * r->directions || x->batch != y->batch || x->steps != y->steps)
        return cudnn_fail(CUDNN_BAD_PARAM_SHAPE_MISMATCH, "recurrent network: input or output has another size");
    if (x->type != r->type || y->type != r->type)
        return cudnn_fail(CUDNN_BAD_PARAM, "recurrent network: input or output is of another type");
    const struct { tensor_in t; int size; } states[] = {{h, r->projection}, {c, r->hidden}};
    for (int i = 0; i < 2; i++) {
        tensor_in t = states[i].t;
        if (t && (t->count < 3 || t->dims[0] != r->layers * r->directions || t->dims[1] != x->batch || t->dims[2] != states[i].size))
            return cudnn_fail(CUDNN_BAD_PARAM_SHAPE_MISMATCH, "recurrent network: a state has another size");
    }
    return 0;
}

struct spaces {
    size_t      weight_bytes;
    const void *weights;
    size_t      work_bytes;
    const void *work;
    size_t      reserve_bytes;
    const void *reserve;
};

static int run(const void *handle, rnn_in r, int mode, data_in x, const struct spaces *s, const char *name)
{
    size_t work = 0, reserve = 0;
    int error = check_weights(r, s->weight_bytes, s->weights);
    if (!error)
        error = cudnnGetRNNTempSpaceSizes(handle, r, mode, x, &work, &reserve);
    if (error)
        return error;
    if (s->work_bytes < work || !s->work)
        return cudnn_fail(CUDNN_BAD_PARAM_SIZE_INSUFFICIENT, "%s: a workspace of %zu bytes, %zu are needed", name, s->work_bytes, work);
    if (s->reserve_bytes < reserve || (reserve && !s->reserve))
        return cudnn_fail(CUDNN_BAD_PARAM_SIZE_INSUFFICIENT, "%s: a reserve of %zu bytes, %zu are needed", name, s->reserve_bytes, reserve);
    return cudnn_launch(handle, name);
}

static int missing(const char *name)
{
    return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "%s: no data", name);
}

int cudnnRNNForward(const void *handle, rnn_in r, int mode, const int32_t *lengths, data_in x, const void *x_data, data_in y, void *y_data,
    tensor_in h, const void *hx, void *hy, tensor_in c, const void *cx, void *cy, size_t weight_bytes, const void *weights,
    size_t work_bytes, void *work, size_t reserve_bytes, void *reserve)
{
    (void)lengths, (void)hx, (void)hy, (void)cx, (void)cy;
    int error = check(handle, r);
    if (!error)
        error = check_shapes(r, x, y, h, c);
    if (error)
        return error;
    struct spaces s = {weight_bytes, weights, work_bytes, work, reserve_bytes, reserve};
    return x_data && y_data ? run(handle, r, mode, x, &s, "cudnn rnn forward") : missing("cudnn rnn forward");
}

int cudnnRNNBackwardData_v8(const void *handle, rnn_in r, const int32_t *lengths, data_in y, const void *y_data, const void *dy, data_in x,
    void *dx, tensor_in h, const void *hx, const void *dhy, void *dhx, tensor_in c, const void *cx, const void *dcy, void *dcx,
    size_t weight_bytes, const void *weights, size_t work_bytes, void *work, size_t reserve_bytes, void *reserve)
{
    (void)lengths, (void)hx, (void)dhy, (void)dhx, (void)cx, (void)dcy, (void)dcx;
    int error = check(handle, r);
    if (!error)
        error = check_shapes(r, x, y, h, c);
    if (error)
        return error;
    struct spaces s = {weight_bytes, weights, work_bytes, work, reserve_bytes, reserve};
    return y_data && dy && dx ? run(handle, r, TRAINING, x, &s, "cudnn rnn backward data") : missing("cudnn rnn backward data");
}

int cudnnRNNBackwardWeights_v8(const void *handle, rnn_in r, int add, const int32_t *lengths, data_in x, const void *x_data, tensor_in h,
    const void *hx, data_in y, const void *y_data, size_t weight_bytes, void *dweights, size_t work_bytes, void *work,
    size_t reserve_bytes, void *reserve)
{
    (void)lengths, (void)hx;
    int error = check(handle, r);
    if (!error)
        error = check_shapes(r, x, y, h, NULL);
    if (error)
        return error;
    if (add < 0 || add > 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "weight gradient mode %d", add);
    struct spaces s = {weight_bytes, dweights, work_bytes, work, reserve_bytes, reserve};
    return x_data && y_data ? run(handle, r, TRAINING, x, &s, "cudnn rnn backward weights") : missing("cudnn rnn backward weights");
}
