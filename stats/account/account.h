/*
 * account.h: what a pool counts as it goes: levels, rows, steps, the trace. See count.h, rows.c, steps.c and ring.c.
 *
 * OWNERS: the files of this folder. Levels and rows move through count.h; counts of events are counted where these happen.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_STATS_ACCOUNT_ACCOUNT_H
#define CENOTE_STATS_ACCOUNT_ACCOUNT_H

#include <cenote/cenote.h>
#include <cenote/report.h>

#include "base/memory.h"
#include "pool/clock/fence.h"
#include "pool/core/row.h"
#include "pool/core/sizeclass.h"

#define SIZE_ROWS     (CLASS_COUNT + 48)  /* size classes, then one for each doubling */

/* How much of what is allocated. */
struct account {
    cenote_stats   stats;           /* levels and counts; gauges are derived */
    uint64_t       epoch;           /* of the peak of allocated bytes, see row.h */
    uint64_t       reserved_peak;   /* since the pool was opened: what its address space is measured against */
    bool           is_labelled;     /* a block had a label: the rows below are kept. Before, all is in row 0 of each */
    struct row     by_size[SIZE_ROWS];
    struct row     by_kind[CENOTE_KINDS], by_phase[CENOTE_PHASES];
    struct table   by_tag;          /* of struct row; a tag is its place, and none is ever given back */
};

/* Steps of the program, see steps.c. */
struct steps {
    uint64_t       count;
    uint64_t       bits;            /* the count, where a mark has it */
    uint64_t       peak;            /* of allocated bytes, in the step that goes on */
    cenote_step_note notes[CENOTE_STEPS_KEPT]; /* of the last steps */
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

struct recorder {
    struct ring    ring;
    uint32_t       trace_number;    /* of the file that CENOTE_TRACE asks for, 0: none */
};

#endif
