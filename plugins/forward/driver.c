/*
 * driver.c: finds the CUDA driver that the forwarding libcuda.so.1 stands in front of. By the name libcuda.so.1 the dynamic linker would give us
 * ourselves, so its search is gone through here, in its order, for the first file that is not ours:
 *
 *     CENOTE_DRIVER, if it is set, and nothing else      as cenote reads it (driver/loader.c)
 *     what the process has loaded already                by LD_PRELOAD, a path in the program, or a library's own search path
 *     the folders of LD_LIBRARY_PATH
 *     /etc/ld.so.cache                                   what ldconfig has found
 *     the folders that a search ends with
 *
 * A copy of ours, as another build's, is no driver: two of them would forward to each other. It is known by the symbol cenote_serves.
 *
 * LOCKING: none. Threads that come at once open the same file.
 */
#include "plugins/forward/driver.h"

#include "plugins/preload/real.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DRIVER     "libcuda.so.1"
#define PATH_ROOM  1024
#define LOADED_MAX 4 /* ours, the driver's, and two to spare */

const char real_way[] = "by forwarding";

static void *_Atomic known; /* a handle of the driver; never closed */

void *driver_handle(void)
{
    return atomic_load_explicit(&known, memory_order_acquire);
}

/* NULL: there is no such library, or it is of ours. */
static void *open_file(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library && (real_dlsym(library, "cenote_serves") || !real_dlsym(library, "cuInit"))) {
        dlclose(library);
        library = NULL;
    }
    return library;
}

static void *open_in(const char *folder, size_t length)
{
    char path[PATH_ROOM];
    bool fits = snprintf(path, sizeof path, "%.*s%s/" DRIVER, (int)length, folder, length ? "" : ".") < (int)sizeof path;
    return fits ? open_file(path) : NULL;
}

struct loaded {
    char path[LOADED_MAX][PATH_ROOM];
    int  count;
};

static int note(struct dl_phdr_info *object, size_t size, void *arg)
{
    struct loaded *all = arg;
    const char *file = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
    (void)size;
    if (file && !strncmp(file, "/libcuda.so", 11) && strlen(object->dlpi_name) < PATH_ROOM)
        strcpy(all->path[all->count++], object->dlpi_name);
    return all->count == LOADED_MAX;
}

static void *among_the_loaded(void)
{
    struct loaded all = {.count = 0};
    void *library = NULL;
    dl_iterate_phdr(note, &all);
    for (int i = 0; i < all.count && !library; i++)
        library = open_file(all.path[i]);
    return library;
}

/* An empty folder means the current one. */
static void *on_the_path(void)
{
    const char *at = secure_getenv("LD_LIBRARY_PATH");
    void *library = NULL;
    while (at && !library) {
        size_t length = strcspn(at, ":;");
        library = open_in(at, length);
        at = at[length] ? at + length + 1 : NULL;
    }
    return library;
}

/*
 * The file as ldconfig writes it: a header, the entries, and the strings that the entries point to, counted from the header. An older file stands
 * before it in one that serves C libraries before 2.2. Files of other processors are in it, too: they cannot be opened.
 */
struct cache_header {
    char     magic[20];
    uint32_t entries, bytes, unused[5];
};
struct cache_entry {
    int32_t  flags;
    uint32_t name, path, system;
    uint64_t processor;
};

static const char *text_at(const char *cache, size_t size, uint32_t offset)
{
    return offset < size && memchr(cache + offset, 0, size - offset) ? cache + offset : "";
}

static void *among(const char *cache, size_t size)
{
    struct cache_header header;
    struct cache_entry entry;
    void *library = NULL;
    if (size < sizeof header)
        return NULL;
    memcpy(&header, cache, sizeof header);
    for (size_t i = 0, at = sizeof header; !library && i < header.entries && at + sizeof entry <= size; i++, at += sizeof entry) {
        memcpy(&entry, cache + at, sizeof entry);
        if (!strcmp(text_at(cache, size, entry.name), DRIVER))
            library = open_file(text_at(cache, size, entry.path));
    }
    return library;
}

static void *in_the_cache(const char *path)
{
    static const char magic[] = "glibc-ld.so.cache1.1";
    struct stat is;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t size = file < 0 || fstat(file, &is) || is.st_size <= 0 ? 0 : (size_t)is.st_size;
    char *all = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    void *library = NULL;
    if (file >= 0)
        close(file);
    if (all == MAP_FAILED)
        return NULL;
    char *cache = memmem(all, size, magic, sizeof magic - 1);
    if (cache)
        library = among(cache, size - (size_t)(cache - all));
    munmap(all, size);
    return library;
}

static void *where_a_search_ends(void)
{
    static const char *const folders[] = {
#if defined(__x86_64__)
        "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
#else
        "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
#endif
        "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib",
    };
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof folders / sizeof folders[0]; i++)
        library = open_in(folders[i], strlen(folders[i]));
    return library;
}

static void *look_everywhere(void)
{
    void *library = among_the_loaded();
    library = library ? library : on_the_path();
    library = library ? library : in_the_cache("/etc/ld.so.cache");
    return library ? library : where_a_search_ends();
}

/* Said once: the program goes on without a device, as where no driver is installed. */
static void say_that_there_is_none(const char *chosen)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&said))
        return;
    if (chosen)
        fprintf(stderr, "cenote: CENOTE_DRIVER names %s, which is no CUDA driver to forward to\n", chosen);
    else
        fprintf(stderr, "cenote: there is no CUDA driver to forward to; CENOTE_DRIVER names one\n");
}

void *real_open(void)
{
    const char *chosen = secure_getenv("CENOTE_DRIVER");
    chosen = chosen && *chosen ? chosen : NULL;
    void *library = chosen ? open_file(chosen) : look_everywhere();
    if (!library)
        say_that_there_is_none(chosen);
    else
        atomic_store_explicit(&known, library, memory_order_release);
    return library;
}
