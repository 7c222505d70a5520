/*
 * pool.h: everything a pool owns, in one structure of parts: the object graph of the library. See library.c.
 *
 * The header of the files that own a part declares it, and says its lock and its states; tools/check/parts.txt says which other files may touch
 * it. Files that own no part, and functions that need the whole pool, have their declarations here.
 *
 *     cenote_pool
 *       +-- config            its device, its options
 *       +-- store             physical pages, regions, fences; arenas, one for each (group, stream); blocks by address
 *       +-- streams, groups   whose arena; arena families of their own
 *       +-- pending, events   freed blocks that wait for other streams, and what they wait for
 *       +-- remap             the change of mappings that is under way
 *       +-- account, steps    what is counted
 *       +-- policy            when memory goes back
 */
#ifndef CENOTE_POOL_POOL_H
#define CENOTE_POOL_POOL_H

#include "base/sized.h"
#include "pool/access.h"
#include "pool/callback.h"
#include "pool/groups.h"
#include "pool/guard.h"
#include "pool/lanes.h"
#include "pool/life.h"
#include "pool/pending.h"
#include "pool/policy/policy.h"
#include "pool/remap.h"
#include "pool/spare_events.h"
#include "pool/store.h"
#include "pool/streams.h"
#include "share/exports.h"
#include "stats/account/account.h"
#include "stats/account/label.h"
#include "stats/report/report.h"

/*
 * The order is by use. Locks come first and then what a structure keeps when a new pool takes it over (pools_take_structure). After these comes
 * what the fast path of cenote_alloc and cenote_free touches, from `life` to `streams`; a part with a large array has it last. The rest is
 * seldom touched.
 */
struct cenote_pool {
    struct lock      lock;          /* guards every part, unless the part says otherwise */
    struct lock      turn;          /* held by the one thread that changes mappings */
    struct lock      watching;      /* held while the watch function runs */
    struct pool_list list;
    struct groups    groups;        /* its table is the last that is kept */

    struct life      life;
    struct config    config;
    struct store     store;
    struct pending   pending;
    struct exports   exports;
    struct recorder  recorder;
    struct account   account;
    struct steps     steps;
    struct streams   streams;

    struct limits    limits;
    struct remap     remap;
    struct lanes     lanes;
    struct events    events;
    struct access    access;
    struct ask       ask;
    struct watch     watch;
    struct policy    policy;
    struct report    report;
    struct guard     guard;         /* provider guard */
};

static inline struct arena *arena_of(const cenote_pool *pool, uint32_t arena) { return TABLE_AT(struct arena, &pool->store.arenas, arena); }
static inline cenote_group *group_of(const cenote_pool *pool, uint32_t group) { return TABLE_AT(cenote_group, &pool->groups.table, group); }
static inline struct use   *use_of(const cenote_pool *pool, uint32_t use) { return TABLE_AT(struct use, &pool->pending.uses, use); }
static inline struct lane  *lane_of(const cenote_pool *pool, uint32_t lane) { return TABLE_AT(struct lane, &pool->lanes.table, lane); }

/* The arena freed something then. Once fences are on streams its lane knows that, too (invariant 26). LOCKING: the pool's lock. */
static inline void lane_note_free(const cenote_pool *pool, const struct arena *a, tick freed)
{
    if (__builtin_expect(pool->store.pages.fences.stream_done != NULL, 0) && lane_of(pool, a->lane)->last_free_tick < freed)
        lane_of(pool, a->lane)->last_free_tick = freed;
}

/*
 * The first use of its lane from this one on whose event covers this one: its block was freed later, and the event was recorded after that. An event
 * of a use that was freed earlier may be older than the work that this one waits for. 0: none has such an event.
 */
static inline uint32_t use_covering(const cenote_pool *pool, uint32_t use)
{
    tick freed = use_of(pool, use)->freed;
    if (lane_of(pool, use_of(pool, use)->lane)->has_events < freed) /* or it would be looked for among tens of thousands */
        return 0;
    while (use && (!use_of(pool, use)->event || use_of(pool, use)->freed < freed))
        use = use_of(pool, use)->next_in_lane;
    return use;
}

