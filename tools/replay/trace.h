/* trace.h: a whole trace in memory, ready to be replayed again and again. See trace.c. */
#ifndef CENOTE_TOOLS_REPLAY_TRACE_H
#define CENOTE_TOOLS_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>

#include "stats/records/records.h"

struct trace {
    struct record *records;
    size_t         count;        /* with the frees of blocks that the file leaves live */
    size_t         in_file, allocations;
    uint32_t       blocks;       /* `block` of every record lies below */
    uint32_t       devices;      /* so many are named */
    uint32_t       streams;      /* so many per device, with stream 0 */
    uint64_t       live_peak;    /* most bytes asked for by live blocks at one time */
    uint64_t       length_ns;
    uint32_t       steps;        /* that the file marks */
    bool           has_times;    /* else TRACE_PACE_NS is the time of a record */
};

#define TRACE_PACE_NS 10000 /* chosen: half of the calls of PyTorch in public recordings of real cards follow each other within 12 us */

/* False, and a message on stderr, if the file is broken. */
bool trace_load(struct trace *trace, const char *path);

/* Records of a step, on average; a file that marks none is one step. */
uint64_t trace_step_records(const struct trace *trace);

/*
 * Most bytes at one time, in so many repetitions, of blocks that are live or that no allocator may give away yet: freed, used on another stream,
 * and freed less than `lag` records ago, as far as the device is behind. UINT64_MAX: no host memory.
 */
uint64_t trace_pending_peak(const struct trace *trace, uint64_t lag, uint32_t repeat);

void trace_close(struct trace *trace);

#endif
