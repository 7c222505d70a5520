/*
 * jemalloc.c: finds jemalloc. One that is there from the start wins: the program is linked to it, or LD_PRELOAD named it. Otherwise it is
 * loaded now, which most builds of it do not allow: their thread-local storage is of the kind that has to be there when a program
 * starts (initial-exec). Then the message says what helps.
 */
#include "host/jemalloc.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static struct jemalloc table;
static bool found;

/* All of them, or none. */
static bool resolve(void *library)
{
    bool all = true;
#define JEMALLOC(result, name, parameters) \
    *(void **)&table.name = dlsym(library, #name); \
    all = all && table.name;
#include "host/jemalloc.def"
#undef JEMALLOC
    return all;
}

static int load(void)
{
    const char *chosen = secure_getenv("CENOTE_JEMALLOC");
    const char *name = chosen && *chosen ? chosen : "libjemalloc.so.2";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library && resolve(library))
        return CENOTE_OK;
    if (library)
        return error_set(CENOTE_NOT_SUPPORTED, 0, "%s is no jemalloc, or one built with a prefix", name);
    const char *why = dlerror();
    if (!strstr(why, "static TLS"))
        return error_set(CENOTE_NOT_SUPPORTED, 0,
                         "pinned host memory needs jemalloc: %s. Install libjemalloc2, or name the library in CENOTE_JEMALLOC", why);
    return error_set(CENOTE_NOT_SUPPORTED, 0,
                     "%s cannot be loaded into a program that runs (its static TLS). Link the program with -ljemalloc, or start it with "
                     "LD_PRELOAD=%s or GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384, or name in CENOTE_JEMALLOC one built with "
                     "--disable-initial-exec-tls", name, name);
}

const struct jemalloc *jemalloc_table(void)
{
    if (!found && (resolve(RTLD_DEFAULT) || !load()))
        found = true;
    const char *version = "";
    size_t size = sizeof(version);
    if (found && (table.mallctl("version", &version, &size, NULL, 0) || version[0] < '5')) {
        error_set(CENOTE_NOT_SUPPORTED, 0, "pinned host memory needs jemalloc 5; this is \"%.40s\"", version);
        return NULL;
    }
    return found ? &table : NULL;
}

bool jemalloc_read(const char *name, unsigned *value)
{
    size_t size = sizeof(*value);
    return !table.mallctl(name, value, &size, NULL, 0);
}

bool jemalloc_write(const char *name, unsigned value)
{
    return !table.mallctl(name, NULL, NULL, &value, sizeof(value));
}

bool jemalloc_tell(unsigned arena, const char *name, void *value, size_t size)
{
    char full[64];
    snprintf(full, sizeof(full), "arena.%u.%s", arena, name);
    return !table.mallctl(full, NULL, NULL, value, size);
}
