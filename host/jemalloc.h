/* jemalloc.h: jemalloc as a table of functions, wherever it comes from. See jemalloc.c. */
#ifndef CENOTE_HOST_JEMALLOC_H
#define CENOTE_HOST_JEMALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* As in jemalloc.h, which need not be installed. */
#define JEMALLOC_ARENA(a)     (((int)(a) + 1) << 20)
#define JEMALLOC_CACHE(c)     (((int)(c) + 2) << 8)
#define JEMALLOC_NO_CACHE     JEMALLOC_CACHE(-1)
#define JEMALLOC_LG_ALIGN(la) (la)

typedef struct extent_hooks_s extent_hooks;
struct extent_hooks_s {
    void *(*alloc)(extent_hooks *hooks, void *at, size_t size, size_t alignment, bool *zero, bool *commit, unsigned arena);
    bool (*dalloc)(extent_hooks *hooks, void *at, size_t size, bool committed, unsigned arena);
    void (*destroy)(extent_hooks *hooks, void *at, size_t size, bool committed, unsigned arena);
    bool (*commit)(extent_hooks *hooks, void *at, size_t size, size_t offset, size_t length, unsigned arena);
    bool (*decommit)(extent_hooks *hooks, void *at, size_t size, size_t offset, size_t length, unsigned arena);
    bool (*purge_lazy)(extent_hooks *hooks, void *at, size_t size, size_t offset, size_t length, unsigned arena);
    bool (*purge_forced)(extent_hooks *hooks, void *at, size_t size, size_t offset, size_t length, unsigned arena);
    bool (*split)(extent_hooks *hooks, void *at, size_t size, size_t first, size_t second, bool committed, unsigned arena);
    bool (*merge)(extent_hooks *hooks, void *first, size_t first_size, void *second, size_t second_size, bool committed, unsigned arena);
};

struct jemalloc {
#define JEMALLOC(result, name, parameters) result (*name) parameters;
#include "host/jemalloc.def"
#undef JEMALLOC
};

/* NULL, with the reason in error_set, where none can be had. It is sought once, and the answer stays. LOCKING: the caller's. */
const struct jemalloc *jemalloc_table(void);

/* jemalloc's control by name, of unsigned numbers; false: it refused. Names of arenas hold %u for the arena. */
bool jemalloc_read(const char *name, unsigned *value);
bool jemalloc_write(const char *name, unsigned value);
bool jemalloc_tell(unsigned arena, const char *name, void *value, size_t size);

#endif
