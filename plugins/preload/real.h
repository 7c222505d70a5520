/*
 * real.h: the driver's own functions, whatever the program is given instead. See real.c.
 */
#ifndef CENOTE_PRELOAD_REAL_H
#define CENOTE_PRELOAD_REAL_H

#define __CUDA_API_VERSION_INTERNAL /* cuda.h then declares each form of a function under the name that the driver exports */
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* The functions that we serve, by the symbol that the driver exports. */
enum hook {
#define HOOK(name, symbol, version, parameters, arguments) HOOK_##symbol,
#define HOOK_STREAM(name, symbol, version, parameters, arguments) HOOK_##symbol, HOOK_##symbol##_ptsz,
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
    HOOKS
};

/* The code of one library. */
struct code {
    uintptr_t from, to;
};

struct real {
    /* Where the driver lacks one it is NULL. In functions with a stream, 0 means the legacy default stream. */
#define HOOK(name, symbol, version, parameters, arguments) CUresult (*symbol) parameters;
#define HOOK_STREAM(name, symbol, version, parameters, arguments) CUresult (*symbol) parameters;
#define REAL(symbol, parameters) CUresult (*symbol) parameters;
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
    void       *exported[HOOKS]; /* the address of each symbol, and what cuGetProcAddress gives for its name and version: the same, or not */
    void       *asked[HOOKS];
    struct code ours[2];         /* libcenote.so and the driver: what they call is the driver's own */
    bool        is_off;          /* CENOTE_PRELOAD=off, or the other library serves: nothing is served here */
    bool        is_simulated;
};

/* NULL: there is no driver to load. */
const struct real *real(void);

/* The driver's contexts are in use from here on: a child of a fork from now on is left to the driver, which refuses it. */
void real_is_in_use(void);
bool real_is_left(void);

/* The C library's dlsym, past every other. */
void *real_dlsym(void *handle, const char *name);

/* A handle of the driver; NULL if there is none. */
void *real_open(void);

/* Is the caller of a function, by its return address, cenote or the driver itself? */
static inline bool real_is_wanted(const struct real *r, const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    return (at >= r->ours[0].from && at < r->ours[0].to) || (at >= r->ours[1].from && at < r->ours[1].to);
}

#endif
