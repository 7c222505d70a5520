/*
 * convolution.c: do input, filter and output fit each other? Both interfaces ask here; and the older interface to convolutions.
 *
 * The older interface names an algorithm by number; an engine of workspace.c answers to it. Where two have the same number the first that
 * suits counts. Its layouts are those of the descriptors: channels last if the tensors' strides say so.
 *
 * LOCKING: none. Descriptors belong to the program.
 */
#include "sim/libraries/cudnn/convolution.h"
#include "sim/libraries/cudnn/told.h"

#include <string.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/* --- shapes */

static bool is_channels_last(const struct view *v)
{
    return v->strides[1] == 1 && v->dims[1] > 1;
}

/* A tensor with one channel, or one position, lies the same either way. */
static bool has_no_order(const struct view *v)
{
    int64_t positions = 1;
    for (int i = 2; i < v->count; i++)
        positions *= v->dims[i];
    return v->dims[1] == 1 || positions == 1;
}

static int mismatch(const char *what)
{
    return cudnn_fail(CUDNN_BAD_PARAM_SHAPE_MISMATCH, "convolution: %s", what);
}

int convolution_describe(struct convolution *c, enum convolution_kind kind, const struct view *x, const struct view *w,
    const struct view *y, const struct window *window)
{
    int n = window->spatial;
    if (n < 1 || n > 5 || x->count != n + 2 || w->count != n + 2 || y->count != n + 2)
        return mismatch("the tensors, the filter and the window have different numbers of dimensions");
    if (x->dims[0] != y->dims[0])
        return mismatch("input and output have different batches");
    if (w->dims[0] != y->dims[1])
        return mismatch("the filter's outputs are not the output's channels");
    if (x->dims[1] % w->dims[1] || w->dims[0] % (x->dims[1] / w->dims[1]))
        return mismatch("the channels do not fall into groups");
    *c = (struct convolution){.kind = kind, .type = x->type, .spatial = n, .batch = x->dims[0], .in = x->dims[1], .out = y->dims[1],
        .groups = x->dims[1] / w->dims[1]};
    for (int i = 0; i < n; i++) {
        if (window->before[i] < 0 || window->after[i] < 0 || window->stride[i] < 1 || window->dilation[i] < 1)
            return cudnn_fail(CUDNN_BAD_PARAM, "convolution: negative padding, or a stride or dilation below one");
        c->x[i] = x->dims[i + 2];
        c->w[i] = w->dims[i + 2];
        c->y[i] = y->dims[i + 2];
        c->stride[i] = window->stride[i];
        c->dilation[i] = window->dilation[i];
        int64_t reach = (c->w[i] - 1) * window->dilation[i] + 1, room = c->x[i] + window->before[i] + window->after[i] - reach;
        if (room < 0 || c->y[i] != room / c->stride[i] + 1)
            return mismatch("the output's extent is not what the window gives");
    }
    bool last_x = is_channels_last(x), last_y = is_channels_last(y);
    c->channels_last = (last_x || has_no_order(x)) && (last_y || has_no_order(y)) && (last_x || last_y || is_channels_last(w));
    return 0;
}

/* --- the older interface: descriptors */

int cudnnSetConvolutionNdDescriptor(struct convolution_descriptor *d, int spatial, const int *pad, const int *stride, const int *dilation,
    int mode, int compute_type)
{
    if (!object_is(d, OBJECT_CONVOLUTION))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of a convolution", (void *)d);
    if (!pad || !stride || !dilation)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no paddings, strides or dilations");
    if (spatial < 1 || spatial > 5 || mode < 0 || mode > 1 || !data_bytes(compute_type, 8))
        return cudnn_fail(CUDNN_BAD_PARAM, "convolution in %d dimensions, mode %d", spatial, mode);
    for (int i = 0; i < spatial; i++)
        if (pad[i] < 0 || stride[i] < 1 || dilation[i] < 1)
            return cudnn_fail(CUDNN_BAD_PARAM, "dimension %d: padding %d, stride %d, dilation %d", i, pad[i], stride[i], dilation[i]);
    *d = (struct convolution_descriptor){.object = d->object, .spatial = spatial, .mode = mode, .compute_type = compute_type, .groups = 1};
    memcpy(d->pad, pad, (size_t)spatial * sizeof *pad);
    memcpy(d->stride, stride, (size_t)spatial * sizeof *stride);
    memcpy(d->dilation, dilation, (size_t)spatial * sizeof *dilation);
    d->object.is_set = true;
    return 0;
}

