/*
 * calls.c: scenarios of the calls that a runtime makes beside allocations and frees.
 */
#include "tests/faults/scenarios.h"

void scenario_available(struct act *act)
{
    cenote_available left;
    struct act_block *held = act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[A]);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    act_armed(act);
    act_done(act, cenote_pool_available(act->scene.pool, &left));
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_available(act->scene.pool, &left));
    act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[C]);
}

static void take_now(struct act *act, size_t bytes, CUstream stream)
{
    void *at;
    const cenote_request request = {.bytes = bytes, .stream = stream, .flags = CENOTE_NO_WAIT};
    int error = cenote_alloc_with(act->scene.pool, &request, &at);
    if (error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY) /* another thread may have the turn */
        return;
    if (act_done(act, error))
        DONE(cenote_free(at));
}

void scenario_without_a_wait(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[A]);
    act_use(act, held, act->scene.stream[B]);
    act_armed(act);
    take_now(act, 10 * MIB, act->scene.stream[A]);
    act_give(held);
    take_now(act, 30 * MIB, act->scene.stream[C]);
    sim_advance(20 * MSEC);
    take_now(act, 50 * MIB, act->scene.stream[C]);
    take_now(act, 3 * MIB, act->scene.stream[B]);
}

/* A block that could not grow is as it was. */
static void extend(struct act *act, struct act_block *block, size_t more)
{
    if (!block)
        return;
    int error = cenote_extend(block->at, block->bytes + more);
    if (error == CENOTE_BUSY || !act_done(act, error))
        return;
    block->bytes += more;
    act_fill(block);
}

void scenario_extension(struct act *act)
{
    struct act_block *cache = act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[A]);
    act_armed(act);
    extend(act, cache, 100);
    extend(act, cache, 6 * MIB);
    struct act_block *behind = act_take(act, act->scene.pool, 4 * MIB, act->scene.stream[A]);
    act_give(behind);
    sim_advance(20 * MSEC);
    act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[B]);
    extend(act, cache, 5 * MIB);
    extend(act, cache, 20 * MIB);
}

void scenario_reservation(struct act *act)
{
    act_armed(act);
    act_done(act, cenote_pool_reserve(act->scene.pool, 20 * MIB, act->scene.stream[A]));
    act_take(act, act->scene.pool, 12 * MIB, act->scene.stream[A]);
    act_take(act, act->scene.pool, 100 * KIB, act->scene.stream[A]);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[B]);
}

/* What it frees is no block of the books of the act, which would give it back again. */
void scenario_reset_of_a_group(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, 0, NULL);
    for (int i = 0; i < 6; i++) {
        void *at;
        DONE(group_alloc(group, i % 2 ? 3 * MIB : 3000, 512, act->scene.stream[A], &at));
        DONE(cenote_use(at, act->scene.stream[B]));
    }
    DONE(sim_launch_wait(act->scene.stream[B], 10 * MSEC));
    act_armed(act);
    act_done(act, cenote_group_reset(group));
    DONE(cenote_group_reset(group));
    sim_advance(20 * MSEC);
    act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[C]);
}
