/*
 * workspace.h: how much scratch memory cuDNN asks for. A model: see workspace.c for each figure and where it comes from.
 */
#ifndef CENOTE_SIM_CUDNN_WORKSPACE_H
#define CENOTE_SIM_CUDNN_WORKSPACE_H

#include "sim/libraries/cudnn/cudnn.h"

enum convolution_kind { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

/* A convolution, whichever interface described it. x, w and y are what they are in the forward direction. */
struct convolution {
    enum convolution_kind kind;
    int     type;           /* of the elements */
    bool    channels_last;  /* all three tensors */
    bool    tensor_cores;   /* the caller permits them; float is rounded to TF32, which is none of the notes */
    int     spatial;        /* dimensions, 1 to 5 */
    int64_t batch, in, out, groups; /* in and out: channels */
    int64_t x[CUDNN_DIMS_MAX], w[CUDNN_DIMS_MAX], y[CUDNN_DIMS_MAX]; /* extents of the spatial dimensions */
    int64_t stride[CUDNN_DIMS_MAX], dilation[CUDNN_DIMS_MAX];
};

enum { /* what an engine's result may differ by: bits, in the order of cuDNN's numerical notes */
    NOTE_TENSOR_CORE = 1 << 0,
    NOTE_FFT = 1 << 3,
    NOTE_NONDETERMINISTIC = 1 << 4,
    NOTE_WINOGRAD = 1 << 5,
};

struct engine { /* a way to compute a convolution: a row of engines.def */
    enum convolution_kind kind;
    int         algorithm; /* its number in the older interface */
    const char *name;
    unsigned    notes;
    bool      (*suits)(const struct convolution *);
    uint64_t  (*workspace)(const struct convolution *);
};

#define ENGINES_MAX 8

int      engines_of(const struct convolution *c, const struct engine *list[ENGINES_MAX]);  /* that suit, the preferred first */
int      engines_count(enum convolution_kind kind);     /* that there are, whether they suit or not */
int      engine_index(const struct engine *e);          /* among those of its kind; 0 is the one that suits everything */

/* Of the forward pass of an attention: query heads * batch, lengths, head sizes. */
struct attention {
    int64_t batch, heads, queries, keys, size;
};
uint64_t attention_backward_workspace(const struct attention *a);

uint64_t norm_workspace(const struct tensor *x);
uint64_t norm_reserve(const struct tensor *x, bool has_activation);
uint64_t ctc_workspace(int64_t steps, int64_t batch, int64_t alphabet, int64_t labels);
uint64_t dropout_states_bytes(void);
int      rnn_gates(const struct rnn *r);
uint64_t rnn_matrix_elements(const struct rnn *r);  /* of all layers, without biases */
uint64_t rnn_workspace(const struct rnn *r, const struct rnn_data *x);
uint64_t rnn_reserve(const struct rnn *r, const struct rnn_data *x);

#endif
