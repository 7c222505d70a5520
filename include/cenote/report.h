/*
 * report.h: what a pool's memory is used for: counters, labels, rows, steps, explanations, growth, pictures and traces.
 *
 *     cenote_stats stats;
 *     cenote_pool_stats(pool, &stats);
 *     printf("%llu bytes held\n", (unsigned long long)stats.reserved.current);
 *
 * Looking changes nothing: no call here decides where a block lies. Conventions are those of cenote.h.
 */
#ifndef CENOTE_REPORT_H
#define CENOTE_REPORT_H

#include <cenote/cenote.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------- statistics */

/* Every counter of counters.def. Of an arena family of its own, or of a whole pool. */
typedef struct cenote_stats {
    uint64_t page_bytes;  /* of the pool */
    uint64_t capacity;    /* of the device */
    uint64_t limit;       /* of the pool, 0: none */
#define CENOTE_LEVEL(name, unit, text) cenote_level name;
#define CENOTE_COUNT(name, unit, text) uint64_t name;
#define CENOTE_GAUGE(name, unit, text) uint64_t name;
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
} cenote_stats;

/*
 * A program that asks before each allocation gives CENOTE_STATS_COUNTED as the size: (cenote_pool_stats)(pool, &stats, CENOTE_STATS_COUNTED) fills in
 * what cenote has counted, up to `decayed`, and takes the same time for every pool. To derive the rest, cenote looks at all of the pool.
 */
CENOTE_API int cenote_pool_stats(cenote_pool *pool, cenote_stats *stats, size_t size);
#define cenote_pool_stats(...) cenote_pool_stats(__VA_ARGS__, sizeof(cenote_stats))
#define CENOTE_STATS_COUNTED offsetof(cenote_stats, driver_calls)

/* Peaks start again from what is current; totals and counts start again from zero. */
CENOTE_API int cenote_pool_reset_peaks(cenote_pool *pool);
CENOTE_API int cenote_pool_reset_totals(cenote_pool *pool);

/*
 * The counters as text or JSON, like snprintf: writes at most `room` bytes, always ends them with 0, returns the length of the whole
 * text, or 0 if `stats` is not valid.
 */
CENOTE_API size_t cenote_stats_text(const cenote_stats *stats, char *text, size_t room, size_t size);
#define cenote_stats_text(...) cenote_stats_text(__VA_ARGS__, sizeof(cenote_stats))
CENOTE_API size_t cenote_stats_json(const cenote_stats *stats, char *text, size_t room, size_t size);
#define cenote_stats_json(...) cenote_stats_json(__VA_ARGS__, sizeof(cenote_stats))

/* ----------------------------------------------------------------------------------------- what memory is for: steps, tags, kinds */

/* Labels are for accounting and never decide where a block lies. A block keeps the labels it was born with, but for its kind. */
enum cenote_kind {
#define CENOTE_KIND(name, text) CENOTE_KIND_##name,
#include <cenote/kinds.def>
#undef CENOTE_KIND
    CENOTE_KINDS,
    CENOTE_KINDS_MAX = 16 /* of any version */
};
enum cenote_phase {
#define CENOTE_PHASE(name, kind, text) CENOTE_PHASE_##name,
#include <cenote/phases.def>
#undef CENOTE_PHASE
    CENOTE_PHASES
};

/*
 * What this thread allocates from now on is for `name`, inside what it was for before: tags nest, "train" and then "encoder" give
 * "train/encoder". Names are UTF-8 without '/' or control characters, up to CENOTE_TAG_BYTES; CENOTE_INVALID says what is wrong with one. A
 * program has up to CENOTE_TAGS_MAX paths: beyond that CENOTE_OUT_OF_HOST_MEMORY, and nothing changes. A pop without a push is CENOTE_INVALID.
 */
#define CENOTE_TAG_BYTES 63
#define CENOTE_TAGS_MAX 16383
CENOTE_API int cenote_tag_push(const char *name);
CENOTE_API int cenote_tag_pop(void);

/* Where the program is, in all its threads: enum cenote_phase. A block is born with the phase and the kind that belongs to it. */
CENOTE_API int cenote_phase_set(int phase);
CENOTE_API int cenote_phase_now(void);

/*
 * on: threads that have pushed no tag, as those on which a framework computes gradients, go by the tag that this thread has now, until a thread
 * calls with 0. If this thread has no tag either, nothing changes.
 */
CENOTE_API int cenote_tag_share(int on);

/* What the live block that holds `address` turned out to be: enum cenote_kind. It goes out of its old kind and into this one. */
CENOTE_API int cenote_block_set_kind(const void *address, int kind);

