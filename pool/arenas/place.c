/*
 * place.c: serves a request from pages in place, and gives a block that no
 * stream uses any more back to its arena: both without a driver call.
 *
 * LOCKING: the pool's lock.
 */
#include "pool/arenas/place.h"

#include "pool/arenas/idle.h"
#include "pool/arenas/last_freed.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"
#include "stats/account/record.h"
#include "stats/account/rows.h"

#define WHOLE_SMALL \
    64ull /* chosen: such a block loses a 64th to the last page,
                                and takes as many calls as it is worth */

/* While a capture is open a complete place is taken wherever it lies: a better one would take driver calls. */
struct requester place_requester(const cenote_pool *pool, const struct arena *a)
{
    bool may_unmap = !device_is_captured(pool->config.device);
    return (struct requester){
        .arena = a->number, .may_unmap = may_unmap, .anywhere = !may_unmap, .ordered = a->ordered};
}

/*
 * Room in the pool's books for one more block, so that host memory for those
 * cannot lack later. For a new arena, a plan or a region it still can.
 */
bool place_reserve_books(cenote_pool *pool, uint64_t mark)
{
    return table_reserve(&pool->store.blocks, 3) && table_reserve(&pool->store.slabs, 1) &&
           index_reserve(&pool->store.by_address, 1) && (!(mark & MARK_LABELS) || rows_reserve(pool, mark));
}

/* The region of this pool that has the address; NULL: none of its has, or it is 0. */
static struct region *region_at(const cenote_pool *pool, uint64_t at)
{
    struct region *r = at ? addresses_find_for_certain(at) : NULL;
    return r && atomic_load(&r->pool) == pool ? r : NULL;
}

/*
 * A block that shares no page: up to so many small pages lie in a heap that has no others, where it loses less to its
 * last page. A larger one covers units, whatever pages these have.
 */
static void cover_pages(const cenote_pool *pool, const struct arena *a, struct request *q)
{
    const uint32_t *shifts = pool->store.pages.shifts;
    const struct region *r = region_at(pool, q->at);
    bool is_small = r ? !r->unit_shift : !a->is_private && q->size <= WHOLE_SMALL << shifts[GRADE_SMALL];
    q->heap = is_small && !a->is_private ? HEAP_OF_SMALL : 0;
    request_cover_pages(q, 1ull << shifts[is_small ? GRADE_SMALL : GRADE_LARGE]);
}

/*
 * Adds what this arena demands to the request: a size class or a
 * rounded size, whether it needs pages of its own, which heap.
 * LOCKING: the pool's lock.
 */
void place_shape(const cenote_pool *pool, const struct arena *a, struct request *q)
{
    if (q->ahead) {
        if (a->is_private)
            q->heap = 0; /* it has no other: the stream is being captured */
        request_make(q, false);
        request_cover_pages(q, 1ull << pool->store.pages.shifts[GRADE_SMALL]);
        return;
    }
    q->at_segment_end = provider_guards(pool, a);
    q->exclusive_pages = q->at_segment_end || (a->group && group_of(pool, a->group)->flags & CENOTE_GROUP_WHOLE);
    q->alone = q->exclusive_pages && !q->at_segment_end && !provider_moves_pages(pool, a);
    request_make(q, !a->is_private && !q->exclusive_pages && !q->at);
    if (q->exclusive_pages && !q->alone && !q->at_segment_end)
        cover_pages(pool, a, q);
    else if (q->class == CLASS_NONE && !a->is_private && provider_moves_pages(pool, a))
        request_choose_heap(q, pool->store.pages.shifts[GRADE_SMALL]);
}

/* A live block has so many bytes from now on, and room for them. LOCKING: the pool's lock. */
__attribute__((noinline)) void place_resize(cenote_pool *pool, const struct block_ref *w, uint64_t bytes)
{
    record_given(pool, w);
    count_resized(pool, w, bytes);
    if (w->slab)
        slab_of(&pool->store.slabs, w->slab)->requested[w->item] = (uint16_t)bytes;
    else
        block_of(&pool->store.blocks, w->block)->requested = bytes;
    record_taken(pool, w->start, &(struct request){.bytes = bytes, .mark = *w->mark}, w->arena);
}

/* The block that is to grow still ends where the request begins. LOCKING: the pool's lock. */
static bool may_extend(const cenote_pool *pool, const struct arena *a, const struct request *q)
{
    const struct block *b = block_of(&pool->store.blocks, q->extends);
    return b->state == BLOCK_LIVE && b->at + b->size == q->at && region_of(&pool->store.pages, b->region) &&
           region_of(&pool->store.pages, b->region)->arena == a->number;
}

