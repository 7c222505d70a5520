/*
 * norm.c: batch normalisation, CTC loss and dropout of the older interface.
 *
 * LOCKING: none. Descriptors belong to the program.
 */
#include "sim/libraries/cudnn/workspace.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

typedef const struct tensor *tensor_in;
typedef const struct activation *activation_in;

/* --- batch normalisation */

static int check_norm(const void *handle, int mode, int operations, tensor_in x, activation_in activation)
{
    int error = cudnn_check_handle(handle);
    if (!error)
        error = object_check(x, OBJECT_TENSOR);
    if (!error && operations)
        error = object_check(activation, OBJECT_ACTIVATION);
    if (!error && (mode < 0 || mode > 2 || operations < 0 || operations > 2))
        error = cudnn_fail(CUDNN_BAD_PARAM, "batch normalisation: mode %d, operations %d", mode, operations);
    return error;
}

static int check_room(const char *what, size_t needed, const void *at, size_t bytes)
{
    if (bytes >= needed && (at || !needed))
        return 0;
    return cudnn_fail(CUDNN_BAD_PARAM_SIZE_INSUFFICIENT, "%s of %zu bytes, %zu are needed", what, bytes, needed);
}

static int say(size_t *size, uint64_t bytes)
{
    if (!size)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the size");
    *size = bytes;
    return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(const void *handle, int mode, int operations, tensor_in x, tensor_in z,
    tensor_in y, tensor_in scale, activation_in activation, size_t *size)
{
    int error = check_norm(handle, mode, operations, x, activation);
    if (!error)
        error = CHECK_TENSORS(z, y, scale);
    return error ? error : say(size, norm_workspace(x));
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(const void *handle, int mode, int operations, tensor_in x, tensor_in y, tensor_in dy,
    tensor_in dz, tensor_in dx, tensor_in scale, activation_in activation, size_t *size)
{
    int error = check_norm(handle, mode, operations, x, activation);
    if (!error)
        error = CHECK_TENSORS(y, dy, dz, dx, scale);
    return error ? error : say(size, norm_workspace(x));
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(const void *handle, int mode, int operations, activation_in activation,
    tensor_in x, size_t *size)
{
    int error = check_norm(handle, mode, operations, x, activation);
    return error ? error : say(size, norm_reserve(x, operations));
}

static int run_norm(const void *handle, tensor_in x, int operations, const void *workspace, size_t bytes, const void *reserve,
    size_t reserved, const char *name)
{
    int error = check_room("a workspace", norm_workspace(x), workspace, bytes);
    if (!error)
        error = check_room("a reserve", norm_reserve(x, operations), reserve, reserved);
    return error ? error : cudnn_launch(handle, name);
}

int cudnnBatchNormalizationForwardTrainingEx(const void *handle, int mode, int operations, const void *alpha, const void *beta, tensor_in x,
    const void *x_data, tensor_in z, const void *z_data, tensor_in y, void *y_data, tensor_in scale, const void *scale_data,
    const void *bias_data, double factor, void *running_mean, void *running_variance, double epsilon, void *saved_mean,
    void *saved_variance, activation_in activation, void *workspace, size_t bytes, void *reserve, size_t reserved)
{
    (void)z_data, (void)factor, (void)running_mean, (void)running_variance, (void)saved_mean, (void)saved_variance;
    int error = check_norm(handle, mode, operations, x, activation);
    if (!error)
        error = CHECK_TENSORS(z, y, scale);
    if (error)
        return error;
    if (!alpha || !beta || !x_data || !y || !y_data || !scale || !scale_data || !bias_data)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "batch normalisation without a tensor or a factor");
    if (epsilon < 0)
        return cudnn_fail(CUDNN_BAD_PARAM, "batch normalisation: epsilon %g", epsilon);
    return run_norm(handle, x, operations, workspace, bytes, reserve, reserved, "cudnn batch normalisation forward");
}

int cudnnBatchNormalizationBackwardEx(const void *handle, int mode, int operations, const void *alpha_data, const void *beta_data,
    const void *alpha_parameters, const void *beta_parameters, tensor_in x, const void *x_data, tensor_in y, const void *y_data,
    tensor_in dy, const void *dy_data, tensor_in dz, void *dz_data, tensor_in dx, void *dx_data, tensor_in scale, const void *scale_data,
    const void *bias_data, void *dscale, void *dbias, double epsilon, const void *saved_mean, const void *saved_variance,
    activation_in activation, void *workspace, size_t bytes, void *reserve, size_t reserved)
{
    (void)y_data, (void)dz_data, (void)bias_data, (void)epsilon, (void)saved_mean, (void)saved_variance;
    int error = check_norm(handle, mode, operations, x, activation);
    if (!error)
        error = CHECK_TENSORS(y, dy, dz, dx, scale);
    if (error)
        return error;
    bool factors = alpha_data && beta_data && alpha_parameters && beta_parameters;
    if (!factors || !x_data || !dy || !dy_data || !dx || !dx_data || !scale || !scale_data || !dscale || !dbias)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "batch normalisation without a tensor or a factor");
    return run_norm(handle, x, operations, workspace, bytes, reserve, reserved, "cudnn batch normalisation backward");
}

int cudnnBatchNormalizationForwardInference(const void *handle, int mode, const void *alpha, const void *beta, tensor_in x,
    const void *x_data, tensor_in y, void *y_data, tensor_in scale, const void *scale_data, const void *bias_data, const void *mean,
    const void *variance, double epsilon)
{
    (void)epsilon;
    int error = check_norm(handle, mode, 0, x, NULL);
    if (!error)
        error = CHECK_TENSORS(y, scale);
    if (error)
        return error;
    if (!alpha || !beta || !x_data || !y || !y_data || !scale || !scale_data || !bias_data || !mean || !variance)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "batch normalisation without a tensor or a factor");
    return cudnn_launch(handle, "cudnn batch normalisation");
}

