/*
 * runtime.h: what the files of the simulated CUDA runtime share. It is a client of the driver, as the real one is: it knows cuda.h, sim.h
 * and the runtime's own types, and nothing of the model.
 *
 * Every call begins with runtime_begin, which makes a context current, and ends with runtime_end, which keeps the error for
 * cudaGetLastError. The two interfaces number their errors alike.
 *
 * LOCKING: state.c, kernels.c and symbols.c each have a lock of their own. The driver is called under those of state.c and symbols.c, which
 * keep two threads from making the same thing twice.
 */
#ifndef CENOTE_SIM_RUNTIME_H
#define CENOTE_SIM_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#define RUNTIME_DEVICES_MAX 64

/* --- state.c: the device of a thread, contexts, the last error */
CUresult    runtime_start(void);                /* the driver answers; no context is made */
CUresult    runtime_begin(void);                /* a context is current: the program's own, or the primary one of the thread's device */
cudaError_t runtime_end(CUresult result);       /* remembered as the thread's last error if it is one */
cudaError_t runtime_fail(cudaError_t error);    /* the same for errors that the driver does not know */
int         runtime_device(void);               /* of this thread */
CUresult    runtime_use_device(int device, bool context);
CUresult    runtime_primary(int device, CUcontext *context);    /* made at the first call, and kept */

/* --- symbols.c */
void        symbols_forget(int device);         /* its memory is gone */

#endif