int cudnnSetConvolutionGroupCount(struct convolution_descriptor *d, int groups)
{
    int error = object_check(d, OBJECT_CONVOLUTION);
    if (error)
        return error;
    if (groups < 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "%d groups", groups);
    d->groups = groups;
    return 0;
}

int cudnnSetConvolutionMathType(struct convolution_descriptor *d, int math)
{
    int error = object_check(d, OBJECT_CONVOLUTION);
    if (error)
        return error;
    if (math < 0 || math > 3)
        return cudnn_fail(CUDNN_BAD_PARAM, "math type %d", math);
    d->math = math;
    return 0;
}

/* --- the older interface: what a call describes */

static struct view view_of_tensor(const struct tensor *t)
{
    struct view v = {.type = t->type, .count = t->count};
    for (int i = 0; i < t->count; i++) {
        v.dims[i] = t->dims[i];
        v.strides[i] = t->strides[i];
    }
    return v;
}

static struct view view_of_filter(const struct filter *f)
{
    struct view v = {.type = f->type, .count = f->count};
    for (int i = 0; i < f->count; i++)
        v.dims[i] = f->dims[i];
    v.strides[1] = f->format == 1; /* NHWC: the channels are next to each other */
    return v;
}

/* FMA math takes no tensor cores; since Ampere every other type may, for float too (cuDNN's documentation of cudnnMathType_t) */
static bool may_use_tensor_cores(const struct convolution_descriptor *d)
{
    return d->math != 3;
}

static int describe(struct convolution *c, const void *handle, enum convolution_kind kind, const struct tensor *x, const struct filter *w,
    const struct convolution_descriptor *d, const struct tensor *y)
{
    int error = cudnn_check_handle(handle);
    if (!error)
        error = object_check(x, OBJECT_TENSOR);
    if (!error)
        error = object_check(w, OBJECT_FILTER);
    if (!error)
        error = object_check(y, OBJECT_TENSOR);
    if (!error)
        error = object_check(d, OBJECT_CONVOLUTION);
    if (error)
        return error;
    struct view views[] = {view_of_tensor(x), view_of_filter(w), view_of_tensor(y)};
    struct window window = {.spatial = d->spatial};
    for (int i = 0; i < d->spatial; i++) {
        window.before[i] = window.after[i] = d->pad[i];
        window.stride[i] = d->stride[i];
        window.dilation[i] = d->dilation[i];
    }
    error = convolution_describe(c, kind, &views[0], &views[1], &views[2], &window);
    if (!error && c->groups != d->groups)
        error = mismatch("the descriptor says another number of groups than the channels do");
    c->tensor_cores = may_use_tensor_cores(d);
    return error;
}

static const struct engine *engine_of(const struct convolution *c, int algorithm)
{
    const struct engine *list[ENGINES_MAX];
    int count = engines_of(c, list);
    for (int i = 0; i < count; i++)
        if (list[i]->algorithm == algorithm)
            return list[i];
    return NULL;
}

struct performance { /* cudnnConvolution...AlgoPerf_t, the same for all three kinds */
    int    algorithm, error;
    float  milliseconds;
    size_t bytes;
    int    deterministic, math, reserved[3];
};

