/*
 * host.h: everything that pinned host memory owns, and what its files offer each other. include/cenote/host.h is what users see.
 *
 *     alloc.c      the road of one block, and what is tried when nothing fits
 *       threads.c  what a thread keeps for itself: caches, freed large blocks, counts
 *         arena.c  jemalloc's arenas, one per NUMA node, and the hooks through which they take extents
 *         pieces.c chunks cut into pieces: best fit, split, merge; books only
 *           pin.c  chunks come and go: reserved, bound, registered, and back
 *     uses.c       which streams may be using a block that is live
 *     pending.c    freed blocks that a device may still be using
 *       sweeps.c   how far all streams are on which replays of graphs may run
 *     open.c, options.c, report.c: opening and closing, options, what is told
 *
 * A *chunk* is memory that is registered as a whole. A *piece* of it is an extent of jemalloc's, a large block, or free. Small blocks are
 * cut out of extents by jemalloc.
 *
 *          pin_chunk                piece_take, piece_cut                   piece_give              pin_release
 *     ---------------> registered -----------------------> live pieces ----------------> all free -------------> gone
 *
 * LOCKING, in rising rank: `closing` (LOCK_BACKGROUND) the one thread that closes; `host_opening` (LOCK_POOLS) what opens, closes and ends;
 * `growing` (LOCK_TURN) the one thread that registers or unregisters; all three are held across driver calls. `walking` has no rank, because it is
 * held while the gate of a device is left for a wait: the one thread that looks at pending blocks, taken with no lock but `closing`; what a thread
 * keeps is behind flags of its own (threads.c), set while jemalloc works; `lock` (LOCK_ADDRESSES) chunks, pieces and uses, for a few instructions,
 * also inside jemalloc's hooks. No driver call is made under the last two.
 */
#ifndef CENOTE_HOST_HOST_H
#define CENOTE_HOST_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/index.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/ranges.h"
#include "cenote/host.h"
#include "driver/device.h"
#include "driver/topology.h"

#define HOST_PAGE  4096u            /* pieces are multiples of it; jemalloc must have the same */
#define HOST_GRAIN BLOCK_BYTES      /* blocks are multiples of it */
#define UNIT       (2ull << 20)     /* chunks are multiples of it: a huge page */
#define BIG        (2ull << 20)     /* larger pieces have chunks of their own: a small one in an idle big chunk would keep all of it */
#define NODES_MAX 64
#define RECENT     8                /* freed blocks a thread keeps for each node */
#define USES_MAX  (1u << 20)
#define EVENTS_MAX 4096            /* spare ones kept for each device */
#define SWEEP_MAX  (TOUCH_STREAMS_MAX + 1)

struct chunk {                      /* guarded by `lock`; what does not change after pin_chunk may be read by holders of a piece */
    uint64_t at, bytes;
    uint64_t live;                  /* bytes of live pieces; 0: its one piece is free */
    uint64_t idle_since;            /* ns; when `live` became 0 */
    uint64_t idle_step;             /* step at which it did */
    int      node;
    uint32_t first;                 /* its first piece: the number never changes */
    struct device *device;          /* in whose context it was registered */
    uint64_t generation;            /* of that context */
    bool     big;                   /* for pieces above BIG bytes, each registered for one */
    bool     bound, strayed;
    bool     is_registered;         /* false: coming or going */
};

struct tally { uint64_t requested, allocated, blocks; };

struct node {
    struct ranges  free[2];         /* pieces, of chunks for small and for big ones; `lock` */
    _Atomic int64_t flush_bytes;    /* a thread may count so much before it says so: a 64th of what is registered, 1 MiB at least */
    unsigned       arena;           /* of jemalloc */
    _Atomic uint64_t in[3], out[3], peak[3]; /* requested, allocated, blocks; flushed from threads */
    cenote_level   registered;      /* this and the rest: `lock` */
    uint64_t       bound, strayed;
    uint64_t       registrations, registration_ns, unregistrations, unregistration_ns, waits, ooms, trimmed, pending;
};

/* What is known of 512 bytes: the block that starts there, if one does. */
#define RECORD_LIVE      (1ull << 63)
#define RECORD_REQUESTED ((1ull << 40) - 1)
#define RECORD_USES_SHIFT 40
#define RECORD_USES(r)   ((uint32_t)((r) >> RECORD_USES_SHIFT & 0x3fffff)) /* first of its uses, 0: none */
typedef _Atomic uint64_t record;

#define WHOLE_DEVICE UINT64_MAX     /* in the place of a stream: what has no event */

