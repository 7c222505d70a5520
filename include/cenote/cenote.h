/*
 * cenote.h: device memory for CUDA programs. What a runtime needs: errors, options, pools, blocks, streams, trims, groups and captures.
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
 * cenote/report.h has counters, labels, explanations, pictures and traces; cenote/share.h shares memory with other processes; with
 * cenote/sleep.h memory leaves the device for a while; cenote/host.h is pinned host memory, a library of its own. Each of them includes this
 * header, and this header includes none of them.
 *
 * CONVENTIONS
 *   Names      The object comes first, then the verb, then what of the object it changes: cenote_pool_trim, cenote_group_set_flags. A call
 *              that only answers is named by the answer: cenote_pool_device. A call that names no object is about a block (cenote_alloc,
 *              cenote_free, cenote_find) or about the calling thread or the process (cenote_message, cenote_version). Types, functions and
 *              macros begin with cenote_ or CENOTE_; the headers define no other macro, nor do the tables (*.def), which a program may
 *              expand itself: #define CENOTE_ERROR(code, name, text) ..., #include <cenote/errors.def>, #undef CENOTE_ERROR. `size` is the size
 *              of a struct, `room` how many bytes or elements there is room for.
 *   Results    A call that can fail returns CENOTE_OK (0) or an error of errors.def. Its results come through its last arguments and are set
 *              only on success. cenote_message() says in words what went wrong in the last failing call of this thread, and what to do
 *              about it. A text is written as snprintf writes it: the call returns the length of the whole text.
 *   Threads    Every call may be made from any thread. No call makes another device or context current for the caller.
 *   Streams    A stream is a CUstream or cudaStream_t of the device's primary context: 0 is the legacy default stream, (cenote_stream)2 the
 *              per-thread default stream of the calling thread.
 *   Scope      Of the process: the default pools, the phase, the function of cenote_on_moment, the names of tags and sites. Of a thread: the
 *              message and the driver's result of its last failing call, and the tags it has pushed. All else is of one pool or one group.
 *   Callbacks  Functions of the program that cenote calls may call cenote: shortage functions, take and give of a cenote_source, the
 *              moment function. A watch function and a clock must not: calls on pools, groups and blocks are CENOTE_INVALID there.
 *   Ends       A child after fork() owns none of its parent's memory: its calls on pools, groups and blocks are CENOTE_FORKED and change
 *              nothing. Once the process exits, frees succeed and counters answer; a call that needs memory or the driver is CENOTE_EXITING.
 *   Captures   A capture that was not announced may be invalidated, unless a pool has the option announced:0: then none ever is, in any mode. An
 *              announced one (cenote_capture_begin) draws its memory from a group or takes none; until its end nothing is unmapped or given back to
 *              the driver, and no call waits for the device; what cannot be done then is CENOTE_BUSY or CENOTE_CAPTURE, or is put off.
 *              What is allocated within a capture that was not announced is memory like any other, also with announced:0: a replay uses it
 *              whatever lies there by then. So its blocks have to live as long as the graph.
 *   Sizes      A program runs with libraries that are newer or older than its header. The last argument of a function that takes or fills a
 *              struct is the size that the program's header gives that struct, in an array one element. A macro of the same name adds it:
 *              programs write cenote_find(address, &block). Where no macro does, the caller adds it: through a pointer to the function, or
 *              in another language. Nothing beyond the size is read or written. Members that only the library has are at their defaults.
 *              Members that only the program has come out as zero, and if one that goes in is not zero, the call is CENOTE_INVALID; so is a
 *              size that no such struct can have.
 *   Stable     Later versions of the same soname append members to structs and values to enumerations; they move and remove none. If a program
 *              meets a value that it does not know, it takes it for none of those it knows. Two structs never change: cenote_level, which
 *              lies inside others, and cenote_share, which travels. Not stable: the words of messages, explanations and reports, and the
 *              defaults of options.
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
typedef struct cenote_group cenote_group;     /* a part of a pool, with arenas of its own: only one that lends shares a page with others */
typedef struct CUstream_st *cenote_stream;    /* the same type as CUstream and cudaStream_t */
typedef struct CUctx_st *cenote_context;      /* the same type as CUcontext */

