/*
 * alloc.c: the road of one block: allocated, used on another stream,
 * freed. Start reading here, beside docs/life-of-an-allocation.md.
 *
 * cenote_alloc finds the arena of the stream and asks it, under the pool's lock. Most requests end there, and the
 * driver was asked for no more than the stream's id. What the arena cannot serve from pages in place goes to
 * shortage.c, without the lock. cenote_free fails only for a mistake of the program and in the child of a fork: it
 * finds the block by its address, stamps it with the tick of now, and gives it back to its arena; if the block was used
 * on other streams it joins those pending instead.
 *
 * LOCKING: calls of the API hold no lock; they take the pool's lock
 * around the books, and let go of it before the driver is asked.
 */
#include "pool/calls/alloc.h"

#include "pool/arenas/arenas.h"
#include "pool/arenas/idle.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/place.h"
#include "pool/calls/give_out.h"
#include "pool/calls/retire.h"
#include "pool/calls/streams.h"
#include "pool/life/pool.h"
#include "pool/life/watch.h"
#include "pool/shortage/shortage.h"
#include "stats/account/count.h"
#include "stats/account/record.h"
#include "stats/account/sites.h"

/*
 * One allocation in so many polls pending blocks, which calls the driver. The count begins again only when a poll got
 * the turn: as long as another thread has it, every allocation past this number tries. Slow paths poll in any case.
 */
#define POLL_EVERY 32

#define SMALL_PART 32 /* chosen: of what is reserved, so much more for the heap of small blocks */

/* ----------------------------------------------------------------------------------------------------------- taking */

#define CAPTURE_TAKES_NONE UINT32_MAX /* in place of a group: a capture without memory is open on the stream */

/* An open capture on the stream decides the group, unless the caller did. LOCKING: the pool's lock. */
static uint32_t group_of_stream(const cenote_pool *pool, uint32_t group, uint64_t key)
{
    for (uint32_t i = 0; !group && i < pool->groups.capture_count; i++)
        if (pool->groups.captures[i].stream == key)
            return pool->groups.captures[i].group ? pool->groups.captures[i].group : CAPTURE_TAKES_NONE;
    return group;
}

static int refuse_size(cenote_pool *pool, const struct request *q)
{
    if (q->no_wait)
        return shortage_refuse_now(q);
    lock_take(&pool->lock);
    pool->account.stats.ooms++;
    lock_give(&pool->lock);
    return pool->config.hooks->explain(pool, q->bytes);
}

static int no_books(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the books of a block");
}

/*
 * The arena for the request; the pool's lock is held then. NULL: the lock is free. If *error is still CENOTE_OK then,
 * the stream is new to the pool: the caller asks stream_check_own, and comes again with `stream_device_checked`. It is
 * in line, although two functions call it: a call was a tenth of the time of a warm pair.
 */
static inline __attribute__((always_inline)) struct arena *lock_arena(cenote_pool *pool, const cenote_group *group,
                                                                      struct request *q, CUstream stream, uint64_t key,
                                                                      bool stream_device_checked, int *error)
{
    struct arena *a = NULL;
    if ((*error = pool_take_lock(pool))) /* it may have ended while the driver was asked for the key */
        return NULL;
    CUresult lost = pool->life.lost;
    bool is_gone = group && group->destroyed; /* and its number may be another group's by now */
    bool has_room = !lost && !is_gone && place_reserve_books(pool, q->mark);
    uint32_t number = group_of_stream(pool, group ? group->number : 0, key);
    if (has_room && number != CAPTURE_TAKES_NONE)
        a = stream_device_checked ? idle_make_arena(pool, number, key, stream) : arenas_find(pool, number, key);
    if (a)
        return a;
    lock_give(&pool->lock);
    if (lost)
        *error = pool_driver_error(pool, lost, "an earlier call");
    else if (is_gone)
        *error = error_set(CENOTE_INVALID, 0, "the group was destroyed: nothing more can be allocated from it");
    else if (number == CAPTURE_TAKES_NONE)
        *error =
            error_set(CENOTE_CAPTURE, 0,
                      "a capture that takes no memory is open on this stream: begin it with cenote_capture_begin and a "
                      "private group, or allocate before");
    else if (!has_room || stream_device_checked)
        *error = no_books();
    return NULL;
}