/*
 * One part of the allocated bytes. The rows of one division add up to `allocated.current`, but for groups: blocks may be in none. An arena or a group
 * that goes takes its totals along.
 */
typedef struct cenote_row {
    char          name[192];  /* a tag's path, its end if it is longer; the name of a group, kind or phase; the size of a class */
    uint64_t      key;        /* of a stream its cenote_block.stream_id, of a class its largest size, else a number */
    cenote_group *group;      /* of an arena or a group; NULL: none */
    cenote_stream stream;     /* of an arena */
    cenote_level  allocated;
    uint64_t      blocks;     /* live ones */
    uint64_t      at_peak;    /* of `allocated`, when that of the whole pool was at its highest */
    uint64_t      reserved;   /* of an arena or a group: physical memory that lies in it; else 0 */
} cenote_row;

enum cenote_division { CENOTE_BY_ARENA, CENOTE_BY_GROUP, CENOTE_BY_CLASS, CENOTE_BY_TAG, CENOTE_BY_PHASE, CENOTE_BY_KIND };

/*
 * The pool divided one way: sizes, phases and kinds at one moment; arenas, groups and tags some at a time, so that other threads do not wait, and
 * their rows add up if there are few, or if no other thread allocates or frees meanwhile. Rows that never held anything are left out. Room and count
 * as for cenote_pool_pieces.
 */
CENOTE_API int cenote_pool_rows(cenote_pool *pool, int division, cenote_row *rows, size_t room, size_t *count, size_t size);
#define cenote_pool_rows(...) cenote_pool_rows(__VA_ARGS__, sizeof(cenote_row))

/* What a step left behind. Levels in bytes. */
typedef struct cenote_step_note {
    uint64_t step;            /* its number, from 1 */
    uint64_t ns;              /* when it ended, by the pool's clock */
    uint64_t live, reserved;  /* allocated and reserved when it ended */
    uint64_t peak;            /* of allocated, within it */
} cenote_step_note;

/* The last steps, up to CENOTE_STEPS_KEPT of them, the newest first. Room and count as for cenote_pool_pieces. */
#define CENOTE_STEPS_KEPT 256
CENOTE_API int cenote_pool_steps(cenote_pool *pool, cenote_step_note *notes, size_t room, size_t *count, size_t size);
#define cenote_pool_steps(...) cenote_pool_steps(__VA_ARGS__, sizeof(cenote_step_note))

/*
 * What the device's memory is used for and what to do about it, in words: what was tried (`bytes` that could not be had; 0: nothing failed),
 * what is free, what this pool, this process and others hold, and the one or two things most likely to help now. Like snprintf: writes at
 * most `room` bytes, always ends them with 0, returns the length of the whole text; 4096 bytes are always enough. Never fails: what cannot
 * be asked any more is said. cenote_message() is this text after CENOTE_OUT_OF_MEMORY. Call it with no lock that a function given to
 * cenote_on_moment takes; it makes no driver call that a capture forbids. It takes a millisecond or more: not for hot paths.
 */
CENOTE_API size_t cenote_pool_explain(cenote_pool *pool, uint64_t bytes, char *text, size_t room);

/* What takes memory from the pool, for explanations: "PyTorch". Up to 31 bytes of ASCII; "cenote" until it is said. */
CENOTE_API int cenote_pool_set_user(cenote_pool *pool, const char *name);

/* What only the program knows of the moment at which an explanation is made. Every field comes with what cenote knows. */
typedef struct cenote_moment {
    uint64_t bytes;          /* that could not be had; 0: nothing failed */
    int32_t  phase;          /* enum cenote_phase; comes as cenote_phase_now() */
    int32_t  keeps_history;  /* do operations keep what a backward needs (torch.is_grad_enabled())? 1, 0; comes as -1: not known */
    uint64_t training_peak;  /* most bytes allocated at once in a training step; comes as the highest peak that cenote_pool_steps has, 0: none */
    uint64_t gradients;      /* bytes of gradients held; comes as what cenote_block_set_kind said is one */
} cenote_moment;

/*
 * `function` fills in what it knows better, whenever an explanation is made: on the thread that explains, which may be any that allocates, and
 * with no lock of cenote held. It may call cenote; an explanation that is made meanwhile on its thread does without it. One function per
 * process; NULL takes it away, and another thread may still be inside it when that returns.
 */
typedef void (*cenote_moment_fn)(cenote_pool *pool, cenote_moment *moment, void *arg);
CENOTE_API int cenote_on_moment(cenote_moment_fn function, void *arg, size_t size);
#define cenote_on_moment(...) cenote_on_moment(__VA_ARGS__, sizeof(cenote_moment))

