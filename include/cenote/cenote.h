/*
 * cenote.h: device memory for CUDA programs.
 *
 * A pool owns the device memory of one device. Blocks are taken from it and given back in the order of CUDA streams: a block freed on
 * its stream may be handed out again on that stream at once, without waiting for the device. Memory moves between sizes and between
 * streams by itself; nothing is ever copied and an address never changes while its block is live.
 *
 *     cenote_pool *pool;
 *     void *block;
 *     if (cenote_pool_default(0, &pool) || cenote_alloc(pool, 1 << 20, stream, &block))
 *         puts(cenote_message());
 *     ... launch kernels on `stream` ...
 *     cenote_free(block);
 *
 * CONVENTIONS
 *   Every call returns CENOTE_OK (0) or an error of errors.def; results come through the last argument and are set only on success.
 *   cenote_message() says in words what went wrong in the last failing call of this thread, and what to do about it.
 *   All calls may be made from any thread. None of them makes another device or context current for the caller.
 *   A stream is a CUstream or cudaStream_t of the device's primary context: 0 is the legacy default stream, (cenote_stream)2 the
 *   per-thread default stream of the calling thread.
 *   A program runs with libraries that are newer or older than its header. Later versions append members to structs, never move one, and
 *   append values to enumerations: a program takes a value that it does not know for none of those it knows.
 *   So the last argument of a function that takes or fills a struct is the size that the program's header gives that struct, in an array
 *   one element. A macro of the same name adds it: programs write cenote_find(address, &block). The caller adds it where no macro does:
 *   through a pointer to the function, or in another language. Nothing beyond it is read or written. Members that only the library has
 *   are at their defaults. Members that only the program has come out as zero, and CENOTE_INVALID says that one going in is not zero.
 *   Two structs never change: cenote_level, which lies inside others, and cenote_share, which travels.
 */
#ifndef CENOTE_H
#define CENOTE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CENOTE_VERSION 100 /* 0.1.0 */
#define CENOTE_API __attribute__((visibility("default")))

typedef struct cenote_pool cenote_pool;       /* the memory of one device */
typedef struct cenote_group cenote_group;     /* a family of arenas inside a pool that shares no memory with others */
typedef struct CUstream_st *cenote_stream;    /* the same type as CUstream and cudaStream_t */

enum cenote_error {
#define CENOTE_ERROR(code, name, text) CENOTE_##name = code,
#include <cenote/errors.def>
#undef CENOTE_ERROR
};

/* The name of an error ("CENOTE_OUT_OF_MEMORY") and its one-line meaning. Unknown codes have one too. */
CENOTE_API const char *cenote_error_name(int error);
CENOTE_API const char *cenote_error_text(int error);

/* What went wrong in the last failing call of this thread, in words. Never NULL; valid until the thread's next failing call. */
CENOTE_API const char *cenote_message(void);

/* The CUresult behind the last CENOTE_DRIVER, CENOTE_DEVICE_LOST or CENOTE_OUT_OF_MEMORY of this thread, 0 if there was none. */
CENOTE_API int cenote_driver_result(void);

/* CENOTE_VERSION of the library that runs, which may be newer than the header. */
CENOTE_API int cenote_version(void);

/* ------------------------------------------------------------------------------------------------------------------- options */

enum cenote_provider {
    CENOTE_AUTO,   /* the best the device can do */
    CENOTE_VMM,    /* virtual memory management: pages that move */
    CENOTE_ASYNC,  /* segments of a driver's memory pool (cuMemAllocFromPoolAsync) */
    CENOTE_PLAIN,  /* segments of cuMemAlloc */
    CENOTE_GUARD   /* for debugging: each block between addresses that are not mapped */
};

/*
 * How a pool behaves; options.def says what each field means. Start from cenote_options_default(), which also reads the environment
 * variable CENOTE_CONF ("page_mib:8,limit:80%"), then set what you want.
 */
