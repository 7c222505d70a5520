/* judge.h: what an allocator reserves for a trace. See judge.c. */
#ifndef CENOTE_TOOLS_WASTE_JUDGE_H
#define CENOTE_TOOLS_WASTE_JUDGE_H

#include "tools/replay/replay.h"

struct allocator {
    const char *name;
    replay_fn   play;
    bool        apart;      /* uses the simulated driver, so that each replay is a process of its own */
    const char *text;
};

extern const struct allocator allocators[];
extern const size_t           allocators_count;

const struct allocator *allocator_named(const char *name); /* NULL: none */

void judge(const struct allocator *allocator, const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

/* The measure: 1 is no waste. 0 for a trace that asks for less than half of `live` at its peak, or that ran out of memory. */
double judge_waste(const struct trace *trace, const struct replay_result *result, uint64_t live);

/* The least memory without the context, to 1 %, with which the whole trace can be played; the page size stays that of `plan`. */
uint64_t judge_smallest(const struct allocator *allocator, const struct trace *trace, const struct replay_plan *plan);

#endif
