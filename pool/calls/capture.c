/*
 * capture.c: groups, and the captures that draw from them (rules 4 and 5).
 *
 * A private group's arenas are fixed: what is mapped in them stays mapped and its pages never leave, because a replay
 * of a graph writes to the old addresses at any time. While an announced capture is open on the device no memory in use
 * is unmapped or released, and no fence is recorded, queried or waited for: `captures` of the card says so to every
 * pool of the device, and cenote_capture_begin returns only when every thread that may have looked before has left the
 * device, or has opened its gate (turn_pause) and will look again.
 *
 * What harms no capture is done also then: a stream that ends has its event recorded and queried (lane_ends.c), replays
 * are covered, a page is created and released to learn what the driver has (attempt_has_more), and mappings that were
 * never used go if a fill fails (undo_maps).
 *
 *     cenote_group_create          cenote_group_destroy             last block freed: its arenas are others' (idle.c)
 *    ---------------------> in use ----------------------> destroyed -------------------------------------------> gone
 *                            | ^
 *              capture_begin v | capture_end
 *                         capturing
 *
 * LOCKING: groups, captures and pins are guarded by the pool's lock. A group
 * ends with the turn as well, so that no page is on its way into it.
 */
#include <string.h>

#include "pool/arenas/idle.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/look.h"
#include "pool/calls/alloc.h"
#include "pool/calls/streams.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/mapping/peer_access.h"

#define GROUP_FLAGS (CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND | CENOTE_GROUP_WHOLE | CENOTE_GROUP_PLAIN)
#define GROUP_FLAGS_NAMES "CENOTE_GROUP_PRIVATE, _LEND, _WHOLE and _PLAIN"

/* A thread that waited for a lock looks again: another thread may have destroyed the group meanwhile. */
static int check_not_destroyed(const cenote_group *group)
{
    return group->destroyed ?
           error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed: no call may name it any more", group->name) :
           CENOTE_OK;
}

static int check_group(const cenote_group *group)
{
    if (!group)
        return error_set(CENOTE_INVALID, 0, "the group is NULL: cenote_group_create gives one");
    int error = pool_usable(group->pool);
    return error ? error : check_not_destroyed(group);
}

int group_find_pool(const cenote_group *group, cenote_pool **pool)
{
    int error = group ? check_group(group) : pool_usable(*pool);
    if (error || !group)
        return error;
    if (*pool && *pool != group->pool)
        return error_set(CENOTE_INVALID, 0, "group \"%s\" is of another pool: give its own, or NULL", group->name);
    *pool = group->pool;
    return CENOTE_OK;
}

/* ----------------------------------------------------------------------------------------------------------- groups */

/*
 * Its memory will be that of cuMemAlloc. Private groups of an async pool always: inside a capture an async segment
 * would become a node of the graph. Of a pool that is plain as a whole no group is another kind; guard has memory of
 * its own for each block.
 */
static bool will_be_plain(const cenote_pool *pool, unsigned flags)
{
    bool is_private = flags & CENOTE_GROUP_PRIVATE, by_option = pool->config.options.graphs == CENOTE_GRAPHS_PLAIN;
    switch ((enum cenote_provider)pool->config.provider) {
    case CENOTE_VMM:
        return flags & CENOTE_GROUP_PLAIN || (is_private && by_option);
    case CENOTE_ASYNC:
        return flags & CENOTE_GROUP_PLAIN || is_private;
    default:
        return false;
    }
}

/* A group of the pool will be. LOCKING: none held. */
static int begin_plain(cenote_pool *pool)
{
    int error = pool_take_lock(pool);
    if (error)
        return error;
    pool->groups.has_plain = true;
    lock_give(&pool->lock);
    return peer_access_open_contexts(pool);
}

static int check_new(unsigned flags, const cenote_source *source, cenote_group *const *group)
{
    if (!group)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the group: the last argument is NULL");
    if (source && (!source->take || !source->give))
        return error_set(CENOTE_INVALID, 0, "a source needs both take and give");
    if (source && flags & CENOTE_GROUP_PLAIN)
        return error_set(
            CENOTE_INVALID, 0,
            "a group gets its memory from a source or, with CENOTE_GROUP_PLAIN, from cuMemAlloc: not from both");
    return flags & ~GROUP_FLAGS ? error_set(CENOTE_INVALID, 0, "flags %#x: only " GROUP_FLAGS_NAMES " are known", flags)
           : CENOTE_OK;
}