typedef struct cenote_options {
    uint32_t page_mib;
    uint32_t trim_every;
    uint32_t address_ratio;
    uint32_t provider;         /* enum cenote_provider */
    double   limit;            /* above 1: bytes; up to 1: part of the device's memory */
    double   harvest_budget;   /* below 0: off */
    uint64_t (*clock)(void *); /* nanoseconds that never go back; NULL: the system's. It must not call cenote */
    void    *clock_arg;
    double   trim_above;       /* up to 0: off */
    uint32_t record;
    uint32_t decay_ms;
    uint32_t background;
    uint32_t sites;            /* functions */
    uint32_t abort;            /* 1: the process, at a mistake */
    uint32_t unused;           /* 0 */
} cenote_options;

/* Fills in the defaults, then what CENOTE_CONF says. A mistake there is CENOTE_BAD_OPTION and leaves the defaults. */
CENOTE_API int cenote_options_default(cenote_options *options, size_t size);
#define cenote_options_default(...) cenote_options_default(__VA_ARGS__, sizeof(cenote_options))

/* Sets what `conf` says ("name:value,name:value"). CENOTE_BAD_OPTION names the mistake and leaves `options` as it was. */
CENOTE_API int cenote_options_parse(cenote_options *options, const char *conf, size_t size);
#define cenote_options_parse(...) cenote_options_parse(__VA_ARGS__, sizeof(cenote_options))

/* The table of options as text, one line each. */
CENOTE_API const char *cenote_options_help(void);

/* --------------------------------------------------------------------------------------------------------------------- pools */

/* The device's default pool, made at the first call with the options of CENOTE_CONF. It is never destroyed. */
CENOTE_API int cenote_pool_default(int device, cenote_pool **pool);

/* A pool of one's own. `options` may be NULL for the defaults. */
CENOTE_API int cenote_pool_create(int device, const cenote_options *options, cenote_pool **pool, size_t size);
#define cenote_pool_create(...) cenote_pool_create(__VA_ARGS__, sizeof(cenote_options))

/*
 * Gives everything back. CENOTE_BUSY, and nothing happens, while blocks are live, groups exist, memory is pinned, a capture is open, or another
 * thread still allocates, frees or destroys the pool.
 */
CENOTE_API int cenote_pool_destroy(cenote_pool *pool);

/* Changes the most physical memory the pool may hold. 0: no limit. What is held above it is given back as far as it is free. */
CENOTE_API int cenote_pool_set_limit(cenote_pool *pool, uint64_t bytes);

/* Changes trim_above of options.def, from 0 (off) to 1. */
CENOTE_API int cenote_pool_set_trim_above(cenote_pool *pool, double part);

/* -1: NULL, or a pool that was destroyed. So does the next. */
CENOTE_API int cenote_pool_device(const cenote_pool *pool);

/* Where its memory comes from: enum cenote_provider, never CENOTE_AUTO. */
CENOTE_API int cenote_pool_provider(const cenote_pool *pool);

/*
 * Kernels of that device may read and write the pool's memory from now on, what is there and what comes. Again is no error.
 * CENOTE_NOT_SUPPORTED where the device cannot reach this one's memory. What a program's own source gives to a group is not touched.
 */
CENOTE_API int cenote_pool_grant(cenote_pool *pool, int device);

/*
 * Called, with no lock held, when memory runs out and before the allocation fails: the program may free blocks of its own. Nonzero
 * means it did, and the search starts again. What it allocates itself does without it. One function per pool; NULL takes it away. The earlier
 * one is not running any more when that returns, so the function must not wait for the thread that takes it away. A call from inside a
 * function that cenote called does not wait: then those calls that run on other threads may still be running.
 */
typedef int (*cenote_shortage_fn)(cenote_pool *pool, size_t bytes, void *arg);
CENOTE_API int cenote_pool_on_shortage(cenote_pool *pool, cenote_shortage_fn function, void *arg);

/* What a watch function hears of. */
enum cenote_change {
    CENOTE_MAPPED,     /* memory lies there now; no block on it has been handed out yet */
    CENOTE_UNMAPPING,  /* it goes away from there next; nothing live lies on it */
    CENOTE_FREED       /* a freed block that waited for other streams is free now; its memory has not been handed out again yet */
};

