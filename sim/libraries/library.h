/*
 * library.h: what the simulated libraries of NVIDIA's have in common: handles that know a stream, kernels that do nothing, and how an entry
 * point refuses. Not the entry points themselves: stubs.def lists them, library.c expands those that need no code of their own.
 *
 * Each library is built from library.c, its section of stubs.def and its own files, with LIBRARY naming it. It knows the driver's
 * interface and sim.h, and no other library. A status is the library's own number (statuses.def); 0 is success in all of them.
 */
#ifndef CENOTE_SIM_LIBRARY_H
#define CENOTE_SIM_LIBRARY_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct statuses {
    int no_handle;      /* a handle that is none */
    int invalid;        /* an argument that makes no sense */
    int failed;         /* the device refuses, as after a sticky error */
    int no_memory;
    int unsupported;
};

struct version {
    int major, minor, patch;
};

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define STATUSES(library, ...) static const struct statuses statuses_##library __attribute__((unused)) = {__VA_ARGS__};
#include "sim/libraries/statuses.def"
#undef STATUSES
#define status PASTE(statuses_, LIBRARY) /* of this library */
#define VERSION(library, ...) static const struct version version_##library __attribute__((unused)) = {__VA_ARGS__};
#include "sim/libraries/versions.def"
#undef VERSION

/*
 * Frees what begins with the word it is known by, and that word with it: a second destroy finds none. A plain store before free() is one
 * that is never read again, and compilers leave it out.
 */
static inline void marked_free(void *object)
{
    for (volatile unsigned char *byte = object, *end = byte + sizeof(uint32_t); byte < end; byte++)
        *byte = 0;
    free(object);
}

static inline uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* A handle: what programs get from xCreate and give to every call. The library's own data, if it has any, follows. */
struct handle {
    uint64_t  magic;
    CUcontext context;  /* current when it was made */
    CUstream  stream;
};

/* A handle of `bytes` bytes, zero beyond struct handle; NULL: no memory. */
struct handle *handle_open(uint64_t bytes);
void           handle_close(struct handle *handle);
bool           handle_is_valid(const struct handle *handle);

int library_create(void **handle);
int library_destroy(void *handle);
int library_set_stream(void *handle, CUstream stream);
int library_get_stream(void *handle, CUstream *stream);
int library_launch(const void *handle, const char *name);           /* on the handle's stream */
int library_launch_on(CUstream stream, const char *name);
int library_object(void **object);
int library_free(void *object);
int library_property(struct version version, int which, int *value); /* 0: major, 1: minor, 2: patch */
int library_refuse(_Atomic bool *said, const char *name);           /* says so once */

#endif
