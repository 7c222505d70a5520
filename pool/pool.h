/*
 * pool.h: everything a pool owns, in one structure: the object graph of the library. See library.c.
 *
 *     cenote_pool
 *       +-- device            its driver and context
 *       +-- pages             physical pages, regions, fences
 *       +-- arenas            one for each (group, stream): slabs and a heap each
 *       +-- groups            arena families of their own
 *       +-- at                address -> block
 *       +-- pending           freed blocks that wait for other streams
 *       +-- fill              the change of mappings that is under way
 */
#ifndef CENOTE_POOL_POOL_H
#define CENOTE_POOL_POOL_H

#include "base/error.h"
#include "base/index.h"
#include "base/lock.h"
#include "base/sized.h"
#include "pool/core/addresses.h"
#include "pool/core/arena.h"
#include "pool/core/fill.h"
#include "stats/account/label.h"

#define EVENTS_MAX   4096      /* at one time; who gets none waits for a fence instead */
#define CAPTURES_MAX 64
#define IMMORTALS_MAX 1024
#define USES_MAX     (1u << 24)
#define GROUPS_MAX   (1u << 15)
#define EXPORTS_MAX  (1u << 24)
#define EXIT_PATIENCE 1000      /* in ms, chosen: so long the end of the process waits for a thread of ours. What that does takes a few */
#define SIZE_ROWS     (CLASS_COUNT + 48)  /* size classes, then one for each doubling */

/* One stream a block is used on besides its own, see pending.c. The first use of a freed block stands for it. */
struct use {
    uint32_t next;                  /* of the same block */
    uint32_t next_in_line;
    uint32_t line;                  /* of the stream */
    uint32_t first;                 /* of the same block, once that is freed */
    uint32_t left;                  /* in the first use: those of the block that are not done */
    uint64_t at;                    /* the block */
    CUevent  event;                 /* recorded at the free, until it is done; NULL: none could be */
    tick     freed;
    bool     waits;                 /* in a line */
};

/* A stream that blocks of others are used on, and the freed ones among those. */
struct line {
    uint32_t next;                  /* line with a use in it */
    uint32_t users;                 /* uses that name it: the line goes with the last one */
    uint32_t first, last;           /* uses that wait, in the order of their frees */
    bool     is_listed;             /* among the lines with a use in them */
    bool     is_mute;               /* the driver did not say when it was asked last whether the first use is done */
    CUstream stream;
    uint64_t key;                   /* of the stream, so that a reused handle is not taken for it */
    uint64_t probe;                 /* see line_key */
    struct device *other;           /* whose stream it is; NULL: the pool's own device */
};

/* For what freed blocks wait: nothing that can be waited for, another device as a whole, an event there, an event here. */
enum pending_wait { PENDING_NOTHING, PENDING_DEVICE, PENDING_EVENT_OF_PEER, PENDING_EVENT };

/* A block that other processes may ask for. */
struct export {
    uint32_t unused;                /* the table chains exports given back through it */
    uint64_t generation;            /* of the process: memory that is exported anew has another */
};

/* A stream declared immortal: its handle says who it is. Read without a lock. */
struct immortal {
    _Atomic(CUstream) handle;
    _Atomic(uint64_t) key;
    _Atomic(struct device *) other; /* whose it is; NULL: the pool's own device */
};

struct cenote_group {
    uint32_t      unused;           /* the table chains groups given back through it */
    uint32_t      number;           /* in the pool's table, 0: not in use */
    cenote_pool  *pool;
    unsigned      flags;
    bool          has_source;
    bool          destroyed;        /* its arenas go on until they are empty */
    uint32_t      captures;         /* open ones that go to it */
    uint32_t      arenas;           /* of this group */
    uint32_t      first_arena;      /* of these, through next_of_group */
    struct idle_queue idle;         /* those without a block, see idle.c */
    struct row    row;              /* its part of the allocated bytes */
    cenote_source source;
    char          name[32];
};

