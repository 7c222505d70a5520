/* replay.h: one trace, one pool per device, one simulated GPU. See replay.c. */
#ifndef CENOTE_TOOLS_REPLAY_REPLAY_H
#define CENOTE_TOOLS_REPLAY_REPLAY_H

#include <cenote/cenote.h>

#include "tools/replay/trace.h"

struct replay_plan;
struct replay_result;
typedef void (*replay_fn)(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

/* What is so after a record. */
struct moment {
    uint64_t reserved;
    uint64_t address;        /* of the record's block, if it is an allocation under a model; else 0 */
};

/*
 * Of equal free blocks PyTorch takes one by its version: until 2.11 that at the lowest address, in 2.12 the one whose object is oldest, of the
 * pieces that blocks are split into, since 2.13 that in the oldest segment.
 */
enum replay_ties { TIES_ADDRESS, TIES_PIECE, TIES_SEGMENT };

struct replay_plan {
    replay_fn      play;     /* NULL: cenote; or a model, in whose result only what it knows is set */
    cenote_options options;
    uint64_t       capacity; /* bytes per device */
    const char    *prices;   /* what driver calls cost, as a shape has it (sim/sim.h) */
    double         lag;      /* the GPU runs behind by that part of the trace's records */
    bool           step;     /* or by a step of it */
    uint32_t       repeat;
    struct moment *curve;    /* NULL, or room for one of each record of the file; shared between processes */
    size_t         laid;     /* for models, of a recording: so many of its records set up what there was before it (torch.c) */
    bool           recorded; /* it is one */
    enum replay_ties ties;   /* for models of PyTorch */
    bool           trims;    /* a step of the trace is torch.cuda.empty_cache() */
    bool           falls;    /* for models: a new segment lies below those before it */
};

/* Where the driver time of a repetition goes, by the calls that change memory and mappings. Of models all are 0. */
struct driver_split {
    uint64_t create_ns, map_ns, access_ns, unmap_ns, release_ns;
    uint64_t pages_created, pages_moved;
};

/* Plain data, because a process sends it to another. Bytes and calls are sums over all devices. */
struct replay_result {
    uint64_t reserved_peak, address_peak;    /* by the driver's own books */
    uint64_t live_at_peak;                   /* bytes asked for by live blocks when most was reserved, for the first time */
    uint64_t page_bytes;                     /* 0: no pages */
    uint64_t calls_first, calls_last;        /* handles created, mapped and unmapped in the first and the last repetition */
    uint64_t calls_other;                    /* all other driver calls of all repetitions that cenote counts */
    uint64_t waits, ooms, metadata;
    uint64_t orders_first, orders_last;      /* times a stream was made to wait on the device, in the first and the last repetition */
    uint64_t driver_ns;                      /* modelled cost of all driver calls of all repetitions */
    uint64_t driver_first_ns, driver_last_ns; /* in the first and the last repetition, of calls by the program's own thread: it waits for them */
    struct driver_split first;               /* of the first repetition */
    double   seconds;                        /* CPU time, with that of the simulated driver */
    int      failed;                         /* 1: `message` says why, and the figures mean nothing */
    char     message[512];
};

/* How many records the device is behind; it takes REPLAY_TICK_NS for each. */
#define REPLAY_TICK_NS 1000
uint64_t replay_lag(const struct replay_plan *plan, const struct trace *trace);

/* False: the value of --prices is no list, and a line on stderr says why. */
bool replay_set_prices(struct replay_plan *plan, const char *program, const char *value);

/* cenote runs in a process of its own, because a driver lives as long as its process. A model has no context, and gets so much less memory. */
void replay_run(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);
uint64_t replay_context_bytes(void);     /* that a context takes of the simulated GPU */

#endif