int(cenote_group_create)(cenote_pool *pool, const char *name, unsigned flags, const cenote_source *given,
                         cenote_group **group, size_t size)
{
    cenote_source source = {0};
    int error = pool_usable(pool);
    if (error || (given && (error = sized_in(&source, sizeof source, given, size, "cenote_source"))))
        return error;
    bool plain = will_be_plain(pool, flags);
    if ((error = check_new(flags, given ? &source : NULL, group)) || (plain && !given && (error = begin_plain(pool))))
        return error;
    if ((error = pool_take_lock(pool)))
        return error;
    uint32_t number = table_take(&pool->groups.table);
    if (number) {
        cenote_group *g = group_of(pool, number);
        *g = (cenote_group){.pool = pool, .number = number, .flags = flags};
        strncpy(g->name, name ? name : "unnamed", sizeof g->name - 1);
        g->has_source = given != NULL;
        g->is_plain = plain;
        pool->groups.has_sources |= given != NULL;
        g->source = source;
        *group = g;
    }
    lock_give(&pool->lock);
    if (number)
        return CENOTE_OK;
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for a group");
}

/* LOCKING: the pool's lock, or none: then it is a hint. */
static int check_change(const cenote_group *group, unsigned flags)
{
    unsigned changed = flags ^ group->flags;
    if (flags & ~GROUP_FLAGS)
        return error_set(CENOTE_INVALID, 0, "group \"%s\", flags %#x: only " GROUP_FLAGS_NAMES " are known",
                         group->name, flags);
    if (changed & CENOTE_GROUP_PRIVATE)
        return error_set(
            CENOTE_INVALID, 0,
            "group \"%s\" cannot begin or cease to be private: give CENOTE_GROUP_PRIVATE when it is created",
            group->name);
    if (changed & CENOTE_GROUP_PLAIN && (group->arenas || group->has_source))
        return error_set(
            CENOTE_INVALID, 0,
            "group \"%s\" has memory, or a source of it: CENOTE_GROUP_PLAIN comes before the first allocation",
            group->name);
    return check_not_destroyed(group);
}

int cenote_group_set_flags(cenote_group *group, unsigned flags)
{
    int error = check_group(group);
    if (error || (error = check_change(group, flags)))
        return error;
    bool plain = will_be_plain(group->pool, flags);
    if (plain && !group->is_plain && (error = begin_plain(group->pool)))
        return error;
    if ((error = pool_take_lock(group->pool)))
        return error;
    error = check_change(group, flags);
    if (!error) {
        group->flags = flags;
        group->is_plain = plain;
    }
    lock_give(&group->pool->lock);
    return error;
}

/*
 * A page of the arena becomes ordinary, unused since now: a replay may have been the last to touch it, and no call said
 * so. A slot may also be an old alias of a page that has gone to another arena since: that one is not ours to release.
 */
static void release_slot(cenote_pool *pool, struct region *r, uint32_t slot, tick now)
{
    struct page *p = page_of(&pool->store.pages, r->page[slot]);
    r->freed[slot] = now;
    if (r->page[slot] && p->arena == r->arena) {
        p->fixed = false;
        p->freed = now;
        pages_forget_asleep(&pool->store.pages, r->page[slot]);
    }
}

/*
 * An arena of a private group becomes an ordinary one. A fence that
 * begins from now on covers every replay. LOCKING: the pool's lock.
 */
static void release_arena(cenote_pool *pool, struct arena *a, tick now)
{
    for (uint32_t region = a->heap.regions; region; region = region_of(&pool->store.pages, region)->next) {
        struct region *r = region_of(&pool->store.pages, region);
        /* beyond the top no page ever was */
        for (uint32_t slot = 0; slot < r->slots && region_slot_at(r, slot) < r->top; slot++)
            release_slot(pool, r, slot, now);
    }
    a->last_return_tick = now;
    a->is_private = false;
    lane_release(&pool->clock, &a->horizon, now);
    heap_fix(&a->heap, false);
}

#define WORK_OF_END 20u /* of one arena, see look.c */

/* It ended already, but is of the group as long as it has blocks, or something to give back to the group's source. */
static bool has_ended(const cenote_pool *pool, const struct arena *a)
{
    return a->retired && !a->is_private && (a->blocks || a->slow_path_users || a->queue == &pool->streams.orphans);
}

/*
 * Its arenas end one by one, in portions. Until all have it counts as one
 * of them itself, so that its number is not another group's before.
 * LOCKING: the turn, and the pool's lock.
 */