/* The use has an event from now on. LOCKING: the pool's lock. */
static inline void use_got_event(const cenote_pool *pool, const struct use *u)
{
    struct lane *lane = lane_of(pool, u->lane);
    lane->has_events = lane->has_events > u->freed ? lane->has_events : u->freed;
}

/* The use of the lane that was freed last, or this one, the first, if that was later: an event on it covers both. */
static inline uint32_t use_to_cover(const cenote_pool *pool, const struct lane *lane, uint32_t use)
{
    return use_of(pool, lane->last)->freed < use_of(pool, use)->freed ? use : lane->last;
}

/* LOCKING: the pool's lock. */
static inline void uses_are_done(const cenote_pool *pool, struct lane *lane, uint32_t covering)
{
    tick freed = use_of(pool, covering)->freed;
    lane->uses_done = lane->uses_done > freed ? lane->uses_done : freed;
}

/* --- place.c */
struct requester pool_requester(const cenote_pool *pool, const struct arena *a);

/* --- look.c: a long look at the pool. LOCKING: the pool's lock, which both begins take. An error: the pool has ended */
struct look {
    cenote_pool *pool;
    uint32_t     work;              /* done since the lock was taken or offered, in units of some 100 ns */
    bool         is_apart;          /* other threads had the lock meanwhile: what was seen is not one moment's */
    bool         is_held;
    bool         is_over;           /* the pool was destroyed meanwhile: nothing may be looked at any more */
    void       (*after_pause)(struct look *look); /* unless NULL: called with the lock, before the look goes on */
};
#define PORTION 500u                /* chosen: a hold of 50 us, of the 200 that none may be longer than */
int  look_begin(struct look *look, cenote_pool *pool);
void look_begin_held(struct look *look, cenote_pool *pool);    /* by a thread that has the turn, or ends the pool */
int  look_end(struct look *look);    /* an error: is_over, and what was seen is no answer */
bool look_pause(struct look *look);

/* So much was done. False: threads that waited for the lock had it, and all may have changed, but for tables and numbers. */
static inline bool look_goes_on(struct look *look, uint32_t work)
{
    look->work += work;
    return look->work < lock_portion(PORTION) || look_pause(look);
}

/* --- pieces.c, rows.c, stats/account/rows.c, stats/account/steps.c */
struct arena_sums {
    uint64_t *of_arena;             /* bytes of physical memory that lie in each arena, by its number */
    uint32_t  arenas;               /* room; later ones are not told of */
};
bool     pieces_sums_open(struct arena_sums *sums, cenote_pool *pool);
void     pieces_sums_close(struct arena_sums *sums);
void     pieces_sum(struct look *look, struct arena_sums *sums);
static inline uint64_t sum_of_arena(const struct arena_sums *sums, uint32_t arena) { return arena < sums->arenas ? sums->of_arena[arena] : 0; }
bool rows_reserve(cenote_pool *pool, uint64_t mark);
struct row rows_all(const cenote_pool *pool);
void rows_reset(struct look *look, bool peaks);
const char *rows_broken_rule(struct look *look);
void steps_note(cenote_pool *pool, uint64_t now);

/* --- the answers to cenote_pool_pieces, cenote_pool_rows, cenote_pool_steps, cenote_pool_stats. LOCKING: the pool's lock */
void pieces_draw(struct look *look, const cenote_group *group, struct sized_list *list);
void rows_list(struct look *look, enum cenote_division division, const struct arena_sums *sums, struct sized_list *list);
void steps_list(const cenote_pool *pool, struct sized_list *list);
struct report_sums {                /* over all regions */
    struct pages_sums pages;
    uint64_t address_used, metadata;
};
struct report_sums report_sum(struct look *look);
cenote_stats report_stats(const cenote_pool *pool, const struct report_sums *sums);

