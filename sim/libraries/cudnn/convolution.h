/*
 * convolution.h: convolutions, whichever interface describes them; see convolution.c.
 */
#ifndef CENOTE_SIM_CUDNN_CONVOLUTION_H
#define CENOTE_SIM_CUDNN_CONVOLUTION_H

#include "sim/libraries/cudnn/workspace.h"

/* What a tensor looks like to a convolution: batch and channels first, whatever the order in memory. */
struct view {
    int     type;
    int     count;
    int64_t dims[CUDNN_DIMS_MAX];
    int64_t strides[CUDNN_DIMS_MAX];
};

struct window { /* how the filter moves */
    int     spatial;
    int64_t before[CUDNN_DIMS_MAX], after[CUDNN_DIMS_MAX], stride[CUDNN_DIMS_MAX], dilation[CUDNN_DIMS_MAX];
};

/* Fills `c` if the three fit each other; else cuDNN's error. */
int convolution_describe(struct convolution *c, enum convolution_kind kind, const struct view *x, const struct view *w,
    const struct view *y, const struct window *window);

#endif