struct capture {
    uint32_t group;
    uint64_t stream;                /* its key */
    CUstream handle;
};

/* The last so many allocations and frees, see record.c. */
struct ring_entry;
struct ring {
    struct ring_entry *entries;     /* NULL: off */
    uint64_t room, next;            /* entries; where the next one goes */
    uint64_t kept;                  /* how many of the last are asked for: no more than there is room for */
    uint64_t written;               /* in all */
    uint64_t begun_ns;
};
static inline uint64_t ring_count(const struct ring *r) { return r->written < r->kept ? r->written : r->kept; }

#define DECAY_EPOCHS 8              /* of one decay_ms */

/* See decay.c. Guarded by the turn. */
struct decay {
    _Atomic(uint64_t) due;          /* when there is something to do again; a hint without the turn */
    struct {
        uint64_t ns;
        tick     freed;             /* of the last free before */
    } marks[DECAY_EPOCHS + 1];      /* a ring */
    uint32_t newest;
    tick     ripe;                  /* what was freed by then has been free for decay_ms */
};

#define OFTEN_LEAST 8               /* chosen: such trims in a row before one is a habit */

/* Pages given back and taken again, see churn.c. Guarded by the turn. */
struct churn {
    uint64_t given;                 /* pages that may still be taken again */
    uint64_t ns;                    /* what it cost so far */
    uint64_t create_ns, give_ns;    /* what a page cost lately */
    uint64_t asked_ns;              /* when CENOTE_TRIM_PERIODIC came last */
    uint32_t often;                 /* how many in a row */
    uint32_t marked;                /* how many in all */
    tick     marks[OFTEN_LEAST];    /* the free that each of the last saw */
    _Atomic tick deferred;              /* what was freed up to here should be gone; 0: nothing. Read without the turn */
};

#define GUARD_KEPT 4096             /* chosen: freed blocks whose addresses nobody gets yet */

/* Addresses of freed blocks, see guard.c. Guarded by the turn. */
struct guard {
    struct guard_kept {
        uint64_t base, bytes;       /* of the memory that was there; 0: none */
    } kept[GUARD_KEPT];             /* a ring */
    uint32_t next;
    struct guard_taken {
        uint64_t base, bytes;
        CUmemGenericAllocationHandle handle;
        bool     has_handle, is_mapped;
    } taken;                        /* what is being taken, or could not be given back yet */
};

/* What stands above the road of a block and is called by it. library.c has the one that pools get. */
struct pool_hooks {
    int  (*explain)(cenote_pool *pool, uint64_t bytes);             /* explain_shortage */
    bool (*decay)(cenote_pool *pool, uint64_t most);                /* decay_go */
    void (*created)(cenote_pool *pool, uint64_t creating_ns, uint64_t mapping_ns); /* churn_created */
};

struct cenote_pool {
    struct lock    lock;            /* guards everything below that is not said to be constant */
    struct lock    turn;            /* held by the one thread that changes mappings; guards `fill` */
    struct lock    watching;        /* held while the watch function runs; guards it and its argument */
    atomic_bool    attended;        /* by the background thread; changed under the lock of that */
    uint32_t       walkers;          /* threads that go through all pools and are at this one; guarded by the lock of the pools */
    struct table   groups;          /* stays mapped when the pool goes: who still has a group's handle finds out that it is gone */
    struct device *device;          /* constant; wiped with all that follows when another pool takes over the structure */
    const struct pool_hooks *hooks; /* constant */
    cenote_options options;         /* constant; limit and trim_above as they were asked for first */
    enum cenote_provider provider;  /* constant, never CENOTE_AUTO */
    bool           is_default;      /* constant */
    CUmemoryPool   driver_pool;     /* constant; provider async */
    uint64_t       opened_ns;       /* constant */
    _Atomic(struct device *) others[DEVICES_MAX]; /* other devices this pool has to do with; added under the lock of the pools */
    CUmemAccessDesc access[DEVICES_MAX]; /* who may use what is mapped, the own device first; guarded by the turn, as the next two */
    uint32_t       access_count;
    uint64_t       granted;         /* one bit for each device that cenote_pool_grant named */