/* --- turn.c, events.c, wait.c: the turn, fences and the driver */
void     events_close(cenote_pool *pool);
int      turn_take(cenote_pool *pool);
bool     turn_try(cenote_pool *pool);
int      turn_begin(cenote_pool *pool);
void     turn_end(cenote_pool *pool);
void     turn_leave(cenote_pool *pool);
CUresult turn_resume(cenote_pool *pool);
CUresult turn_let_go(cenote_pool *pool, CUresult (*wait)(struct device *device, bool *whole), bool *whole);
CUresult events_query(cenote_pool *pool, tick needed);
static inline bool pool_is_capturing(const cenote_pool *pool)
{
    const struct device *d = pool->config.device;
    return device_is_captured(d) && (!pool->life.ending || device_bars_end(d)); /* of a pool that ends nothing waits for captures elsewhere */
}
void     turn_pause(cenote_pool *pool);
void     turn_go_on(cenote_pool *pool);
bool     turn_go_over(const cenote_pool *pool, cenote_pool *other);
void     turn_come_back(const cenote_pool *pool, cenote_pool *other);
CUresult events_poll(cenote_pool *pool, tick needed);
void     events_all_done(cenote_pool *pool, tick covers);
CUresult events_fence(cenote_pool *pool, tick needed);
int      events_become_careful(cenote_pool *pool);

/* --- lanes.c. LOCKING: as said there */
struct lanes_call {                 /* what a call of the API names: inside it, a function of the program may make others */
    uint64_t key;
    CUstream stream;
    bool     names;
};
struct lanes_call lanes_call_names(uint64_t key, CUstream stream);
void     lanes_call_ends(struct lanes_call outer);
static inline bool lane_is_over(const struct lane *lane) /* with its context, of another device: what is left of it is never named to the driver */
{
    return lane->other && !device_is(lane->other, lane->generation);
}
uint32_t lane_find(const cenote_pool *pool, uint64_t key, const struct device *other);
uint32_t lane_for(cenote_pool *pool, CUstream stream, uint64_t key, struct device *other);
uint32_t lane_find_anywhere(const cenote_pool *pool, uint64_t key);
static inline bool lanes_have_captured(const cenote_pool *pool)
{
    return __builtin_expect(atomic_load_explicit(&pool->lanes.captured, memory_order_relaxed) != 0, 0);
}
void     lanes_expect_captured(uint64_t newest_stream, uint64_t of_capture);
uint32_t lane_when_captured(const cenote_pool *pool, uint64_t key, CUstream stream, const struct device *other);
void     lane_hold(cenote_pool *pool, uint32_t lane);
void     lane_drop(cenote_pool *pool, uint32_t lane);
void     lane_join(cenote_pool *pool, struct arena *a, uint32_t lane);
void     lane_put_last(cenote_pool *pool, struct arena *a);
void     lane_leave(cenote_pool *pool, struct arena *a);
bool     lane_may_be_touched(cenote_pool *pool, const struct lane *lane);
bool     lane_is_owed(const cenote_pool *pool, uint32_t lane);
bool     lane_knows_last_free(const cenote_pool *pool, const struct arena *a);
bool     lanes_begin(cenote_pool *pool);
void     lane_release(cenote_pool *pool, struct arena *a, tick now);
void     lanes_look_at_released(cenote_pool *pool);
void     lanes_note_replays(cenote_pool *pool);
void     lanes_mark(cenote_pool *pool);
void     lanes_unmark(cenote_pool *pool);
bool     lanes_are_marked(const cenote_pool *pool, CUstream stream);
bool     lanes_named(uint64_t *key, CUstream *stream);
bool     lanes_can_help(cenote_pool *pool);
void     lane_set_done(cenote_pool *pool, uint32_t lane, tick covers);
void     lane_asked(cenote_pool *pool, uint32_t lane, tick covers);
void     lane_done(cenote_pool *pool, uint32_t lane, tick covers);
void     lane_not_asked(cenote_pool *pool, uint32_t lane, tick covers);
bool     lanes_are_in_flight(const cenote_pool *pool, tick limit);
bool     lanes_are_done(const cenote_pool *pool, tick limit);
void     lane_forget_key(cenote_pool *pool, struct lane *lane);
void     lanes_end_known(cenote_pool *pool);
void     lanes_all_done(cenote_pool *pool, tick covers);

