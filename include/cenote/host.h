/*
 * host.h: pinned host memory for CUDA programs, from the NUMA node that is nearest to the device.
 *
 * What cudaHostAlloc gives, without its price: memory is registered with the driver in chunks and cut into blocks here. Every device may
 * read and write a block by its address (it is registered as portable), and the host may at any time.
 *
 *     void *block;
 *     if (cenote_host_alloc(0, 1 << 20, &block))
 *         puts(cenote_host_message());
 *     cuMemcpyHtoDAsync(to, block, 1 << 20, stream);
 *     cenote_host_use(block, 0, stream);
 *     cenote_host_free(block);         ... handed out again when the copy is done
 *
 * It is a library of its own, libcenote_host.so, which needs jemalloc and hwloc and not libcenote.so. Results, errors (errors.def),
 * threads and the sizes of structs are as cenote.h says. Memory that could not be pinned is never handed out, nor what a reset of a device has ended
 * once a call has needed that device's driver: CENOTE_DEVICE_LOST, until what lies there was freed and trimmed.
 */
#ifndef CENOTE_HOST_H
#define CENOTE_HOST_H

#include <cenote/cenote.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong in the last failing call of this thread and this library, in words. */
CENOTE_API const char *cenote_host_message(void);

/* ------------------------------------------------------------------------------------------------------------------- options */

/* host_options.def says what each field means. Start from cenote_host_options_default(). */
typedef struct cenote_host_options {
    uint32_t    chunk_mib;
    uint32_t    large_kib;
    int32_t     node;          /* -1: nearest */
    uint32_t    huge_pages;
    uint32_t    decay_ms;
    uint32_t    trim_every;
    uint32_t    budget_percent;
    uint32_t    unused;        /* 0 */
    double      limit;         /* above 1: bytes, 2 MiB at least; up to 1: part of what the process may have; 0: none; -1: RLIMIT_MEMLOCK */
    const char *topology;      /* hwloc's XML of a machine, by path; NULL: this one. Read during the call alone */
    uint32_t    announced;     /* 1: all captures are announced, or none is open when devices are waited for */
    uint32_t    unused2;       /* 0 */
} cenote_host_options;

/* Fills in the defaults, then what CENOTE_HOST_CONF says ("limit:50%,chunk_mib:16"). A mistake there is CENOTE_BAD_OPTION and leaves the defaults. */
CENOTE_API int cenote_host_options_default(cenote_host_options *options, size_t size);
#define cenote_host_options_default(...) cenote_host_options_default(__VA_ARGS__, sizeof(cenote_host_options))
CENOTE_API const char *cenote_host_options_help(void);

/* Optional: the first block opens with the defaults. CENOTE_BUSY when it is open already. NULL: the defaults. */
CENOTE_API int cenote_host_open(const cenote_host_options *options, size_t size);
#define cenote_host_open(...) cenote_host_open(__VA_ARGS__, sizeof(cenote_host_options))

/*
 * Are all captures announced from now on (1), or are they not (0)? Pools of libcenote.so are told in cenote_options, and pinned memory knows
 * nothing of them: a program that sets `announced` there says it here as well, or in cenote_host_options. After a 0 no thread waits for a device as a
 * whole when the call returns. Pinned memory is opened if it is not open.
 */
CENOTE_API int cenote_host_set_announced(int announced);

/* Gives everything back. CENOTE_BUSY, and nothing happens, while blocks are live. No other call may be under way. */
CENOTE_API int cenote_host_close(void);

/* -------------------------------------------------------------------------------------------------------------------- blocks */

/* Pinned memory near `device`, aligned to 512, above 14 KiB to 4096. Zero bytes give NULL, which cenote_host_free accepts. */
CENOTE_API int cenote_host_alloc(int device, size_t bytes, void **block);

/* The block may be handed out again when everything named by cenote_host_use is done. Waits for nothing. */
CENOTE_API int cenote_host_free(void *block);

/*
 * What is on `stream` of `device` now may be using the block: its memory is not handed out again before that is done. Call it after
 * each copy, while the stream exists; several threads may do so for one block. CENOTE_INVALID: the stream is of another device, or of a context that
 * is not the device's primary one, and nothing is noted: wait for it before the free. In a stream capture the copies of a graph happen whenever it is
 * replayed: keep the block for as long. With announced:0 the last replays before the free are waited for on the default stream and on immortal
 * streams alone: tell those on other streams with this call.
 */
CENOTE_API int cenote_host_use(void *block, int device, cenote_stream stream);

/*
 * The stream of that device lives as long as pinned memory is open: graphs with pinned blocks may be replayed on it. For announced:0. After a reset
 * of the device it is CENOTE_DEVICE_LOST until what was registered there is freed and trimmed.
 */
CENOTE_API int cenote_host_stream_set_immortal(int device, cenote_stream stream);

typedef struct cenote_host_block {
    void  *start;
    size_t requested;
    int    node;       /* NUMA node, as the system counts them */
    int    is_bound;   /* its memory is bound to that node */
} cenote_host_block;

/* The live block that holds `address`, which may lie inside it. CENOTE_NOT_OURS: there is none. */
CENOTE_API int cenote_host_find(const void *address, cenote_host_block *block, size_t size);
#define cenote_host_find(...) cenote_host_find(__VA_ARGS__, sizeof(cenote_host_block))

/* --------------------------------------------------------------------------------------------------------- giving memory back */

/* Unregisters unused chunks until at most `keep_bytes` are registered. CENOTE_TRIM_WAIT: waits for blocks that devices still use. */
CENOTE_API int cenote_host_trim(uint64_t keep_bytes, unsigned flags);

/* One iteration of the program is over. Steps drive trim_every and decay_ms. */
CENOTE_API int cenote_host_step(void);

/* ---------------------------------------------------------------------------------------------------------------- statistics */

typedef struct cenote_host_stats {
#define CENOTE_LEVEL(name, unit, text) cenote_level name;
#define CENOTE_COUNT(name, unit, text) uint64_t name;
#define CENOTE_GAUGE(name, unit, text) uint64_t name;
#include <cenote/host_counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
} cenote_host_stats;

/* Of one NUMA node, or of all together (-1; then a peak is the sum of theirs). */
CENOTE_API int cenote_host_node_stats(int node, cenote_host_stats *stats, size_t size);
#define cenote_host_node_stats(...) cenote_host_node_stats(__VA_ARGS__, sizeof(cenote_host_stats))

/* Peaks start again from what is current. */
CENOTE_API int cenote_host_reset_peaks(void);

/* Nodes, devices and their distances, what is registered and bound, as text; like snprintf. 0: not open, and cannot be opened. */
CENOTE_API size_t cenote_host_report(char *text, size_t room);

/* Walks the structures and checks what always holds: 0, or CENOTE_INVALID and a message. For tests. */
CENOTE_API int cenote_host_check(void);

#ifdef __cplusplus
}
#endif
#endif
