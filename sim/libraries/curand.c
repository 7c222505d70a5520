/*
 * curand.c: what of cuRAND is no line of stubs.def, which has what CuPy asks for. A generator launches an empty kernel for each request: the numbers
 * are what the memory held before. LOCKING: none.
 */
#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define VERSION 10400 /* of CUDA 13.0 */

int curandGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}
