/*
 * answer.h: how a kernel that does nothing still answers, for the libraries of linear algebra: what a program reads before it goes on (a
 * scalar, a solver's info) is written by real copies and fills in stream order. Results themselves stay as memory was.
 *
 * No locks, no state.
 */
#ifndef CENOTE_SIM_ANSWER_H
#define CENOTE_SIM_ANSWER_H

#include <string.h>

#include "sim/libraries/library.h"

/* The size of a cudaDataType in bytes, or 0. Types below a byte count as one. */
static inline uint64_t type_bytes(int type)
{
    static const unsigned char bytes[] = {4, 8, 2, 1, 8, 16, 4, 2, 1, 2, 4, 8, 4, 8, 2, 4, 1,
                                          1, 1, 1, 2, 4, 2, 4, 8, 16, 8, 16, 1, 1, 1, 1, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

/* `count` words of device memory become `word`. */
static inline int answer_words(const void *handle, void *at, unsigned word, int64_t count)
{
    const struct handle *h = handle;
    if (count <= 0)
        return 0;
    return cuMemsetD32Async((CUdeviceptr)at, word, (size_t)count, h->stream) ? status.failed : 0;
}

/* A scalar goes where the caller reads it: to host memory once the stream has come so far, or by fills of the stream to device memory. */
static inline int answer_bytes(const void *handle, bool on_device, void *to, const void *from, size_t bytes)
{
    const struct handle *h = handle;
    if (!to)
        return status.invalid;
    if (!on_device) {
        if (cuStreamSynchronize(h->stream))
            return status.failed;
        memcpy(to, from, bytes);
        return 0;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i + 2 <= bytes && !result; i += 2) {
        unsigned short half;
        memcpy(&half, (const char *)from + i, sizeof half);
        result = cuMemsetD16Async((CUdeviceptr)to + i, half, 1, h->stream);
    }
    return result ? status.failed : 0;
}

#endif