/* What heap_take took becomes the end of the block. Its address, or 0: it is gone. LOCKING: the pool's lock. */
static __attribute__((noinline)) uint64_t commit_extension(cenote_pool *pool, struct arena *a, const struct request *q,
                                                           uint32_t end)
{
    struct block_ref w = {.region = region_of(&pool->store.pages, block_of(&pool->store.blocks, end)->region)};
    if (!may_extend(pool, a, q) || block_of(&pool->store.blocks, end)->before != q->extends) {
        arena_abandon(a, end);
        return 0;
    }
    struct heap *heap = arena_heap(a, w.region->heap);
    heap_keep(heap);
    heap_join(heap, q->extends);
    locate_at(pool, block_of(&pool->store.blocks, q->extends)->at, &w);
    a->taken++; /* what lies there is of the device alone: sleep/copy.c */
    place_resize(pool, &w, w.requested + q->bytes);
    return w.start;
}

/* The pages are there, and free as if the stream had used them just now. LOCKING: the pool's lock. */
static uint64_t commit_ahead(cenote_pool *pool, struct arena *a, const struct request *q, uint32_t block)
{
    const struct block *b = block_of(&pool->store.blocks, block);
    struct heap *heap = arena_heap(a, region_of(&pool->store.pages, b->region)->heap);
    uint64_t at = b->at;
    struct progress *s = a->horizon.stream;
    tick freed = s ? q->ahead : 0; /* 0: its stream has ended meanwhile */
    if (s && s->freed < freed)
        s->freed = freed;
    a->last_return_tick = a->last_return_tick > freed ? a->last_return_tick : freed;
    heap_keep(heap);
    heap_give(heap, block, freed);
    return at;
}

/*
 * The block that heap_take took, with its pages in place, becomes what was asked for. 0: what it was taken for is gone,
 * and so is it. LOCKING: the pool's lock.
 */
uint64_t place_commit(cenote_pool *pool, struct arena *a, const struct request *q, uint32_t block)
{
    if (q->extends)
        return commit_extension(pool, a, q, block);
    if (q->ahead)
        return commit_ahead(pool, a, q, block);
    uint64_t at = arena_commit(a, q, block);
    if (q->class == CLASS_NONE)
        index_add(&pool->store.by_address, at, block);
    count_alloc(pool, a, q);
    record_taken(pool, at, q, a);
    return at;
}

/* The item of a slab that begins just where the request has to lie, if it is free and of its class; or 0. */
static uint64_t take_item_at(cenote_pool *pool, struct arena *a, const struct request *q)
{
    struct region *r = q->exclusive_pages || q->bytes > CLASS_BYTES_MAX ? NULL : region_at(pool, q->at);
    if (!r || r->arena != a->number)
        return 0;
    uint32_t slab = slab_at_address(r, q->at);
    return slab ? slab_take_at(&a->slabs, slab, class_of(q->bytes), q->at, q->bytes, q->mark) : 0;
}

/*
 * Nothing lies at the address of the request, and not all of its pages can come
 * there now. Can they when the device is done? LOCKING: the pool's lock.
 */
static bool comes_free(const cenote_pool *pool, const struct region *r, const struct request *q)
{
    struct slots under = slots_under(r, q->at, q->size);
    bool is_taken = false;
    for (uint32_t slot = under.from; slot < under.to && !is_taken; slot += region_span(r, slot))
        is_taken = pages_are_of_another(&pool->store.pages, r, slot);
    return !is_taken;
}

/* A request for an address at which no such block can lie. That is no shortage, whatever the size. */
int place_refuse(const struct request *q)
{
    if (q->extends)
        return error_set(CENOTE_BUSY | ERROR_ANSWER, 0,
                         "the block cannot grow by %llu bytes at its place: another lies behind it, or its "
                         "memory ends", (unsigned long long)q->bytes);
    return error_set(CENOTE_INVALID | ERROR_ANSWER, 0,
                     "%llu bytes at %#llx are not free memory of this stream and group", (unsigned long long)q->bytes,
                     (unsigned long long)q->at);
}

/* Does a page of it sleep, or is it about to, or to wake? LOCKING: the pool's lock. */
static bool sleeps(const cenote_pool *pool, const struct region *r, const struct request *q)
{
    struct slots under = slots_under(r, q->at, q->size);
    bool sleeps = false;
    for (uint32_t slot = under.from; slot < under.to && !sleeps; slot += region_span(r, slot))
        sleeps = r->page[slot] && page_of(&pool->store.pages, r->page[slot])->leaving;
    return sleeps;
}

