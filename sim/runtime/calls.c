/*
 * calls.c: the entry points that are one call of the driver (calls.def). LOCKING: none.
 */
#include <string.h>

#include "sim/runtime/runtime.h"

_Static_assert(sizeof(struct cudaMemLocation) == sizeof(CUmemLocation), "the two interfaces share their structures");
_Static_assert(sizeof(struct cudaGraphNodeParams) == sizeof(CUgraphNodeParams), "the two interfaces share their structures");
_Static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo), "the two interfaces share their structures");
_Static_assert(sizeof(struct cudaMemPoolProps) == sizeof(CUmemPoolProps), "the two interfaces share their structures");

static CUmemLocation location_of(struct cudaMemLocation location)
{
    CUmemLocation same;
    memcpy(&same, &location, sizeof same);
    return same;
}

/* The driver asks for the context too. */
static CUresult runtime_conditional(cudaGraphConditionalHandle *handle, cudaGraph_t graph, unsigned value, unsigned flags)
{
    CUcontext context;
    CUresult result = cuCtxGetCurrent(&context);
    return result ? result : cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle, graph, context, value, flags);
}

#define AFTER(start, symbol, parameters, call)                                 \
    cudaError_t symbol parameters;                                             \
    cudaError_t symbol parameters                                              \
    {                                                                          \
        CUresult result = start();                                             \
        return runtime_end(result ? result : call);                            \
    }
#define START(symbol, parameters, call) AFTER(runtime_start, symbol, parameters, call)
#define CALL(symbol, parameters, call) AFTER(runtime_begin, symbol, parameters, call)
#define STREAM(symbol, parameters, call)                                       \
    CALL(symbol, parameters, call)                                             \
    cudaError_t symbol##_ptsz parameters;                                      \
    cudaError_t symbol##_ptsz parameters                                       \
    {                                                                          \
        stream = stream ? stream : cudaStreamPerThread;                        \
        CUresult result = runtime_begin();                                     \
        return runtime_end(result ? result : call);                            \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter" /* what is of arrays looks at none */
#include "sim/runtime/calls.def"