/*
 * A call names the stream, which is captured, or of which the pool may know
 * something by its handle, from a capture. LOCKING: none, not inside.
 */
static inline void meet_stream(cenote_pool *pool, uint64_t key, CUstream stream)
{
    if (__builtin_expect(key_is_captured(key), 0))
        retire_meet_captured(pool, key, stream);
    else if (lanes_have_captured(&pool->clock))
        retire_another(pool, key, stream);
}

/* Is it time to look for blocks whose streams are done, and to give lanes their events? LOCKING: the pool's lock. */
static inline bool is_poll_due(cenote_pool *pool, const struct arena *a, uint64_t key, CUstream stream)
{
    return (pool->clock.uses.blocks && ++pool->pending.allocs_since_poll >= POLL_EVERY) ||
           lane_waits_for_call(&pool->clock, a->horizon.lane) ||
           (lanes_have_captured(&pool->clock) &&
            lane_waits_for_call(&pool->clock, lane_when_captured(&pool->clock, key, stream, NULL)));
}

/* This thread comes back to the arena, which no stream takes over meanwhile. LOCKING: the pool's lock. */
void alloc_begin_slow(cenote_pool *pool, struct arena *a)
{
    a->slow_path_users++;
    pool->life.users++;
}

/* What pages in place do not serve, after alloc_begin_slow. LOCKING: none held. */
int alloc_serve_slow(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at)
{
    int error = shortage_serve(pool, a, q, at);
    lock_take(&pool->lock);
    a->slow_path_users--;
    pool->life.users--;
    idle_enter(pool, a); /* its stream may have been retired, or its group destroyed, meanwhile */
    pool->account.stats.slow_allocs++;
    lock_give(&pool->lock);
    return error;
}

/* Serves the request from pages in place, or leaves it to shortage_serve. LOCKING: none held. */
static int serve(cenote_pool *pool, const cenote_group *group, struct request *q, CUstream stream, uint64_t *at)
{
    uint64_t key;
    struct arena *a;
    struct place place;
    bool stream_device_checked = false;
    int error = stream_key(pool, stream, &key);
    if (error)
        return error;

    meet_stream(pool, key, stream);
    while (!(a = lock_arena(pool, group, q, stream, key, stream_device_checked, &error))) {
        if (error || (error = stream_check_own(pool, stream, key)))
            return error;
        stream_device_checked = true;
    }
    q->mark |= pool->steps.bits; /* only now: a step may have ended while the driver was asked */
    bool polls = !q->no_wait && is_poll_due(pool, a, key, stream);
    struct requester who = place_requester(pool, a);
    a->captured |= a->is_private && !who.may_unmap;
    q->is_told = watch_hears(pool, CENOTE_ALLOCATED); /* a function that is set from now on may find the block */
    if (__builtin_expect(a->group && (q->is_told || q->is_held), 0))
        q->mark |= MARK_HELD;
    place_shape(pool, a, q);
    bool served = place_try(pool, a, &who, q, false, &place, at) == FIT_NOW;
    if (!served) {
        alloc_begin_slow(pool, a);
        q->is_told = true; /* if one is set then */
        q->mark |= a->group ? MARK_HELD : 0;
    }
    lock_give(&pool->lock);
    if (served && !polls)
        return CENOTE_OK;
    struct lanes_call outer = lanes_call_names(key, stream);
    if (polls)
        pending_poll_some(pool);
    if (!served)
        error = alloc_serve_slow(pool, a, q, at);
    lanes_call_ends(outer);
    return error;
}

/* What a block is for, and from where it is asked for. */
static inline uint64_t mark_of(const cenote_pool *pool, const void *caller)
{
    uint64_t mark = label_now();
    if (__builtin_expect(pool->config.options.sites, 0))
        mark |= site_mark(caller, pool->config.options.sites);
    return mark;
}

