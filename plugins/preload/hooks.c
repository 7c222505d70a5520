/*
 * hooks.c: the functions that a program calls in place of the driver's, all expanded from hooks.def: cenote and the driver itself, and every caller
 * with CENOTE_PRELOAD=off or in a child of a fork, get the driver's own; the program is served.
 *
 * cuda.h has declared each of these symbols, because real.h asks it for all forms: a row with other parameters does not compile, nor does a row
 * that cuda.h does not know (check_cuda_h.c).
 *
 * LOCKING: none.
 */
#include "plugins/preload/hooks.h"

static _Thread_local unsigned under_way __attribute__((tls_model("initial-exec"))); /* the shorter way there: each call takes it twice */

bool hooks_are_under_way(void)
{
    return under_way;
}

#define BY(r, symbol, arguments)                                                         \
    if (!(r))                                                                            \
        return CUDA_ERROR_NOT_INITIALIZED;                                               \
    if (!(r)->symbol)                                                                    \
        return CUDA_ERROR_NOT_SUPPORTED;                                                 \
    if ((r)->is_off || real_is_left() || real_is_wanted(r, __builtin_return_address(0))) \
        return (r)->symbol arguments;                                                    \
    under_way++;                                                                         \
    CUresult result = serve_##symbol arguments;                                          \
    under_way--;                                                                         \
    return result

#define HOOK(name, symbol, version, parameters, arguments) \
    CUresult symbol parameters                             \
    {                                                      \
        const struct real *r = real();                     \
        BY(r, symbol, arguments);                          \
    }
#define HOOK_STREAM(name, symbol, version, parameters, arguments) \
    HOOK(name, symbol, version, parameters, arguments)            \
    CUresult symbol##_ptsz parameters                             \
    {                                                             \
        const struct real *r = real();                            \
        stream = stream ? stream : CU_STREAM_PER_THREAD;          \
        BY(r, symbol, arguments);                                 \
    }
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
