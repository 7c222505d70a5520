/*
 * climb.c: hill climbing with restarts over patterns.
 *
 * A climb begins with the worst of some random patterns, or with many changes of the worst pattern found so far. Each step makes a small change
 * and keeps it if the waste grows. While the climb is young, a change that loses a little is kept, too, so that the climb gets past local maxima.
 * After PATIENCE steps without gain a new climb begins. The same seed tries the same patterns in the same order.
 *
 * LOCKING: none.
 */
#include "tools/waste/climb.h"

#include "bench/common.h"

#define BEGINNINGS 20      /* random patterns, the worst of which begins a climb */
#define PATIENCE 300       /* steps without gain until a climb ends */
#define WARMTH 0.02        /* part of its excess that a step may lose at first */
#define COOLING 0.995      /* what is left of that after each step */

/* False: the allocator failed. A pattern that asks for less than half of the limit, or that ran out of memory, wastes nothing. */
static bool try_pattern(struct search *s, const struct pattern *pattern, double *waste)
{
    const struct trace *t = &s->trace;
    pattern_play(pattern, &s->bounds, &s->trace);
    replay_run(t, &s->plan, &s->result);
    s->patterns++;
    *waste = t->live_peak >= s->bounds.live / 2 && !s->result.ooms ? (double)s->result.reserved_peak / (double)t->live_peak : 0;
    if (!s->result.failed && *waste > s->waste) {
        s->waste = *waste;
        s->worst = *pattern;
    }
    return !s->result.failed;
}

static bool begin_climb(struct search *s, uint64_t *random, struct pattern *here, double *waste)
{
    *waste = 0;
    if (s->waste > 0 && bench_random(random) >> 63) {
        *here = s->worst;
        for (int i = 0; i < 5; i++)
            pattern_change(here, &s->bounds, random);
        return try_pattern(s, here, waste);
    }
    for (int i = 0; i < BEGINNINGS && s->patterns < s->patterns_most; i++) {
        struct pattern pattern;
        double found;
        pattern_random(&pattern, &s->bounds, random);
        if (!try_pattern(s, &pattern, &found))
            return false;
        if (i == 0 || found > *waste) {
            *waste = found;
            *here = pattern;
        }
    }
    return true;
}

static bool climb_once(struct search *s, uint64_t *random)
{
    struct pattern here;
    double waste, best, warmth = WARMTH;
    if (!begin_climb(s, random, &here, &waste))
        return false;
    best = waste;
    for (int stale = 0; stale < PATIENCE && s->patterns < s->patterns_most; stale++) {
        struct pattern next = here;
        double found;
        pattern_change(&next, &s->bounds, random);
        if (!try_pattern(s, &next, &found))
            return false;
        if (found >= waste || waste - found < warmth * (waste - 1)) {
            here = next;
            waste = found;
        }
        if (found > best) {
            best = found;
            stale = 0;
        }
        warmth *= COOLING;
    }
    return true;
}

bool climb(struct search *s)
{
    uint64_t random = s->seed * 0x9e3779b97f4a7c15ull | 1;
    bench_random(&random);
    while (s->patterns < s->patterns_most)
        if (!climb_once(s, &random))
            return false;
    if (s->waste > 0)
        pattern_play(&s->worst, &s->bounds, &s->trace);
    return true;
}
