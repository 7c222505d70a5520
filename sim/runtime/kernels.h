/*
 * kernels.h: what programs register of their device code before main, and how it is found. kernels.c holds it, launch.c and symbols.c use it.
 */
#ifndef CENOTE_SIM_RUNTIME_KERNELS_H
#define CENOTE_SIM_RUNTIME_KERNELS_H

#include <stdatomic.h>

#include "sim/runtime/runtime.h"

struct kernel {
    const void         *host;   /* the function a program names it by */
    const char         *name;   /* mangled */
    _Atomic(CUfunction) code;   /* the driver's; NULL until it is asked for */
};

struct variable {
    const void *host;
    const char *name;
    size_t      size;
};

struct kernel *kernel_find(const void *function);   /* by host function, or what __cudaGetKernel gave; NULL: none */
bool           variable_find(const void *host, struct variable *found);

#endif