    _Atomic(bool)  open;            /* false: destroyed, kept for reuse */
    _Atomic(bool)  ending;          /* a thread destroys it */
    uint32_t       climbers;        /* threads in shortage_serve */
    _Atomic(CUresult) lost;         /* first sticky error, 0: none */
    uint64_t       limit;           /* bytes, 0: none */
    bool           has_sources;     /* a group has, or had, a source of the program's: not all that is reserved is the device's memory */
    double         trim_above;      /* part of the limit or the device's memory; up to 0: off */
    struct pages   pages;
    struct table   blocks, slabs, arenas, uses, lines, exports;
    struct index   at;              /* block address -> block */
    struct index   exported;        /* block address -> export, see share/export.c */
    struct index   by_stream;       /* arena key -> arena */
    struct arena  *last_arena;      /* found last: most programs use one stream at a time */
    struct idle_queue idle;         /* arenas of no group without a block, see idle.c */
    struct idle_queue over[2];      /* those of streams and groups that are gone; [1] of private groups */
    struct idle_queue orphans;      /* those of destroyed groups whose source has to take back what they hold */
    struct {
        uint32_t      block;        /* 0: none */
        struct arena *arena;
        tick          freed;
    } last_freed;                      /* the block that was freed last, see pool_settle */
    struct immortal immortals[IMMORTALS_MAX];  /* open addressing by handle */
    struct index   line_by_key;
    uint32_t       lines_first, lines_last; /* those with a use in them, see pending.c */
    _Atomic(uint32_t) pending_count;
    tick           done_on_peers[DEVICES_MAX]; /* up to which free other devices are known to be done */
    bool           polling;         /* a thread asks the driver about pending blocks */
    struct capture captures[CAPTURES_MAX];
    uint32_t       capture_count;
    CUevent        events[EVENTS_MAX];  /* spare ones */
    uint32_t       event_count;
    uint32_t       events_made;     /* spare ones and those in use */
    struct fill    fill;

    char           user[32];        /* who takes memory from it, for explanations; "": nobody said */
    cenote_shortage_fn on_shortage;
    void          *on_shortage_arg;
    struct asking *asking;          /* calls of it that run, the latest first, see ask.c */
    uint64_t       askings;         /* calls begun */
    _Atomic(uint32_t) askings_over; /* calls ended; slept upon */
    _Atomic(cenote_watch_fn) watch; /* NULL: nobody wants to know; a hint without `watching` */
    void          *watch_arg;
    uint64_t       reserved_peak;   /* since the pool was opened: what its address space is measured against */
    uint32_t       pins;            /* slots pinned, with repetition */
    uint64_t       driver_calls_before, driver_ns_before;  /* of the process, when the totals were reset */
    uint64_t       promised;        /* bytes of segments being taken, not yet in reserved */
    tick           fence_wanted;    /* latest free of a use that waits for a fence */
    uint32_t       allocs_since_poll;        /* allocations since pending blocks were last looked after */
    uint64_t       creating_ns;     /* driver time spent on creating pages, which moving may match */
    uint64_t       moving_ns;       /* driver time spent on moving pages, against the harvest budget */
    uint64_t       steps;
    uint64_t       step_bits;       /* the steps, where a mark has them */
    uint64_t       step_peak;       /* of allocated bytes, in the step that goes on */
    cenote_step_note notes[CENOTE_STEPS_KEPT]; /* of the last steps, see steps.c */
    tick           trim_mark;       /* tick of the last periodic trim */
    struct decay   decay;
    struct churn  churn;
    struct guard   guard;           /* provider guard */
    cenote_stats   stats;           /* levels and counts; gauges are derived */
    struct ring    ring;
    uint32_t       trace_number;    /* of the file that CENOTE_TRACE asks for, 0: none */
    uint64_t       epoch;           /* of the peak of allocated bytes, see row.h */
    struct row     by_size[SIZE_ROWS];
    bool           is_labelled;     /* a block had a label: the rows below are kept. Before, all is in row 0 of each */
    struct row     by_kind[CENOTE_KINDS], by_phase[CENOTE_PHASES];
    struct table   by_tag;          /* of struct row; a tag is its place, and none is ever given back */
    bool           reusable;        /* closed for good: a new pool may take over the structure; guarded by the lock of the pools */
    cenote_pool   *next;            /* all pools of the process; guarded by the lock of the pools */
};