/* The public call has set bytes, alignment and place of the request; `caller` is its return address. */
static int allocate(cenote_pool *pool, const cenote_group *group, struct request *q, CUstream stream, void **block,
                    const void *caller)
{
    uint64_t at = 0;
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!block)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the block: the last argument is NULL");
    if (!q->alignment || q->alignment & (q->alignment - 1) ||
        q->alignment > 1ull << pool->store.pages.shifts[GRADE_LARGE])
        return error_set(CENOTE_INVALID, 0, "alignment %llu is no power of two up to the page size, %llu",
                         (unsigned long long)q->alignment, 1ull << pool->store.pages.shifts[GRADE_LARGE]);
    if (!q->bytes) {
        *block = NULL;
        return CENOTE_OK;
    }
    if (q->bytes > BYTES_MAX)
        return q->at ? place_refuse(q) : refuse_size(pool, q);
    q->mark = mark_of(pool, caller);
    error = serve(pool, group, q, stream, &at);
    if (!error)
        *block = (void *)(uintptr_t)at;
    if (watch_hears(pool, CENOTE_ALLOCATED) && q->is_told && !error && !q->ahead)
        watch_tell_block(pool, CENOTE_ALLOCATED, *block, q->bytes, stream);
    if (__builtin_expect(q->mark & MARK_HELD && !q->is_held && !error && !q->ahead, 0))
        give_out(pool, block, 1);
    if (__builtin_expect(atomic_load_explicit(&pool->board.wished, memory_order_relaxed) != 0, 0) && !q->no_wait)
        pool->config.hooks->wished(pool);
    return error;
}

int cenote_alloc(cenote_pool *pool, size_t bytes, cenote_stream stream, void **block)
{
    struct request q = {.bytes = bytes, .alignment = BLOCK_BYTES};
    return allocate(pool, NULL, &q, stream, block, __builtin_return_address(0));
}

/* The request of cenote_alloc_with and cenote_alloc_many. *pool: that of the group, if it is NULL. */
static int read_request(cenote_pool **pool, const cenote_request *given, size_t size, cenote_request *r,
                        struct request *q)
{
    *r = (cenote_request){0};
    int error = sized_in(r, sizeof *r, given, size, "cenote_request");
    if (error || (error = group_find_pool(r->group, pool)))
        return error;
    *q = (struct request){.bytes = r->bytes,
                          .alignment = r->alignment ? r->alignment : BLOCK_BYTES,
                          .at = (uint64_t)(uintptr_t)r->at,
                          .no_wait = r->flags & CENOTE_NO_WAIT};
    if (r->flags & ~CENOTE_NO_WAIT || r->unused)
        return error_set(CENOTE_INVALID, 0, "a request has as flags CENOTE_NO_WAIT or 0, not %#x", r->flags);
    if (q->at && (!q->bytes || q->at % BLOCK_BYTES || r->alignment))
        return error_set(CENOTE_INVALID, 0,
                         "%zu bytes at %p: give the size and address that an earlier block had, and no alignment",
                         r->bytes, r->at);
    return CENOTE_OK;
}

/* What was made is not given out. */
static int give_back(int error, void *const *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)cenote_free(blocks[i]);
    return error;
}

/* If there is no host memory for a word; another error: the pool has ended, and its blocks with it. */
static int hand_over(cenote_pool *pool, void *const *blocks, size_t count, uint64_t word)
{
    int error = give_out_with(pool, blocks, count, word);
    return error == CENOTE_OUT_OF_HOST_MEMORY ? give_back(error, blocks, count) : error;
}

int(cenote_alloc_with)(cenote_pool *pool, const cenote_request *request, void **block, size_t size)
{
    cenote_request r;
    struct request q;
    void *at;
    int error = read_request(&pool, request, size, &r, &q);
    q.is_held = r.word != 0;
    if (!error)
        error = allocate(pool, r.group, &q, r.stream, block ? &at : NULL, __builtin_return_address(0));
    if (!error && at && r.word)
        error = hand_over(pool, &at, 1, r.word);
    if (!error)
        *block = at;
    return error;
}

