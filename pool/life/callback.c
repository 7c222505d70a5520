/*
 * callback.c: functions of the program that run inside a call of cenote, and which calls are allowed meanwhile.
 *
 * LOCKING: a thread's callbacks are its own.
 */
#include "pool/life/callback.h"

#include "pool/pool.h"

_Atomic(uint32_t) pool_strict_callbacks;
static _Thread_local const struct callback *callbacks; /* of this thread, the innermost first */

void callback_begin(struct callback *c, const cenote_pool *pool, const void *of)
{
    *c = (struct callback){of, pool, callbacks};
    callbacks = c;
    if (!of)
        atomic_fetch_add(&pool_strict_callbacks, 1);
}

void callback_end(void)
{
    if (!callbacks->of)
        atomic_fetch_sub(&pool_strict_callbacks, 1);
    callbacks = callbacks->outer;
}

bool callback_runs(const void *of)
{
    const struct callback *c = callbacks;
    while (c && c->of != of)
        c = c->outer;
    return c != NULL;
}

/* Does this thread run any function of the program? */
bool callback_is_inside(void)
{
    return callbacks != NULL;
}

bool callback_runs_for(const cenote_pool *pool)
{
    const struct callback *c = callbacks;
    while (c && c->pool != pool)
        c = c->outer;
    return c != NULL;
}