/* --- lane_events.c. LOCKING: as said there */
CUresult lane_events_record(cenote_pool *pool);
CUresult lane_events_query(cenote_pool *pool);
void     lane_events_end(cenote_pool *pool, uint32_t lane, CUevent end);
void     lane_events_close(cenote_pool *pool);

/* --- spare_events.c */
CUresult event_take(cenote_pool *pool, CUevent *event);
void     event_give(cenote_pool *pool, CUevent event);
void     event_drop(cenote_pool *pool, CUevent event);
void     event_close(cenote_pool *pool);
void     event_end_on(struct device *other, CUevent event);

struct sight {                      /* what a wait looks at: memory has come back, or can be moved, when one of these has changed */
    uint64_t moved;                 /* of the fences */
    uint64_t inactive;              /* bytes that went back to their arenas so far */
};
enum awaited {                      /* what can be waited for; of several the later is waited for first */
    AWAIT_NOTHING,
    AWAIT_PEER,                     /* the whole of another device */
    AWAIT_CONTEXT,                  /* the whole context: no fence can be had */
    AWAIT_EVENTS                    /* the driver is asked again in a while */
};
bool      wait_came(cenote_pool *pool, struct sight *seen);
enum awaited wait_look(cenote_pool *pool, tick limit, CUresult *result);
bool      wait_for_rest(cenote_pool *pool, enum awaited awaited, uint32_t looks, CUresult *result);
void      wait_count(cenote_pool *pool, uint32_t looks);
bool      wait_for_progress(cenote_pool *pool, tick limit, CUresult *result);
CUresult wait_for_all(cenote_pool *pool);

/* --- siblings.c: the other pools of the device, in whichever of its contexts. LOCKING: none held, and outside the turn: before
   turn_begin, or, for siblings_poll and siblings_wait, between turn_pause and turn_go_on of a pool of that device. siblings_stir: the pool's lock */
#define SIBLINGS_MAX 16             /* chosen: that many are waited for; what more there are give back what they have at once */
struct siblings {
    uint64_t live, cached;          /* bytes of their blocks, and what they hold beside */
    uint64_t stir;                  /* see siblings_stir */
    uint32_t pools;                 /* how many there are */
    bool     unmap;                 /* the driver takes no more mappings: theirs go, too */
    uint32_t count;
    struct sibling {
        const cenote_pool *pool;
        tick         limit;         /* what it freed later is not waited for */
        struct sight seen;
        enum awaited awaited;
    } each[SIBLINGS_MAX];
};
uint64_t  siblings_stir(const cenote_pool *pool);
void      siblings_look(struct siblings *s, const cenote_pool *pool);
enum awaited siblings_poll(struct siblings *s, const cenote_pool *pool, bool *came);
bool      siblings_wait(const struct siblings *s, const cenote_pool *pool, enum awaited awaited);

/* --- explain.c */
int explain_shortage(cenote_pool *pool, uint64_t bytes);

/* --- shortage.c */
int shortage_serve(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at);

/* --- prove.c */
int  prove_pages(cenote_pool *pool);
int  prove_open_driver_pool(cenote_pool *pool);      /* provider async */

/* --- reset.c */
bool reset_addresses_are_free(uint64_t at, uint64_t bytes);
void reset_regions_are_replaced(struct region *replaced);
void reset_is_seen(cenote_pool *pool, uint64_t generation);
static inline bool pool_has_lost_context(const cenote_pool *pool) /* as the last call knows that asked */
{
    return !device_is(pool->config.device, pool->config.generation);
}

