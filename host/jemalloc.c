/*
 * jemalloc.c: finds jemalloc. One that is there from the start wins: the program is linked to it, or LD_PRELOAD named it. Otherwise it is
 * loaded now, which most builds of it do not allow: their thread-local storage is of the kind that has to be there when a program
 * starts (initial-exec). Then the message says what helps.
 *
 *     not sought ---> found, or refused: both for the life of the process
 *
 * A child of a fork that another thread makes meanwhile has half a jemalloc, and the dynamic linker may believe it whole: the child is refused.
 *
 * LOCKING: the caller's, for the search.
 */
#include "host/jemalloc.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "driver/driver.h"

static struct jemalloc table;
static char refusal[512];       /* why there is none; empty: there is one */

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

__attribute__((format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal, sizeof(refusal), format, arguments);
    va_end(arguments);
}

static void load(void)
{
    const char *chosen = secure_getenv("CENOTE_JEMALLOC");
    const char *name = chosen && *chosen ? chosen : "libjemalloc.so.2";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? "" : dlerror();
    if (library && !resolve(library))
        refuse("%s is no jemalloc, or one built with a prefix", name);
    else if (!library && !strstr(why, "static TLS"))
        refuse("pinned host memory needs jemalloc: %s. Install libjemalloc2, or name the library in CENOTE_JEMALLOC", why);
    else if (!library)
        refuse("%s cannot be loaded into a program that runs (its static TLS). Link the program with -ljemalloc, or start it with "
               "LD_PRELOAD=%s or GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384, or name in CENOTE_JEMALLOC one built with "
               "--disable-initial-exec-tls", name, name);
}

static void find(void)
{
    const char *version = "";
    size_t size = sizeof(version);
    bool is_there = resolve(RTLD_DEFAULT);
    if (!is_there) {
        driver_forbid_forks(true);
        load();
        driver_forbid_forks(false);
    }
    if (!*refusal && (table.mallctl("version", &version, &size, NULL, 0) || version[0] < '5'))
        refuse("pinned host memory needs jemalloc 5; this is \"%.40s\"", version);
}

const struct jemalloc *jemalloc_table(void)
{
    static bool was_sought;
    if (!was_sought)
        find();
    was_sought = true;
    if (*refusal)
        error_set(CENOTE_NOT_SUPPORTED, 0, "%s", refusal);
    return *refusal ? NULL : &table;
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