static void end_group(struct look *look, cenote_group *group)
{
    cenote_pool *pool = look->pool;
    bool is_private = group->flags & CENOTE_GROUP_PRIVATE;
    tick now = is_private ? fences_stamp(&pool->clock.fences) : 0;
    if (is_private)
        lanes_note_replays(&pool->clock);
    group->destroyed = true;
    group->arenas++;
    for (uint32_t next = group->first_arena; next;) {
        struct arena *a = arena_of(pool, next);
        next = a->next_of_group;
        bool ended = has_ended(pool, a);
        if (a->is_private)
            release_arena(pool, a, now);
        if (!ended)
            idle_end(pool, a);
        if (look_goes_on(look, WORK_OF_END))
            continue;
        now = is_private ? fences_stamp(&pool->clock.fences) : 0; /* blocks of arenas to come may have been freed */
        if (next && arena_of(pool, next)->group != group->number)
            next = group->first_arena;
    }
    if (--group->arenas == 0)
        idle_forget_group(pool, group);
}

/* What the device is done with by now may serve the capture; while it is open no thread can ask any more. */
static int look_once_more(cenote_pool *pool)
{
    int error = turn_begin(pool);
    if (error)
        return error;
    CUresult result = events_poll(&pool->clock, UINT64_MAX);
    if (!result)
        pending_poll(pool);
    turn_end(pool);
    return result ? pool_driver_error(pool, result, "looking at the device") : CENOTE_OK;
}

/*
 * The replays of this thread, on its own default stream. The pool may have ended meanwhile, and be another one.
 * LOCKING: none; not inside.
 */
static void cover_replays(cenote_pool *pool)
{
    lock_take(&pool->lock);
    bool awaited = pool->life.open && events_await_replays(&pool->clock);
    lock_give(&pool->lock);
    if (!awaited || turn_begin(pool))
        return;
    events_cover_replays(&pool->clock);
    turn_end(pool);
}

/* LOCKING: the turn. */
static int destroy_group(cenote_pool *pool, cenote_group *group)
{
    struct look look;
    look_begin_held(&look, pool);
    int error = check_not_destroyed(group);
    if (!error && group->captures)
        error = error_set(CENOTE_CAPTURE, 0, "a capture is open on group \"%s\": cenote_capture_end comes first",
                          group->name);
    if (!error)
        end_group(&look, group);
    struct sleep_copy *gone = pages_take_copies(&pool->store.pages); /* of free pages that slept for its graphs */
    look_end(&look);
    pages_unmap_copies(gone);
    return error;
}

int cenote_group_destroy(cenote_group *group)
{
    int error = check_group(group);
    if (error)
        return error;
    cenote_pool *pool = group->pool;
    if ((error = turn_take(pool))) /* with it no page is on its way into the group */
        return error;
    error = destroy_group(pool, group);
    lock_give(&pool->turn);
    if (!error)
        cover_replays(pool);
    return error;
}

/* --------------------------------------------------------------------------------------------------------- captures */

static struct capture *find_capture(cenote_pool *pool, uint64_t stream)
{
    for (uint32_t i = 0; i < pool->groups.capture_count; i++)
        if (pool->groups.captures[i].stream == stream)
            return &pool->groups.captures[i];
    return NULL;
}

/* The group is NULL if the capture takes no memory. */
static int begin_capture(cenote_pool *pool, cenote_group *group, CUstream stream)
{
    uint64_t key;
    if (!stream || stream == CU_STREAM_LEGACY)
        return error_set(
            CENOTE_INVALID, 0,
            "CUDA does not capture the legacy default stream: capture a created one, or the per-thread one");
    int error = stream_key(pool, stream, &key);
    if (error || (error = stream_check_own(pool, stream, key)))
        return error;
    struct lanes_call outer = lanes_call_names(key, stream);
    error = look_once_more(pool);
    lanes_call_ends(outer);
    if (error)
        return error;
    lock_take(&pool->lock);
    error = group ? check_not_destroyed(group) : pool_usable(pool);
    const struct capture *open = find_capture(pool, key);
    bool room = !error && !open && pool->groups.capture_count < CAPTURES_MAX;
    if (room) {
        pool->groups.captures[pool->groups.capture_count++] = (struct capture){group ? group->number : 0, key, stream};
        if (group)
            group->captures++;
        pool->life.users++; /* until it is announced nothing else bars the end of the pool */
    }
    lock_give(&pool->lock);
    if (!room)
        return error ? error :
               open  ? error_set(CENOTE_CAPTURE, 0,
                                 "a capture is open on this stream already: cenote_capture_end comes first") :
                       error_set(CENOTE_CAPTURE, 0, "more than %d captures are open", CAPTURES_MAX);
    device_announce_capture(pool->config.device);
    lock_take(&pool->lock);
    pool->life.users--;
    lock_give(&pool->lock);
    return CENOTE_OK;
}

