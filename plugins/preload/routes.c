/*
 * routes.c: the three ways by which a program comes to a function of the driver, and to ours instead.
 *
 *     a symbol            a program that was linked to libcuda.so.1: the dynamic linker finds the functions of hooks.c first
 *     dlsym, dlvsym       a program, or a runtime in it, that opened libcuda.so.1: dlsym.S asks here
 *     cuGetProcAddress    what the CUDA runtime does, static or not, after it got that function itself by one of the first two
 *
 * The last two are answered by the driver first, and then by address: if the answer is a function of the driver that we serve, ours takes its place.
 * So the driver decides which form of a function a name and a version mean, and a function of the same name in another library stays as it is.
 *
 * LOCKING: none.
 */
#include "plugins/preload/routes.h"

#include "plugins/preload/hooks.h"
#include "plugins/preload/real.h"

#include <stddef.h>

static void *const ours[HOOKS] = {
#define HOOK(name, symbol, version, parameters, arguments) (void *)symbol,
#define HOOK_STREAM(name, symbol, version, parameters, arguments) (void *)symbol, (void *)symbol##_ptsz,
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
};

void *route_instead(void *function)
{
    const struct real *r = real();
    for (int i = 0; function && r && !r->is_off && i < HOOKS; i++)
        if (function == r->exported[i] || function == r->asked[i])
            return ours[i];
    return function;
}

CUresult serve_cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUresult result = real()->cuGetProcAddress(symbol, function, version, flags);
    if (!result)
        *function = route_instead(*function);
    return result;
}

CUresult serve_cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    CUresult result = real()->cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (!result)
        *function = route_instead(*function);
    return result;
}