/*
 * More blocks like one that was allocated a moment ago, as many as pages in place serve in one hold of the lock. What
 * they have not, a poll and each notice of a block are left to `allocate`. LOCKING: none held.
 */
static size_t serve_more(cenote_pool *pool, const cenote_group *group, struct request q, CUstream stream,
                         const void *caller, void **blocks, size_t count)
{
    uint64_t key, at;
    struct place place;
    size_t done = 0;
    int error;
    if (!count || watch_hears(pool, CENOTE_ALLOCATED) || stream_key(pool, stream, &key))
        return 0;
    q.mark = mark_of(pool, caller);
    struct arena *a = lock_arena(pool, group, &q, stream, key, false, &error);
    if (!a)
        return 0;
    bool goes_on = !is_poll_due(pool, a, key, stream);
    struct requester who = place_requester(pool, a);
    q.mark |= pool->steps.bits;
    a->captured |= a->is_private && !who.may_unmap;
    q.mark |= a->group ? MARK_HELD : 0;
    place_shape(pool, a, &q);
    while (goes_on && done < count && done < MANY_IN_A_HOLD && place_reserve_books(pool, q.mark)) {
        struct request next = q;
        goes_on = place_try(pool, a, &who, &next, false, &place, &at) == FIT_NOW;
        if (goes_on)
            blocks[done++] = (void *)(uintptr_t)at;
    }
    lock_give(&pool->lock);
    return done;
}

int(cenote_alloc_many)(cenote_pool *pool, const cenote_request *request, size_t count, void **blocks, size_t size)
{
    cenote_request r;
    struct request asked;
    const void *caller = __builtin_return_address(0);
    int error = read_request(&pool, request, size, &r, &asked);
    if (error)
        return error;
    if (!blocks || asked.at)
        return error_set(CENOTE_INVALID, 0,
                         blocks ? "one address is no place for several blocks: cenote_alloc_with"
                                : "nowhere to put the blocks: the last argument is NULL");
    size_t done = 0;
    asked.is_held = true; /* or a reset of the group frees what is there already, and another thread takes it */
    while (done < count && !error) {
        struct request q = asked;
        error = allocate(pool, r.group, &q, r.stream, &blocks[done], caller);
        done += !error;
        if (!error && q.bytes)
            done += serve_more(pool, r.group, asked, r.stream, caller, blocks + done, count - done);
    }
    if (error)
        return give_back(error, blocks, done);
    return asked.bytes ? hand_over(pool, blocks, count, r.word) : CENOTE_OK;
}

/* Pages for so many bytes in that heap, free. LOCKING: none held. */
static int reserve(cenote_pool *pool, uint64_t bytes, uint32_t heap, CUstream stream)
{
    struct request q = {.bytes = bytes, .alignment = BLOCK_BYTES, .heap = heap, .no_wait = true};
    void *none;
    int error = pool_take_lock(pool);
    if (error)
        return error;
    q.ahead = fences_stamp(&pool->clock.fences);
    lock_give(&pool->lock);
    return allocate(pool, NULL, &q, stream, &none, NULL);
}

int cenote_pool_reserve(cenote_pool *pool, uint64_t bytes, cenote_stream stream)
{
    int error = pool_usable(pool);
    if (!error && pool->config.provider == CENOTE_GUARD)
        error = error_set(CENOTE_NOT_SUPPORTED, 0, "with provider guard each block has memory of its own");
    if (error || (error = reserve(pool, bytes, 0, stream)))
        return error;
    return pool->config.provider == CENOTE_VMM ? reserve(pool, bytes / SMALL_PART, HEAP_OF_SMALL, stream) : CENOTE_OK;
}

/* ----------------------------------------------------------------------------------------------------------- giving */

/* The block is freed: no call finds it any more under this address. LOCKING: the pool's lock. */
static void share_end(cenote_pool *pool, uint64_t block)
{
    uint32_t number = index_remove(&pool->exports.by_block, block);
    if (number)
        table_give(&pool->exports.table, number);
}

