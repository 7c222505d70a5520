/*
 * refusing.cpp: stands before cenote_pool_watch, which fails in no state that PyTorch can bring about. The tests load it with RTLD_GLOBAL before
 * the adapter, which calls this one then.
 *
 * LOCKING: none; what is refused is chosen before it can be called.
 */
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

static int until;

/* The call of that number from now on fails, from 1. */
EXPORT void refuse_watch(int number)
{
    until = number;
}

EXPORT int cenote_pool_watch(void *pool, unsigned changes, void *function, void *arg)
{
    using Watch = int(void *, unsigned, void *, void *);
    static auto *inside = reinterpret_cast<Watch *>(dlsym(dlopen("libcenote.so.0", RTLD_LAZY | RTLD_NOLOAD), "cenote_pool_watch"));
    return until && !--until ? -1 : inside(pool, changes, function, arg);
}
