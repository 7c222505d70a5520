/*
 * climb.c: hill climbing with restarts over patterns.
 *
 * A climb begins with the worst of some random patterns, or with many changes of the worst pattern found so far. Each step makes a small change
 * and keeps it if the waste grows. While the climb is young, a change that loses a little is kept, too, so that the climb gets past local maxima.
 * After PATIENCE steps without gain a new climb begins.
 *
 * The same seed tries the same patterns in the same order; patterns_most, or the time, decides where the search ends.
 *
 * LOCKING: none.
 */
#include "tools/waste/climb.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "bench/common.h"

#define BEGINNINGS 20      /* random patterns, the worst of which begins a climb */
#define PATIENCE 300       /* steps without gain until a climb ends */
#define WARMTH 0.02        /* part of its excess that a step may lose at first */
#define COOLING 0.995      /* what is left of that after each step */

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool may_go_on(const struct search *s, double begin)
{
    return s->patterns_most ? s->patterns < s->patterns_most : now_seconds() - begin < s->seconds;
}

/* False: no host memory, or the allocator failed. */
static bool try_pattern(struct search *s, const struct pattern *pattern, double begin, double *waste)
{
    if (!pattern_play(pattern, &s->bounds, &s->trace))
        bench_fail("no host memory for a pattern");
    judge(s->allocator, &s->trace, &s->plan, &s->result);
    s->patterns++;
    *waste = judge_waste(&s->trace, &s->result, s->bounds.live);
    if (s->result.failed)
        return false;
    if (*waste <= s->waste)
        return true;
    s->waste = *waste;
    s->worst = *pattern;
    if (s->shows)
        fprintf(stderr, "\r%6.1f s, pattern %llu: +%.1f %%\033[K", now_seconds() - begin, (unsigned long long)s->patterns, 100 * (*waste - 1));
    return true;
}

static bool begin_climb(struct search *s, double begin, uint64_t *random, struct pattern *here, double *waste)
{
    *waste = 0;
    if (s->waste > 0 && bench_random(random) >> 63) {
        *here = s->worst;
        for (int i = 0; i < 5; i++)
            pattern_change(here, &s->bounds, random);
        return try_pattern(s, here, begin, waste);
    }
    for (int i = 0; i < BEGINNINGS && (i == 0 || may_go_on(s, begin)); i++) {
        struct pattern pattern;
        double found;
        pattern_random(&pattern, &s->bounds, random);
        if (!try_pattern(s, &pattern, begin, &found))
            return false;
        if (i == 0 || found > *waste) {
            *waste = found;
            *here = pattern;
        }
    }
    return true;
}

static bool climb_once(struct search *s, double begin, uint64_t *random)
{
    struct pattern here;
    double waste, best, warmth = WARMTH;
    if (!begin_climb(s, begin, random, &here, &waste))
        return false;
    best = waste;
    for (int stale = 0; stale < PATIENCE && may_go_on(s, begin); stale++) {
        struct pattern next = here;
        double found;
        pattern_change(&next, &s->bounds, random);
        if (!try_pattern(s, &next, begin, &found))
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
    double begin = now_seconds();
    uint64_t random = s->seed * 0x9e3779b97f4a7c15ull | 1;
    bench_random(&random);
    while (may_go_on(s, begin))
        if (!climb_once(s, begin, &random))
            return false;
    s->took = now_seconds() - begin;
    if (s->shows)
        fprintf(stderr, "\r\033[K");
    if (s->waste == 0)
        return true;
    if (!pattern_play(&s->worst, &s->bounds, &s->trace))
        bench_fail("no host memory for a pattern");
    judge(s->allocator, &s->trace, &s->plan, &s->result);
    return !s->result.failed;
}
