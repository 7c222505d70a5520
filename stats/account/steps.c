/*
 * steps.c: a step is over. stats/report/steps.c tells of the last ones.
 */
#include "stats/account/steps.h"

/* A step is over. The clock was read before the lock: of two threads the one that read first may come last. LOCKING: the pool's lock. */
void steps_note(cenote_pool *pool, uint64_t now)
{
    const cenote_stats *s = &pool->account.stats;
    struct steps *steps = &pool->steps;
    uint64_t ns = now - pool->config.opened_ns, last = steps->count ? steps->notes[(steps->count - 1) % CENOTE_STEPS_KEPT].ns : 0;
    steps->notes[steps->count % CENOTE_STEPS_KEPT] = (cenote_step_note){.step = steps->count + 1,
                                                                        .ns = ns > last ? ns : last,
                                                                        .live = s->allocated.current,
                                                                        .reserved = s->reserved.current,
                                                                        .peak = steps->peak};
    steps->count++;
    steps->bits = (steps->count < MARK_STEPS_MAX ? steps->count : MARK_STEPS_MAX) << MARK_BORN_AT;
    steps->peak = s->allocated.current;
}
