/*
 * tensor.c: tensors, filters and the small descriptors of the older interface, pooling and the spatial transformer.
 *
 * LOCKING: none. Descriptors belong to the program.
 */
#include <string.h>

#include "sim/libraries/cudnn/cudnn.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

uint64_t data_bytes(int type, uint64_t elements)
{
    switch (type) {
#define DATA_TYPE(number, name, bits) case number: return (elements * bits + 7) / 8;
#define VALUE_TYPE(number, name, bytes, most)
#include "sim/libraries/cudnn/types.def"
    default: return 0;
    }
}

uint64_t tensor_elements(const struct tensor *t)
{
    uint64_t elements = 1;
    for (int i = 0; i < t->count; i++)
        elements *= (uint64_t)t->dims[i];
    return elements;
}

uint64_t tensor_bytes(const struct tensor *t)
{
    return data_bytes(t->type, tensor_elements(t));
}

int tensors_check(int count, const void *const *tensors)
{
    for (int i = 0; i < count; i++) {
        int error = tensors[i] ? object_check(tensors[i], OBJECT_TENSOR) : 0;
        if (error)
            return error;
    }
    return 0;
}

static int check_dims(int type, int count, const int *dims)
{
    if (!dims)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no dimensions");
    if (!data_bytes(type, 8))
        return cudnn_fail(CUDNN_BAD_PARAM, "%d is not a data type", type);
    if (count < 1 || count > CUDNN_DIMS_MAX)
        return cudnn_fail(CUDNN_BAD_PARAM, "%d dimensions", count);
    for (int i = 0; i < count; i++)
        if (dims[i] <= 0)
            return cudnn_fail(CUDNN_BAD_PARAM, "dimension %d is %d", i, dims[i]);
    return 0;
}

int tensor_set(struct tensor *t, int type, int count, const int *dims, const int *strides)
{
    int error = check_dims(type, count, dims);
    if (error)
        return error;
    if (!strides)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no strides");
    t->type = type;
    t->count = count;
    memcpy(t->dims, dims, (size_t)count * sizeof *dims);
    memcpy(t->strides, strides, (size_t)count * sizeof *strides);
    t->object.is_set = true;
    return 0;
}

static int check_kind(const void *descriptor, enum object_kind kind)
{
    return object_is(descriptor, kind) ? 0 : cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of this kind", descriptor);
}

/* --- tensors and filters */

int cudnnSetTensorNdDescriptor(struct tensor *t, int type, int count, const int *dims, const int *strides)
{
    int error = check_kind(t, OBJECT_TENSOR);
    return error ? error : tensor_set(t, type, count, dims, strides);
}

static int check_room(int requested, const int *dims)
{
    if (requested < 0 || requested > CUDNN_DIMS_MAX)
        return cudnn_fail(CUDNN_BAD_PARAM, "room for %d dimensions", requested);
    return requested && !dims ? cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the dimensions") : 0;
}

/* Says how many dimensions there are, and the first `requested` of them. */
int cudnnGetTensorNdDescriptor(const struct tensor *t, int requested, int *type, int *count, int *dims, int *strides)
{
    int error = object_check(t, OBJECT_TENSOR);
    if (!error)
        error = check_room(requested, dims);
    if (error)
        return error;
    if (type)
        *type = t->type;
    if (count)
        *count = t->count;
    size_t room = (size_t)(requested < t->count ? requested : t->count) * sizeof(int);
    if (dims)
        memcpy(dims, t->dims, room);
    if (strides)
        memcpy(strides, t->strides, room);
    return 0;
}

int cudnnSetFilterNdDescriptor(struct filter *f, int type, int format, int count, const int *dims)
{
    int error = check_kind(f, OBJECT_FILTER);
    if (!error)
        error = check_dims(type, count, dims);
    if (error)
        return error;
    if (format < 0 || format > 2)
        return cudnn_fail(CUDNN_BAD_PARAM, "tensor format %d", format);
    f->type = type;
    f->format = format;
    f->count = count;
    memcpy(f->dims, dims, (size_t)count * sizeof *dims);
    f->object.is_set = true;
    return 0;
}

int cudnnGetFilterNdDescriptor(const struct filter *f, int requested, int *type, int *format, int *count, int *dims)
{
    int error = object_check(f, OBJECT_FILTER);
    if (!error)
        error = check_room(requested, dims);
    if (error)
        return error;
    if (type)
        *type = f->type;
    if (format)
        *format = f->format;
    if (count)
        *count = f->count;
    if (dims)
        memcpy(dims, f->dims, (size_t)(requested < f->count ? requested : f->count) * sizeof *dims);
    return 0;
}

/* --- activation and pooling */

