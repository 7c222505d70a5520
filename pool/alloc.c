/*
 * alloc.c: the road of one block: taken, found again, given back. Start reading here; docs/life-of-an-allocation.md walks along.
 *
 * cenote_alloc finds the arena of the stream and asks it, under the pool's lock. Most requests end there, without a driver call. What the
 * arena cannot serve from pages in place goes to shortage.c, without the lock. cenote_free never fails but for misuse: it finds the block
 * by its address, stamps it with the tick of now, and gives it back to its arena; if the block was used on other streams it joins those
 * pending instead.
 */
#include "base/check.h"
#include "pool/count.h"
#include "pool/record.h"
#include "pool/sites.h"

#define TEND_EVERY 32   /* allocations between two looks after pending blocks, which cost driver calls; slow paths look anyway */

/* --------------------------------------------------------------------------------------------------------------------------- taking */

/* An open capture on the stream decides the group, unless the caller did. LOCKING: the pool's lock. */
static uint32_t group_of_stream(const cenote_pool *pool, uint32_t group, uint64_t key)
{
    for (uint32_t i = 0; !group && i < pool->capture_count; i++)
        if (pool->captures[i].stream == key)
            return pool->captures[i].group;
    return group;
}

/* Room in our own books for one more block, so that nothing after this can fail for want of host memory. */
bool pool_reserve_books(cenote_pool *pool, uint64_t mark)
{
    return table_reserve(&pool->blocks, 3) && table_reserve(&pool->slabs, 1) && index_reserve(&pool->at, 1) &&
           (!(mark & MARK_LABELS) || rows_reserve(pool, mark));
}

/* What the request comes to in this arena. LOCKING: the pool's lock. */
void pool_shape(const cenote_pool *pool, const struct arena *a, struct request *q)
{
    q->last = source_guards(pool, a);
    q->whole = q->last || (a->group && group_of(pool, a->group)->flags & CENOTE_GROUP_WHOLE);
    q->alone = q->whole && !source_moves_pages(pool, a);
    request_make(q, !a->is_private && !q->whole && !q->at);
    if (q->whole && !q->alone)
        request_cover_pages(q, 1ull << pool->pages.shift);
}

/* The block that heap_take took, with its pages in place, becomes what was asked for. LOCKING: the pool's lock. */
uint64_t pool_commit(cenote_pool *pool, struct arena *a, const struct request *q, uint32_t block)
{
    uint64_t at = arena_commit(a, q, block);
    if (q->class == CLASS_NONE)
        index_add(&pool->at, at, block);
    return at;
}

/*
 * The block that was freed last rests: it stays in the index and over its pages until somebody wants to know, because many programs ask for
 * the same again at once, and get it as it lies. Now it goes back to its heap. Whoever looks for free ranges or free pages calls this first;
 * the books are right without it, but for what one block covers. LOCKING: the pool's lock.
 */
void pool_settle(cenote_pool *pool)
{
    uint32_t block = pool->resting.block;
    if (!block)
        return;
    pool->resting.block = 0;
    index_remove(&pool->at, block_of(&pool->blocks, block)->at);
    heap_give(&pool->resting.arena->heap, block, pool->resting.freed);
}

/* The address of the resting block, live again, if that is what the search would come to; or 0. */
static uint64_t wake_resting(cenote_pool *pool, const struct arena *a, const struct request *q)
{
    uint32_t block = pool->resting.block;
    struct block *b = block_of(&pool->blocks, block);
    if (!block || b->size != q->size || pool->resting.arena != a || b->at % q->alignment || q->whole)
        return 0;
    if (!heap_would_choose(&a->heap, block))
        return 0;
    pool->resting.block = 0;
    b->state = BLOCK_LIVE;
    b->requested = q->bytes;
    b->mark = q->mark;
    return b->at;
}

/* The item of a slab that begins just where the request has to lie, if it is free and of its class; or 0. */
static uint64_t take_item_at(cenote_pool *pool, struct arena *a, const struct request *q)
{
    struct region *r = q->whole || q->bytes > CLASS_BYTES_MAX ? NULL : addresses_find_for_certain(q->at);
    if (!r || atomic_load(&r->pool) != pool || r->arena != a->number || q->at < r->base || q->at >= region_end(r))
        return 0;
    uint32_t slab = slab_at_address(r, q->at);
    return slab ? slab_take_at(&a->slabs, slab, class_of(q->bytes), q->at, q->bytes, q->mark) : 0;
}

