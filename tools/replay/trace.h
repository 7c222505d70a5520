/* trace.h: a whole trace in memory, ready to be replayed again and again. See trace.c. */
#ifndef CENOTE_TOOLS_REPLAY_TRACE_H
#define CENOTE_TOOLS_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>

#include "stats/records/records.h"

struct trace {
    struct record *records;
    size_t         count;        /* with the frees of what the file leaves over */
    size_t         in_file, allocations;
    uint32_t       blocks;       /* `block` of every record lies below */
    uint32_t       devices;      /* so many are named */
    uint32_t       streams;      /* so many per device, with stream 0 */
    uint64_t       live_peak;    /* most bytes asked for by live blocks at one time */
    uint64_t       length_ns;
};

/* False, and a message on stderr, if the file is broken. */
bool trace_load(struct trace *trace, const char *path);
void trace_close(struct trace *trace);

#endif