/* --- CTC loss: probabilities of T steps, N sequences, A letters */

static int set_ctc(struct ctc_loss *c, int type, int normalization, int gradient, int most)
{
    if (!object_is(c, OBJECT_CTC_LOSS))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of a CTC loss", (void *)c);
    if (type != DATA_FLOAT || normalization < 0 || normalization > 1 || gradient < 0 || gradient > 1 || most < 0)
        return cudnn_fail(CUDNN_BAD_PARAM, "CTC loss: type %d, normalisation %d, gradient %d", type, normalization, gradient);
    *c = (struct ctc_loss){.object = c->object, .type = type, .normalization = normalization, .gradient = gradient, .most_labels = most};
    c->object.is_set = true;
    return 0;
}

int cudnnSetCTCLossDescriptorEx(struct ctc_loss *c, int type, int normalization, int gradient)
{
    return set_ctc(c, type, normalization, gradient, 0);
}

int cudnnSetCTCLossDescriptor_v9(struct ctc_loss *c, int type, int normalization, int gradient, int most)
{
    return set_ctc(c, type, normalization, gradient, most);
}

/* Of `lengths`, which the host can read, or what the descriptor says. */
static int most_labels(const struct ctc_loss *c, tensor_in probabilities, const int *lengths)
{
    int most = c->most_labels ? c->most_labels : 255;
    if (lengths) {
        most = 0;
        for (int i = 0; i < probabilities->dims[1]; i++)
            most = lengths[i] > most ? lengths[i] : most;
    }
    return most;
}

static int ctc_size(const void *handle, tensor_in probabilities, tensor_in gradients, const struct ctc_loss *c, const int *lengths,
    int algorithm, size_t *size)
{
    int error = cudnn_check_handle(handle);
    if (!error)
        error = object_check(c, OBJECT_CTC_LOSS);
    if (!error)
        error = object_check(probabilities, OBJECT_TENSOR);
    if (!error)
        error = CHECK_TENSORS(gradients);
    if (error)
        return error;
    if (algorithm < 0 || algorithm > 1 || probabilities->count != 3)
        return cudnn_fail(CUDNN_BAD_PARAM, "CTC loss: algorithm %d, %d dimensions", algorithm, probabilities->count);
    const int *dims = probabilities->dims;
    return say(size, ctc_workspace(dims[0], dims[1], dims[2], most_labels(c, probabilities, lengths)));
}