/*
 * Serves the request from pages that are in place, or says what it would take. What has to slide past slots in flight is served only if
 * `slide`: the device may be done with them by now, and who has asked it can have the better place. LOCKING: the pool's lock.
 */
enum fit pool_try(cenote_pool *pool, struct arena *a, const struct asker *who, const struct request *q, bool slide, struct place *place,
                  uint64_t *at)
{
    struct request item;
    *at = q->class != CLASS_NONE ? slab_take(&a->slabs, q->class, q->bytes, q->mark) :
          q->at ? take_item_at(pool, a, q) : wake_resting(pool, a, q);
    if (*at && q->at) { /* it counts as what it is */
        item = *q;
        item.class = class_of(q->bytes);
        q = &item;
    }
    if (!*at) {
        pool_settle(pool);
        enum fit fit = arena_find(a, who, q, q->at ? addresses_find_for_certain(q->at) : NULL, place);
        if (fit != FIT_NOW)
            return fit;
        if (place->slid && !slide && !a->slides)
            return FIT_IN_FLIGHT;
        a->slides -= place->slid && !slide;
        *at = pool_commit(pool, a, q, heap_take(&a->heap, place));
    } else {
        a->live++;
    }
    count_alloc(pool, a, q);
    record_taken(pool, *at, q, a);
    return FIT_NOW;
}

static int refuse_size(cenote_pool *pool, uint64_t bytes)
{
    lock_take(&pool->lock);
    pool->stats.ooms++;
    lock_give(&pool->lock);
    return explain_shortage(pool, bytes);
}

static int no_books(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the books of a block");
}

/*
 * The arena that serves, with the pool's lock held. NULL without it: *error says why, or that nothing is wrong, but the stream is new here
 * and whose it is (`is_own`) comes first.
 */
static struct arena *lock_arena(cenote_pool *pool, uint32_t group, struct request *q, CUstream stream, uint64_t key, bool is_own, int *error)
{
    struct arena *a = NULL;
    lock_take(&pool->lock);
    q->mark |= pool->born;
    CUresult lost = pool->lost;
    bool is_gone = group && (!group_of(pool, group)->number || group_of(pool, group)->destroyed);
    bool has_room = !lost && !is_gone && pool_reserve_books(pool, q->mark);
    if (has_room) {
        group = group_of_stream(pool, group, key);
        a = is_own ? stream_arena_new(pool, group, key, stream) : stream_arena(pool, group, key);
    }
    if (a)
        return a;
    lock_give(&pool->lock);
    if (lost)
        *error = pool_driver_error(pool, lost, "an earlier call");
    else if (is_gone)
        *error = error_set(CENOTE_INVALID, 0, "the group was destroyed: nothing more can be allocated from it");
    else if (!has_room || is_own)
        *error = no_books();
    return NULL;
}

static int serve(cenote_pool *pool, uint32_t group, struct request *q, CUstream stream, uint64_t *at)
{
    uint64_t key;
    struct arena *a;
    struct place place;
    bool is_own = false;
    int error = stream_key(pool, stream, &key);
    if (error)
        return error;

    while (!(a = lock_arena(pool, group, q, stream, key, is_own, &error))) {
        if (error || (error = stream_check_own(pool, stream, key)))
            return error;
        is_own = true;
    }
    bool tend = pool->pending_count && ++pool->untended >= TEND_EVERY;
    struct asker who = pool_asker(pool, a);
    a->captured |= a->is_private && !who.may_unmap;
    pool_shape(pool, a, q);
    bool served = pool_try(pool, a, &who, q, false, &place, at) == FIT_NOW;
    a->visitors += !served;
    pool->climbers += !served;
    lock_give(&pool->lock);
    if (tend)
        pending_tend(pool);
    if (served)
        return CENOTE_OK;
    error = shortage_serve(pool, a, q, at);
    lock_take(&pool->lock);
    a->visitors--;
    pool->climbers--;
    idle_note(pool, a); /* its stream or group may have gone meanwhile */
    pool->stats.slow_allocs++;
    lock_give(&pool->lock);
    return error;
}

