/*
 * nvshmem.c: NVSHMEM is refused: its kernels wait for each other and would find nothing. It says that it was not initialised, fails to
 * initialise, and gives no memory. In stubs.def the calls that return a status are REFUSE, and are meant so; here are those that return
 * something else, for which "not supported" would be a pointer or a count.
 *
 * LOCKING: none.
 */
#include "sim/libraries/library.h"

#define NOT_INITIALIZED 0

#define NO_POINTER(name)                                                       \
    void *name(void)                                                           \
    {                                                                          \
        static _Atomic bool said;                                              \
        library_refuse(&said, #name);                                          \
        return NULL;                                                           \
    }
#define NO_EFFECT(name)                                                        \
    void name(void)                                                            \
    {                                                                          \
        static _Atomic bool said;                                              \
        library_refuse(&said, #name);                                          \
    }

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int nvshmemid_init_status(void)
{
    return NOT_INITIALIZED;
}

/* Of the OpenSHMEM interface that it follows; a question that may be asked before anything is initialised. */
void nvshmem_info_get_version(int *major, int *minor)
{
    if (major)
        *major = 1;
    if (minor)
        *minor = 3;
}

NO_POINTER(nvshmem_malloc)
NO_POINTER(nvshmem_ptr)
NO_POINTER(nvshmemx_mc_ptr)
NO_EFFECT(nvshmem_barrier_all)
NO_EFFECT(nvshmem_free)
NO_EFFECT(nvshmemid_hostlib_finalize)
NO_EFFECT(nvshmemx_getmem_on_stream)
NO_EFFECT(nvshmemx_putmem_on_stream)
NO_EFFECT(nvshmemx_putmem_signal_on_stream)
NO_EFFECT(nvshmemx_signal_wait_until_on_stream)
