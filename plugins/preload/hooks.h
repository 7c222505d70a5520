/*
 * hooks.h: the functions that stand in front of the driver's, and what serves each of them. See hooks.c.
 *
 * A function serve_X has the parameters of the driver's function X, and is called only while the driver is there and has X. A stream 0 in it is the
 * legacy default stream.
 */
#ifndef CENOTE_PRELOAD_HOOKS_H
#define CENOTE_PRELOAD_HOOKS_H

#include "plugins/preload/real.h"

/* Is a call of this thread being served? Then a signal has come in the middle of it, and its handler asks: the thread may have any lock. */
bool hooks_are_under_way(void);

#define PRELOAD_EXPORT __attribute__((visibility("default")))

#define HOOK(name, symbol, version, parameters, arguments) \
    PRELOAD_EXPORT CUresult symbol parameters;             \
    CUresult serve_##symbol parameters;
#define HOOK_STREAM(name, symbol, version, parameters, arguments) \
    PRELOAD_EXPORT CUresult symbol parameters;                    \
    PRELOAD_EXPORT CUresult symbol##_ptsz parameters;             \
    CUresult serve_##symbol parameters;
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"

#endif
