/*
 * steps.c: a step is over. stats/report/steps.c tells of the last ones.
 */
#include "pool/pool.h"

/* A step is over. The clock was read before the lock: of two threads the one that read first may come last. LOCKING: the pool's lock. */
void steps_note(cenote_pool *pool, uint64_t now)
{
    const cenote_stats *s = &pool->stats;
    uint64_t ns = now - pool->opened_ns, last = pool->steps ? pool->notes[(pool->steps - 1) % CENOTE_STEPS_KEPT].ns : 0;
    pool->notes[pool->steps % CENOTE_STEPS_KEPT] = (cenote_step_note){.step = pool->steps + 1,
                                                                      .ns = ns > last ? ns : last,
                                                                      .live = s->allocated.current,
                                                                      .reserved = s->reserved.current,
                                                                      .peak = pool->step_peak};
    pool->steps++;
    pool->step_bits = (pool->steps < MARK_STEPS_MAX ? pool->steps : MARK_STEPS_MAX) << MARK_BORN_AT;
    pool->step_peak = s->allocated.current;
}
