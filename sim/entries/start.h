/* start.h: how the machine starts, and how contexts begin and end: what concerns every room. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_START_H
#define CENOTE_SIM_START_H

#include "sim/machine/model.h"

/* --- start.c */
void start_with(const struct sim_shape *shape);
void start_from_environment(void);          /* as at program start */

/* --- contexts.c; results as the calls of the same names */
CUresult context_init(unsigned flags);
CUresult context_retain_primary(CUcontext *context, CUdevice device);
CUresult context_release_primary(CUdevice device);
CUresult context_reset_primary(CUdevice device);
CUresult context_create(CUcontext *context, unsigned flags, CUdevice device);
CUresult context_create_with(CUcontext *context, CUctxCreateParams *params, unsigned flags, CUdevice device);
CUresult context_destroy(CUcontext context);
CUresult context_attach(CUcontext *context, unsigned flags);
CUresult context_detach(CUcontext context);
uint64_t context_next_id(void);

/* --- green.c; results as the calls of the same names */
void     green_reset(void);
CUresult green_create(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned flags);
CUresult green_destroy(CUgreenCtx green);
CUresult green_context(CUcontext *context, CUgreenCtx green);
CUresult green_resource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type);
CUresult green_stream(CUstream *stream, CUgreenCtx green, unsigned flags, int priority);
CUresult green_record(CUgreenCtx green, CUevent event);
CUresult green_wait(CUgreenCtx green, CUevent event);

#endif
