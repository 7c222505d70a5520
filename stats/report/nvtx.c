/*
 * nvtx.c: loads libcenote_nvtx.so, which tells NVIDIA's tools of the pool's memory and blocks (option sanitize). It is
 * a watch function like the program's own, and no other room knows of it.
 *
 * LOCKING: none: the pool is not open yet, or no thread gets into it any more.
 */
#include "stats/report/nvtx.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "pool/life/watch.h"
#include "stats/account/label.h"
#include "stats/report/nvtx_library.h"

#define LIBRARY "libcenote_nvtx.so"
#define CHANGES (CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_ALLOCATED | CENOTE_EXTENDED | CENOTE_ENDED)

static struct {
    void *library;                  /* never closed */
    __typeof__(&cenote_nvtx_open) open;
    __typeof__(&cenote_nvtx_hear) hear;
    __typeof__(&cenote_nvtx_close) close;
} loaded;                           /* LOCKING: that of the pools */

/* From the folder of this library, or, where this one is in the program, as the system finds libraries. */
static bool load(void)
{
    char path[4096] = LIBRARY;
    Dl_info own;
    if (loaded.library)
        return true;
    const char *end = dladdr(&loaded, &own) && own.dli_fname ? strrchr(own.dli_fname, '/') : NULL;
    if (end)
        snprintf(path, sizeof path, "%.*s/" LIBRARY, (int)(end - own.dli_fname), own.dli_fname);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    library = library ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    loaded.open = (__typeof__(loaded.open))dlsym(library, "cenote_nvtx_open");
    loaded.hear = (__typeof__(loaded.hear))dlsym(library, "cenote_nvtx_hear");
    loaded.close = (__typeof__(loaded.close))dlsym(library, "cenote_nvtx_close");
    loaded.library = loaded.open && loaded.hear && loaded.close ? library : NULL;
    return loaded.library;
}

static void write_tag(char *text, size_t room)
{
    uint32_t tag = mark_tag(label_now());
    if (tag)
        label_path(tag, text, room);
}

int nvtx_open(cenote_pool *pool)
{
    if (!pool->config.options.sanitize)
        return CENOTE_OK;
    if (!load())
        return error_set(CENOTE_NOT_SUPPORTED, 0,
                         "sanitize:1 needs " LIBRARY " beside libcenote.so; it is built where CUDA 13 or the package "
                         "nvidia-nvtx is");
    if (!(pool->report.nvtx = loaded.open(write_tag)))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for what NVTX is told of");
    return watch_set(pool, CHANGES, loaded.hear, pool->report.nvtx);
}

void nvtx_close(cenote_pool *pool)
{
    if (pool->report.nvtx)
        loaded.close(pool->report.nvtx);
    pool->report.nvtx = NULL;
}
