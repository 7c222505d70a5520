/*
 * loader.c: finds the CUDA driver, once, and keeps the table of its entry points.
 *
 * Nothing here is linked: a process without a driver, or with one too old, gets an error and a reason. This is not the place where devices
 * or contexts are opened (device.c), nor where a name becomes a function (resolve.c).
 *
 *             driver_table
 *     unloaded ------------> loaded --+--> exiting: atexit has run       both: no table any more, for good
 *       ^ |                           +--> forked: in the child
 *       +-+ failed: try again
 *
 * From the first try on this code is never unloaded: threads of ours may run in it, pools live in it, and the driver knows addresses of it. Pinned
 * memory says so when it is opened (driver_stay_loaded), before it asks for the driver.
 *
 * LOCKING: `loading` guards all that is not atomic, and is held while the driver initialises. Once loaded, driver_table is one atomic read.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/exits.h"
#include "base/lock.h"
#include "cenote/cenote.h"
#include "driver/resolve.h"

static LOCK_OF_PROCESS struct lock loading = LOCK_INITIALIZER(LOCK_GLOBAL);

static const struct driver *_Atomic published; /* NULL: not loaded, exiting or forked */
static atomic_bool touched;                    /* it is being loaded, or cuInit did not fail: a fork cannot use the driver */
static atomic_uint half_done;                  /* other work that a child of a fork cannot go on with, begun and not ended */
static atomic_bool exiting;
static atomic_bool forked;
static _Atomic int version;

static void         *library;
static struct driver found;
static const struct driver *(*interposed)(const struct driver *inner);

static _Thread_local char message[512];

__attribute__((format(printf, 2, 3))) static int fail(int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return error;
}

const char *driver_load_message(void)
{
    return message;
}

int driver_version(void)
{
    return atomic_load(&version);
}

bool driver_is_exiting(void)
{
    return atomic_load_explicit(&exiting, memory_order_relaxed);
}

bool driver_is_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

/* --- the end of the process, and its children */

static void process_exits(void)
{
    atomic_store(&exiting, true);
    atomic_store(&published, NULL);
}

/*
 * The lock is free in a child, and not taken before the fork: cuInit itself may fork (to run nvidia-modprobe) while we hold it. If another thread
 * was loading, this child's copy of its work is half done; then `touched` says so, or `half_done`.
 */
static void process_forked(void)
{
    if (!atomic_load(&touched) && !atomic_load(&half_done))
        return;
    atomic_store(&forked, true);
    atomic_store(&published, NULL);
}

void driver_forbid_forks(bool begins)
{
    atomic_fetch_add(&half_done, begins ? 1u : -1u);
}

/* Where this code is part of a program nothing has to be done. */
bool driver_stay_loaded(void)
{
    static atomic_bool stays;
    Dl_info info;
    struct link_map *map = NULL;
    if (!atomic_load(&stays) && dladdr1((void *)(uintptr_t)driver_stay_loaded, &info, (void **)&map, RTLD_DL_LINKMAP) && map && *map->l_name)
        atomic_store(&stays, dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != NULL);
    else
        atomic_store(&stays, true);
    return atomic_load(&stays);
}

static bool watches_forks;

/* Before any thread can be inside. Handlers cannot be taken back: there is one. */
__attribute__((constructor)) static void watch_forks(void)
{
    watches_forks = watches_forks || !pthread_atfork(NULL, NULL, process_forked);
}

static int watch_process(void)
{
    watch_forks();
    if (!watches_forks)
        return fail(CENOTE_OUT_OF_HOST_MEMORY, "no memory to watch for forks");
    if (!driver_stay_loaded())
        return fail(CENOTE_OUT_OF_HOST_MEMORY, "the library cannot be kept loaded: %s", dlerror());
    return CENOTE_OK;
}

/* --- starting the driver */

/* What an answer of cuInit means to a user. */
static const struct refusal {
    CUresult    result;
    int         error;
    const char *advice;
} refusals[] = {
    {CUDA_ERROR_NO_DEVICE, CENOTE_NO_DEVICE, "no device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {CUDA_ERROR_STUB_LIBRARY, CENOTE_NO_DRIVER, "this libcuda is the toolkit's stub: take its folder out of LD_LIBRARY_PATH"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CENOTE_NO_DRIVER, "library and kernel module differ: reload the module or reboot"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CENOTE_NO_DRIVER, "the forward-compatibility package does not support this device"},
    {CUDA_ERROR_NOT_INITIALIZED, CENOTE_FORKED, "this process may be a fork of one that uses CUDA: start it anew (spawn) instead"},
    {CUDA_ERROR_OPERATING_SYSTEM, CENOTE_NO_DEVICE, "the device files cannot be used: run the container with GPU access"},
    {CUDA_ERROR_SYSTEM_NOT_READY, CENOTE_NO_DEVICE, "the system is not ready: see whether the fabric manager runs"},
    {CUDA_ERROR_UNKNOWN, CENOTE_NO_DEVICE, "see whether the kernel modules nvidia and nvidia_uvm are loaded"},
};

static int refuse(CUresult result)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (refusals[i].result == result)
            return fail(refusals[i].error, "cuInit says %s: %s", driver_result_name(result), refusals[i].advice);
    return fail(CENOTE_NO_DEVICE, "cuInit says %s", driver_result_name(result));
}