static inline struct arena *arena_of(const cenote_pool *pool, uint32_t arena) { return TABLE_AT(struct arena, &pool->arenas, arena); }
static inline cenote_group *group_of(const cenote_pool *pool, uint32_t group) { return TABLE_AT(cenote_group, &pool->groups, group); }
static inline struct use   *use_of(const cenote_pool *pool, uint32_t use) { return TABLE_AT(struct use, &pool->uses, use); }
static inline struct line  *line_of(const cenote_pool *pool, uint32_t line) { return TABLE_AT(struct line, &pool->lines, line); }

/*
 * A function of the program that runs on this thread, inside a call of cenote. Those of a group or pool are not called for that again before
 * they have returned; the watch function and the clock (`of` NULL) must not call cenote at all.
 */
struct callback {
    const void *of;
    const cenote_pool *pool;        /* that called it: it stays until it has returned */
    const struct callback *outer;
};
extern _Atomic(uint32_t) pool_strict_callbacks; /* watch functions and clocks that run, on all threads: mostly none */

/* --- callback.c, pools.c; pool_requester: place.c */
void callback_begin(struct callback *c, const cenote_pool *pool, const void *of);
void callback_end(void);
bool callback_runs(const void *of);                       /* on this thread */
bool callback_is_inside(void);
bool callback_runs_for(const cenote_pool *pool);                  /* on this thread: a function that it called */
int  pool_process_usable(void);                           /* CENOTE_OK, FORKED, EXITING, or INVALID: a callback that must not call */
int  pool_usable(const cenote_pool *pool);                /* CENOTE_OK, or why no call can be served */
int  pool_driver_error(cenote_pool *pool, CUresult result, const char *call);
struct requester pool_requester(const cenote_pool *pool, const struct arena *a);
cenote_pool *pool_next_on_device(const cenote_pool *pool, cenote_pool *after);
uint64_t pool_now(const cenote_pool *pool);
int pool_other_device(cenote_pool *pool, int ordinal, struct device **other);
struct device *pool_open_device(int ordinal, int *error);  /* for those who need a device and no pool */
void pool_close_device(struct device *device);
extern struct lock pools_lock;                            /* of the list of pools, and of devices */
cenote_pool *pools_take_structure(void);                  /* LOCKING: that lock */

/* --- streams.c */
#define STREAM_KIND_SHIFT  62       /* see streams.c */
#define STREAM_KIND_HANDLE 3
#define STREAM_KEY_LEGACY (1ull << STREAM_KIND_SHIFT)
int stream_key(cenote_pool *pool, CUstream stream, uint64_t *key);
int stream_key_on(cenote_pool *pool, int ordinal, CUstream stream, uint64_t *key, struct device **other);
int stream_check_own(cenote_pool *pool, CUstream stream, uint64_t key);
bool stream_is_alive(cenote_pool *pool, CUstream stream, uint64_t key);
struct arena *stream_arena(cenote_pool *pool, uint32_t group, uint64_t key);
struct arena *stream_arena_new(cenote_pool *pool, uint32_t group, uint64_t key, CUstream handle);
void stream_forget(cenote_pool *pool, struct arena *a);
uint32_t stream_first(const cenote_pool *pool, uint64_t key, uint64_t *where);

