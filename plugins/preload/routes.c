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

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

void *route_next, *route_next_of_version;

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

/* Runs for every name that any library looks for: a look at its first letters ends it for all but the driver's. */
static bool may_be_a_driver_function(const char *name)
{
    return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* The way to the driver's functions may itself be looked up, in the C library. */
static bool is_a_lookup(const char *name)
{
    return name && name[0] == 'd' && (!strcmp(name, "dlsym") || !strcmp(name, "dlvsym"));
}

static void *given_for(void *found)
{
    if (found == real_dlsym_function())
        return (void *)dlsym;
    return found == real_dlvsym_function() ? (void *)dlvsym : route_instead(found);
}

/* `version` NULL: of any. */
static void *look_up(void *handle, const char *name, const char *version, const void *caller)
{
    bool is_anywhere = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    if (is_anywhere ? !version || !is_a_lookup(name) : !may_be_a_driver_function(name) && !is_a_lookup(name))
        return NULL;
    const struct real *r = real();
    if (!r || r->is_off || real_is_wanted(r, caller))
        return NULL;
    handle = is_anywhere ? RTLD_DEFAULT : handle; /* what comes next goes by the caller, which we are not; only the C library has a version of it */
    void *found = version ? real_dlvsym(handle, name, version) : real_dlsym(handle, name);
    void *given = given_for(found);
    return given == found ? NULL : given;
}

/*
 * NULL sends the caller on to the C library's. RTLD_DEFAULT finds what is exported here by itself, and RTLD_NEXT asks for what comes after the
 * caller: neither is answered here, but for a lookup of some version, which nothing exported here has.
 */
__attribute__((used)) void *route_dlsym(void *handle, const char *name, const void *caller)
{
    __atomic_store_n(&route_next, real_dlsym_function(), __ATOMIC_RELAXED);
    return look_up(handle, name, NULL, caller);
}

__attribute__((used)) void *route_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
    __atomic_store_n(&route_next_of_version, real_dlvsym_function(), __ATOMIC_RELAXED);
    return version ? look_up(handle, name, version, caller) : NULL;
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