/* A quantity that goes up and down, as the structs of report.h and host.h have it. */
typedef struct cenote_level {
    uint64_t current, peak, total_in, total_out;
} cenote_level;

enum cenote_error {
#define CENOTE_ERROR(code, name, text) CENOTE_##name = code,
#include <cenote/errors.def>
#undef CENOTE_ERROR
};

/* ------------------------------------------------------------------------------------------------------------- the first day */

/*
 * Twelve calls with which a program begins. Options come from the environment (CENOTE_CONF="limit:80%"); what is below the line is for programs
 * that need it.
 */

/* What went wrong in the last failing call of this thread, in words. Never NULL; valid until the thread's next failing call. */
CENOTE_API const char *cenote_message(void);

/* The name of an error: "CENOTE_OUT_OF_MEMORY". Unknown codes have one too. */
CENOTE_API const char *cenote_error_name(int error);

/*
 * The device's default pool, made at the first call with the options of CENOTE_CONF. It can be destroyed only where the program has reset the device,
 * as all pools there have to be before new ones work; then the next call makes another.
 */
CENOTE_API int cenote_pool_default(int device, cenote_pool **pool);

/* Changes the most physical memory the pool may hold. 0: no limit. What is held above it is given back as far as it is free. */
CENOTE_API int cenote_pool_set_limit(cenote_pool *pool, uint64_t bytes);

/* What a pool could still hand out. */
typedef struct cenote_available {
    uint64_t held;       /* physical memory of the pool */
    uint64_t others;     /* that all others hold on the device: other pools, other allocators, contexts, other processes */
    uint64_t limit;      /* of the pool, 0: none */
    uint64_t free_now;   /* what the driver has left, within the limit, and free pages that any stream may take now */
    uint64_t free_later; /* the same once the device is done with all that was freed */
} cenote_available;

/*
 * For programs that decide by it what to begin: cheap enough for each step. It is one question to the driver, which no capture forbids, and a look at
 * the pages that may be free; nothing is waited for. It is no promise: others take memory meanwhile, a block needs addresses that hang together, and
 * what lies free beside blocks on their pages does not count. What was freed on a stream that is at work is `free_later`, although that stream
 * itself may have it now.
 */
CENOTE_API int cenote_pool_available(cenote_pool *pool, cenote_available *available, size_t size);
#define cenote_pool_available(...) cenote_pool_available(__VA_ARGS__, sizeof(cenote_available))

/*
 * A block of at least `bytes`, aligned to 512, for use on `stream` from now on. A program that uses it on another stream orders that
 * one behind what `stream` has after this call. A synchronization before the call is not enough, because the call may make `stream` wait on
 * the device (option order). Zero bytes give NULL, which cenote_free accepts.
 * Any size is a valid question: what cannot be served is CENOTE_OUT_OF_MEMORY, or CENOTE_OUT_OF_ADDRESSES where memory is left but no
 * device addresses.
 */
CENOTE_API int cenote_alloc(cenote_pool *pool, size_t bytes, cenote_stream stream, void **block);

/*
 * The block is also used on another stream. When it is freed it waits until the work that is then on `stream` is done.
 * Call it after the block is allocated and before it is freed; once per stream is enough. A created stream may be of another device.
 */
CENOTE_API int cenote_use(void *block, cenote_stream stream);

/*
 * Gives a block back in the order of the stream it was allocated on. Work already put on that stream, and on the streams named by
 * cenote_use, may still use it; later work must not. Never fails for want of anything: errors are misuse, and then nothing happened.
 */
CENOTE_API int cenote_free(void *block);

/*
 * Frees a block whose last use is on `stream`, which may be any: cenote_use and cenote_free in one call. Work already put on `stream` may still use
 * the block, and it comes back to the stream it was allocated on when that work is done. If the stream cannot be named, as one that was destroyed,
 * it is an error and the block stays live. With announced:0, too, the stream has its event in this call, and may be destroyed afterwards, unless
 * it is being captured, a capture is open on the device, or the driver refuses.
 */
