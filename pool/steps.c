/*
 * steps.c: what each step of the program left behind. LOCKING: the pool's lock.
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
    pool->born = (pool->steps < MARK_STEPS_MOST ? pool->steps : MARK_STEPS_MOST) << MARK_BORN_AT;
    pool->step_peak = s->allocated.current;
}

/* Adds those that are kept, the newest first. LOCKING: the pool's lock. */
void steps_list(const cenote_pool *pool, struct sized_list *l)
{
    size_t kept = pool->steps < CENOTE_STEPS_KEPT ? (size_t)pool->steps : CENOTE_STEPS_KEPT;
    for (size_t i = 0; i < kept; i++)
        sized_add(l, &pool->notes[(pool->steps - 1 - i) % CENOTE_STEPS_KEPT], sizeof *pool->notes);
}

int(cenote_steps)(cenote_pool *pool, cenote_step_note *notes, size_t room, size_t *count, size_t size)
{
    struct sized_list l = {.items = notes, .room = notes ? room : 0, .size = size};
    int error = pool_usable(pool);
    if (error || (error = sized_check(size, "cenote_step_note")))
        return error;
    if (!count)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the count: the last argument is NULL");
    lock_take(&pool->lock);
    steps_list(pool, &l);
    lock_give(&pool->lock);
    *count = l.count;
    return CENOTE_OK;
}
