/*
 * registry.h: what a library keeps that remembers what lies under an address, as communication libraries do: from an address to the physical
 * memory under it, asked of the driver once and believed until the watch function says that it goes away.
 *
 *     cenote_pool_watch(pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &registry);
 *     registry_use(&registry, at, bytes)      all of the range was announced, and is what the registry believes
 *     registry_judge(&registry)               nothing was stale, told twice, told too late or not told
 *
 * LOCKING: none; calls of the pool's watch function come one at a time, and the rest is the main thread's.
 */
#ifndef CENOTE_TESTS_API_REGISTRY_H
#define CENOTE_TESTS_API_REGISTRY_H

#include "tests/api/scene.h"

#define GRAIN MIB
#define RANGES_MAX 1024
#define KNOWN_MAX 4096
#define WAITING_MAX 512

struct range {
    uint64_t at, end;
};

/* What was heard. `known` is the cache: physical memory by address, one entry for each GRAIN of the blocks that were used. */
struct registry {
    struct range ranges[RANGES_MAX];
    struct range waiting[WAITING_MAX];     /* freed blocks that other streams use */
    struct {
        uint64_t at, physical;
    } known[KNOWN_MAX];
    int      range_count, waiting_count, known_count;
    uint64_t mapped, unmapping, freed;      /* notices */
    uint64_t hits;                          /* times that the cache was believed */
    uint64_t stale, twice, unheard, early;  /* what must not be */
    bool     others_use;                    /* blocks that are not in `waiting` are used on several streams, too */
};

/* What the driver has there now; 0: nothing. */
static inline uint64_t physical_at(uint64_t at)
{
    unsigned long long id = 0;
    return cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) ? 0 : id;
}

static inline bool overlap(struct range x, struct range y) { return x.at < y.end && y.at < x.end; }

static inline void registry_map(struct registry *g, struct range r)
{
    for (int i = 0; i < g->range_count; i++)
        g->twice += overlap(g->ranges[i], r);
    for (uint64_t at = r.at; at < r.end; at += GRAIN)
        g->early += !physical_at(at);
    if (g->range_count < RANGES_MAX)
        g->ranges[g->range_count++] = r;
}

/* Ranges that reach beyond what goes are cut; the cache forgets. */
static inline void registry_unmap(struct registry *g, struct range gone)
{
    uint64_t heard = 0;
    for (uint64_t at = gone.at; at < gone.end; at += GRAIN)
        g->early += !physical_at(at); /* the notice comes before the unmap */
    for (int i = 0; i < g->range_count; i++) {
        struct range r = g->ranges[i];
        if (!overlap(r, gone))
            continue;
        heard += (r.end < gone.end ? r.end : gone.end) - (r.at > gone.at ? r.at : gone.at);
        g->ranges[i--] = g->ranges[--g->range_count];
        if (r.at < gone.at)
            g->ranges[g->range_count++] = (struct range){r.at, gone.at};
        if (r.end > gone.end)
            g->ranges[g->range_count++] = (struct range){gone.end, r.end};
    }
    g->unheard += heard != gone.end - gone.at;
    for (int i = 0; i < g->known_count; i++)
        if (g->known[i].at >= gone.at && g->known[i].at < gone.end)
            g->known[i--] = g->known[--g->known_count];
}

static inline void registry_freed(struct registry *g, struct range r)
{
    for (int i = 0; i < g->waiting_count; i++)
        if (g->waiting[i].at == r.at && g->waiting[i].end == r.end) {
            g->waiting[i] = g->waiting[--g->waiting_count];
            return;
        }
    g->unheard += !g->others_use;
}

static inline void registry_hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct registry *g = arg;
    struct range r = {(uint64_t)(uintptr_t)notice->address, (uint64_t)(uintptr_t)notice->address + notice->bytes};
    (void)pool;
    g->mapped += notice->change == CENOTE_MAPPED;
    g->unmapping += notice->change == CENOTE_UNMAPPING;
    g->freed += notice->change == CENOTE_FREED;
    (notice->change == CENOTE_MAPPED ? registry_map : notice->change == CENOTE_UNMAPPING ? registry_unmap : registry_freed)(g, r);
}

/* The whole block was announced, nothing waits on it, and what the cache says about it is what the driver says. */
static inline void registry_use(struct registry *g, const void *address, size_t bytes)
{
    struct range block = {(uint64_t)(uintptr_t)address, (uint64_t)(uintptr_t)address + bytes};
    uint64_t heard = 0;
    for (int i = 0; i < g->range_count; i++)
        if (overlap(g->ranges[i], block))
            heard += (g->ranges[i].end < block.end ? g->ranges[i].end : block.end) -
                     (g->ranges[i].at > block.at ? g->ranges[i].at : block.at);
    g->unheard += heard != bytes;
    for (int i = 0; i < g->waiting_count; i++)
        g->early += overlap(g->waiting[i], block);
    for (uint64_t at = block.at; at < block.end; at = (at / GRAIN + 1) * GRAIN) {
        int i = 0;
        while (i < g->known_count && g->known[i].at != at)
            i++;
        if (i < g->known_count) {
            g->hits++;
            g->stale += g->known[i].physical != physical_at(at);
        } else if (g->known_count < KNOWN_MAX) {
            g->known[g->known_count].at = at;
            g->known[g->known_count++].physical = physical_at(at);
        }
    }
}

static inline void registry_judge(const struct registry *g)
{
    EXPECT_EQ(g->stale, 0);
    EXPECT_EQ(g->twice, 0);
    EXPECT_EQ(g->unheard, 0);
    EXPECT_EQ(g->early, 0);
}

#endif