/*
 * Called before and after memory comes and goes, for those who remember what lies under an address: from MAPPED to UNMAPPING the range keeps
 * its physical memory, whatever blocks come and go on it. A notice may cover several ranges of earlier ones, or a part of one. Where the
 * driver refuses to unmap, MAPPED says so. Calls come one at a time, in order, from any thread, with locks held but the pool's: the function
 * must not call cenote and not wait for a thread that does. One function per pool; NULL takes it away, and it is not running any more
 * when that returns. Whoever begins late asks cenote_pieces afterwards for what is there.
 */
typedef void (*cenote_watch_fn)(cenote_pool *pool, int change, void *address, size_t bytes, void *arg);
CENOTE_API int cenote_pool_watch(cenote_pool *pool, cenote_watch_fn function, void *arg);

/* -------------------------------------------------------------------------------------------------------------------- blocks */

/*
 * A block of at least `bytes`, aligned to 512, for use on `stream` from now on. Zero bytes give NULL, which cenote_free accepts.
 * Any size is a valid question: what cannot be served is CENOTE_OUT_OF_MEMORY, or CENOTE_OUT_OF_ADDRESSES where memory is left but no
 * device addresses.
 */
CENOTE_API int cenote_alloc(cenote_pool *pool, size_t bytes, cenote_stream stream, void **block);

/* The same, aligned to a power of two of up to the page size. */
CENOTE_API int cenote_alloc_aligned(cenote_pool *pool, size_t bytes, size_t alignment, cenote_stream stream, void **block);

/*
 * Gives a block back in the order of the stream it was allocated on. Work already put on that stream, and on the streams named by
 * cenote_use, may still use it; later work must not. Never fails for want of anything: errors are misuse, and then nothing happened.
 */
CENOTE_API int cenote_free(void *block);

/* The same; CENOTE_WRONG_SIZE if the block was not asked for with exactly `bytes`. */
CENOTE_API int cenote_free_sized(void *block, size_t bytes);

/*
 * The block is also used on another stream. When it is freed it waits until the work that is then on `stream` is done.
 * Call it after the block is allocated and before it is freed; once per stream is enough. A created stream may be of another device.
 */
CENOTE_API int cenote_use(void *block, cenote_stream stream);

/* The same for a stream whose device the caller knows: the default streams of another device have no handle that says so. */
CENOTE_API int cenote_use_on(void *block, int device, cenote_stream stream);

typedef struct cenote_block {
    void         *start;      /* what cenote_alloc returned */
    size_t        requested;  /* bytes asked for */
    size_t        size;       /* bytes that may be used */
    cenote_pool  *pool;
    cenote_group *group;      /* NULL: none */
    uint64_t      stream_id;  /* of its stream: cuStreamGetId of a created one, a number of our own for default streams */
    cenote_stream stream;     /* the handle it had when it was last used; it may be dead */
    uint64_t      used;       /* streams named by cenote_use: if any, the block waits for them when it is freed */
} cenote_block;

/* The live block that holds `address`, which may lie inside it. */
CENOTE_API int cenote_find(const void *address, cenote_block *block, size_t size);
#define cenote_find(...) cenote_find(__VA_ARGS__, sizeof(cenote_block))

/*
 * Memory registered with NCCL, UCX or a network card: those remember which physical memory lies under an address. Between pin and
 * unpin the mapping of every page that the range touches stays as it is, even when the blocks on it are freed. Pins nest.
 */
CENOTE_API int cenote_pin(void *address, size_t bytes);
CENOTE_API int cenote_unpin(void *address, size_t bytes);

/* -------------------------------------------------------------------------------------- memory shared with other processes */

/* Names a block to other processes of the same user on this machine. Plain bytes: send them by any means. docs/sharing.md */
typedef struct cenote_share {
    uint64_t words[8];
} cenote_share;

/*
 * The live block that holds `address`, which may lie inside it, may be imported from now on until it is freed. Another export of the same
 * address says the same; a block that lies there later has another name. Importers see the whole pages under the block; where that
 * matters take it from a group with CENOTE_GROUP_WHOLE. CENOTE_NOT_SUPPORTED where the memory is of a kind that cannot be shared.
 *
 * Nothing here orders work: who reads waits for who writes (events that are shared between processes), and a block is freed only when
 * every importer is done with it.
 */
