/*
 * kernels.c: the device code of a program, as the compiler's start-up code registers it: names of kernels and variables by host address.
 * Not the code: nothing here can run it.
 *
 * Host addresses of kernels are kept in a hash table; PyTorch registers some 10^5 before main. A cudaKernel_t is the address of a struct
 * kernel, which never moves; such an address is told from a host function by the same table.
 *
 * LOCKING: `lock` to register, held across a fork so that a child may register too. Finding a kernel, which every launch does, takes
 * none: a table that is too small is replaced by a larger one and kept, since others may be reading it.
 */
#include "sim/runtime/kernels.h"

#include <pthread.h>
#include <stdlib.h>

#define CHUNK 1024 /* kernels allocated at a time */
#define VARIABLES_ROOM 256
#define ROOM_AT_FIRST 8192

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
    _Atomic(const void *) key;  /* a host function or the address of a kernel; NULL: empty. Written last */
    struct kernel        *kernel;
};

struct table {
    size_t      room;   /* a power of two */
    struct slot slots[];
};

static pthread_mutex_t        lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct table *) table;
static size_t                 used;
static struct kernel         *chunk;
static size_t                 chunk_used = CHUNK;
static struct variable       *variables;
static size_t                 variable_count;
static size_t                 variable_room;

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void survive_forks(void)
{
    pthread_atfork(hold, let_go, let_go);
}

static struct slot *find(struct table *t, const void *key)
{
    size_t i = (size_t)(((uint64_t)key * 0x9e3779b97f4a7c15u) >> 20) & (t->room - 1);
    const void *there;
    while ((there = atomic_load_explicit(&t->slots[i].key, memory_order_acquire)) && there != key)
        i = (i + 1) & (t->room - 1);
    return &t->slots[i];
}

static void put(struct table *t, const void *key, struct kernel *kernel)
{
    struct slot *s = find(t, key);
    s->kernel = kernel;
    atomic_store_explicit(&s->key, key, memory_order_release);
}

/* A table with room for two more, NULL: no memory. */
static struct table *table_with_room(void)
{
    struct table *old = atomic_load(&table);
    if (old && 2 * (used + 2) <= old->room)
        return old;
    size_t room = old ? 2 * old->room : ROOM_AT_FIRST;
    struct table *wider = calloc(1, sizeof *wider + room * sizeof wider->slots[0]);
    if (!wider)
        return NULL;
    wider->room = room;
    for (size_t i = 0; old && i < old->room; i++)
        if (old->slots[i].key)
            put(wider, old->slots[i].key, old->slots[i].kernel);
    atomic_store(&table, wider);
    return wider;
}

static struct kernel *new_kernel(void)
{
    if (chunk_used == CHUNK) {
        chunk = malloc(CHUNK * sizeof *chunk);  /* kept for good: programs hold addresses of kernels */
        chunk_used = 0;
    }
    return chunk ? &chunk[chunk_used++] : NULL;
}

struct kernel *kernel_find(const void *function)
{
    struct table *t = atomic_load_explicit(&table, memory_order_acquire);
    if (!t || !function)
        return NULL;
    const struct slot *s = find(t, function);
    return s->key ? s->kernel : NULL;
}

bool variable_find(const void *host, struct variable *found)
{
    hold();
    size_t i = 0;
    while (i < variable_count && variables[i].host != host)
        i++;
    bool known = i < variable_count;
    if (known)
        *found = variables[i];
    let_go();
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

/* Its kernels stay known: their host functions may be unloaded, and then no call can name them. */
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
    hold();
    struct table *t = table_with_room();
    struct kernel *k = t && !find(t, host)->key ? new_kernel() : NULL;  /* of a library loaded again: known */
    if (k) {
        k->host = host;
        k->name = name;
        atomic_init(&k->code, NULL);
        put(t, k, k);
        put(t, host, k);
        used += 2;
    }
    let_go();
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)device, (void)external, (void)constant, (void)global;
    hold();
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
    let_go();
}

void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    __cudaRegisterVar(handle, (char *)host, device, name, external, size, constant, global);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    struct kernel *k = kernel_find(function);
    if (!k || !kernel)
        return runtime_fail(kernel ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    *kernel = (cudaKernel_t)(uintptr_t)k;
    return cudaSuccess;
}