/* Bytes, alignment and place of the request are the caller's; `caller` is where he goes on. */
static int allocate(cenote_pool *pool, uint32_t group, struct request *q, CUstream stream, void **block, const void *caller)
{
    uint64_t at = 0;
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!block)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the block: the last argument is NULL");
    if (!q->alignment || q->alignment & (q->alignment - 1) || q->alignment > 1ull << pool->pages.shift)
        return error_set(CENOTE_INVALID, 0, "alignment %llu is no power of two up to the page size, %llu", (unsigned long long)q->alignment,
                         1ull << pool->pages.shift);
    if (!q->bytes) {
        *block = NULL;
        return CENOTE_OK;
    }
    if (q->bytes > BYTES_MOST)
        return refuse_size(pool, q->bytes);
    q->mark = label_now();
    if (__builtin_expect(pool->options.sites, 0))
        q->mark |= site_mark(caller, pool->options.sites);
    error = serve(pool, group, q, stream, &at);
    if (!error)
        *block = (void *)(uintptr_t)at;
    return error;
}

int cenote_alloc(cenote_pool *pool, size_t bytes, cenote_stream stream, void **block)
{
    struct request q = {.bytes = bytes, .alignment = BLOCK_BYTES};
    return allocate(pool, 0, &q, stream, block, __builtin_return_address(0));
}

int cenote_alloc_aligned(cenote_pool *pool, size_t bytes, size_t alignment, cenote_stream stream, void **block)
{
    struct request q = {.bytes = bytes, .alignment = alignment};
    return allocate(pool, 0, &q, stream, block, __builtin_return_address(0));
}

int cenote_group_alloc(cenote_group *group, size_t bytes, size_t alignment, cenote_stream stream, void **block)
{
    struct request q = {.bytes = bytes, .alignment = alignment};
    if (!group || group->destroyed)
        return error_set(CENOTE_INVALID, 0, group ? "group \"%s\" was destroyed: nothing more can be allocated from it" :
                         "the group is NULL: cenote_group_create gives one", group ? group->name : "");
    return allocate(group->pool, group->number, &q, stream, block, __builtin_return_address(0));
}

int cenote_alloc_at(cenote_pool *pool, cenote_group *group, void *address, size_t bytes, cenote_stream stream)
{
    struct request q = {.bytes = bytes, .alignment = BLOCK_BYTES, .at = (uint64_t)(uintptr_t)address};
    void *block;
    if (!bytes || !q.at || q.at % BLOCK_BYTES || (group && (group->destroyed || group->pool != pool)))
        return error_set(CENOTE_INVALID, 0, "%zu bytes at %p: give the size and address that an earlier block had, and a group of this pool or NULL",
                         bytes, address);
    return allocate(pool, group ? group->number : 0, &q, stream, &block, __builtin_return_address(0));
}

/* -------------------------------------------------------------------------------------------------------------------------- finding */

static enum found locate_item(cenote_pool *pool, uint64_t at, struct where *w)
{
    struct slab *s = slab_of(&pool->slabs, w->slab);
    w->block = s->block;
    w->item = (uint32_t)(at - s->at) / s->item_bytes;
    w->start = s->at + (uint64_t)w->item * s->item_bytes;
    w->size = s->item_bytes;
    w->requested = s->requested[w->item];
    w->uses = &s->uses[w->item];
    w->mark = &s->mark[w->item];
    if (bit_is_set(s->free, w->item))
        return FOUND_FREE;
    return bit_is_set(s->pending, w->item) ? FOUND_PENDING : w->start != at ? FOUND_INSIDE : FOUND_LIVE;
}

static void describe_block(cenote_pool *pool, struct where *w, uint32_t block)
{
    struct block *b = block_of(&pool->blocks, block);
    w->block = block;
    w->start = b->at;
    w->size = b->size;
    w->requested = b->requested;
    w->uses = &b->uses;
    w->mark = &b->mark;
}

/* No block starts there: is it inside one? */
static enum found locate_inside(cenote_pool *pool, uint64_t at, struct where *w)
{
    uint32_t block = heap_piece_at(&w->arena->heap, w->region, at);
    if (!block)
        return FOUND_NOTHING;
    describe_block(pool, w, block);
    uint8_t state = block_of(&pool->blocks, block)->state;
    return state == BLOCK_LIVE ? FOUND_INSIDE : state == BLOCK_PENDING ? FOUND_PENDING : FOUND_FREE;
}

