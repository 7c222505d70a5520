/*
 * calls.c: scenarios of the calls that a runtime makes beside allocations and frees.
 */
#include "tests/faults/scenarios.h"

void scenario_budget(struct act *act)
{
    cenote_budget budget;
    struct act_block *held = act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[A]);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    act_armed(act);
    act_done(act, cenote_pool_budget(act->scene.pool, &budget));
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_budget(act->scene.pool, &budget));
    act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[C]);
}
