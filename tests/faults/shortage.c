/*
 * shortage.c: scenarios that climb the ladder: memory is short, and comes from somewhere in the end.
 */
#include "tests/faults/scenarios.h"

/* Holes that are each too small, and together enough. */
void scenario_holes_add_up(struct act *act)
{
    struct act_block *held[16];
    for (int i = 0; i < 16; i++)
        held[i] = act_take(act, act->scene.pool, 4 * MIB, act->scene.stream[A]);
    for (int i = 0; i < 16; i += 2)
        act_give(held[i]);
    act_armed(act);
    act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[A]);
}

/* Another stream has it all, and the device is not done: only waiting helps. */
void scenario_everything_is_in_flight(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[A]);
    struct act_block *used = act_take(act, act->scene.pool, 28 * MIB, act->scene.stream[B]);
    act_use(act, used, act->scene.stream[C]);
    act_give(used);
    act_give(held);
    act_armed(act);
    act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[C]);
    act_take(act, act->scene.pool, 10 * MIB, act->scene.stream[A]);
}

static int free_one(cenote_pool *pool, size_t bytes, void *arg)
{
    struct act_block *block = atomic_exchange((struct act_block *_Atomic *)arg, NULL); /* two threads may run short */
    (void)bytes;
    EXPECT(scene_stats(pool).retries > 0);
    act_give(block);
    return block != NULL;
}

void scenario_callback_frees(struct act *act)
{
    struct act_block *_Atomic held = act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[A]);
    DONE(cenote_pool_on_shortage(act->scene.pool, 1, free_one, &held));
    act_armed(act);
    act_take(act, act->scene.pool, 42 * MIB, act->scene.stream[B]);
    DONE(cenote_pool_on_shortage(act->scene.pool, 0, free_one, &held));
}

/* Free there, and the device may not be done with it. */
void scenario_other_pool_holds_everything(struct act *act)
{
    cenote_options options = act_options(act);
    cenote_pool *other = act->pools[1] ? act->pools[1] : act_pool(act, 0, &options);
    struct act_block *held = act_take(act, other, 50 * MIB, act->scene.stream[A]);
    act_give(held);
    act_armed(act);
    act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[B]);
    act_take(act, other, 10 * MIB, act->scene.stream[A]);
}

void scenario_limit(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    act_done(act, cenote_pool_set_limit(pool, 16 * MIB));
    struct act_block *held = act_take(act, pool, 12 * MIB, act->scene.stream[A]);
    act_give(held);
    act_take(act, pool, 9 * MIB, act->scene.stream[B]); /* there is room only for what moves */
    act_done(act, cenote_pool_set_limit(pool, 40 * MIB));
    held = act_take(act, pool, 24 * MIB, act->scene.stream[C]);
    act_give(held);
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_set_limit(pool, 10 * MIB));
    act_done(act, cenote_pool_set_limit(pool, 0));
}

/* Failures on the way to the end, at the end, and while it is explained. */
void scenario_exhaustion(struct act *act)
{
    act_armed(act);
    act_hoard(act, act->scene.pool, 6 * MIB, act->scene.stream[A]);
    act_give(&act->blocks[2]);
    act_give(&act->blocks[5]);
    act_hoard(act, act->scene.pool, 3 * MIB + 512, act->scene.stream[B]);
    act_give_all(act);
    act_take(act, act->scene.pool, 50 * MIB, act->scene.stream[C]);
}

void scenario_other_processes_take_memory(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    act_give(held);
    sim_set_foreign(0, 40 * MIB);
    act_armed(act);
    act_take(act, act->scene.pool, 22 * MIB, act->scene.stream[B]);
    act_hoard(act, act->scene.pool, 8 * MIB, act->scene.stream[A]);
    sim_set_foreign(0, 0);
    act_take(act, act->scene.pool, 4 * MIB, act->scene.stream[A]);
}

void scenario_no_addresses(struct act *act)
{
    act_armed(act);
    act_hoard(act, act->scene.pool, 5 * MIB, act->scene.stream[A]);
    act_hoard(act, act->scene.pool, 3 * MIB, act->scene.stream[B]);
    act_give_all(act);
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[C]);
}

/* What is free above the threshold goes back whenever the pool has grown. */
void scenario_threshold(struct act *act)
{
    act_armed(act);
    for (int i = 0; i < SCENE_STREAMS; i++) {
        act_give(act_take(act, act->scene.pool, 9 * MIB, act->scene.stream[i]));
        sim_advance(50 * MSEC);
    }
    act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[A]);
}
