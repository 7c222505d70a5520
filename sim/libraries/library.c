/*
 * library.c: one of NVIDIA's libraries, as far as stubs.def describes it: each row of the library's section becomes an exported function.
 * Compiled once for each library. Kernels do nothing: what a call would write stays as it was.
 *
 * LOCKING: none. Handles belong to the program, as with the real libraries.
 */
#include "sim/libraries/library.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/sim.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#define HANDLE_MAGIC 0x656c646e61682e73u
#define OBJECT_BYTES 4096 /* more than any descriptor that a caller might reserve for itself */

struct handle *handle_open(uint64_t bytes)
{
    struct handle *h = calloc(1, bytes);
    if (!h)
        return NULL;
    h->magic = HANDLE_MAGIC;
    cuCtxGetCurrent(&h->context);
    return h;
}

void handle_close(struct handle *h)
{
    marked_free(h);
}

bool handle_is_valid(const struct handle *h)
{
    return h && h->magic == HANDLE_MAGIC;
}

int library_create(void **handle)
{
    if (!handle)
        return status.invalid;
    *handle = handle_open(sizeof(struct handle));
    return *handle ? 0 : status.no_memory;
}

int library_destroy(void *handle)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    handle_close(handle);
    return 0;
}

int library_set_stream(void *handle, CUstream stream)
{
    struct handle *h = handle;
    if (!handle_is_valid(h))
        return status.no_handle;
    h->stream = stream;
    return 0;
}

int library_get_stream(void *handle, CUstream *stream)
{
    const struct handle *h = handle;
    if (!handle_is_valid(h))
        return status.no_handle;
    if (!stream)
        return status.invalid;
    *stream = h->stream;
    return 0;
}

int library_launch_on(CUstream stream, const char *name)
{
    return sim_launch_kernel(stream, name) ? status.failed : 0;
}

int library_launch(const void *handle, const char *name)
{
    const struct handle *h = handle;
    return handle_is_valid(h) ? library_launch_on(h->stream, name) : status.no_handle;
}

int library_object(void **object)
{
    if (!object)
        return status.invalid;
    *object = calloc(1, OBJECT_BYTES);
    return *object ? 0 : status.no_memory;
}

int library_free(void *object)
{
    free(object);
    return 0;
}

int library_property(struct version version, int which, int *value)
{
    const int parts[] = {version.major, version.minor, version.patch};
    if (!value || which < 0 || which > 2)
        return status.invalid;
    *value = parts[which];
    return 0;
}

int library_refuse(_Atomic bool *said, const char *name)
{
    if (!atomic_exchange(said, true))
        fprintf(stderr, "simulated GPU: %s of " TEXT(LIBRARY) " is not simulated: it returns \"not supported\"\n", name);
    return status.unsupported;
}

/* The first argument is all that these look at; a caller's further ones are left where they are, as C's calling convention allows. */
#define STUB_CREATE(symbol) int symbol(void **handle) { return library_create(handle); }
#define STUB_DESTROY(symbol) int symbol(void *handle) { return library_destroy(handle); }
#define STUB_SET_STREAM(symbol) int symbol(void *handle, CUstream stream) { return library_set_stream(handle, stream); }
#define STUB_GET_STREAM(symbol) int symbol(void *handle, CUstream *stream) { return library_get_stream(handle, stream); }
#define STUB_LAUNCH(symbol) int symbol(const void *handle) { return library_launch(handle, #symbol); }
#define STUB_OBJECT(symbol) int symbol(void **object) { return library_object(object); }
#define STUB_FREE(symbol) int symbol(void *object) { return library_free(object); }
#define STUB_DONE(symbol) int symbol(void) { return 0; }
#define STUB_PROPERTY(symbol) int symbol(int which, int *value) { return library_property(PASTE(version_, LIBRARY), which, value); }
#define STUB_OWN(symbol)
#define STUB_REFUSE(symbol)                                                    \
    int symbol(void)                                                           \
    {                                                                          \
        static _Atomic bool said;                                              \
        return library_refuse(&said, #symbol);                                 \
    }
#define STUB(symbol, behaviour) STUB_##behaviour(symbol)
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include "sim/libraries/stubs.def"