/* --- end_blocks.c */
void pool_end_blocks(cenote_pool *pool);

/* --- provider.c, grow.c */
int  grow_arena(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver);
static inline bool provider_wants_fabric(const cenote_pool *pool) { return pool->config.options.handles == CENOTE_HANDLES_FABRIC; }
static inline CUmemAllocationProp provider_page_prop(const cenote_pool *pool)
{
    return device_page_prop(pool->config.device, provider_wants_fabric(pool));
}
bool provider_moves_pages(const cenote_pool *pool, const struct arena *a);
bool provider_is_plain(const cenote_pool *pool, const struct arena *a);
bool provider_guards(const cenote_pool *pool, const struct arena *a);
uint64_t grow_least(const cenote_pool *pool, const struct arena *a, const struct request *q);
bool provider_give_back(cenote_pool *pool, struct region *r);
bool provider_give_segment(cenote_pool *pool, struct arena *a, bool is_sourced, uint64_t at, uint64_t bytes);
const cenote_source *source_of(const cenote_pool *pool, const struct arena *a);
void provider_close_region(struct region *r);
uint64_t limits_allowance(const cenote_pool *pool);

/* --- sums.c: what is added up before a request climbs and before it waits. LOCKING: the pool's lock */
uint64_t sums_live(const cenote_pool *pool);
bool sums_are_hopeless(const cenote_pool *pool, const struct arena *a, uint64_t bytes, uint64_t live_elsewhere);
bool sums_may_lend(const cenote_pool *pool, const struct arena *from, const struct arena *to);
uint64_t sums_missing(cenote_pool *pool, const struct arena *a, uint64_t bytes);

/* --- peer_fences.c */
bool peer_fences_are_barred(const cenote_pool *pool);
CUresult peer_fences_ask(cenote_pool *pool, tick covers);
bool peer_fences_wait(cenote_pool *pool);
bool peer_fences_have_context(const struct device *other);
void peer_fences_all_done(cenote_pool *pool, int ordinal, tick covers);
bool peer_fences_know(const cenote_pool *pool, const struct device *other);
void peer_fences_begin(cenote_pool *pool, struct device *other);
void peer_fences_close(cenote_pool *pool);

/* --- peer_access.c */
int peer_access_open_contexts(cenote_pool *pool);

/* --- trim.c */
uint64_t trim_to(cenote_pool *pool, uint64_t keep, tick latest);
uint64_t trim_without_sources(cenote_pool *pool, uint64_t keep, tick latest);
uint64_t trim_other_size(cenote_pool *pool, uint32_t shift, uint64_t bytes);
uint64_t trim_segments(cenote_pool *pool);
void     trim_surplus(cenote_pool *pool);
uint64_t trim_once(cenote_pool *pool, uint64_t keep, tick latest);
void     trim_spares(cenote_pool *pool);
void     trim_orphans(cenote_pool *pool);
void     trim_flush(cenote_pool *pool);
uint64_t trim_free(cenote_pool *pool);
void     trim_group(cenote_pool *pool, const cenote_group *group);
bool     trim_slot(cenote_pool *pool, struct region *r, uint32_t slot);
bool     trim_region(cenote_pool *pool, uint32_t number);

/* --- order.c. LOCKING: the turn */
tick     order_reach(const cenote_pool *pool, const struct arena *a);
CUresult order_behind(cenote_pool *pool, struct arena *a, tick freed);

/* --- recycle.c, aliases.c. LOCKING: the turn */
bool recycle_oldest(cenote_pool *pool);
bool aliases_may_go(const cenote_pool *pool, const struct region *r, uint32_t slot);
bool aliases_drop(cenote_pool *pool);
bool aliases_drop_at(cenote_pool *pool, struct region *r, uint32_t slot);
void aliases_mend(cenote_pool *pool);
void aliases_make_room(cenote_pool *pool, uint64_t more);

#endif