/* A child of a fork of a program that had started the driver itself: it may be told of no entry point, and has no version. */
static bool is_left_without_driver(void)
{
    CUresult (*init)(unsigned);
    *(void **)&init = dlsym(library, "cuInit");
    return init && init(0) == CUDA_ERROR_NOT_INITIALIZED;
}

static int find_entries(void)
{
    enum driver_call lacking = driver_resolve(&found, dlsym, library);
    int known = 0;
    if (found.cuDriverGetVersion && found.cuDriverGetVersion(&known) == CUDA_SUCCESS)
        atomic_store(&version, known);
    if (lacking == DRIVER_CALLS)
        return CENOTE_OK;
    if (!known && is_left_without_driver())
        return refuse(CUDA_ERROR_NOT_INITIALIZED);
    int needed = driver_call_version(lacking);
    return fail(CENOTE_DRIVER_TOO_OLD, "the CUDA driver (version %d.%d) lacks %s of CUDA %d.%d: install a newer driver",
                known / 1000, known % 1000 / 10, driver_call_name(lacking), needed / 1000, needed % 1000 / 10);
}

static int open_library(void)
{
    if (library)
        return CENOTE_OK;
    const char *chosen = secure_getenv("CENOTE_DRIVER");
    const char *path = chosen && *chosen ? chosen : "libcuda.so.1";
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        return CENOTE_OK;
    return fail(CENOTE_NO_DRIVER, "no CUDA driver: %s. %s", dlerror(),
                path == chosen ? "CENOTE_DRIVER names the library to load"
                               : "Install the NVIDIA driver, run the container with GPU access, or name another library in CENOTE_DRIVER");
}

static int start(const struct driver *driver)
{
    CUresult result = driver->cuInit(0);
    atomic_store(&touched, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS)
        return refuse(result);

    int devices = 0;
    result = driver->cuDeviceGetCount(&devices);
    if (result != CUDA_SUCCESS)
        return refuse(result);
    return devices ? CENOTE_OK : refuse(CUDA_ERROR_NO_DEVICE);
}

/* Finding a driver and starting it may take a second, in which another thread forks: its child cannot use what is half done. */
static int find_and_start(const struct driver **driver)
{
    atomic_store(&touched, true);
    int error = open_library();
    if (!error)
        error = find_entries();
    if (error) {
        atomic_store(&touched, false);
        return error;
    }
    *driver = interposed ? interposed(&found) : &found;
    return start(*driver);
}

/* Holds `loading`. */
static int load(void)
{
    const struct driver *driver;
    int error = watch_process();
    if (!error)
        error = find_and_start(&driver);
    if (error)
        return error;

    /* After cuInit: handlers run in reverse order, so ours runs before those that the driver has set up until now. */
    if (!exits_call(process_exits))
        return fail(CENOTE_OUT_OF_HOST_MEMORY, "no memory to watch for the end of the process");
    atomic_store_explicit(&published, driver_trace_over(driver), memory_order_release);
    return CENOTE_OK;
}

const struct driver *driver_table(int *error)
{
    const struct driver *table = atomic_load_explicit(&published, memory_order_acquire);
    if (table)
        return table;
    if (driver_is_exiting()) {
        *error = fail(CENOTE_EXITING, "the process is exiting: the CUDA driver may be gone");
        return NULL;
    }
    if (driver_is_forked()) {
        *error = fail(CENOTE_FORKED, "this process is a fork of one that uses CUDA: start it anew (spawn) instead");
        return NULL;
    }

    lock_take(&loading);
    int failed = atomic_load(&published) ? CENOTE_OK : load();
    table = atomic_load(&published);
    lock_give(&loading);
    if (failed)
        *error = failed;
    return table;
}

void driver_interpose(const struct driver *(*wrap)(const struct driver *inner))
{
    lock_take(&loading);
    interposed = wrap;
    if (atomic_load(&published))
        driver_trace_inner(wrap(&found));
    lock_give(&loading);
}