struct use {                        /* one stream that may be using a block, or all that have no event */
    uint64_t at;                    /* of the block */
    uint64_t stream;                /* its key; 0: a stream that is not known by more than its handle */
    uint64_t freed;                 /* number of the free of its block, from 1; 0: the block is live */
    CUevent  event;                 /* NULL: of the whole device */
    struct device *device;          /* in whose context it was noted */
    uint64_t generation;            /* of that context: with it the use is over */
    bool     busy;                  /* a thread records in it or asks after it: for no other */
    bool     captured;              /* of the whole device: counted in `captured` of the host */
    bool     is_swept;              /* of the whole device: a sweep is enough to say that the device is done */
    uint32_t next;                  /* of the same block */
    uint32_t next_pending;          /* first of the next block */
};

struct reach {                      /* of work that has no event */
    bool is_swept;                  /* a sweep covers it */
    bool is_captured;               /* it is in a graph, and replayed */
};

struct spare_events { CUevent event[EVENTS_MAX]; uint32_t count; uint64_t generation; }; /* of the context in which they are */

struct sweep {                      /* of one device; `walking` */
    uint64_t generation;            /* of the context in which it is */
    CUevent  event[SWEEP_MAX];
    uint32_t count;                 /* 0: none is due */
    uint64_t covers;                /* blocks freed up to this one, when it is done */
    uint64_t done;                  /* up to this one */
};

struct recent { uint64_t at, bytes; };

struct thread {                     /* kept for the next thread when one ends */
    atomic_bool busy;               /* its owner is at work */
    atomic_bool wanted;             /* another thread looks into it, or waits to */
    struct thread *next;            /* all there ever were */
    atomic_bool taken;
    uint32_t    unflushed;          /* blocks counted since the counts were flushed */
    struct per_node {
        int      cache;             /* of jemalloc, -1: none yet, -2: none to be had */
        uint32_t recent_count;
        struct recent recent[RECENT];
        struct tally in, out;
    } node[NODES_MAX];
};

struct thread_here {                /* what the calling thread keeps */
    struct thread *thread;
    uint64_t of;                    /* number of the host it belongs to: that may have been closed, and another opened */
};
extern _Thread_local struct thread_here thread_here;

struct host {
    uint64_t number;                /* no two that are opened have the same */
    cenote_host_options options;
    uint64_t limit;                 /* bytes, 0: none */
    uint64_t large;                 /* blocks above are pieces of their own */
    uint64_t opened;                /* ns */
    struct topology *topology;
    int      nodes;
    struct device *_Atomic devices[DEVICES_MAX];
    _Atomic uint64_t generations[DEVICES_MAX]; /* of their contexts: the next one when one has ended, and nothing is registered there any more */
    atomic_int reset;               /* device that the program has reset, and with it what was registered there, + 1; 0: none */
    atomic_int near_node[DEVICES_MAX];      /* node + 1, 0: not asked yet */

    struct lock growing;
    uint64_t registered, small;     /* bytes, all nodes; of them in chunks that are not big; growing */
    _Atomic uint64_t steps;

    struct lock lock;
    char    *base;                  /* addresses set aside for chunks */
    uint32_t units;
    uint64_t *taken;                /* bit per unit */
    _Atomic uint32_t *chunk_of;     /* by unit; 0: none */
    record  *records;               /* by HOST_GRAIN */
    struct table pieces, chunks, uses;
    uint32_t looked;                /* use that was looked at last */
    uint32_t few_uses;              /* as the table's first memory has room for */
    atomic_bool uses_are_short;     /* more than half of the table is in use, and that is not few: those that are done are due to be looked for */
    struct index starts;            /* of live pieces */
    struct node  node[NODES_MAX];

    uint64_t freed;                 /* blocks that have ever been pending; `lock` */
    uint32_t pending_first, pending_last;
    atomic_uint pending;            /* blocks */
    pthread_mutex_t walking;        /* the list of pending blocks */
    atomic_uint captured;           /* uses of live blocks by streams that were being captured */
    struct spare_events *events[DEVICES_MAX];
    struct sweep *sweeps[DEVICES_MAX];

    struct thread *_Atomic threads;
    bool     has_membarrier;        /* of the system */
};

extern struct host *_Atomic host_opened;
extern struct lock host_opening;

/* --- open.c */
struct host *host_get(int *error);              /* opens with the defaults unless it is open */
struct device *host_device(struct host *h, int ordinal, int *error);
void host_look_for_resets(struct host *h);
bool host_was_reset(struct host *h, const struct device *d, uint64_t generation); /* by the program, as the last call knows that entered it */
static inline uint64_t host_generation(const struct host *h, const struct device *d) { return atomic_load(&h->generations[d->ordinal]); }
int  host_node(struct host *h, int device, int *error); /* the node that serves it; -1: error */

/* --- options.c */
uint64_t host_memlock(void);                    /* bytes; UINT64_MAX: no limit */
int  host_options_check(const cenote_host_options *given, size_t size, cenote_host_options *full);

