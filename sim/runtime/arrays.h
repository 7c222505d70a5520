/* arrays.h: what the runtime's files about arrays and textures share. */
#ifndef CENOTE_SIM_RUNTIME_ARRAYS_H
#define CENOTE_SIM_RUNTIME_ARRAYS_H

#include "sim/runtime/runtime.h"

bool     format_of(const struct cudaChannelFormatDesc *d, CUarray_format *format, unsigned *channels);    /* false: there is no such */
struct cudaChannelFormatDesc format_tell(CUarray_format format, unsigned channels);
CUresult runtime_element(cudaArray_const_t array, size_t *bytes);   /* of one element; of no array 1 */

#endif
