/* heap_scene.h: a heap over the store of store.h, for one test program: blocks taken and given with their pages. */
#ifndef CENOTE_TESTS_POOL_HEAP_SCENE_H
#define CENOTE_TESTS_POOL_HEAP_SCENE_H

#include "pool/core/heap.h"

#include "tests/harness.h"
#include "tests/pool/store.h"

#define KIB 1024ull

static struct table blocks;
static struct heap heap;
static struct requester who;

static inline void open_all(void)
{
    store_open();
    if (!table_open(&blocks, sizeof(struct block), 1u << 20))
        abort();
    heap_open(&heap, &store, &blocks, 1, false);
    who = (struct requester){.arena = 1, .may_unmap = true};
}

static inline void close_all(void)
{
    table_close(&blocks);
    store_close();
}

static inline struct region *add_region(uint32_t slots)
{
    struct region *r = store_region(slots, 1, false);
    heap_add_region(&heap, r);
    return r;
}

/* The block at a place that was found, with new pages where some are missing. */
static inline uint32_t take_at(const struct place *place)
{
    struct region *r = region_of(&store, place->region);
    for (uint32_t slot = place->under.from; slot < place->under.to; slot += region_span(r, slot))
        if (!r->page[slot])
            store_page_at(r, slot);
    uint32_t block = heap_take(&heap, place);
    heap_keep(&heap);
    return block;
}

/* 0: does not fit. */
static inline uint32_t take_aligned(uint64_t size, uint64_t alignment)
{
    struct place place;
    enum fit fit = heap_find(&heap, &who, size, alignment, &place);
    return fit == FIT_NOW || fit == FIT_WITH_PAGES ? take_at(&place) : 0;
}

static inline uint32_t take(uint64_t size) { return take_aligned(size, BLOCK_BYTES); }
static inline void give(uint32_t block) { heap_give(&heap, block, fences_stamp(&fences)); }
static inline uint64_t at_of(uint32_t block) { return block_of(&blocks, block)->at; }

static inline void unmap(struct region *r, uint32_t slot)
{
    uint32_t page = r->page[slot];
    pages_leave(&store, page);
    pages_unlink(&store, r, slot);
    page_of(&store, page)->leaving = false;
    pages_remove(&store, page);
}

#endif
