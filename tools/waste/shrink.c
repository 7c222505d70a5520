/*
 * shrink.c: finds the blocks of a trace that cause its waste.
 *
 * By delta debugging: takes out blocks with their uses and frees, first half of them at a time, then a quarter, down to single blocks, as long as
 * the rest wastes nearly as much. Each try is a replay, so there are at most SHRINK_TRIES; if the search had a limit of time, they take at most a
 * quarter of it. The ids of the remaining blocks begin at 1.
 *
 * LOCKING: none.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common.h"
#include "tools/waste/climb.h"

#define SHRINK_TRIES 2000
#define SHRINK_SECONDS 10 /* at least that long */
#define EXCESS_KEPT 0.95

struct shrinking {
    struct search *search;
    struct trace   whole, part;
    bool          *gone;        /* by block of `whole` */
    uint32_t      *names;       /* room for new ids */
    double         goal;
    unsigned       tries;
    double         end;         /* by now_seconds(); HUGE_VAL: no limit of time */
};

static bool may_go_on(const struct shrinking *s)
{
    return s->tries < SHRINK_TRIES && now_seconds() < s->end;
}

/* The remaining part of the whole. */
static void leave_out(struct shrinking *s)
{
    struct trace *part = &s->part;
    uint64_t live = 0;
    struct record *records = part->records;
    *part = s->whole;
    part->records = records;
    part->count = part->length_ns = part->live_peak = 0;
    part->blocks = 1;
    for (size_t i = 0; i < s->whole.count; i++) {
        struct record r = s->whole.records[i];
        if (s->gone[r.block])
            continue;
        if (r.op == RECORD_ALLOC)
            s->names[r.block] = part->blocks++;
        r.id = r.block = s->names[r.block];
        r.t_ns = part->length_ns = part->count * PATTERN_STEP_NS;
        records[part->count++] = r;
        live += r.op == RECORD_ALLOC ? r.bytes : 0;
        live -= r.op == RECORD_FREE ? r.bytes : 0;
        if (part->live_peak < live)
            part->live_peak = live;
    }
    part->in_file = part->count;
}

static bool still_wastes(struct shrinking *s)
{
    struct replay_result result;
    s->tries++;
    leave_out(s);
    judge(s->search->allocator, &s->part, &s->search->plan, &result);
    return !result.failed && judge_waste(&s->part, &result, s->search->bounds.live) >= s->goal;
}

/* Tries the trace without blocks [from, to). */
static bool try_without(struct shrinking *s, uint32_t from, uint32_t to)
{
    bool any = false;
    bool *before = malloc((to - from) * sizeof(*before));
    if (!before)
        bench_fail("no host memory to minimise");
    memcpy(before, s->gone + from, (to - from) * sizeof(*before));
    for (uint32_t i = from; i < to; i++) {
        any |= !s->gone[i];
        s->gone[i] = true;
    }
    bool good = any && still_wastes(s);
    if (!good)
        memcpy(s->gone + from, before, (to - from) * sizeof(*before));
    free(before);
    return good;
}

static void remove_blocks(struct shrinking *s)
{
    for (uint32_t run = s->whole.blocks / 2; run && may_go_on(s); run /= 2)
        for (uint32_t from = 1; from < s->whole.blocks && may_go_on(s); from += run)
            try_without(s, from, from + run < s->whole.blocks ? from + run : s->whole.blocks);
}

bool shrink(struct search *search)
{
    struct shrinking s = {.search = search, .whole = search->trace, .goal = 1 + EXCESS_KEPT * (search->waste - 1)};
    s.end = search->patterns_most ? HUGE_VAL : now_seconds() + fmax(SHRINK_SECONDS, search->seconds / 4);
    s.part.records = malloc((PATTERN_RECORDS + 1) * sizeof(*s.part.records));
    s.gone = calloc(s.whole.blocks + 1, sizeof(*s.gone));
    s.names = calloc(s.whole.blocks + 1, sizeof(*s.names));
    if (!s.part.records || !s.gone || !s.names)
        bench_fail("no host memory to minimise");
    remove_blocks(&s);
    leave_out(&s);
    free(s.whole.records);
    free(s.gone);
    free(s.names);
    search->trace = s.part;
    judge(search->allocator, &search->trace, &search->plan, &search->result);
    return !search->result.failed;
}