int cenote_capture_begin(cenote_pool *pool, cenote_group *group, cenote_stream stream)
{
    int error = group_find_pool(group, &pool);
    if (error)
        return error;
    if (group && !(group->flags & CENOTE_GROUP_PRIVATE))
        return error_set(CENOTE_INVALID, 0, "group \"%s\" is not private: a graph needs memory that stays where it is",
                         group->name);
    return begin_capture(pool, group, stream);
}

/*
 * The capture that this handle began: for a driver that does not identify streams any more, because the context is
 * lost, or has ended, after which another stream may have the handle, and for a capture that was announced after it had
 * begun, when the driver could not be asked.
 */
static struct capture *find_capture_of_handle(cenote_pool *pool, CUstream handle)
{
    for (uint32_t i = 0; i < pool->groups.capture_count; i++)
        if (pool->groups.captures[i].handle == handle)
            return &pool->groups.captures[i];
    return NULL;
}

/* False: none of this group is open on the stream. */
static bool end_capture(cenote_pool *pool, cenote_group *group, CUstream stream)
{
    uint64_t key;
    bool known =
        stream_key(pool, stream, &key) == CENOTE_OK && device_lives(pool->config.device, pool->config.generation);
    lock_take(&pool->lock);
    struct capture *open = known ? find_capture(pool, key) : NULL, *same = find_capture_of_handle(pool, stream);
    if (!open && same && (!known || key_is_captured(same->stream)))
        open = same;
    bool matches = open && open->group == (group ? group->number : 0);
    if (matches) {
        *open = pool->groups.captures[--pool->groups.capture_count];
        if (group)
            group->captures--;
        device_end_capture(pool->config.device);
    }
    lock_give(&pool->lock);
    if (matches)
        cover_replays(pool);
    return matches;
}

int cenote_capture_end(cenote_pool *pool, cenote_group *group, cenote_stream stream)
{
    int error = group_find_pool(group, &pool);
    if (error || end_capture(pool, group, stream))
        return error;
    return error_set(CENOTE_CAPTURE, 0,
                     "no capture of %s is open on this stream: end it with the group and stream it was begun with",
                     group ? group->name : "no group");
}

/* ------------------------------------------------------------------------------------------------------------- pins */

static int change_pins(void *address, size_t bytes, int by)
{
    uint64_t at = (uint64_t)(uintptr_t)address;
    struct block_ref w = {0};
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = locate_lock(address, &w);
    struct region *r = w.region;
    if (!pool || !bytes || at + bytes < at || at + bytes > region_end(r)) {
        if (pool)
            lock_give(&pool->lock);
        return error_set(CENOTE_NOT_OURS, 0,
                         "%zu bytes at %p are not within memory of one pool: name what lies in live blocks", bytes,
                         address);
    }
    struct slots under = slots_under(r, at, bytes);
    bool valid = true, full = false;
    for (uint32_t slot = under.from; valid && slot < under.to; slot += region_span(r, slot)) {
        const struct page *p = page_of(&pool->store.pages, r->page[slot]);
        valid = r->page[slot] && !bit_is_set(r->transit, slot) && !p->leaving && (by > 0 || r->pins[slot]);
        full = full || (by > 0 && p->pins == UINT32_MAX); /* it counts those of all its slots */
    }
    for (uint32_t slot = under.from; valid && !full && slot < under.to; slot += region_span(r, slot)) {
        r->pins[slot] += (uint32_t)by;
        page_of(&pool->store.pages, r->page[slot])->pins += (uint32_t)by;
        pool->groups.pins += (uint64_t)(int64_t)by;
    }
    lock_give(&pool->lock);
    if (valid && full)
        return error_set(CENOTE_INVALID, 0,
                         "memory at %p has %u pins, the most that are counted: unpin what is not needed any more",
                         address, UINT32_MAX);
    return valid ? CENOTE_OK
                 : error_set(CENOTE_INVALID, 0,
                             by > 0 ? "%zu bytes at %p are not all mapped: pin live blocks"
                                    : "%zu bytes at %p are not all pinned: unpin what was pinned, once for each pin",
                             bytes, address);
}

int cenote_pin(void *address, size_t bytes)
{
    return change_pins(address, bytes, 1);
}

int cenote_unpin(void *address, size_t bytes)
{
    return change_pins(address, bytes, -1);
}
