/*
 * range.c: what else a program would hold than in the one replay of its trace.
 *
 * The least memory with which it gets through is searched by halving. No allocator promises that more memory is never worse, so the answer is
 * a size that was tried, with a smaller one below it that did not do.
 *
 * The range is that of disturbed replays. Two things differ between a recorded run and a card, as far as cards were seen (docs/accuracy.md):
 *
 *   scratch    blocks with the tag RANGE_SCRATCH: a seed gives each size of them a factor, from SMALLEST to LARGEST, evenly in its logarithm
 *   order      whether a new segment of PyTorch's own allocator lies above those before it or below them: every other seed
 *
 * The capacity is that of the card: an allocator that is short there gives back what is free, and holds less than it would. A disturbed replay that
 * runs out of memory counts with the least memory with which it gets through.
 *
 * LOCKING: none.
 */
#include "tools/replay/range.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST 0.25 /* both by the cards of docs/accuracy.md */
#define LARGEST 2.0
#define FINEST (2ull << 20) /* a page, and the least segment */
#define NEARLY 128          /* a replay of cenote takes long: its search ends at one part in so many */

static bool gets_through(const struct trace *trace, const struct replay_plan *plan, uint64_t bytes)
{
    struct replay_plan own = *plan;
    struct replay_result result;
    own.capacity = bytes + replay_context_bytes();
    replay_run(trace, &own, &result);
    return !result.failed && !result.ooms;
}

uint64_t range_least(const struct trace *trace, const struct replay_plan *plan, uint64_t reserved)
{
    uint64_t enough = reserved, lacks = (trace->live_peak - 1) / FINEST * FINEST;
    while (!gets_through(trace, plan, enough)) {
        lacks = enough;
        enough += enough / NEARLY + FINEST;
        if (enough / 2 > reserved)
            return 0;
    }
    for (;;) {
        uint64_t near = plan->play || enough / NEARLY < FINEST ? FINEST : enough / NEARLY;
        if (enough - lacks <= near)
            return enough;
        uint64_t middle = (lacks + (enough - lacks) / 2) / FINEST * FINEST;
        middle = middle > lacks ? middle : lacks + FINEST;
        if (gets_through(trace, plan, middle))
            enough = middle;
        else
            lacks = middle;
    }
}

/* Even bits from all bits of the number: the finaliser of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t disturbed(uint64_t bytes, uint32_t seed)
{
    double part = (double)(mix(bytes + mix(seed)) >> 11) / (double)(1ull << 53);
    uint64_t other = (uint64_t)((double)bytes * SMALLEST * pow(LARGEST / SMALLEST, part));
    return other ? other : 1;
}

/* What a disturbed replay holds, or needs if there is less. 0: `result` says what failed, or no memory was enough. */
static uint64_t held(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    replay_run(trace, plan, result);
    if (result->failed || !result->ooms)
        return result->failed ? 0 : result->reserved_peak;
    return range_least(trace, plan, plan->capacity - replay_context_bytes());
}

bool range_widen(const struct trace *trace, const struct replay_plan *plan, uint32_t seeds, struct range *range, struct replay_result *result)
{
    struct trace other = *trace;
    struct replay_plan own = *plan;
    other.records = malloc(trace->count * sizeof(*other.records));
    if (!other.records)
        return false;
    bool is_whole = true;
    for (uint32_t seed = 1; seed <= seeds && is_whole; seed++) {
        memcpy(other.records, trace->records, trace->count * sizeof(*other.records));
        for (size_t i = 0; i < trace->count; i++)
            if (other.records[i].tag == RANGE_SCRATCH)
                other.records[i].bytes = disturbed(other.records[i].bytes, seed);
        own.falls = seed % 2;
        uint64_t bytes = held(&other, &own, result);
        is_whole = bytes;
        range->low = bytes < range->low ? bytes : range->low;
        range->high = bytes > range->high ? bytes : range->high;
    }
    free(other.records);
    return is_whole;
}