/* --- idle.c: arenas without a block. LOCKING: the pool's lock */
void idle_note(cenote_pool *pool, struct arena *a);
void idle_end(cenote_pool *pool, struct arena *a);
struct arena *idle_take(cenote_pool *pool, uint32_t group, uint64_t key);
struct arena *idle_take_orphan(cenote_pool *pool);
void idle_forget(cenote_pool *pool, struct arena *a);
void idle_forget_empty(cenote_pool *pool);

/* --- capture.c. LOCKING: the pool's lock */
void group_forget(cenote_pool *pool, cenote_group *group);

/* --- locate.c, place.c, last_freed.c: what an address stands for, and what lies in place */
enum lookup { FOUND_LIVE, FOUND_PENDING, FOUND_INSIDE, FOUND_FREE, FOUND_NOTHING };
struct block_ref {
    struct region *region;
    struct arena  *arena;
    uint32_t block;                 /* the heap block, or the slab's block */
    uint32_t slab, item;            /* slab 0: the block itself */
    uint64_t start, requested, size;
    uint32_t *uses;                 /* head of its list of uses */
    uint64_t *mark;                 /* see label.h */
};
cenote_pool *pool_lock_of(const void *address, struct block_ref *w);
enum lookup pool_locate(cenote_pool *pool, uint64_t at, struct block_ref *w);
void pool_give(cenote_pool *pool, const struct block_ref *w, tick freed);
void pool_settle(cenote_pool *pool);
uint64_t pool_reuse_last_freed(cenote_pool *pool, const struct arena *a, const struct request *q);
enum fit pool_try(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q, bool slide, struct place *place,
                  uint64_t *at);
void pool_shape(const cenote_pool *pool, const struct arena *a, struct request *q);
uint64_t pool_commit(cenote_pool *pool, struct arena *a, const struct request *q, uint32_t block);
bool pool_reserve_books(cenote_pool *pool, uint64_t mark);
int pool_find(const void *address, cenote_block *block, int answer);
int pool_misuse(enum lookup found, const void *address, const struct block_ref *w, int answer);

/* May this thread ask no pool anything? pool_process_usable says why. At exit it may: frees and questions are bookkeeping. */
static inline bool pool_refuses(void)
{
    return driver_is_forked() || (atomic_load_explicit(&pool_strict_callbacks, memory_order_relaxed) && callback_runs(NULL));
}

/* --- look.c: a long look at the pool. LOCKING: the pool's lock, which look_begin takes */
struct look {
    cenote_pool *pool;
    uint32_t     work;              /* done since the lock was taken or offered, in units of some 100 ns */
    bool         is_apart;          /* other threads had the lock meanwhile: what was seen is not one moment's */
    bool         is_over;           /* the pool was destroyed meanwhile: nothing may be looked at any more */
    void       (*after_pause)(struct look *look); /* unless NULL: called with the lock, before the look goes on */
};
#define PORTION 500u                /* chosen: a hold of 50 us, of the 200 that none may be longer than */
void look_begin(struct look *look, cenote_pool *pool);
void look_end(struct look *look);
bool look_pause(struct look *look);

/* So much was done. False: threads that waited for the lock had it, and all may have changed, but for tables and numbers. */
static inline bool look_goes_on(struct look *look, uint32_t work)
{
    look->work += work;
    return look->work < PORTION || look_pause(look);
}

/* --- pieces.c, rows.c, stats/account/rows.c, stats/account/steps.c */
struct sums {
    uint64_t *of_arena;             /* bytes of physical memory that lie in each, by its number */
    uint32_t  arenas;               /* room; later ones are not told of */
};
bool     pieces_sums_open(struct sums *sums, cenote_pool *pool);
void     pieces_sums_close(struct sums *sums);
void     pieces_sum(struct look *look, struct sums *sums);
static inline uint64_t sum_of_arena(const struct sums *sums, uint32_t arena) { return arena < sums->arenas ? sums->of_arena[arena] : 0; }
bool rows_reserve(cenote_pool *pool, uint64_t mark);
struct row rows_all(const cenote_pool *pool);
void rows_reset(struct look *look, bool peaks);
const char *rows_broken_rule(struct look *look);
void steps_note(cenote_pool *pool, uint64_t now);