CENOTE_API int cenote_export(void *address, cenote_share *share);

/*
 * Where that address is in this process, for kernels of `device`: until cenote_import_close, also if the exporter dies. Each import wants a
 * close of its own. `length` is how many bytes were received. CENOTE_GONE if the exporter is gone or the block was freed; a damaged
 * message is CENOTE_INVALID.
 */
CENOTE_API int cenote_import(const cenote_share *share, size_t length, int device, void **address);

/*
 * Lets go of what cenote_import gave. With the last of a range it waits until the device is done, and takes the mapping away before it returns:
 * the exporter may free the block then. CENOTE_BUSY, and nothing happens, while a capture is open on the device: close it when that has ended.
 * CENOTE_DRIVER: it is closed for the program, but the driver did not take the memory back; later calls offer it again, and until then the exporter
 * should keep it.
 */
CENOTE_API int cenote_import_close(void *address);

/* ------------------------------------------------------------------------------------------------------------------- streams */

/*
 * The stream is about to be destroyed: its memory is let go early. Optional from CUDA 12.0 on, where a destroyed stream's memory is found
 * again anyway. Older drivers do not say who a stream is, only its handle: there it is needed.
 */
CENOTE_API int cenote_stream_retire(cenote_pool *pool, cenote_stream stream);

/* The stream lives as long as the program: cenote may remember its handle and need not ask the driver who it is at each call. */
CENOTE_API int cenote_stream_immortal(cenote_pool *pool, cenote_stream stream);

/* --------------------------------------------------------------------------------------------------------- giving memory back */

#define CENOTE_TRIM_WAIT 1u /* wait on the host until all work put on the device so far is done: then everything unused can go */

/* Comes again and again, as after each step: where that costs too much and nobody else is on the device, what steps use stays (docs/options.md). */
#define CENOTE_TRIM_PERIODIC 2u

#define CENOTE_TRIM_DEFERRED 4u /* only what a trim that comes often has left: somebody is about to look. Nothing while a capture is open */

/* Gives free pages back to the driver until at most `keep_bytes` of physical memory are held, or nothing more is free. */
CENOTE_API int cenote_trim(cenote_pool *pool, uint64_t keep_bytes, unsigned flags);

/* One iteration of the program is over. Steps drive trim_every. */
CENOTE_API int cenote_step(cenote_pool *pool);

/* ------------------------------------------------------------------------------------------------------- groups and captures */

#define CENOTE_GROUP_PRIVATE 1u /* addresses and the memory under them stay fixed until the group is destroyed: for CUDA graphs */
/* When memory runs out, allocations outside all groups may take what is free here, on the same stream: if the group is private, only on streams
   that have drawn nothing from it while a capture was open on the device, for a graph writes to what was captured at each replay. */
#define CENOTE_GROUP_LEND    2u
#define CENOTE_GROUP_WHOLE   4u /* a block that is allocated with this shares no page and no segment with another, earlier or later */

/*
 * Where a group gets its memory from, if not from the driver. Both are called with no lock held and may call cenote, but take must not
 * allocate from its own group, and gives memory that is no block of cenote's; NULL from take means "no more".
 */
typedef struct cenote_source {
    void *(*take)(size_t bytes, cenote_stream stream, void *arg);
    void (*give)(void *memory, size_t bytes, cenote_stream stream, void *arg);
    void *arg;
} cenote_source;

/* An arena family of its own. `name` is for reports; `source` may be NULL. */
CENOTE_API int cenote_group_create(cenote_pool *pool, const char *name, unsigned flags, const cenote_source *source, cenote_group **group,
                                   size_t size);
#define cenote_group_create(...) cenote_group_create(__VA_ARGS__, sizeof(cenote_source))

/* LEND and WHOLE may change at any time, for what is allocated from then on; PRIVATE is for good. */
CENOTE_API int cenote_group_change(cenote_group *group, unsigned flags);

/* The group takes no more allocations; its live blocks stay valid, its memory goes back to the pool as they are freed. */
CENOTE_API int cenote_group_destroy(cenote_group *group);

/* Bytes of physical memory that lie in the group. Memory that moves meanwhile may count in two places or none. */
CENOTE_API int cenote_group_reserved(cenote_group *group, uint64_t *bytes);

