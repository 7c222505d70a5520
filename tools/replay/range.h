/* range.h: what else a program would hold than in the one replay of its trace. See range.c. */
#ifndef CENOTE_TOOLS_REPLAY_RANGE_H
#define CENOTE_TOOLS_REPLAY_RANGE_H

#include "tools/replay/replay.h"

#define RANGE_SEEDS_MAX 1000
#define RANGE_SCRATCH 1 /* the tag of blocks whose size may differ on a card */

struct range {
    uint64_t low, high; /* the least and the most that was reserved, or would have been enough */
};

/* The least memory, beside the context, with which the trace gets through; 0: no replay did. `reserved`: what it holds where there is room. */
uint64_t range_least(const struct trace *trace, const struct replay_plan *plan, uint64_t reserved);

/* Replays the trace so many times, each disturbed by another seed, and widens the range. False: no host memory, or `result` says what failed.
 * A range may reach beyond the capacity of the plan. */
bool range_widen(const struct trace *trace, const struct replay_plan *plan, uint32_t seeds, struct range *range, struct replay_result *result);

#endif
