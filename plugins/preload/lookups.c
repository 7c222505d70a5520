/*
 * lookups.c: what dlsym and dlvsym give a program that looks for a function of the driver (dlsym.S asks here), and the driver by its name, as every
 * other library of the process gets it.
 *
 * LOCKING: none.
 */
#include "plugins/preload/clib.h"
#include "plugins/preload/real.h"
#include "plugins/preload/routes.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* CENOTE_DRIVER: as cenote itself reads it (driver/loader.c). */
void *real_open(void)
{
    const char *chosen = secure_getenv("CENOTE_DRIVER");
    return dlopen(chosen && *chosen ? chosen : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

void *route_next, *route_next_of_version;

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
    if (found == clib_dlsym_function())
        return (void *)dlsym;
    return found == clib_dlvsym_function() ? (void *)dlvsym : route_instead(found);
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
    void *found = version ? clib_dlvsym(handle, name, version) : real_dlsym(handle, name);
    void *given = given_for(found);
    return given == found ? NULL : given;
}

/*
 * NULL sends the caller on to the C library's. RTLD_DEFAULT finds what is exported here by itself, and RTLD_NEXT asks for what comes after the
 * caller: neither is answered here, but for a lookup of some version, which nothing exported here has.
 */
__attribute__((used)) void *route_dlsym(void *handle, const char *name, const void *caller)
{
    __atomic_store_n(&route_next, clib_dlsym_function(), __ATOMIC_RELAXED);
    return look_up(handle, name, NULL, caller);
}

__attribute__((used)) void *route_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
    __atomic_store_n(&route_next_of_version, clib_dlvsym_function(), __ATOMIC_RELAXED);
    return version ? look_up(handle, name, version, caller) : NULL;
}