/*
 * The block is not live any more. Its uses, for pending_record; 0: it has none, and is free. LOCKING: the pool's lock.
 */
uint32_t alloc_end_block(cenote_pool *pool, const struct block_ref *w)
{
    count_free(pool, w);
    record_given(pool, w);
    tick freed = fences_stamp(&pool->clock.fences);
    w->arena->horizon.stream->freed = freed;
    if (pool->exports.by_block.count)
        share_end(pool, w->start);
    if (pool->lent.by_block.count)
        index_remove(&pool->lent.by_block, w->start);
    if (pool->words.by_block.count)
        words_end(&pool->words, w->start);
    uint32_t uses = *w->uses ? pending_detach(pool, w, freed) : 0;
    if (!uses)
        place_give(pool, w, freed);
    return uses;
}

/*
 * The pool's blocks are watched: `watching` comes before the pool's lock, so the block is looked for again. *watched:
 * `watching` of the pool that is returned. LOCKING: the pool's lock, let go of meanwhile.
 */
static __attribute__((noinline)) cenote_pool *lock_watched(cenote_pool *pool, void *address, struct block_ref *w,
                                                           bool *watched)
{
    while (pool && !*watched && watch_hears(pool, CENOTE_ENDED)) {
        cenote_pool *was = pool;
        lock_give(&was->lock);
        lock_take(&was->watching);
        *w = (struct block_ref){0};
        pool = locate_lock(address, w);
        if (!(*watched = pool == was))
            lock_give(&was->watching);
    }
    return pool;
}