/* What lies at the address, which belongs to a region of this pool. LOCKING: the pool's lock. */
enum found pool_locate(cenote_pool *pool, uint64_t at, struct where *w)
{
    w->arena = arena_of(pool, w->region->arena);
    w->item = 0;
    w->slab = slab_at_address(w->region, at);
    if (w->slab) {
        const struct slab *s = slab_of(&pool->slabs, w->slab);
        CHECK(at >= s->at); /* a slab begins with its granule */
        if (at < s->at + (uint64_t)s->items * s->item_bytes)
            return locate_item(pool, at, w);
        w->slab = 0;
    }
    uint32_t block = at % BLOCK_BYTES ? 0 : index_find(&pool->at, at);
    if (!block)
        return locate_inside(pool, at, w);
    describe_block(pool, w, block);
    uint8_t state = block_of(&pool->blocks, block)->state;
    return state == BLOCK_LIVE ? FOUND_LIVE : state == BLOCK_PENDING ? FOUND_PENDING : FOUND_FREE;
}

/* Takes the lock of the region's pool, if address and region still belong to it. */
static cenote_pool *lock_pool(struct region *r, uint64_t at)
{
    cenote_pool *pool = r ? atomic_load(&r->pool) : NULL;
    if (!pool)
        return NULL;
    lock_take(&pool->lock);
    if (pool->open && atomic_load(&r->pool) == pool && at >= r->base && at < region_end(r))
        return pool;
    lock_give(&pool->lock);
    return NULL;
}

/* The pool an address belongs to, with its lock taken, or NULL. Only what was not found without a lock is looked for with one. */
cenote_pool *pool_lock_of(const void *address, struct where *w)
{
    uint64_t at = (uint64_t)(uintptr_t)address;
    w->region = addresses_find(at);
    cenote_pool *pool = lock_pool(w->region, at);
    if (pool)
        return pool;
    w->region = addresses_find_for_certain(at);
    return lock_pool(w->region, at);
}

/* --------------------------------------------------------------------------------------------------------------------------- giving */

/* The error for an address that is no live block, in words. `answer`: ERROR_ANSWER, or 0 if it is a mistake. */
static int misuse(enum found found, const void *address, const struct where *w, int answer)
{
    unsigned long long size = w->requested, start = w->start;
    switch (found) {
    case FOUND_PENDING:
        return error_set(CENOTE_DOUBLE_FREE | answer, 0, "%p (%llu bytes) was freed already and waits for the streams it was used on; free it once",
                         address, size);
    case FOUND_INSIDE:
        return error_set(CENOTE_INTERIOR | answer, 0, "%p lies %llu bytes inside the block at %#llx of %llu bytes; give its start", address,
                         (unsigned long long)(uintptr_t)address - start, start, size);
    case FOUND_FREE:
        return error_set(CENOTE_DOUBLE_FREE | answer, 0,
                         "%p is not live: it was freed already, or is no block's; free a block once and keep no pointer to it",
                         address);
    default:
        return error_set(CENOTE_NOT_OURS | answer, 0, "%p was not handed out by cenote; look for another allocator's memory or a stale pointer",
                         address);
    }
}

/* A block nobody waits for goes back to its arena: an item at once, a block of its own when it has rested. LOCKING: the pool's lock. */
void pool_give(cenote_pool *pool, const struct where *w, tick freed)
{
    count_inactive(pool, w->requested);
    if (w->slab) {
        arena_give_item(w->arena, w->slab, w->item, freed);
    } else {
        pool_settle(pool);
        arena_note_free(w->arena, freed);
        block_of(&pool->blocks, w->block)->state = BLOCK_RESTING;
        pool->resting.block = w->block;
        pool->resting.arena = w->arena;
        pool->resting.freed = freed;
    }
    if (!w->arena->live && !w->arena->queue)
        idle_note(pool, w->arena);
}

