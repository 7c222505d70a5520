/*
 * real.c: finds the driver's own functions, once, past the hooks. Nothing is served here.
 *
 *     real()
 *     not looked for ----> found, for good          no driver: the next call looks again
 *
 * cenote calls the driver too, and what it asks the driver for must not come back to it. It is told from the program by the address that a call
 * returns to: code of libcenote.so, on whichever thread, gets the driver's own functions from every route (routes.c). So does the driver, if it
 * was linked so that calls among its own functions can be intercepted.
 *
 * A child of a process that uses the driver cannot use it. There nothing is served, and no lock of ours is taken: a thread that is not there may have
 * held it at the fork.
 *
 * LOCKING: none. A thread that waited here could hold a lock of the dynamic linker that the thread it waits for wants. So each thread that comes
 * while nothing is found looks for itself, and the first to finish publishes what it found.
 */
#include "plugins/preload/real.h"

#include <cenote/cenote.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/*
 * Two copies of this library may meet in a process, and would serve a program twice. The first one that the dynamic linker finds serves; the other
 * passes everything on.
 */
extern const char cenote_serves;
__attribute__((visibility("default"))) const char cenote_serves = 1;
extern __attribute__((visibility("hidden"), alias("cenote_serves"))) const char serves_here;

static const struct real *_Atomic published;
static atomic_bool in_use;
static atomic_bool left; /* in a child of a fork */

/* --- whose code is it? */

struct search {
    uintptr_t   inside;
    struct code found;
};

static int look_into(struct dl_phdr_info *object, size_t size, void *arg)
{
    struct search *search = arg;
    struct code whole = {UINTPTR_MAX, 0};
    bool is_it = false;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t from = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr, to = from + object->dlpi_phdr[i].p_memsz;
        whole.from = from < whole.from ? from : whole.from;
        whole.to = to > whole.to ? to : whole.to;
        is_it = is_it || (search->inside >= from && search->inside < to);
    }
    if (is_it)
        search->found = whole;
    return is_it;
}

/* Empty if no library holds the address. */
static struct code code_around(void *address)
{
    struct search search = {.inside = (uintptr_t)address};
    if (address)
        dl_iterate_phdr(look_into, &search);
    return search.found;
}

/* --- the driver */

static const struct {
    const char *name;
    int         version;
    cuuint64_t  flags;
} asked[HOOKS] = {
#define HOOK(name, symbol, version, parameters, arguments) {#name, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM},
#define HOOK_STREAM(name, symbol, version, parameters, arguments) \
    {#name, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM}, {#name, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
};

static const struct {
    const char *symbol;
    size_t      slot; /* in struct real */
} fields[] = {
#define HOOK(name, symbol, version, parameters, arguments) {#symbol, offsetof(struct real, symbol)},
#define HOOK_STREAM(name, symbol, version, parameters, arguments) {#symbol, offsetof(struct real, symbol)},
#define REAL(symbol, parameters) {#symbol, offsetof(struct real, symbol)},
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
};

static const char *const symbols[HOOKS] = {
#define HOOK(name, symbol, version, parameters, arguments) #symbol,
#define HOOK_STREAM(name, symbol, version, parameters, arguments) #symbol, #symbol "_ptsz",
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
};

/* What the driver answers to each name and version: on some drivers that is another address than that of the symbol. */
static void ask_for_all(struct real *r)
{
    for (int i = 0; i < HOOKS; i++) {
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        void *function = NULL;
        CUresult result = CUDA_ERROR_NOT_FOUND;
        if (r->cuGetProcAddress_v2)
            result = r->cuGetProcAddress_v2(asked[i].name, &function, asked[i].version, asked[i].flags, &status);
        else if (r->cuGetProcAddress)
            result = r->cuGetProcAddress(asked[i].name, &function, asked[i].version, asked[i].flags);
        r->asked[i] = result || status ? NULL : function;
    }
}

/* Does the driver know the function in this version of CUDA? Some export what only newer ones serve. */
static bool has(const struct real *r, const char *name, int version)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = NULL;
    return r->cuGetProcAddress_v2 && !r->cuGetProcAddress_v2(name, &function, version, 0, &status) && !status && function;
}

static bool find_all(struct real *r)
{
    void *library = real_open();
    if (!library)
        return false;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        void *function = real_dlsym(library, fields[i].symbol);
        memcpy((char *)r + fields[i].slot, &function, sizeof function);
    }
    for (int i = 0; i < HOOKS; i++)
        r->exported[i] = real_dlsym(library, symbols[i]);
    ask_for_all(r);
#if CUDA_VERSION >= 12050
    if (!has(r, "cuCtxRecordEvent", 12050))
        r->cuCtxRecordEvent = NULL;
#endif
    r->ours[0] = code_around((void *)(uintptr_t)cenote_version);
    r->ours[1] = code_around((void *)(uintptr_t)r->cuInit);
    const char *switched = secure_getenv("CENOTE_PRELOAD"), *first = real_dlsym(RTLD_DEFAULT, "cenote_serves");
    r->is_off = (switched && !strcmp(switched, "off")) || (first && first != &serves_here);
    r->is_simulated = real_dlsym(library, "sim_books") != NULL;
    return r->cuInit && r->cuCtxGetCurrent && r->cuMemFree_v2;
}

static const struct real *find(void)
{
    struct real *r = calloc(1, sizeof *r); /* never freed: the first one is used for good */
    const struct real *none = NULL;
    if (!r || !find_all(r)) {
        free(r);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&published, &none, r))
        return r;
    free(r);
    return none;
}

const struct real *real(void)
{
    const struct real *r = atomic_load_explicit(&published, memory_order_acquire);
    return r ? r : find();
}

/* --- children */

void real_is_in_use(void)
{
    atomic_store_explicit(&in_use, true, memory_order_relaxed);
}

bool real_is_left(void)
{
    return atomic_load_explicit(&left, memory_order_relaxed);
}

static void process_forked(void)
{
    atomic_store(&left, atomic_load(&in_use));
}

/* Before any thread can be inside. Where it fails there is no host memory, and the program ends soon. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, process_forked);
}