CENOTE_API int cenote_free_on(void *block, cenote_stream stream);

typedef struct cenote_block {
    void         *start;      /* what cenote_alloc returned */
    size_t        requested;  /* bytes asked for */
    size_t        size;       /* bytes that may be used */
    cenote_pool  *pool;
    cenote_group *group;      /* NULL: none */
    uint64_t      stream_id;  /* of its stream: cuStreamGetId of a created one, a number of our own for default streams */
    cenote_stream stream;     /* the handle it had when it was last used; it may be dead */
    uint64_t      used;       /* streams named by cenote_use: if any, the block waits for them when it is freed */
    uint64_t      word;       /* of its cenote_request, 0: none */
} cenote_block;

/* The live block that holds `address`, which may lie inside it. */
CENOTE_API int cenote_find(const void *address, cenote_block *block, size_t size);
#define cenote_find(...) cenote_find(__VA_ARGS__, sizeof(cenote_block))

#define CENOTE_TRIM_WAIT 1u /* wait on the host until all work put on the device so far is done: then everything unused can go */

/* Comes again and again, as after each step: if that costs too much and no other process is on the device, what steps use stays (docs/options.md). */
#define CENOTE_TRIM_PERIODIC 2u

#define CENOTE_TRIM_DEFERRED 4u /* only what periodic trims have left: the program is about to look. Nothing while a capture is open */

/* Gives free pages back to the driver until at most `keep_bytes` of physical memory are held, or nothing more is free. */
CENOTE_API int cenote_pool_trim(cenote_pool *pool, uint64_t keep_bytes, unsigned flags);

/*
 * Called, with no lock held, when memory runs out and before the allocation fails: the program may free blocks of its own. Nonzero
 * means it did, and the search starts again; a function is called up to eight times for one allocation, and then the one behind it, so what is freed
 * should be about `bytes` or more. What it allocates itself does without it. It must not free a block that grows (cenote_extend).
 */
typedef int (*cenote_shortage_fn)(cenote_pool *pool, size_t bytes, void *arg);

/*
 * The function is called from now on, with `arg`: that of the least rank first, from 1, and of equal ranks the one set first. Those behind it are
 * called if it freed nothing. Up to eight of them a pool; the same function and argument again have another rank. Rank 0 takes them away: they are
 * not running any more when that returns, so the function must not wait for the thread that takes it away. A call from inside a
 * function that cenote called does not wait: then those calls that run on other threads may still be running.
 */
CENOTE_API int cenote_pool_on_shortage(cenote_pool *pool, uint32_t rank, cenote_shortage_fn function, void *arg);

/* ------------------------------------------------------------------------------------------------------------ below the line */

/* ------------------------------------------------------------------------------------------------------------------ errors */

/* What an error means, in one line. Unknown codes have that, too. */
CENOTE_API const char *cenote_error_text(int error);

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

enum cenote_graphs {
    CENOTE_GRAPHS_AUTO,   /* pages, unless the adapter to PyTorch finds that the program needs the other (docs/sharing.md) */
    CENOTE_GRAPHS_PAGES,
    CENOTE_GRAPHS_PLAIN   /* private groups are CENOTE_GROUP_PLAIN */
};

enum cenote_handles {
    CENOTE_HANDLES_FILE,   /* file descriptors: for other processes of the machine */
    CENOTE_HANDLES_FABRIC  /* fabric handles as well: for other machines */
};