/*
 * Where a block was allocated: the site of a cenote_piece as text, the innermost function first. For pools with the option `sites`, which says
 * how many functions are kept. Like snprintf; 0 if there is no such site.
 */
CENOTE_API size_t cenote_site_text(uint32_t site, char *text, size_t room);

/*
 * What has grown: the last step, how much a step has left behind over the last `steps` (2 to 64), and the blocks born in them that are still
 * live, by site and label, the largest first. Those that each step left some of are growing; what only the last step left is not
 * counted, it may yet go. Like snprintf, or 0 with an error in cenote_message().
 */
CENOTE_API size_t cenote_pool_growth(cenote_pool *pool, uint32_t steps, char *text, size_t room);

/* What a mark found, for the next one to compare with. Begin with zeros. */
typedef struct cenote_marked {
    char     name[64];
    uint64_t live;
    uint64_t kinds[CENOTE_KINDS_MAX]; /* by enum cenote_kind; room for later ones */
} cenote_marked;

/* One line: what is live here, the change since the mark before, and both by kind. Like snprintf; 0 with an error in cenote_message(). */
CENOTE_API size_t cenote_pool_mark(cenote_pool *pool, const char *name, cenote_marked *last, char *text, size_t room, size_t size);
#define cenote_pool_mark(...) cenote_pool_mark(__VA_ARGS__, sizeof(cenote_marked))

enum cenote_piece_state { CENOTE_PIECE_FREE, CENOTE_PIECE_LIVE, CENOTE_PIECE_PENDING };

/* A block, or what lies free between blocks. The pieces of a segment follow each other by address and tile it. */
typedef struct cenote_piece {
    uint64_t      address, size;
    uint64_t      requested;  /* of a block, live or pending: bytes asked for */
    uint64_t      segment;    /* address at which memory that hangs together begins. 0: pages without an address, kept for the next growth */
    cenote_group *group;      /* NULL: none */
    cenote_stream stream;     /* the handle it had when it was last used; it may be dead */
    uint64_t      stream_id;  /* as in cenote_block */
    uint32_t      state;      /* enum cenote_piece_state */
    uint32_t      tag;        /* of a block: the key of its row, as kind and phase. 0: none */
    uint32_t      site;       /* where it was allocated, see cenote_site_text; 0: not known */
    uint8_t       kind, phase;
    uint8_t       lent;       /* 1: a block of no group, in memory that this group has lent it (CENOTE_GROUP_LEND) */
    uint8_t       came_whole; /* 1: of memory that came as one piece, from the driver or a source, and cannot move: not of pages */
    uint64_t      born;       /* steps that were over when it was allocated */
} cenote_piece;

/*
 * What lies where: in the group, or with NULL in all the memory that is reserved. Fills in at most `room` pieces and sets *count to how many there
 * are, so that a caller with too little room can ask again. It is of one moment if there are few pieces, or if no other thread uses the pool
 * meanwhile. Otherwise a block that is live all the time is there once, as it is; one that comes or goes may be there or not; and pieces of a segment
 * tile it all the same.
 */
CENOTE_API int cenote_pool_pieces(cenote_pool *pool, cenote_group *group, cenote_piece *pieces, size_t room, size_t *count, size_t size);
#define cenote_pool_pieces(...) cenote_pool_pieces(__VA_ARGS__, sizeof(cenote_piece))

/*
 * The pool writes down what it hands out and takes back: the last so many records from now on, 40 bytes each. 0: it stops and forgets them.
 * The option `record` does the same from its opening.
 */
CENOTE_API int cenote_pool_record(cenote_pool *pool, uint64_t records);

/*
 * Writes the records as a trace (docs/traces.md), gzip if `path` ends in .gz; recording goes on. It begins with the blocks that were live when
 * the oldest record was written, so that cenote-replay can do it again, and ends with the last record; other threads go on meanwhile. CENOTE_FILE if
 * it cannot be written: what was at `path` stays. CENOTE_BUSY if they were quicker than the copy again and again: give the ring more room.
 */
CENOTE_API int cenote_pool_record_save(cenote_pool *pool, const char *path);

/*
 * Everything the pool knows as JSON (docs/snapshot.md), which says whether it is of one moment: it is if no other thread wanted the pool meanwhile.
 * Counters are of one moment always. Files as for cenote_pool_record_save.
 */
CENOTE_API int cenote_pool_snapshot(cenote_pool *pool, const char *path);

/*
 * Walks every structure of the pool and checks every invariant: 0, or CENOTE_INVALID and a message that names what is broken. For tests. While other
 * threads use a large pool, what cannot be told is not judged: sums over more than fits a short hold of its lock. Allocations that need the driver
 * wait meanwhile.
 */
CENOTE_API int cenote_pool_check(cenote_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