/* Like cenote_alloc_aligned, from the group's memory. */
CENOTE_API int cenote_group_alloc(cenote_group *group, size_t bytes, size_t alignment, cenote_stream stream, void **block);

/*
 * A block at exactly this address, where an earlier one of the same stream and group (NULL: none) and of this size lay and everything is free
 * now: to restore what was recorded. CENOTE_INVALID where it is not, or where live blocks of up to 8 KiB and another size are its neighbours.
 * CENOTE_BUSY where it is free, but the device is still at work on what lay there: wait for its streams and ask again.
 */
CENOTE_API int cenote_alloc_at(cenote_pool *pool, cenote_group *group, void *address, size_t bytes, cenote_stream stream);

/*
 * A stream capture begins: until cenote_capture_end, what is allocated on `stream` from this pool comes from `group`, which must be
 * private. Say so before cuStreamBeginCapture, and end it after cuStreamEndCapture. Blocks freed meanwhile are reused inside the
 * capture only in the order of their stream. For other streams that join the capture use cenote_group_alloc.
 * While any capture is open on the device nothing is unmapped or given back and the device is not waited for. It is told for one device: if streams
 * of other devices will join the capture, begin and end it for one of them on each, with a group of a pool of that device; or a pool
 * there may end the capture. On drivers before CUDA 12.5 this call may wait until another thread's wait for the device is over.
 */
CENOTE_API int cenote_capture_begin(cenote_group *group, cenote_stream stream);
CENOTE_API int cenote_capture_end(cenote_group *group, cenote_stream stream);

/* ---------------------------------------------------------------------------------------------------------------- statistics */

typedef struct cenote_level {
    uint64_t current, peak, total_in, total_out;
} cenote_level;

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

CENOTE_API int cenote_pool_stats(cenote_pool *pool, cenote_stats *stats, size_t size);
#define cenote_pool_stats(...) cenote_pool_stats(__VA_ARGS__, sizeof(cenote_stats))

/* Peaks start again from what is current; totals and counts start again from zero. */
CENOTE_API int cenote_reset_peaks(cenote_pool *pool);
CENOTE_API int cenote_reset_totals(cenote_pool *pool);

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

/* Threads that have pushed no tag, as those that a framework computes gradients on, go by the tag that this thread has now. */
CENOTE_API int cenote_tag_share(void);

/* What the live block that holds `address` turned out to be: enum cenote_kind. It goes out of its old kind and into this one. */
CENOTE_API int cenote_block_kind(const void *address, int kind);

/* One part of the allocated bytes. The rows of one division add up to `allocated.current`; an arena or a group that goes takes its totals along. */
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
 * as for cenote_pieces.
 */
CENOTE_API int cenote_rows(cenote_pool *pool, int division, cenote_row *rows, size_t room, size_t *count, size_t size);
#define cenote_rows(...) cenote_rows(__VA_ARGS__, sizeof(cenote_row))

/* What a step left behind. Levels in bytes. */
typedef struct cenote_step_note {
    uint64_t step;            /* its number, from 1 */
    uint64_t ns;              /* when it ended, by the pool's clock */
    uint64_t live, reserved;  /* allocated and reserved when it ended */
    uint64_t peak;            /* of allocated, within it */
} cenote_step_note;

/* The last steps, up to CENOTE_STEPS_KEPT of them, the newest first. Room and count as for cenote_pieces. */
#define CENOTE_STEPS_KEPT 256
CENOTE_API int cenote_steps(cenote_pool *pool, cenote_step_note *notes, size_t room, size_t *count, size_t size);
#define cenote_steps(...) cenote_steps(__VA_ARGS__, sizeof(cenote_step_note))

/*
 * What the device's memory is used for and what to do about it, in words: what was tried (`bytes` that could not be had; 0: nothing failed),
 * what is free, what this pool, this process and others hold, and the one or two things most likely to help now. Like snprintf: writes at
 * most `size` bytes, always ends them with 0, returns the length of the whole text; 4096 bytes are always enough. Never fails: what cannot
 * be asked any more is said. cenote_message() is this text after CENOTE_OUT_OF_MEMORY. Call it with no lock that a function given to
 * cenote_on_moment takes; it makes no driver call that a capture forbids. It takes a millisecond or more: not for hot paths.
 */
