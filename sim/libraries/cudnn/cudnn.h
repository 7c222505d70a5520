/*
 * cudnn.h: what the files of the simulated cuDNN share: cuDNN's numbers as far as they are used, descriptors, and how a call fails.
 *
 * Two interfaces stand on the same model. The older one has a function for each operation and a descriptor for each kind of thing
 * (tensor.c, convolution.c, norm.c, rnn.c); the graph interface describes everything by attributes (backend.c, graph.c). Neither
 * computes: a call checks its arguments, and an empty kernel runs on the handle's stream. How much scratch memory a call asks for
 * is modelled in workspace.c, and nowhere else.
 */
#ifndef CENOTE_SIM_CUDNN_H
#define CENOTE_SIM_CUDNN_H

#include <stddef.h>

#include "sim/libraries/library.h"

#define CUDNN_VERSION 92800 /* major * 10000 + minor * 100 + patch: the newest whose attributes attributes.def knows */
#define CUDNN_DIMS_MAX 8

enum {
#define ERROR(name, number) CUDNN_##name = number,
#include "sim/libraries/cudnn/errors.def"
#undef ERROR
};

enum {
#define DATA_TYPE(number, name, bits) DATA_##name = number,
#define VALUE_TYPE(number, name, bytes, most) VALUE_##name = number,
#include "sim/libraries/cudnn/types.def"
};

/* --- handle.c */
/* Returns `error`, and keeps the words for cudnnGetLastErrorString on this thread. */
int cudnn_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cudnn_check_handle(const void *handle);
int cudnn_launch(const void *handle, const char *name);     /* an empty kernel on the handle's stream */
int cudnn_occupy(const void *handle, uint64_t ns);          /* the stream is busy for so long; 0: nothing happens */

/* --- objects.c: descriptors. Their memory is used again for descriptors only, so that one destroyed is known as such. */
enum object_kind {
    OBJECT_NONE, /* destroyed */
#define OBJECT(name, kind, type) OBJECT_##kind,
#include "sim/libraries/cudnn/objects.def"
#undef OBJECT
    OBJECT_BACKEND,
};

struct object { /* begins every descriptor */
    uint32_t       magic;
    enum object_kind kind;
    struct object *next; /* unused one to take after this */
    bool           is_set;
};

void *object_open(enum object_kind kind);   /* zeroed; NULL: no memory */
void  object_close(void *object);
bool  object_is(const void *object, enum object_kind kind);     /* alive, and of this kind */
int   object_check(const void *object, enum object_kind kind);  /* ... and was set; else cuDNN's error */

/* --- tensor.c */
uint64_t data_bytes(int type, uint64_t elements);   /* rounded up to whole bytes; 0: no such type */

struct tensor {
    struct object object;
    int type;
    int count;
    int dims[CUDNN_DIMS_MAX];
    int strides[CUDNN_DIMS_MAX];
};

struct filter {
    struct object object;
    int type;
    int format;
    int count;
    int dims[CUDNN_DIMS_MAX];
};

struct convolution_descriptor {
    struct object object;
    int spatial, mode, compute_type, groups, math;
    int pad[CUDNN_DIMS_MAX], stride[CUDNN_DIMS_MAX], dilation[CUDNN_DIMS_MAX];
};

struct activation {
    struct object object;
    int mode, nan;
    double coefficient;
};

struct pooling {
    struct object object;
    int mode, nan, window[2], pad[2], stride[2];
};

struct spatial_transformer {
    struct object object;
    int sampler, type, count, dims[CUDNN_DIMS_MAX];
};

struct ctc_loss {
    struct object object;
    int type, normalization, gradient, most_labels; /* most_labels 0: not said */
};

struct dropout {
    struct object object;
    float  rate;
    void  *states;
    size_t bytes;
};

struct rnn_data {
    struct object object;
    int      type, layout, most_steps, batch, vector;
    uint64_t steps; /* of all sequences together */
};

struct rnn {
    struct object object;
    int algorithm, cell, bias, directions, input_mode, type, precision, math;
    int input, hidden, projection, layers;
    float    dropout;
    uint32_t flags;
};

uint64_t tensor_elements(const struct tensor *t);
uint64_t tensor_bytes(const struct tensor *t);
int      tensor_set(struct tensor *t, int type, int count, const int *dims, const int *strides);

/* Parameters are NULL or descriptors; returns the first failure. A call with an unused descriptor passes NULL for it. */
int tensors_check(int count, const void *const *tensors);
#define CHECK_TENSORS(...)                                                                                 \
    tensors_check((int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)), (const void *const[]){__VA_ARGS__})

#endif
