/*
 * check_cuda_h.c: does cuda.h have each row of hooks.def, with these parameters? Compiled in every build, adds nothing to the library.
 *
 * It declares nothing itself: it assigns each function of cuda.h to a pointer of the row's type, which a wrong row, or one that cuda.h lacks, does
 * not survive.
 */
#include "plugins/preload/real.h"

#define HOOK(name, symbol, version, parameters, arguments) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult (*) parameters), #symbol ": cuda.h has other parameters");
#define HOOK_STREAM(name, symbol, version, parameters, arguments) \
    HOOK(name, symbol, version, parameters, arguments)            \
    HOOK(name, symbol##_ptsz, version, parameters, arguments)
#define REAL(symbol, parameters) HOOK(symbol, symbol, 0, parameters, ())
#define UNTOUCHED(symbol, why) _Static_assert(sizeof(&symbol), #symbol ": cuda.h has no such function");
#include "plugins/preload/hooks.def"