static int free_block(void *address, bool sized, size_t bytes)
{
    struct block_ref w = {0};
    bool watched = false;
    if (!address && sized && bytes)
        return error_set(CENOTE_WRONG_SIZE, 0,
                         "NULL was given for a request of no bytes, not of %zu: give that size, or call cenote_free",
                         bytes);
    if (!address)
        return CENOTE_OK;
    if (pool_refuses()) /* at exit a free is bookkeeping and goes on */
        return pool_process_usable();
    cenote_pool *pool = locate_lock(address, &w);
    if (pool && watch_hears(pool, CENOTE_ENDED))
        pool = lock_watched(pool, address, &w, &watched);
    enum lookup found = pool ? locate_at(pool, (uint64_t)(uintptr_t)address, &w) : FOUND_NOTHING;
    if (found != FOUND_LIVE || (sized && w.requested != bytes)) {
        if (pool)
            lock_give(&pool->lock);
        if (watched)
            lock_give(&pool->watching);
        if (found != FOUND_LIVE)
            return locate_misuse(found, address, &w, 0);
        return error_set(CENOTE_WRONG_SIZE, 0,
                         "the block at %p was asked for with %llu bytes, not %zu: give that size, or call cenote_free",
                         address, (unsigned long long)w.requested, bytes);
    }
    uint32_t uses = alloc_end_block(pool, &w);
    struct sleep_copy *gone = pages_take_copies(&pool->store.pages);
    lock_give(&pool->lock);
    if (watched)
        watch_tell_ended(pool, w.start, w.requested);
    if (uses)
        pending_record(pool, uses);
    if (__builtin_expect(gone != NULL, 0))
        pages_unmap_copies(gone);
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

/* ----------------------------------------------------------------------------------------------- questions, and use */

/*
 * Has the pool met the stream as one of that device? NULL: its own. A
 * handle that the next stream has is not found: its lane has ended.
 * LOCKING: none.
 */
static bool is_known(cenote_pool *pool, uint64_t key, struct device *other)
{
    if (pool_take_lock(pool))
        return false;
    bool known = lane_find(&pool->clock, key, other) != 0;
    lock_give(&pool->lock);
    return known;
}

/* The key of a stream, and whose it is, as stream_device. LOCKING: none, and not inside. */
static int find_stream(cenote_pool *pool, int device, CUstream stream, uint64_t *key, struct device **other)
{
    *other = NULL;
    int error = device >= 0 ? stream_key_on(pool, device, stream, key, other) : stream_key(pool, stream, key);
    if (!error)
        meet_stream(pool, *key, stream);
    if (error || is_known(pool, *key, *other))
        return error;
    return device >= 0 ? stream_check_named(pool, stream, *key, *other) : stream_device(pool, stream, *key, other);
}

/*
 * Blocks wait for a stream of another device, which is named: the lane is
 * held, and this thread a user of the pool. LOCKING: none; not inside.
 */
static void name_there(cenote_pool *pool, uint32_t lane, CUstream stream)
{
    peer_uses_name(&pool->clock, lane, stream);
    lock_take(&pool->lock);
    pool->life.users--;
    lock_give(&pool->lock);
}

/* `device`: the device of the stream; -1: the program did not say. *key: of the stream, unless there is an error. */
static int use_block(void *block, int device, CUstream stream, uint64_t *key)
{
    struct block_ref w = {0};
    struct device *other;
    *key = 0;
    if (!block)
        return CENOTE_OK;
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = locate_lock(block, &w);
    if (!pool)
        return locate_misuse(FOUND_NOTHING, block, &w, 0);
    lock_give(&pool->lock); /* the driver may have to be asked for the key */
    int error = pool_usable(pool);
    if (error || (error = find_stream(pool, device, stream, key, &other)))
        return error;
    cenote_pool *still = locate_lock(block, &w);
    enum lookup found = still == pool ? locate_at(pool, (uint64_t)(uintptr_t)block, &w) : FOUND_NOTHING;
    bool noted = found == FOUND_LIVE && pending_note_use(pool, &w, stream, *key, other);
    uint32_t lanes[2] = {noted ? lane_find(&pool->clock, *key, other) : 0,
                         noted ? lane_when_captured(&pool->clock, *key, stream, other) : 0};
    bool owed = !other && (lane_waits_for_call(&pool->clock, lanes[0]) || lane_waits_for_call(&pool->clock, lanes[1])),
         owed_there[2];
    if (noted)
        record_used(pool, &w, *key);
    for (int i = 0; i < 2; i++)
        /* another thread may free the block, and the last use of its lane with it: so the lane is held */
        if ((owed_there[i] = other && peer_uses_are_owed(&pool->clock, lanes[i]))) {
            lane_hold(&pool->clock, lanes[i]);
            pool->life.users++;
        }
    if (still)
        lock_give(&still->lock);
    for (int i = 0; i < 2; i++)
        if (owed_there[i])
            name_there(pool, lanes[i], stream);
    if (owed) {
        struct lanes_call outer = lanes_call_names(*key, stream);
        pending_poll_some(pool);
        lanes_call_ends(outer);
    }
    return found != FOUND_LIVE ? locate_misuse(found, block, &w, 0) : noted ? CENOTE_OK : no_books();
}

int cenote_use(void *block, cenote_stream stream)
{
    uint64_t key;
    return use_block(block, -1, stream, &key);
}

int cenote_use_on_device(void *block, int device, cenote_stream stream)
{
    uint64_t key;
    if (device < 0)
        return error_set(CENOTE_NO_DEVICE, 0, "device %d does not exist", device);
    return use_block(block, device, stream, &key);
}

/*
 * Once the process exits or the context is lost no work runs any more: there is nothing to wait for, and the free goes
 * on. The stream is alive until this returns, and so has its event at the free also if it is not immortal and captures
 * are not announced.
 */
int cenote_free_on(void *block, cenote_stream stream)
{
    uint64_t key;
    int error = use_block(block, -1, stream, &key);
    /* the context of its device is lost, not that of the pool: that would be CENOTE_DEVICE_LOST */
    bool stream_is_lost = error == CENOTE_DRIVER && driver_result_is_sticky((CUresult)cenote_driver_result());
    bool is_over = error == CENOTE_EXITING || error == CENOTE_DEVICE_LOST || stream_is_lost;
    if (error && !is_over)
        return error;
    if (error || !block)
        return free_block(block, false, 0);
    struct lanes_call outer = lanes_call_names(key, stream);
    error = free_block(block, false, 0);
    lanes_call_ends(outer);
    return error;
}