/* --- the answers to cenote_pieces, cenote_rows, cenote_steps, cenote_pool_stats. LOCKING: the pool's lock */
void pieces_draw(struct look *look, const cenote_group *group, struct sized_list *list);
void rows_list(struct look *look, enum cenote_division division, const struct sums *sums, struct sized_list *list);
void steps_list(const cenote_pool *pool, struct sized_list *list);
struct report_sums {                /* over all regions */
    struct pages_sums pages;
    uint64_t address_used, metadata;
};
struct report_sums report_sum(struct look *look);
cenote_stats report_stats(const cenote_pool *pool, const struct report_sums *sums);

/* --- pending.c */
bool pending_open(cenote_pool *pool);
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key, struct device *other);
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed);
void pending_record(cenote_pool *pool, uint32_t uses);
void pending_poll(cenote_pool *pool);
void pending_poll_if_due(cenote_pool *pool);
enum pending_wait pending_waits_for(const cenote_pool *pool, tick limit);

/* --- peer_uses.c: uses on other devices */
void peer_uses_record(cenote_pool *pool, struct use *u);
bool peer_uses_is_done(cenote_pool *pool, struct use *u);
bool peer_uses_wait(cenote_pool *pool);

/* --- turn.c, events.c, wait.c: the turn, fences and the driver */
CUevent  event_take(cenote_pool *pool);
void     event_give(cenote_pool *pool, CUevent event);
int      turn_begin(cenote_pool *pool);
void     turn_end(cenote_pool *pool);
CUresult turn_resume(cenote_pool *pool);
CUresult events_poll(cenote_pool *pool, tick needed);
static inline bool pool_is_capturing(const cenote_pool *pool) { return atomic_load(&pool->device->captures) != 0; }
void     turn_pause(cenote_pool *pool);
void     turn_go_on(cenote_pool *pool);
CUresult wait_poll(cenote_pool *pool, tick needed);
void     wait_is_over(cenote_pool *pool, tick covers);
struct sight {                      /* what a wait looks at: memory has come back, or can be moved, when one of these has changed */
    tick     done;
    uint64_t inactive;              /* bytes that went back to their arenas so far */
};
enum left {                         /* what can be waited for; of several the later is waited for first */
    LEFT_NOTHING,
    LEFT_PEER,                 /* the whole of another device */
    LEFT_CONTEXT,                   /* the whole context: no fence can be had */
    LEFT_EVENTS                     /* the driver is asked again in a while */
};
bool      wait_came(cenote_pool *pool, struct sight *seen);
enum left wait_look(cenote_pool *pool, tick limit, CUresult *result);
bool      wait_for_left(cenote_pool *pool, enum left left, uint32_t looks, CUresult *result);
void      wait_count(cenote_pool *pool, uint32_t looks);
bool      wait_for_progress(cenote_pool *pool, tick limit, CUresult *result);
CUresult wait_for_all(cenote_pool *pool);

/* --- siblings.c: the other pools of the device. LOCKING: none held; between turn_pause and turn_go_on of a pool of that device */
#define SIBLINGS_MAX 16             /* chosen: that many are waited for; what more there are give back what they have at once */
struct siblings {
    uint64_t live, cached;          /* bytes of their blocks, and what they hold beside */
    uint64_t stir;                  /* see siblings_stir */
    uint32_t pools;                 /* how many there are */
    uint32_t count;
    struct sibling {
        const cenote_pool *pool;
        tick         limit;         /* what it freed later is not waited for */
        struct sight seen;
        enum left    left;
    } each[SIBLINGS_MAX];
};
uint64_t  siblings_stir(const cenote_pool *pool);
void      siblings_look(struct siblings *s, const cenote_pool *pool);
enum left siblings_visit(struct siblings *s, const cenote_pool *pool, bool *came);
bool      siblings_wait(const struct siblings *s, const cenote_pool *pool, enum left left);

