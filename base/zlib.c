/*
 * zlib.c: finds zlib when it is needed. Neither the library nor its build needs zlib, whose functions on files have been the same for decades.
 *
 * LOCKING: none; the loader has its own.
 */
#include "base/zlib.h"

#include <dlfcn.h>
#include <string.h>

/* The functions are stored through an object pointer: ISO C has no cast from one to the other. */
bool zlib_find(struct zlib *z)
{
    static const char *const names[] = {"gzopen", "gzdopen", "gzread", "gzwrite", "gzerror", "gzclose"};
    enum { COUNT = sizeof names / sizeof *names };
    void *library = dlopen(ZLIB_LIBRARY, RTLD_NOW | RTLD_LOCAL); /* stays */
    void *entries[COUNT] = {NULL};
    bool found = library != NULL;
    for (int i = 0; found && i < COUNT; i++)
        found = (entries[i] = dlsym(library, names[i])) != NULL;
    _Static_assert(sizeof entries == sizeof *z, "one pointer for each function");
    memcpy(z, entries, sizeof *z);
    return found;
}