CENOTE_API size_t cenote_explain(cenote_pool *pool, uint64_t bytes, char *text, size_t size);

/* Who takes memory from the pool, for explanations: "PyTorch". Up to 31 bytes of ASCII; "cenote" until it is said. */
CENOTE_API int cenote_pool_set_user(cenote_pool *pool, const char *name);

/* What only the program knows of the moment at which an explanation is made. Every field comes with what cenote knows. */
typedef struct cenote_moment {
    uint64_t bytes;          /* that could not be had; 0: nothing failed */
    int32_t  phase;          /* enum cenote_phase; comes as cenote_phase_now() */
    int32_t  keeps_history;  /* do operations keep what a backward needs (torch.is_grad_enabled())? 1, 0; comes as -1: not known */
    uint64_t training_peak;  /* most bytes allocated at once in a training step; comes as the highest peak that cenote_steps has, 0: none */
    uint64_t gradients;      /* bytes of gradients held; comes as what cenote_block_kind said is one */
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
CENOTE_API size_t cenote_site_text(uint32_t site, char *text, size_t size);

/*
 * What has grown: the last step, how much a step has left behind over the last `steps` (2 to 64), and the blocks born in them that are still
 * live, by site and label, the largest first. Those that each step left some of are growing; what only the last step left is not
 * counted, it may yet go. Like snprintf, or 0 with an error in cenote_message().
 */
CENOTE_API size_t cenote_growth(cenote_pool *pool, uint32_t steps, char *text, size_t size);

/* What a mark found, for the next one to compare with. Begin with zeros. */
typedef struct cenote_marked {
    char     name[64];
    uint64_t live;
    uint64_t kinds[CENOTE_KINDS_MAX]; /* by enum cenote_kind; room for later ones */
} cenote_marked;

/* One line: what is live here, the change since the mark before, and both by kind. Like snprintf; 0 with an error in cenote_message(). */
CENOTE_API size_t cenote_mark(cenote_pool *pool, const char *name, cenote_marked *last, char *text, size_t room, size_t size);
#define cenote_mark(...) cenote_mark(__VA_ARGS__, sizeof(cenote_marked))

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
    uint8_t       unused;     /* 0 */
    uint64_t      born;       /* steps that were over when it was allocated */
} cenote_piece;

/*
 * What lies where: in the group, or with NULL in all the memory that is reserved. Fills in at most `room` pieces and sets *count to how many there
 * are, so that a caller with too little room can ask again. It is of one moment if there are few pieces, or if no other thread uses the pool
 * meanwhile. Otherwise a block that is live all the time is there once, as it is; one that comes or goes may be there or not; and pieces of a segment
 * tile it all the same.
 */
CENOTE_API int cenote_pieces(cenote_pool *pool, cenote_group *group, cenote_piece *pieces, size_t room, size_t *count, size_t size);
#define cenote_pieces(...) cenote_pieces(__VA_ARGS__, sizeof(cenote_piece))

/*
 * The pool writes down what it hands out and takes back: the last so many records from now on, 40 bytes each. 0: it stops and forgets them.
 * The option `record` does the same from its opening.
 */
CENOTE_API int cenote_record(cenote_pool *pool, uint64_t records);

/*
 * Writes the records as a trace (docs/traces.md), gzip if `path` ends in .gz; recording goes on. It begins with the blocks that were live when
 * the oldest record was written, so that cenote-replay can do it again, and ends with the last record; other threads go on meanwhile. CENOTE_FILE if
 * it cannot be written: what was at `path` stays. CENOTE_BUSY if they were quicker than the copy again and again: give the ring more room.
 */
CENOTE_API int cenote_record_save(cenote_pool *pool, const char *path);

/*
 * Everything the pool knows as JSON (docs/snapshot.md), which says whether it is of one moment: it is if no other thread wanted the pool meanwhile.
 * Counters are of one moment always. Files as for cenote_record_save.
 */
CENOTE_API int cenote_snapshot(cenote_pool *pool, const char *path);

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
