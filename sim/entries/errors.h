/* errors.h: names of the driver's results. No locks. */
#ifndef CENOTE_SIM_ERRORS_H
#define CENOTE_SIM_ERRORS_H

#include <cuda.h>

CUresult error_name(CUresult error, const char **text);     /* CUDA_ERROR_INVALID_VALUE, and NULL: unknown */
CUresult error_string(CUresult error, const char **text);   /* the same in words */

#endif