enum cenote_aliases {
    CENOTE_ALIASES_ON,
    CENOTE_ALIASES_OFF     /* no page is mapped twice */
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
    uint32_t graphs;           /* enum cenote_graphs */
    uint32_t handles;          /* enum cenote_handles */
    uint32_t mappings;         /* 0: no cap */
    uint32_t announced;        /* 1: all captures are announced */
    uint32_t aliases;          /* enum cenote_aliases */
    uint32_t order;            /* 1: streams may wait for memory */
    uint32_t sanitize;         /* 1: compute-sanitizer knows the blocks */
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

/*
 * A pool of one's own. `options` may be NULL for the defaults. CENOTE_BUSY: it would be the first with announced:0, there are other pools, and an
 * announced capture is open.
 */
CENOTE_API int cenote_pool_create(int device, const cenote_options *options, cenote_pool **pool, size_t size);
#define cenote_pool_create(...) cenote_pool_create(__VA_ARGS__, sizeof(cenote_options))

/*
 * As cenote_pool_create, in a context (CUcontext) that the caller keeps: one that it has made itself, or the primary one. cenote retains and
 * releases nothing: the context must live until the pool is destroyed. Pools in all contexts of a device share its memory: one that is short has
 * what the others do not use. Blocks are taken on streams of this context, and a default stream is that of
 * the context that is current, which has to be this one.
 */
CENOTE_API int cenote_pool_create_in(cenote_context context, const cenote_options *options, cenote_pool **pool, size_t size);
#define cenote_pool_create_in(...) cenote_pool_create_in(__VA_ARGS__, sizeof(cenote_options))

/*
 * Gives everything back. CENOTE_BUSY, and nothing happens, while blocks are live, groups exist, memory is pinned, a capture is open, or
 * another thread still allocates, frees, uses a block, retires a stream or destroys the pool; and if streams that may have been destroyed used memory
 * of it, see cenote_stream_retire. Where the program has reset the device, blocks and pins that are left end with the pool; if it is CENOTE_BUSY
 * because of other devices, they have ended all the same. Captures count that are open on any pool of the device; where the caller keeps the context
 * (cenote_pool_create_in), those on pools in that context, because it may have to end. Other calls that come too late are CENOTE_INVALID, at
 * least until 64 more pools have ended.
 */
CENOTE_API int cenote_pool_destroy(cenote_pool *pool);

/* Changes trim_above of options.def, from 0 (off) to 1. */
CENOTE_API int cenote_pool_set_trim_above(cenote_pool *pool, double part);

/* -1: NULL, or a pool that was destroyed. cenote_pool_provider answers the same. */
CENOTE_API int cenote_pool_device(const cenote_pool *pool);

/* Where its memory comes from: enum cenote_provider, never CENOTE_AUTO. */
CENOTE_API int cenote_pool_provider(const cenote_pool *pool);

/*
 * Kernels of that device may read and write the pool's memory from now on, what is there and what comes, until that device is reset: its next context
 * wants another call. Again is no error.
 * CENOTE_NOT_SUPPORTED where the device cannot reach this one's memory. What a program's own source gives to a group is not touched.
 */
CENOTE_API int cenote_pool_grant(cenote_pool *pool, int device);

/* What a watch function hears of: bits. */
enum cenote_change {
    CENOTE_MAPPED    = 1,   /* memory lies there now; no block on it has been handed out yet, but for those that wake (sleep.h) */
    CENOTE_UNMAPPING = 2,   /* it goes away from there next; nothing live lies on it, but for what goes to sleep */
    CENOTE_FREED     = 4,   /* a freed block that waited for other streams is free now; its memory has not been handed out again yet */
    CENOTE_ALLOCATED = 8,   /* a block of so many bytes begins there */
    CENOTE_EXTENDED  = 16,  /* it has so many from now on */
    CENOTE_ENDED     = 32   /* it is live no more: freed by the program, with its group, or with its context */
};

/* A change of what lies there. */
typedef struct cenote_notice {
    int           change;
    uint32_t      unused;
    void         *address;
    size_t        bytes;    /* of a block: those that were asked for */
    cenote_stream stream;   /* of ALLOCATED and EXTENDED: the block's; else 0 */
} cenote_notice;

/*
 * Called before and after memory comes and goes, for libraries that remember what lies under an address: from MAPPED to UNMAPPING the range keeps
 * its physical memory, whatever blocks come and go on it. A notice may cover several ranges of earlier ones, or a part of one. Where the
 * driver refuses to unmap, MAPPED says so. For tools that follow blocks: the notices of one address have the order of its blocks, ALLOCATED comes
 * before the allocation returns, and ENDED before another block can lie there. Calls come one at a time, from any thread, with locks held
 * but the pool's: the function must not call cenote and not wait for a thread that does.
 */
typedef void (*cenote_watch_fn)(cenote_pool *pool, const cenote_notice *notice, void *arg);

/*
 * The function hears of these changes from now on, with `arg`. Up to eight of them a pool; the same function and argument again hear of others.
 * 0 changes take them away, and the function does not run any more when that returns. A program that begins late asks cenote_pool_pieces
 * (report.h) afterwards for what is there; of a block that ended meanwhile it may hear first, and find it among the pieces then.
 */
CENOTE_API int cenote_pool_watch(cenote_pool *pool, uint32_t changes, cenote_watch_fn function, void *arg);

/* -------------------------------------------------------------------------------------------------------------------- blocks */

/*
 * The calling thread does not wait: not for the device, not for a thread that changes mappings, and no shortage function and no source is called.
 * What is there or can be had from the driver is given; else the call is CENOTE_OUT_OF_MEMORY, without the explanation, or CENOTE_BUSY while
 * another thread has the turn to change mappings. No stream is made to wait, either.
 */
#define CENOTE_NO_WAIT 1u

/*
 * What a block is asked for. Begin with zeros: they are cenote_alloc.
 *
 *     cenote_request request = {.bytes = 1 << 20, .alignment = 1 << 16, .stream = stream};
 *
 * With `at` the block begins at exactly this address, where an earlier one of the same stream and group (NULL: none) and of this size lay and
 * everything is free now: to restore what was recorded. CENOTE_INVALID where it is not, or where live blocks of up to 8 KiB and another size are its
 * neighbours. CENOTE_BUSY where it is free, but the device is still at work on what lay there: ask again after cenote_pool_trim with
 * CENOTE_TRIM_WAIT, which has to give nothing back for that (UINT64_MAX). From CUDA 12.5 on it is enough to wait for its streams. CENOTE_BUSY too
 * where it is free and sleeps (sleep.h): cenote_pool_resume comes first.
 */
typedef struct cenote_request {
    size_t        bytes;
    size_t        alignment;  /* a power of two of up to the page size; 0: 512 */
    void         *at;         /* NULL: anywhere */
    cenote_group *group;      /* NULL: none */
    cenote_stream stream;
    uint64_t      word;       /* the program's own, which cenote_find, cenote_pool_pieces and snapshots give back; 0: none */
    uint32_t      flags;      /* CENOTE_NO_WAIT */
    uint32_t      unused;     /* 0 */
} cenote_request;

/* As cenote_alloc, with all that a block can be asked for. `pool` may be NULL if there is a group. */
CENOTE_API int cenote_alloc_with(cenote_pool *pool, const cenote_request *request, void **block, size_t size);
#define cenote_alloc_with(...) cenote_alloc_with(__VA_ARGS__, sizeof(cenote_request))

/*
 * A live block has so many bytes from now on, at the address it has, and what was in it stays: it grows into what lies behind it, if that is free, or
 * are addresses without memory, to which pages come. What is new is, like what cenote_alloc gives, for use on the stream of the block, which has to
 * live; other streams are ordered behind this call. Under shortage the call does what cenote_alloc does.
 * CENOTE_BUSY, and the block is as it was: another block lies behind it, its segment ends, or its region, which has an eighth of the device's memory
 * or more; the device or another stream is at work with what lies there, or a page of the block or there sleeps (sleep.h), or the block was
 * exported. Then a new block and a copy are the way. Blocks of up to 8 KiB have neighbours mostly; in a group of its own a block has none. A block
 * with memory of its own (CENOTE_GROUP_WHOLE, provider guard) grows by whole pages with the first, and not beyond its rounded size with the other.
 * CENOTE_CAPTURE: a capture is open on its stream, and the block is of no private group. CENOTE_INVALID: it is as long or longer already, or its
 * stream was retired, or its group destroyed. CENOTE_DOUBLE_FREE, or CENOTE_NOT_OURS: the block was freed, perhaps by a shortage function
 * meanwhile.
 */
CENOTE_API int cenote_extend(void *block, size_t bytes);

/*
 * `count` blocks, each as by cenote_alloc_with, in fewer holds of the pool's lock: CENOTE_INVALID with `at`. All or none: after an error those that
 * were there already have been freed, and `blocks` means nothing.
 */
CENOTE_API int cenote_alloc_many(cenote_pool *pool, const cenote_request *request, size_t count, void **blocks, size_t size);
#define cenote_alloc_many(...) cenote_alloc_many(__VA_ARGS__, sizeof(cenote_request))

/* Frees each as cenote_free does. Where one is no block the others are freed all the same; the error is that of the last such. */
CENOTE_API int cenote_free_many(void *const *blocks, size_t count);

/* As cenote_free; CENOTE_WRONG_SIZE if the block was not asked for with exactly `bytes`. */
CENOTE_API int cenote_free_sized(void *block, size_t bytes);

/*
 * The same as cenote_use for a stream whose device the caller knows: the default streams of another device have no handle that says so. If a created
 * stream is of another device than that, the call is CENOTE_INVALID.
 */
CENOTE_API int cenote_use_on_device(void *block, int device, cenote_stream stream);

/*
 * Memory registered with NCCL, UCX or a network card: those remember which physical memory lies under an address. Between pin and
 * unpin the mapping of every page that the range touches stays as it is, even when the blocks on it are freed. Pins nest.
 */
CENOTE_API int cenote_pin(void *address, size_t bytes);
CENOTE_API int cenote_unpin(void *address, size_t bytes);

/* ------------------------------------------------------------------------------------------------------------------- streams */

/*
 * The stream is about to be destroyed, and gets no more work: its memory is let go. Optional from CUDA 12.0 on, where a destroyed stream's memory is
 * found again anyway, but for pools with the option announced:0: there a stream that ends without this call keeps what it freed since a call
 * named it last, and what was freed while it used it. Drivers before CUDA 12.0 know a stream by its handle alone: there the call is needed always.
 * CENOTE_INVALID: the stream was declared immortal, or it is the default stream of the device, which does not end. CENOTE_BUSY: it is being captured.
 * A thread may retire its own default stream before it ends.
 */
CENOTE_API int cenote_stream_retire(cenote_pool *pool, cenote_stream stream);

/*
 * The calling thread waits for the whole context (cuCtxSynchronize), of the pool's device or of another one that used its blocks. cenote makes no
 * such call for pools with the option announced:0, because the call would end every capture of the context; a program that makes it anyway may say
 * so: then what a stream left behind that ended without cenote_stream_retire is free as well. For any pool, a granted device is not waited for again
 * before more is freed: cenote_pool_destroy succeeds while a capture is open there.
 *
 *     if (!cenote_pool_sync_begin(pool, &sync) && !cuCtxSynchronize())
 *         cenote_pool_sync_end(pool, sync);
 *
 * No driver call is made that concerns a capture, and nothing is waited for. CENOTE_INVALID: the current context is a part of the device (a green
 * context) or one beside the primary one, or `sync` is not of this pool. A pool that has not used its device yet has nothing to be told: CENOTE_OK.
 */
CENOTE_API int cenote_pool_sync_begin(cenote_pool *pool, uint64_t *sync);
CENOTE_API int cenote_pool_sync_end(cenote_pool *pool, uint64_t sync);

/*
 * The stream lives as long as the program, or as the context that it is in: cenote may remember its handle and need not ask the driver for its id at
 * each call. If it is of another device, and that is reset, the stream with its handle has to be declared again.
 */
CENOTE_API int cenote_stream_set_immortal(cenote_pool *pool, cenote_stream stream);

/* --------------------------------------------------------------------------------------------------------- giving memory back */

/*
 * Pages ahead: what is allocated on the stream next, outside of groups, blocks of up to so many bytes together, needs no call of the driver that
 * makes or maps memory, as far as it lies without gaps. For blocks below 1 MiB there is a 32nd more. The pages are free ones like others: trims,
 * decay_ms, streams and pools that are short take those that are not used, as if a block had been freed there now. No block is made, and no
 * counter of blocks changes. Nothing is waited for, and no function of the program called: CENOTE_OUT_OF_MEMORY if the driver and free pages have
 * not so much; then nothing is held for it. CENOTE_NOT_SUPPORTED with provider guard, where each block has memory of its own.
 */
CENOTE_API int cenote_pool_reserve(cenote_pool *pool, uint64_t bytes, cenote_stream stream);

/* One iteration of the program is over. Steps drive trim_every. */
CENOTE_API int cenote_pool_step(cenote_pool *pool);

/* ------------------------------------------------------------------------------------------------------- groups and captures */

#define CENOTE_GROUP_PRIVATE 1u /* addresses and the memory under them stay fixed until the group is destroyed: for CUDA graphs */
/* When memory runs out, allocations outside all groups may take what is free here, on the same stream: if the group is private, only on streams
   that have drawn nothing from it while a capture was open on the device, for a graph writes to what was captured at each replay. */
#define CENOTE_GROUP_LEND    2u
/* A block that is allocated with this shares no page and no segment with another, earlier or later. In a segment it begins where that does:
   CENOTE_INVALID, if the driver or the source gives memory that is not aligned as was asked for. */
#define CENOTE_GROUP_WHOLE   4u
/* Memory of cuMemAlloc, also where that of the pool is pages: legacy CUDA IPC (cuIpcGetMemHandle) takes it, and what registers memory finds one
   allocation under a block. With WHOLE that allocation has no other block. It serves this group alone, or later groups of this kind. */
#define CENOTE_GROUP_PLAIN   8u

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

/* LEND and WHOLE may change at any time, for what is allocated from then on; PLAIN until the first allocation; PRIVATE is for good. */
CENOTE_API int cenote_group_set_flags(cenote_group *group, unsigned flags);

/*
 * The group takes no more allocations; its live blocks stay valid, its memory goes back to the pool as they are freed. Calls that name it are
 * CENOTE_INVALID, at least until 256 more groups of the pool have ended.
 */
CENOTE_API int cenote_group_destroy(cenote_group *group);

/*
 * All live blocks of the group are freed, each as by cenote_free, in the order of its own stream and of those named by cenote_use. The group stays.
 * Blocks that were lent to callers of no group (LEND) stay live, and so do those that a call has not returned yet, or makes longer just now. A block
 * that another thread frees meanwhile may be freed or not.
 */
CENOTE_API int cenote_group_reset(cenote_group *group);

/* Bytes of physical memory that lie in the group. Memory that moves meanwhile may count in two places or none. */
CENOTE_API int cenote_group_reserved(cenote_group *group, uint64_t *bytes);

/* Gives back to the driver, or to its source, what is free in the group: not that of a private one, which stays. Of the flags only WAIT is known. */
CENOTE_API int cenote_group_trim(cenote_group *group, unsigned flags);

/*
 * A stream capture begins: until cenote_capture_end, what is allocated on `stream` from this pool comes from `group`, which must be private; `pool`
 * may be NULL. Without a group the capture takes no memory of the pool, because all that its graph uses is there already: cenote_alloc on `stream`
 * is CENOTE_CAPTURE. Say so before cuStreamBeginCapture, and end it after cuStreamEndCapture. The legacy default stream is CENOTE_INVALID: CUDA does
 * not capture it. Blocks freed meanwhile are reused inside the capture only in the order of their stream. For other streams that join the capture
 * name the group in a cenote_request.
 * While any capture is open on the device, in whichever context, nothing is unmapped or given back and the device is not waited for, but for
 * a pool that ends in a context that its caller keeps. It is told for one device: if streams
 * of other devices will join the capture, begin and end it for one of them on each, with a group of a pool of that device; or a pool
 * there may end the capture. On drivers before CUDA 12.5 this call may wait until another thread's wait for the device is over.
 */
CENOTE_API int cenote_capture_begin(cenote_pool *pool, cenote_group *group, cenote_stream stream);
CENOTE_API int cenote_capture_end(cenote_pool *pool, cenote_group *group, cenote_stream stream);

#ifdef __cplusplus
}
#endif
#endif
