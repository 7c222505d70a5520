/*
 * arena.c: serves small requests from slabs, all others from a heap; slabs are cut from heaps, too.
 *
 *     heap 0    large blocks, and slabs
 *     heap 1    small blocks: of up to a quarter of a small page
 *
 * A block stays in the heap that it came to, and its region says which (invariant 27). Slabs stay beside large blocks:
 * few outlive these, and programs whose large blocks grow hold twice as much without them in between.
 *
 * An arena has one order domain: the key (group, stream). Its blocks are allocated and freed in the order of that
 * stream, so that nothing here has to ask what the device has done. Pages and fences deal with memory that comes from
 * another arena or goes to one.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/core/arena.h"

#include "base/check.h"

void arena_open(struct arena *a, struct pages *pages, struct table *blocks, struct table *slabs, bool is_private)
{
    heap_open(&a->heap, pages, blocks, a->number, is_private);
    a->slabs = (struct slabs){.table = slabs};
    a->is_private = a->was_private = is_private;
}

/* False: no host memory. */
bool arena_open_small(struct arena *a)
{
    CHECK(!a->is_private);
    if (a->small)
        return true;
    a->small = memory_map(sizeof *a->small);
    if (!a->small)
        return false;
    heap_open(a->small, a->heap.pages, a->heap.ranges.blocks, a->number, false);
    a->small->index = HEAP_OF_SMALL;
    return true;
}

void arena_close_small(struct arena *a)
{
    if (a->small)
        memory_unmap(a->small, sizeof *a->small);
    a->small = NULL;
}

bool arena_has_regions(const struct arena *a)
{
    return a->heap.regions || (a->small && a->small->regions);
}

/* Bytes of addresses in all its regions. */
uint64_t arena_addresses(const struct arena *a)
{
    return a->heap.bytes + (a->small ? a->small->bytes : 0);
}

/* The heap in which the block lies. */
static struct heap *heap_with(struct arena *a, uint32_t block)
{
    return arena_heap(a, region_of(a->heap.pages, block_of(a->heap.ranges.blocks, block)->region)->heap);
}

static enum fit find_at(struct arena *a, const struct requester *who, const struct request *q, const struct region *r,
                        struct place *place)
{
    if (q->alone)
        return heap_find_alone(&a->heap, who, q->at, q->size, q->alignment, place);
    if (q->at & (q->alignment - 1))
        return FIT_NOT; /* whole pages do not begin there */
    return r && r->arena == a->number ? heap_find_at(arena_heap(a, r->heap), who, r, q->at, q->size, place) : FIT_NOT;
}

/*
 * Finds a place in the heap for the block, or for a new slab. `r`: the
 * region of the address that the request names, if it names one.
 */
enum fit arena_find(struct arena *a, const struct requester *who, const struct request *q, const struct region *r,
                    struct place *place)
{
    if (q->at) {
        enum fit fit = find_at(a, who, q, r, place);
        if (fit != FIT_NOT || !a->slabs.empty)
            return fit;
        arena_flush(a, UINT32_MAX); /* an empty slab may lie there */
        return find_at(a, who, q, r, place);
    }
    if (q->at_segment_end)
        return heap_find_last(&a->heap, q->size, q->alignment, place);
    if (q->alone)
        return heap_find_alone(&a->heap, who, 0, q->size, q->alignment, place);
    if (q->heap && !a->small)
        return FIT_NOT; /* the first region makes it */
    return heap_find(arena_heap(a, q->heap), who, q->size, q->alignment, place);
}

/*
 * The block that heap_take took has its pages: makes it live, or a slab, and takes the first item. Returns the address.
 */
uint64_t arena_commit(struct arena *a, const struct request *q, uint32_t block)
{
    struct block *b = block_of(a->heap.ranges.blocks, block);
    a->blocks++;
    heap_keep(heap_with(a, block));
    if (q->class == CLASS_NONE) {
        b->requested = q->bytes;
        b->mark = q->mark;
        return b->at;
    }
    b->state = BLOCK_SLAB;
    slab_open(&a->slabs, q->class, region_of(a->heap.pages, b->region), b->at, block);
    return slab_take(&a->slabs, q->class, q->bytes, q->mark);
}

/* The block did not get its pages. The program never had it: its slots are no more in flight than they were. */
void arena_abandon(struct arena *a, uint32_t block)
{
    heap_give(heap_with(a, block), block, 0);
}

void arena_note_free(struct arena *a, tick freed)
{
    CHECK(a->blocks);
    a->blocks--;
    a->last_return_tick = a->last_return_tick > freed ? a->last_return_tick : freed;
}

/*
 * The items of the slab were freed at different ticks, and a pending one comes
 * back late with an early tick: the arena's latest tick covers all.
 */
void arena_close_slab(struct arena *a, uint32_t slab)
{
    struct region *r = region_of(a->heap.pages, slab_of(a->slabs.table, slab)->region);
    heap_give(arena_heap(a, r->heap), slab_close(&a->slabs, slab, r), a->last_return_tick);
}

void arena_give_item(struct arena *a, uint32_t slab, uint32_t item, tick freed)
{
    arena_note_free(a, freed);
    if (slab_give(&a->slabs, slab, item))
        arena_close_slab(a, slab);
}

/*
 * Empty slabs, kept for speed, go back to the heap. Slabs with a free item may be many, and few of them are empty: of
 * no more than `looks` it is seen whether they are. A trim finds the others (trim_flush).
 */
void arena_flush(struct arena *a, uint32_t looks)
{
    for (uint32_t class = 0; class < CLASS_COUNT; class++) {
        uint32_t slab = a->slabs.bins[class];
        for (; slab && a->slabs.empty && looks; looks--) {
            struct slab *s = slab_of(a->slabs.table, slab);
            uint32_t next = s->after;
            if (s->free_items == s->items)
                arena_close_slab(a, slab);
            slab = next;
        }
    }
}