int cudnnGetCTCLossWorkspaceSize(const void *handle, tensor_in probabilities, tensor_in gradients, const int *labels, const int *lengths,
    const int *steps, int algorithm, const struct ctc_loss *c, size_t *size)
{
    if (!labels || !lengths || !steps)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "CTC loss without labels or lengths");
    return ctc_size(handle, probabilities, gradients, c, lengths, algorithm, size);
}

int cudnnGetCTCLossWorkspaceSize_v8(const void *handle, int algorithm, const struct ctc_loss *c, tensor_in probabilities,
    tensor_in gradients, size_t *size)
{
    return ctc_size(handle, probabilities, gradients, c, NULL, algorithm, size);
}

static int run_ctc(const void *handle, int error, size_t needed, const void *workspace, size_t bytes, const void *probabilities,
    const void *costs)
{
    if (!error)
        error = check_room("a workspace", needed, workspace, bytes);
    if (!error && (!probabilities || !costs))
        error = cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "CTC loss without data");
    return error ? error : cudnn_launch(handle, "cudnn ctc loss");
}

int cudnnCTCLoss(const void *handle, tensor_in probabilities, const void *data, const int *labels, const int *lengths, const int *steps,
    void *costs, tensor_in gradients, void *gradients_data, int algorithm, const struct ctc_loss *c, void *workspace, size_t bytes)
{
    (void)gradients_data;
    size_t needed = 0;
    int error = cudnnGetCTCLossWorkspaceSize(handle, probabilities, gradients, labels, lengths, steps, algorithm, c, &needed);
    return run_ctc(handle, error, needed, workspace, bytes, data, costs);
}

int cudnnCTCLoss_v8(const void *handle, int algorithm, const struct ctc_loss *c, tensor_in probabilities, const void *data,
    const int *labels, const int *lengths, const int *steps, void *costs, tensor_in gradients, void *gradients_data, size_t bytes,
    void *workspace)
{
    (void)gradients_data;
    size_t needed = 0;
    int error = ctc_size(handle, probabilities, gradients, c, NULL, algorithm, &needed);
    if (!error && (!labels || !lengths || !steps))
        error = cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "CTC loss without labels or lengths");
    return run_ctc(handle, error, needed, workspace, bytes, data, costs);
}

/* --- dropout */

int cudnnDropoutGetStatesSize(const void *handle, size_t *size)
{
    int error = cudnn_check_handle(handle);
    return error ? error : say(size, dropout_states_bytes());
}

static int set_dropout(struct dropout *d, const void *handle, float rate, void *states, size_t bytes)
{
    int error = cudnn_check_handle(handle);
    if (!error && !object_is(d, OBJECT_DROPOUT))
        error = cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is none of dropout", (void *)d);
    if (!error && !(rate >= 0 && rate <= 1))
        error = cudnn_fail(CUDNN_BAD_PARAM, "dropout of %g", (double)rate);
    if (!error && states)
        error = check_room("states", dropout_states_bytes(), states, bytes);
    if (error)
        return error;
    *d = (struct dropout){.object = d->object, .rate = rate, .states = states, .bytes = bytes};
    d->object.is_set = true;
    return 0;
}

/* Seeds the generators, if there are any: without states it says that nothing is dropped at random. */
int cudnnSetDropoutDescriptor(struct dropout *d, const void *handle, float rate, void *states, size_t bytes, unsigned long long seed)
{
    (void)seed;
    int error = set_dropout(d, handle, rate, states, bytes);
    return error || !states ? error : cudnn_launch(handle, "cudnn seed");
}

/* The states were seeded before. */
int cudnnRestoreDropoutDescriptor(struct dropout *d, const void *handle, float rate, void *states, size_t bytes, unsigned long long seed)
{
    (void)seed;
    return set_dropout(d, handle, rate, states, bytes);
}
