/*
 * blas_status.h: the names of what cuBLAS and cuBLASLt return, and what they mean. Both libraries have the same numbers.
 *
 * No locks, no state.
 */
#ifndef CENOTE_SIM_BLAS_STATUS_H
#define CENOTE_SIM_BLAS_STATUS_H

static inline const char *blas_status(int number, int named)
{
    static const struct {
        const char *name, *text;
    } known[17] = {
        [0] = {"CUBLAS_STATUS_SUCCESS", "success"},
        [1] = {"CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
        [3] = {"CUBLAS_STATUS_ALLOC_FAILED", "there is no memory left"},
        [7] = {"CUBLAS_STATUS_INVALID_VALUE", "an argument is invalid"},
        [8] = {"CUBLAS_STATUS_ARCH_MISMATCH", "the device lacks a feature"},
        [11] = {"CUBLAS_STATUS_MAPPING_ERROR", "an access to device memory failed"},
        [13] = {"CUBLAS_STATUS_EXECUTION_FAILED", "a kernel failed"},
        [14] = {"CUBLAS_STATUS_INTERNAL_ERROR", "an internal error"},
        [15] = {"CUBLAS_STATUS_NOT_SUPPORTED", "this is not supported"},
        [16] = {"CUBLAS_STATUS_LICENSE_ERROR", "the license could not be checked"},
    };
    if (number < 0 || number > 16 || !known[number].name)
        return named ? "CUBLAS_STATUS_UNKNOWN" : "an unknown status";
    return named ? known[number].name : known[number].text;
}

#endif
