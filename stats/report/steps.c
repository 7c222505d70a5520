/*
 * steps.c: what each step of the program left behind. LOCKING: the pool's lock.
 */
#include "stats/report/steps.h"

#include "pool/life/pool.h"

/* Adds those that are kept, the newest first. LOCKING: the pool's lock. */
void steps_list(const cenote_pool *pool, struct sized_list *l)
{
    size_t kept = pool->steps.count < CENOTE_STEPS_KEPT ? (size_t)pool->steps.count : CENOTE_STEPS_KEPT;
    for (size_t i = 0; i < kept; i++)
        sized_add(l, &pool->steps.notes[(pool->steps.count - 1 - i) % CENOTE_STEPS_KEPT], sizeof *pool->steps.notes);
}

int(cenote_pool_steps)(cenote_pool *pool, cenote_step_note *notes, size_t room, size_t *count, size_t size)
{
    struct sized_list l = {.items = notes, .room = notes ? room : 0, .size = size};
    int error = pool_answers(pool);
    if (error || (error = sized_check(size, "cenote_step_note")))
        return error;
    if (!count)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the count: the last argument is NULL");
    if ((error = pool_take_lock(pool)))
        return error;
    steps_list(pool, &l);
    lock_give(&pool->lock);
    *count = l.count;
    return CENOTE_OK;
}