static int free_block(void *address, bool sized, size_t bytes)
{
    struct where w = {0};
    if (!address)
        return CENOTE_OK;
    if (pool_refuses()) /* at exit a free is bookkeeping and goes on */
        return pool_process_usable();
    cenote_pool *pool = pool_lock_of(address, &w);
    enum found found = pool ? pool_locate(pool, (uint64_t)(uintptr_t)address, &w) : FOUND_NOTHING;
    if (found != FOUND_LIVE || (sized && w.requested != bytes)) {
        if (pool)
            lock_give(&pool->lock);
        if (found != FOUND_LIVE)
            return misuse(found, address, &w, 0);
        return error_set(CENOTE_WRONG_SIZE, 0, "the block at %p was asked for with %llu bytes, not %zu: give that size, or call cenote_free", address,
                         (unsigned long long)w.requested, bytes);
    }
    count_free(pool, &w);
    record_given(pool, &w);
    tick freed = fences_stamp(&pool->pages.fences);
    if (pool->exported.count)
        share_end(pool, w.start);
    uint32_t uses = *w.uses ? pending_detach(pool, &w, freed) : 0;
    if (!uses)
        pool_give(pool, &w, freed);
    lock_give(&pool->lock);
    if (uses)
        pending_record(pool, uses);
    return CENOTE_OK;
}

int cenote_free(void *block)
{
    return free_block(block, false, 0);
}

int cenote_free_sized(void *block, size_t bytes)
{
    return free_block(block, true, bytes);
}

/* ------------------------------------------------------------------------------------------------------------------ questions, and use */

static uint32_t count_uses(const cenote_pool *pool, uint32_t uses)
{
    uint32_t count = 0;
    for (; uses; uses = use_of(pool, uses)->next)
        count++;
    return count;
}

int pool_find(const void *address, cenote_block *block, int answer)
{
    struct where w = {0};
    if (!address || !block)
        return error_set(CENOTE_INVALID, 0, !address ? "the address is NULL: give one inside a block" :
                         "nowhere to put the answer: the last argument is NULL");
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = pool_lock_of(address, &w);
    enum found found = pool ? pool_locate(pool, (uint64_t)(uintptr_t)address, &w) : FOUND_NOTHING;
    bool live = found == FOUND_LIVE || found == FOUND_INSIDE;
    if (live)
        *block = (cenote_block){.start = (void *)(uintptr_t)w.start, .requested = w.requested, .size = w.size, .pool = pool,
                                .group = w.arena->group ? group_of(pool, w.arena->group) : NULL, .stream_id = w.arena->stream,
                                .stream = w.arena->handle, .used = count_uses(pool, *w.uses)};
    if (pool)
        lock_give(&pool->lock);
    return live ? CENOTE_OK : misuse(found, address, &w, answer);
}

int(cenote_find)(const void *address, cenote_block *block, size_t size)
{
    cenote_block found;
    int error = sized_check(size, "cenote_block");
    if (error || (error = pool_find(address, block ? &found : NULL, ERROR_ANSWER)))
        return error;
    sized_out(block, size, &found, sizeof found);
    return CENOTE_OK;
}

/* `device`: whose stream it is; -1: nobody said. */
static int use_block(void *block, int device, CUstream stream)
{
    struct where w = {0};
    struct device *other;
    uint64_t key;
    if (!block)
        return CENOTE_OK;
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = pool_lock_of(block, &w);
    if (!pool)
        return misuse(FOUND_NOTHING, block, &w, 0);
    lock_give(&pool->lock); /* who the stream is may have to be asked of the driver */
    int error = pool_usable(pool);
    if (error || (error = stream_key_on(pool, device, stream, &key, &other)))
        return error;
    cenote_pool *still = pool_lock_of(block, &w);
    enum found found = still == pool ? pool_locate(pool, (uint64_t)(uintptr_t)block, &w) : FOUND_NOTHING;
    bool noted = found == FOUND_LIVE && pending_note_use(pool, &w, stream, key, other);
    if (noted)
        record_used(pool, &w, key);
    if (still)
        lock_give(&still->lock);
    return found != FOUND_LIVE ? misuse(found, block, &w, 0) : noted ? CENOTE_OK : no_books();
}

int cenote_use(void *block, cenote_stream stream)
{
    return use_block(block, -1, stream);
}

int cenote_use_on(void *block, int device, cenote_stream stream)
{
    if (device < 0)
        return error_set(CENOTE_NO_DEVICE, 0, "device %d does not exist", device);
    return use_block(block, device, stream);
}
