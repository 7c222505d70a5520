/*
 * kernels.c: the device code of a program, as the compiler's start-up code registers it: names of kernels and variables by host address.
 * Not the code: nothing here can run it.
 *
 * Host addresses of kernels are kept in a hash table that grows; PyTorch registers some 10^5 before main. A cudaKernel_t is the address of
 * a struct kernel, which never moves; such an address is told from a host function by the same table.
 *
 * LOCKING: `lock`, for all of it. Finding takes it too: libraries may be loaded while others launch.
 */
#include "sim/runtime/kernels.h"

#include <pthread.h>
#include <stdlib.h>

#define CHUNK 1024 /* kernels allocated at a time */
#define VARIABLES_ROOM 256

/* Entry points that only compiled code calls, and that no header declares. */
void        **__cudaRegisterFatBinary(void *binary);
void          __cudaRegisterFatBinaryEnd(void **handle);
void          __cudaUnregisterFatBinary(void **handle);
void          __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *thread, uint3 *block,
                                     dim3 *block_size, dim3 *grid_size, int *warps);
void          __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global);
void          __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size, int constant,
                                       int global);
char          __cudaInitModule(void **handle);
cudaError_t   __cudaGetKernel(cudaKernel_t *kernel, const void *function);

struct slot {
    const void    *key;     /* a host function or the address of a kernel; NULL: empty */
    struct kernel *kernel;
};

static pthread_mutex_t  lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot     *slots;
static size_t           room;   /* a power of two */
static size_t           used;
static struct kernel   *chunk;
static size_t           chunk_used = CHUNK;
static struct variable *variables;
static size_t           variable_count;
static size_t           variable_room;

static size_t place(const void *key)
{
    uint64_t mixed = (uint64_t)key * 0x9e3779b97f4a7c15u;
    return (size_t)(mixed >> 20) & (room - 1);
}

static struct slot *find(const void *key)
{
    size_t i = place(key);
    while (slots[i].key && slots[i].key != key)
        i = (i + 1) & (room - 1);
    return &slots[i];
}

static bool grow(void)
{
    struct slot *old = slots;
    size_t old_room = room;
    struct slot *wider = calloc(room ? 2 * room : 8192, sizeof *wider);
    if (!wider)
        return false;
    room = room ? 2 * room : 8192;
    slots = wider;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].key)
            *find(old[i].key) = old[i];
    free(old);
    return true;
}

static void add(const void *key, struct kernel *kernel)
{
    struct slot *s = find(key);
    used += !s->key;
    *s = (struct slot){key, kernel};
}

static struct kernel *new_kernel(void)
{
    if (chunk_used == CHUNK) {
        chunk = malloc(CHUNK * sizeof *chunk);  /* kept for good: programs hold addresses of kernels */
        chunk_used = 0;
    }
    return chunk ? &chunk[chunk_used++] : NULL;
}

const struct kernel *kernel_find(const void *function)
{
    pthread_mutex_lock(&lock);
    const struct kernel *found = room && function ? find(function)->kernel : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

bool variable_find(const void *host, struct variable *found)
{
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < variable_count && variables[i].host != host)
        i++;
    bool known = i < variable_count;
    if (known)
        *found = variables[i];
    pthread_mutex_unlock(&lock);
    return known;
}

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

/* Its kernels stay known: their host functions may be unloaded, and then nobody can name them. */
void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 0;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *thread, uint3 *block,
                            dim3 *block_size, dim3 *grid_size, int *warps)
{
    (void)handle, (void)device, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warps;
    pthread_mutex_lock(&lock);
    if (2 * (used + 2) <= room || grow()) {
        struct kernel *known = find(host)->kernel;
        struct kernel *k = known ? known : new_kernel();
        if (k) {
            *k = (struct kernel){host, name};
            add(host, k);
            add(k, k);
        }
    }
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)device, (void)external, (void)constant, (void)global;
    pthread_mutex_lock(&lock);
    if (variable_count == variable_room) {
        size_t wanted = variable_room ? 2 * variable_room : VARIABLES_ROOM;
        struct variable *wider = realloc(variables, wanted * sizeof *wider);
        if (wider) {
            variables = wider;
            variable_room = wanted;
        }
    }
    if (variable_count < variable_room)
        variables[variable_count++] = (struct variable){host, name, size};
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    __cudaRegisterVar(handle, (char *)host, device, name, external, size, constant, global);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    const struct kernel *k = kernel_find(function);
    if (!k || !kernel)
        return runtime_fail(kernel ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    *kernel = (cudaKernel_t)(uintptr_t)k;
    return cudaSuccess;
}
