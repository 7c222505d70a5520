/*
 * arena.c: jemalloc's arenas, one for each NUMA node, and the hooks through which they take extents from our chunks.
 *
 * An arena is created with jemalloc's own hooks, so that its books do not lie in pinned memory, and gets ours before the first block. Hooks
 * only work on the books of pieces.c; where nothing is free they say so, jemalloc gives up, and alloc.c registers a chunk and comes again
 * with it as a `claim`. There are no hooks for purging and decommitting: an extent that jemalloc no longer wants comes back by `dalloc`.
 *
 * jemalloc asks twice for an extent where it may retain memory: first for more than it needs, with *commit false, then for what it
 * needs. What it would retain of the first it would never give back, so the first is refused.
 *
 * Every call names its arena and its cache. The cache that jemalloc chooses by itself is shared by all arenas: a block of it may be
 * any program's malloc.
 *
 * LOCKING: none here; a cache is used by one thread at a time (threads.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "host/host.h"
#include "host/jemalloc.h"

/* Larger blocks jemalloc would shift within their first page, unless an alignment is named; and then its caches have none. */
#define SMALL_MAX 14336u

static const struct jemalloc *je;
static struct host *owner;
static struct node_hooks {
    extent_hooks hooks;     /* first: jemalloc hands its address to every hook */
    int          node;
} hooks[NODES_MAX];

/* What this thread is asking jemalloc for, as its hooks need to know it. */
static _Thread_local struct {
    uint32_t claim;         /* a live piece to be cut, 0: none */
    uint64_t wanted;        /* bytes that were free nowhere */
} asking;

static int node_of(const extent_hooks *h)
{
    return ((const struct node_hooks *)(const void *)h)->node;
}

static void *hook_alloc(extent_hooks *h, void *at, size_t size, size_t alignment, bool *zero, bool *commit, unsigned arena)
{
    (void)arena;
    if (at || !*commit)
        return NULL;
    uint32_t piece = asking.claim ? piece_cut(owner, asking.claim, size, alignment) : 0;
    if (piece)
        asking.claim = 0;
    else
        piece = piece_take(owner, node_of(h), size, alignment);
    if (!piece) {
        asking.wanted = size + (alignment > HOST_PAGE ? alignment : 0);
        return NULL;
    }
    void *memory = (void *)piece_of(owner, piece)->at;
    if (*zero)
        memset(memory, 0, size);
    return memory;
}

static bool hook_dalloc(extent_hooks *h, void *at, size_t size, bool committed, unsigned arena)
{
    (void)h, (void)committed, (void)arena, (void)size;
    uint32_t piece = piece_at(owner, (uint64_t)at);
    CHECK(piece && piece_of(owner, piece)->size == size);
    if (piece)
        piece_give(owner, piece);
    return !piece;
}

static void hook_destroy(extent_hooks *h, void *at, size_t size, bool committed, unsigned arena)
{
    hook_dalloc(h, at, size, committed, arena);
}

static bool hook_split(extent_hooks *h, void *at, size_t size, size_t first, size_t second, bool committed, unsigned arena)
{
    (void)h, (void)size, (void)second, (void)committed, (void)arena;
    return !piece_split(owner, (uint64_t)at, first);
}

static bool hook_merge(extent_hooks *h, void *first, size_t first_size, void *second, size_t second_size, bool committed, unsigned arena)
{
    (void)h, (void)first_size, (void)second_size, (void)committed, (void)arena;
    return !piece_merge(owner, (uint64_t)first, (uint64_t)second);
}

static bool open_arena(struct host *h, int node)
{
    ssize_t decay = h->options.decay_ms;
    hooks[node].hooks = (extent_hooks){.alloc = hook_alloc, .dalloc = hook_dalloc, .destroy = hook_destroy, .split = hook_split, .merge = hook_merge};
    hooks[node].node = node;
    extent_hooks *ours = &hooks[node].hooks;
    unsigned *arena = &h->node[node].arena;
    return jemalloc_read("arenas.create", arena) && jemalloc_tell(*arena, "extent_hooks", &ours, sizeof(ours)) &&
           jemalloc_tell(*arena, "dirty_decay_ms", &decay, sizeof(decay)) && jemalloc_tell(*arena, "muzzy_decay_ms", &(ssize_t){0}, sizeof(decay));
}

int arenas_open(struct host *h)
{
    size_t page = 0, size = sizeof(page);
    je = jemalloc_table();
    if (!je)
        return CENOTE_NOT_SUPPORTED;
    if (je->mallctl("arenas.page", &page, &size, NULL, 0) || page != HOST_PAGE)
        return error_set(CENOTE_NOT_SUPPORTED, 0, "pinned host memory needs a jemalloc with pages of 4096 bytes; this one's have %zu", page);
    owner = h;
    for (int node = 0; node < h->nodes; node++)
        if (!open_arena(h, node))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "jemalloc makes no arena for node %d", node);
    return CENOTE_OK;
}

/* All blocks are freed and all caches gone. */
void arenas_close(struct host *h)
{
    for (int node = 0; je && node < h->nodes; node++)
        if (h->node[node].arena)
            jemalloc_tell(h->node[node].arena, "destroy", NULL, 0);
}

void arena_purge(const struct node *node)
{
    jemalloc_tell(node->arena, "purge", NULL, 0);
}

static int flags_of(uint64_t bytes, int cache)
{
    if (bytes > SMALL_MAX)
        return JEMALLOC_NO_CACHE | JEMALLOC_LG_ALIGN(12);
    return cache < 0 ? JEMALLOC_NO_CACHE : JEMALLOC_CACHE(cache);
}

/*
 * `bytes` is a multiple of HOST_GRAIN: the size classes that are such multiples are aligned to it. NULL: `wanted` bytes are needed, or, 0, jemalloc
 * serves this thread no more. That is so at the end of a thread, once jemalloc's part of it has ended: then it takes memory of an arena of its own,
 * whatever arena is named.
 */
void *arena_alloc(const struct node *node, int cache, uint64_t bytes, uint32_t *claim, uint64_t *wanted)
{
    asking.claim = *claim;
    asking.wanted = 0;
    void *at = je->mallocx(bytes, flags_of(bytes, cache) | JEMALLOC_ARENA(node->arena));
    *claim = asking.claim;
    *wanted = asking.wanted ? asking.wanted : bytes;
    asking.claim = 0;
    if (at && !host_holds(owner, at)) {
        je->sdallocx(at, bytes, flags_of(bytes, -1));
        *wanted = 0;
        return NULL;
    }
    CHECK((uint64_t)at % HOST_GRAIN == 0);
    return at;
}

void arena_free(void *at, uint64_t bytes, int cache)
{
    je->sdallocx(at, bytes, flags_of(bytes, cache));
}

/* -1: jemalloc has no more, and blocks go without. */
int cache_create(void)
{
    unsigned cache;
    return jemalloc_read("tcache.create", &cache) ? (int)cache : -1;
}

void cache_flush(int cache)
{
    jemalloc_write("tcache.flush", (unsigned)cache);
}

void cache_destroy(int cache)
{
    jemalloc_write("tcache.destroy", (unsigned)cache);
}