/* --- explain.c */
int explain_shortage(cenote_pool *pool, uint64_t bytes);

/* --- ask.c: LOCKING: none */
bool ask_to_free(cenote_pool *pool, uint64_t bytes);

/* --- shortage.c */
int shortage_serve(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at);

/* --- source.c, grow.c */
int  source_grow(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver);
bool source_moves_pages(const cenote_pool *pool, const struct arena *a);
bool source_guards(const cenote_pool *pool, const struct arena *a);
bool source_is_foreign(const cenote_pool *pool, const struct arena *a);
uint64_t source_least(const cenote_pool *pool, const struct arena *a, const struct request *q);
bool source_give_back(cenote_pool *pool, struct region *r);
bool source_give_segment(cenote_pool *pool, struct arena *a, uint64_t at, uint64_t bytes);
const cenote_source *source_callback(const cenote_pool *pool, const struct arena *a);
void source_close_region(struct region *r);
uint64_t source_allowance(const cenote_pool *pool);

/* sums.c: what is added up before a request climbs and before it waits. LOCKING: the pool's lock */
uint64_t sums_live(const cenote_pool *pool);
bool sums_are_hopeless(const cenote_pool *pool, const struct arena *a, uint64_t bytes, uint64_t live_elsewhere);
bool sums_may_lend(const cenote_pool *pool, const struct arena *from, const struct arena *to);
uint64_t sums_missing(cenote_pool *pool, const struct arena *a, uint64_t bytes);

/* --- guard.c: LOCKING: the turn */
CUresult guard_take(cenote_pool *pool, uint64_t bytes, CUdeviceptr *at);
bool     guard_give(cenote_pool *pool, uint64_t at, uint64_t bytes);
void     guard_forget(cenote_pool *pool);

/* --- watch.c: LOCKING: not the pool's lock */
void watch_tell(cenote_pool *pool, enum cenote_change change, uint64_t at, uint64_t bytes);
void watch_fill_begins(cenote_pool *pool);
void watch_fill_ends(cenote_pool *pool, CUresult result);

/* --- share/export.c, share/import.c */
void share_settle(void);
void share_sweep(void);

/* --- trim.c */
uint64_t trim_to(cenote_pool *pool, uint64_t keep, tick latest);
uint64_t trim_own(cenote_pool *pool, uint64_t keep, tick latest);
uint64_t trim_segments(cenote_pool *pool);
void     trim_surplus(cenote_pool *pool);
uint64_t trim_once(cenote_pool *pool, uint64_t keep, tick latest);
void     trim_spares(cenote_pool *pool);
void     trim_flush(cenote_pool *pool);
uint64_t trim_free(cenote_pool *pool);
bool     trim_slot(cenote_pool *pool, struct region *r, uint32_t slot);
bool     trim_region(cenote_pool *pool, uint32_t number);

/* --- recycle.c: LOCKING: the turn */
bool recycle_oldest(cenote_pool *pool);
void     trim_orphans(cenote_pool *pool);

/* --- decay.c: with the most pages that may go; true: there are more */
#define DECAY_BATCH      32u    /* where nobody waits for memory: a few milliseconds */
#define DECAY_IN_PASSING 4u     /* at an allocation that called the driver anyway: less than creating one page costs */
bool     decay_go(cenote_pool *pool, uint64_t most);
bool     decay_tend(cenote_pool *pool, uint64_t most);
uint64_t decay_epoch(const cenote_pool *pool);

/* --- churn.c: LOCKING: the turn */
void     churn_given(cenote_pool *pool, uint64_t bytes, uint64_t ns);
void     churn_created(cenote_pool *pool, uint64_t creating_ns, uint64_t mapping_ns);
uint64_t churn_allowance(const cenote_pool *pool);
tick     churn_mark(cenote_pool *pool);
bool     churn_forbids(cenote_pool *pool);

/* --- background.c */
void background_join(cenote_pool *pool);
bool background_leave(cenote_pool *pool);

#endif