/* The engines that suit, once for each algorithm, the preferred first; at most `requested`, and with no more scratch than `most`. */
static int list_engines(const struct convolution *c, int requested, int *returned, struct performance *list, uint64_t most)
{
    if (!returned || !list)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the algorithms");
    if (requested < 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "%d algorithms are asked for", requested);
    const struct engine *engines[ENGINES_MAX];
    int count = engines_of(c, engines);
    unsigned listed = 0;
    *returned = 0;
    for (int i = 0; i < count && *returned < requested; i++) {
        const struct engine *e = engines[i];
        uint64_t bytes = e->workspace(c);
        if (listed & 1u << e->algorithm || bytes > most)
            continue;
        listed |= 1u << e->algorithm;
        int math = e->notes & NOTE_TENSOR_CORE ? c->type == DATA_FLOAT ? 2 : 1 : 3;
        /* a made-up time, in the order of preference */
        list[(*returned)++] = (struct performance){.algorithm = e->algorithm, .milliseconds = 1.0f + 0.25f * (float)i, .bytes = bytes,
            .deterministic = !(e->notes & NOTE_NONDETERMINISTIC), .math = math};
    }
    return 0;
}

static int workspace_size(const struct convolution *c, int algorithm, size_t *size)
{
    const struct engine *e = engine_of(c, algorithm);
    if (!size)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the size");
    if (!e)
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "algorithm %d does not suit this convolution", algorithm);
    *size = e->workspace(c);
    told_note(*size);
    return 0;
}

static int run(const void *handle, const struct convolution *c, int algorithm, const void *workspace, size_t bytes, const char *name)
{
    size_t needed = 0;
    int error = workspace_size(c, algorithm, &needed);
    if (error)
        return error;
    if (bytes < needed || (needed && !workspace))
        return cudnn_fail(CUDNN_BAD_PARAM_SIZE_INSUFFICIENT, "%s: a workspace of %zu bytes, %zu are needed", name, bytes, needed);
    return cudnn_launch(handle, name);
}

static int check_data(const void *a, const void *b, const void *c)
{
    return a && b && c ? 0 : cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "a convolution without data");
}

/* --- the older interface: calls. Parameters in cuDNN's order, which differs from kind to kind. */
#define DESCRIBE(kind, x, w, y)                                 \
    struct convolution c;                                       \
    int error = describe(&c, handle, kind, x, w, d, y);         \
    if (error)                                                  \
        return error
#define DATA(a, b, c)                                           \
    do {                                                        \
        int missing = check_data(a, b, c);                      \
        if (missing)                                            \
            return missing;                                     \
    } while (0)

typedef const struct tensor *tensor_in;
typedef const struct filter *filter_in;
typedef const struct convolution_descriptor *convolution_in;

int cudnnGetConvolutionForwardAlgorithm_v7(const void *handle, tensor_in x, filter_in w, convolution_in d, tensor_in y, int requested,
    int *returned, struct performance *list)
{
    DESCRIBE(FORWARD, x, w, y);
    return list_engines(&c, requested, returned, list, INT64_MAX);
}

int cudnnGetConvolutionBackwardDataAlgorithm_v7(const void *handle, filter_in w, tensor_in dy, convolution_in d, tensor_in dx,
    int requested, int *returned, struct performance *list)
{
    DESCRIBE(BACKWARD_DATA, dx, w, dy);
    return list_engines(&c, requested, returned, list, INT64_MAX);
}

int cudnnGetConvolutionBackwardFilterAlgorithm_v7(const void *handle, tensor_in x, tensor_in dy, convolution_in d, filter_in dw,
    int requested, int *returned, struct performance *list)
{
    DESCRIBE(BACKWARD_FILTER, x, dw, dy);
    return list_engines(&c, requested, returned, list, INT64_MAX);
}

int cudnnFindConvolutionForwardAlgorithmEx(const void *handle, tensor_in x, const void *x_data, filter_in w, const void *w_data,
    convolution_in d, tensor_in y, void *y_data, int requested, int *returned, struct performance *list, void *workspace, size_t bytes)
{
    DESCRIBE(FORWARD, x, w, y);
    DATA(x_data, w_data, y_data);
    return list_engines(&c, requested, returned, list, workspace ? bytes : 0);
}

int cudnnFindConvolutionBackwardDataAlgorithmEx(const void *handle, filter_in w, const void *w_data, tensor_in dy, const void *dy_data,
    convolution_in d, tensor_in dx, void *dx_data, int requested, int *returned, struct performance *list, void *workspace, size_t bytes)
{
    DESCRIBE(BACKWARD_DATA, dx, w, dy);
    DATA(w_data, dy_data, dx_data);
    return list_engines(&c, requested, returned, list, workspace ? bytes : 0);
}