/* --- pieces.c */
bool pieces_open(struct host *h, uint64_t bytes);
void pieces_close(struct host *h);
uint32_t chunk_reserve(struct host *h, uint64_t bytes);                 /* addresses alone; 0: none left */
void chunk_unreserve(struct host *h, uint32_t chunk);
uint32_t chunk_enter(struct host *h, uint32_t chunk);                   /* registered now: its one piece, live. 0: no memory for books */
uint32_t chunk_leave(struct host *h, uint64_t idle_before, uint64_t step_before, uint64_t least); /* an idle one leaves; 0: there is none */
void chunk_stay(struct host *h, uint32_t chunk);                        /* it could not */
bool chunks_are_of(struct host *h, uint64_t generation);                /* any, by that of the context */
uint32_t piece_take(struct host *h, int node, uint64_t bytes, uint64_t alignment);
uint32_t piece_cut(struct host *h, uint32_t piece, uint64_t bytes, uint64_t alignment); /* of a live one: the rest becomes free. 0: no room */
void piece_give(struct host *h, uint32_t piece);
bool piece_split(struct host *h, uint64_t at, uint64_t first);
bool piece_merge(struct host *h, uint64_t first, uint64_t second);
uint32_t piece_at(struct host *h, uint64_t at);                         /* live, starting there; 0: none */
uint32_t piece_holding(struct host *h, uint64_t address, uint64_t *at, uint64_t *bytes);
bool pieces_are_valid(struct host *h, const char **broken);

/* To a power of two. */
static inline uint64_t round_up(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) & ~(multiple - 1);
}

static inline bool host_holds(const struct host *h, const void *at)
{
    return (uint64_t)((const char *)at - h->base) < h->units * UNIT;
}

static inline record *record_of(const struct host *h, uint64_t at) { return &h->records[(at - (uint64_t)h->base) / HOST_GRAIN]; }
static inline struct block *piece_of(const struct host *h, uint32_t piece) { return block_of(&h->pieces, piece); }
static inline struct chunk *chunk_at(const struct host *h, uint32_t chunk) { return table_at(&h->chunks, chunk); }
static inline struct use *use_at(const struct host *h, uint32_t use) { return table_at(&h->uses, use); }

/* The chunk under a live block. */
static inline struct chunk *chunk_under(const struct host *h, uint64_t at)
{
    return chunk_at(h, atomic_load_explicit(&h->chunk_of[(at - (uint64_t)h->base) / UNIT], memory_order_acquire));
}

/* --- pin.c */
int  pin_chunk(struct host *h, int device, int node, uint64_t bytes, uint32_t *piece);
uint64_t pin_release(struct host *h, uint64_t keep, uint64_t idle_before, uint64_t step_before); /* bytes unregistered */

/* --- arena.c */
int  arenas_open(struct host *h);
void arenas_close(struct host *h);
void *arena_alloc(const struct node *node, int cache, uint64_t bytes, uint32_t *claim, uint64_t *wanted);
void arena_free(void *at, uint64_t bytes, int cache);
void arena_purge(const struct node *node);
int  cache_create(void);
void cache_flush(int cache);
void cache_destroy(int cache);

/* --- threads.c */
bool threads_open(struct host *h);
struct thread *thread_begins(struct host *h);                           /* the calling one; NULL: no memory */
void *thread_alloc(struct host *h, struct thread *t, int node, uint64_t bytes, uint32_t *claim, uint64_t *wanted);
void thread_free(struct host *h, struct thread *t, uint64_t at, uint64_t requested);
void thread_free_at_another(struct host *h, uint64_t at, uint64_t requested);
enum flush { FLUSH_COUNTS, FLUSH_PIECES, FLUSH_ALL };                   /* each with those before; all: what jemalloc keeps, too */
void threads_flush(struct host *h, enum flush what);
void thread_drop_caches(struct thread *t);
void threads_close(struct host *h);
void threads_forked(struct host *h);

/* Of the calling thread. NULL: no memory. */
static inline struct thread *thread_mine(struct host *h)
{
    struct thread_here *here = &thread_here;
    return here->thread && here->of == h->number ? here->thread : thread_begins(h);
}

/* --- uses.c */
int  uses_note(struct host *h, uint64_t at, int device, CUstream stream);
void use_give(struct host *h, uint32_t use);
void use_set_captured(struct host *h, struct use *u, bool captured);
bool use_event_keep(struct host *h, const struct device *d, uint64_t generation, CUevent event);
void use_event_drop(const struct device *d, CUevent event);

/* --- pending.c */
void uses_add(struct host *h, uint64_t at, uint64_t word);
bool uses_poll(struct host *h, struct thread *t, bool everything);
int  uses_wait(struct host *h, bool devices);                        /* for whole devices, or for events first */
void uses_close(struct host *h);

/* --- sweeps.c */
bool sweep_is_done(struct host *h, const struct use *u);
CUevent sweep_awaits(struct host *h, const struct use *u);
void sweep_close(struct host *h, struct device *d);

#endif