/* The same for one that may have a place there later. `is_free`: no block lies there. LOCKING: the pool's lock. */
int place_refuse_now(const cenote_pool *pool, struct arena *a, const struct request *q, bool is_free)
{
    const struct region *r = region_at(pool, q->extends ? q->at - 1 : q->at);
    bool may_be_item = r && !q->extends && r->arena == a->number && q->bytes <= CLASS_BYTES_MAX;
    uint32_t slab = may_be_item ? slab_at_address(r, q->at) : 0;
    bool is_item = slab && slab_sleeps_at(&a->slabs, slab, class_of(q->bytes), q->at);
    if (r && (is_item || (is_free && sleeps(pool, r, q))))
        return error_set(CENOTE_BUSY | ERROR_ANSWER, 0, "what is free at %#llx sleeps: cenote_pool_resume comes first",
                         (unsigned long long)q->at);
    if (!r || !is_free || !comes_free(pool, r, q))
        return place_refuse(q);
    return error_set(CENOTE_BUSY | ERROR_ANSWER, 0,
                     "the device is not done with what lay at %#llx: ask again after cenote_pool_trim(pool, "
                     "UINT64_MAX, CENOTE_TRIM_WAIT), or, from CUDA 12.5 on, when its streams are done",
                     (unsigned long long)q->at);
}

static enum fit find_place(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q,
                           struct place *place)
{
    if (!q->extends)
        return arena_find(a, who, q, region_at(pool, q->at), place);
    return may_extend(pool, a, q) ? heap_find_behind(arena_heap(a, q->heap), who, q->extends, q->size, place) : FIT_NOT;
}

/*
 * Serves the request from pages in place, or returns what is missing. A place that has slid past slots in flight is
 * taken only if `slide` is set, or as long as `slides_left` lasts: the device may be done with those slots by now, so
 * that a thread that polls it gets a better place.
 * LOCKING: the pool's lock.
 */
enum fit place_try(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q, bool slide,
                   struct place *place, uint64_t *at)
{
    struct request item;
    *at = q->class != CLASS_NONE ? slab_take(&a->slabs, q->class, q->bytes, q->mark)
          : q->extends || q->ahead ? 0
          : q->at                ? take_item_at(pool, a, q)
                                 : last_freed_reuse(pool, a, q);
    if (*at && q->at) { /* an item at a given address counts as an item */
        item = *q;
        item.class = class_of(q->bytes);
        q = &item;
    }
    if (!*at) {
        last_freed_settle(pool);
        enum fit fit = find_place(pool, a, who, q, place);
        if (fit != FIT_NOW)
            return fit;
        if (place->slid && !slide && !a->slides_left)
            return FIT_IN_FLIGHT;
        if (q->ahead) {
            *at = place->at;
            return FIT_NOW;
        }
        a->slides_left -= place->slid && !slide;
        *at = place_commit(pool, a, q,
                           heap_take(arena_heap(a, region_of(&pool->store.pages, place->region)->heap), place));
        return FIT_NOW;
    }
    a->blocks++;
    count_alloc(pool, a, q);
    record_taken(pool, *at, q, a);
    return FIT_NOW;
}

/*
 * Memory is short: serves the request from pages in place in any heap of the arena, whatever the size of what lies
 * there. The heap of small blocks comes first, because a small block that is left there holds least. LOCKING: the
 * pool's lock.
 */
bool place_try_heaps(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q,
                     uint64_t *at)
{
    struct request anywhere = *q;
    struct place place;
    for (anywhere.heap = arena_heaps(a); anywhere.heap--;)
        if (place_try(pool, a, who, &anywhere, true, &place, at) == FIT_NOW)
            return true;
    return false;
}

/*
 * Gives a block that no stream uses any more to its arena: an item
 * at once, a block of its own after it was the last freed one.
 * LOCKING: the pool's lock.
 */
void place_give(cenote_pool *pool, const struct block_ref *w, tick freed)
{
    count_inactive(pool, w->requested);
    if (w->slab) {
        arena_give_item(w->arena, w->slab, w->item, freed);
    } else {
        last_freed_settle(pool);
        arena_note_free(w->arena, freed);
        block_of(&pool->store.blocks, w->block)->state = BLOCK_LAST_FREED;
        pool->store.last_freed_block.number = w->block;
        pool->store.last_freed_block.arena = w->arena;
        pool->store.last_freed_block.heap = w->region->heap;
        pool->store.last_freed_block.freed = freed;
        if (pool->store.pages.sleepers) /* it may lie on one of them */
            last_freed_settle(pool);
    }
    if (!w->arena->blocks && !w->arena->queue)
        idle_enter(pool, w->arena);
}