int cudnnFindConvolutionBackwardFilterAlgorithmEx(const void *handle, tensor_in x, const void *x_data, tensor_in dy, const void *dy_data,
    convolution_in d, filter_in dw, void *dw_data, int requested, int *returned, struct performance *list, void *workspace, size_t bytes)
{
    DESCRIBE(BACKWARD_FILTER, x, dw, dy);
    DATA(x_data, dy_data, dw_data);
    return list_engines(&c, requested, returned, list, workspace ? bytes : 0);
}

int cudnnGetConvolutionForwardWorkspaceSize(const void *handle, tensor_in x, filter_in w, convolution_in d, tensor_in y, int algorithm,
    size_t *size)
{
    DESCRIBE(FORWARD, x, w, y);
    return workspace_size(&c, algorithm, size);
}

int cudnnGetConvolutionBackwardDataWorkspaceSize(const void *handle, filter_in w, tensor_in dy, convolution_in d, tensor_in dx,
    int algorithm, size_t *size)
{
    DESCRIBE(BACKWARD_DATA, dx, w, dy);
    return workspace_size(&c, algorithm, size);
}

int cudnnGetConvolutionBackwardFilterWorkspaceSize(const void *handle, tensor_in x, tensor_in dy, convolution_in d, filter_in dw,
    int algorithm, size_t *size)
{
    DESCRIBE(BACKWARD_FILTER, x, dw, dy);
    return workspace_size(&c, algorithm, size);
}

int cudnnConvolutionForward(const void *handle, const void *alpha, tensor_in x, const void *x_data, filter_in w, const void *w_data,
    convolution_in d, int algorithm, void *workspace, size_t bytes, const void *beta, tensor_in y, void *y_data)
{
    DESCRIBE(FORWARD, x, w, y);
    DATA(alpha, beta, beta);
    DATA(x_data, w_data, y_data);
    return run(handle, &c, algorithm, workspace, bytes, "cudnn convolution forward");
}

int cudnnConvolutionBackwardData(const void *handle, const void *alpha, filter_in w, const void *w_data, tensor_in dy,
    const void *dy_data, convolution_in d, int algorithm, void *workspace, size_t bytes, const void *beta, tensor_in dx, void *dx_data)
{
    DESCRIBE(BACKWARD_DATA, dx, w, dy);
    DATA(alpha, beta, beta);
    DATA(w_data, dy_data, dx_data);
    return run(handle, &c, algorithm, workspace, bytes, "cudnn convolution backward data");
}

int cudnnConvolutionBackwardFilter(const void *handle, const void *alpha, tensor_in x, const void *x_data, tensor_in dy,
    const void *dy_data, convolution_in d, int algorithm, void *workspace, size_t bytes, const void *beta, filter_in dw, void *dw_data)
{
    DESCRIBE(BACKWARD_FILTER, x, dw, dy);
    DATA(alpha, beta, beta);
    DATA(x_data, dy_data, dw_data);
    return run(handle, &c, algorithm, workspace, bytes, "cudnn convolution backward filter");
}

int cudnnConvolutionBiasActivationForward(const void *handle, const void *alpha, tensor_in x, const void *x_data, filter_in w,
    const void *w_data, convolution_in d, int algorithm, void *workspace, size_t bytes, const void *alpha_z, tensor_in z,
    const void *z_data, tensor_in bias, const void *bias_data, const struct activation *activation, tensor_in y, void *y_data)
{
    DESCRIBE(FORWARD, x, w, y);
    error = CHECK_TENSORS(z, bias);
    if (!error)
        error = object_check(activation, OBJECT_ACTIVATION);
    if (error)
        return error;
    DATA(alpha, alpha_z, bias_data);
    DATA(x_data, w_data, y_data);
    if (!z || !z_data || !bias)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "a convolution without bias or addend");
    return run(handle, &c, algorithm, workspace, bytes, "cudnn convolution, bias and activation");
}