int cudnnSetActivationDescriptor(struct activation *a, int mode, int nan, double coefficient)
{
    int error = check_kind(a, OBJECT_ACTIVATION);
    if (error)
        return error;
    if (mode < 0 || mode > 6 || nan < 0 || nan > 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "activation mode %d, NaN option %d", mode, nan);
    a->mode = mode;
    a->nan = nan;
    a->coefficient = coefficient;
    a->object.is_set = true;
    return 0;
}

int cudnnSetPooling2dDescriptor(struct pooling *p, int mode, int nan, int height, int width, int pad_rows, int pad_columns, int stride_rows,
    int stride_columns)
{
    int error = check_kind(p, OBJECT_POOLING);
    if (error)
        return error;
    if (mode < 0 || mode > 3 || height < 1 || width < 1 || pad_rows < 0 || pad_columns < 0 || stride_rows < 1 || stride_columns < 1)
        return cudnn_fail(CUDNN_BAD_PARAM, "pooling mode %d, window %d x %d", mode, height, width);
    *p = (struct pooling){.object = p->object, .mode = mode, .nan = nan, .window = {height, width}, .pad = {pad_rows, pad_columns},
        .stride = {stride_rows, stride_columns}};
    p->object.is_set = true;
    return 0;
}

int cudnnPoolingForward(const void *handle, const struct pooling *p, const void *alpha, const struct tensor *x, const void *x_data,
    const void *beta, const struct tensor *y, void *y_data)
{
    int error = object_check(p, OBJECT_POOLING);
    if (!error)
        error = CHECK_TENSORS(x, y);
    if (error)
        return error;
    if (!x || !y || !alpha || !beta || !x_data || !y_data)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "pooling without a tensor or a factor");
    bool fits = x->count == 4 && y->count == 4 && x->type == y->type && x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1];
    for (int i = 0; fits && i < 2; i++)
        fits = y->dims[2 + i] == 1 + (x->dims[2 + i] + 2 * p->pad[i] - p->window[i]) / p->stride[i];
    if (!fits)
        return cudnn_fail(CUDNN_BAD_PARAM_SHAPE_MISMATCH, "pooling: the output has another shape");
    return cudnn_launch(handle, "cudnn pooling");
}

/* --- spatial transformer */

int cudnnSetSpatialTransformerNdDescriptor(struct spatial_transformer *t, int sampler, int type, int count, const int *dims)
{
    int error = check_kind(t, OBJECT_SPATIAL_TRANSFORMER);
    if (!error)
        error = check_dims(type, count, dims);
    if (error)
        return error;
    if (sampler || count != 4)
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "sampler %d of %d dimensions: bilinear in 4 is what there is", sampler, count);
    t->sampler = sampler;
    t->type = type;
    t->count = count;
    memcpy(t->dims, dims, (size_t)count * sizeof *dims);
    t->object.is_set = true;
    return 0;
}

static int transform(const void *handle, const void *t, const void *a, const void *b, const char *name)
{
    int error = object_check(t, OBJECT_SPATIAL_TRANSFORMER);
    if (error)
        return error;
    return a && b ? cudnn_launch(handle, name) : cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "%s: no data", name);
}

int cudnnSpatialTfGridGeneratorForward(const void *handle, const void *t, const void *theta, void *grid)
{
    return transform(handle, t, theta, grid, "cudnn grid generator forward");
}

int cudnnSpatialTfGridGeneratorBackward(const void *handle, const void *t, const void *dgrid, void *dtheta)
{
    return transform(handle, t, dgrid, dtheta, "cudnn grid generator backward");
}

int cudnnSpatialTfSamplerForward(const void *handle, const void *t, const void *alpha, const struct tensor *x, const void *x_data,
    const void *grid, const void *beta, const struct tensor *y, void *y_data)
{
    int error = CHECK_TENSORS(x, y);
    if (error)
        return error;
    if (!alpha || !beta || !x || !y || !grid)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "sampling without a tensor, a grid or a factor");
    return transform(handle, t, x_data, y_data, "cudnn sampler forward");
}

int cudnnSpatialTfSamplerBackward(const void *handle, const void *t, const void *alpha, const struct tensor *x, const void *x_data,
    const void *beta, const struct tensor *dx, void *dx_data, const void *alpha_grid, const struct tensor *dy, const void *dy_data,
    const void *grid, const void *beta_grid, void *dgrid)
{
    int error = CHECK_TENSORS(x, dx, dy);
    if (error)
        return error;
    if (!alpha || !beta || !alpha_grid || !beta_grid || !x || !dx || !dy || !x_data || !dx_data || !dy_data)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "sampling without a tensor or a factor");
    return transform(handle, t, grid, dgrid, "cudnn sampler backward");
}
