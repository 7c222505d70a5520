/*
 * resolve.c: finds the entry points of driver.def in a driver library.
 *
 * The driver is asked by name and CUDA version, so that a function whose parameters change in a later CUDA stays the one we mean. Drivers
 * before CUDA 11.3 cannot be asked; then the symbols they export have to do, with cuda.h's version suffix.
 *
 * LOCKING: none, and no state.
 */
#include "driver/resolve.h"

#include <stdio.h>
#include <string.h>

#define NAME_ROOM 64

enum { NEED_optional, NEED_required };

struct entry {
    const char *name;
    const char *symbol; /* as the library exports it */
    int         version;
    int         need;
    size_t      slot;   /* its place in struct driver */
};

#define QUOTED(symbol) #symbol
#define SYMBOL(name)   QUOTED(name) /* cuda.h's macros have turned the name into the symbol by then */

static const struct entry entries[DRIVER_CALLS] = {
#define DRIVER(need, time, name, version, parameters, arguments) \
    {#name, SYMBOL(name), version, NEED_##need, offsetof(struct driver, name)},
#include "driver/driver.def"
#undef DRIVER
};

/* The driver's own ways to be asked; NULL where it does not have them. */
struct resolver {
    CUresult (*ask)(const char *name, void **function, int version, cuuint64_t flags, int *status); /* 12.0: cuGetProcAddress_v2 */
    CUresult (*ask_old)(const char *name, void **function, int version, cuuint64_t flags);          /* 11.3: cuGetProcAddress */
};

/* C has no cast from void * to a function pointer; POSIX makes them the same bits. */
static void set_function(void *slot, void *function)
{
    memcpy(slot, &function, sizeof(function));
}

/* A driver is asked by the name that all forms share; the version says which is meant. */
static const char *shared_name(const struct entry *e, char room[NAME_ROOM])
{
    const char *suffix = strstr(e->name, "_v");
    snprintf(room, NAME_ROOM, "%.*s", (int)(suffix ? suffix - e->name : NAME_ROOM), e->name);
    return room;
}

/*
 * The entry point, or NULL where the driver lacks it. A driver may call an unknown name a success and give NULL, or give a pointer and a
 * status that takes it back, so all three answers count. Stream 0 means the legacy default stream, however the program was compiled.
 */
static void *find(const struct resolver *r, const struct entry *e, symbol_fn symbol, void *library)
{
    void *function = NULL;
    int status = 0;
    char name[NAME_ROOM];
    CUresult result = CUDA_SUCCESS;
    if (r->ask)
        result = r->ask(shared_name(e, name), &function, e->version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
    else if (r->ask_old)
        result = r->ask_old(shared_name(e, name), &function, e->version, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    else
        function = symbol(library, e->symbol);
    return result == CUDA_SUCCESS && status == 0 ? function : NULL;
}

enum driver_call driver_resolve(struct driver *table, symbol_fn symbol, void *library)
{
    struct resolver resolver;
    set_function(&resolver.ask, symbol(library, "cuGetProcAddress_v2"));
    set_function(&resolver.ask_old, symbol(library, "cuGetProcAddress"));

    enum driver_call lacking = DRIVER_CALLS;
    memset(table, 0, sizeof(*table));
    for (int call = 0; call < DRIVER_CALLS; call++) {
        void *function = find(&resolver, &entries[call], symbol, library);
        set_function((char *)table + entries[call].slot, function);
        if (!function && entries[call].need == NEED_required && lacking == DRIVER_CALLS)
            lacking = (enum driver_call)call;
    }
    return lacking;
}

int driver_call_version(enum driver_call call)
{
    return entries[call].version;
}
