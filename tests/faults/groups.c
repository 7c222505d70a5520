/*
 * groups.c: scenarios of groups: on pages, on memory of the program, and private ones with captures and replays.
 */
#include "tests/faults/scenarios.h"

void scenario_group(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    cenote_group *group = act_group(act, pool, 0, NULL);
    struct act_block *held = act_take_from(act, group, 5 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 900, act->scene.stream[B]);
    act_take(act, pool, 3 * MIB, act->scene.stream[A]);
    act_give(held);
    act_drop_group(act, group);
    act_take(act, pool, 55 * MIB, act->scene.stream[C]);
}

/* ------------------------------------------------------------------------------------------------------------- memory of the program */

static void *well_take(size_t bytes, cenote_stream stream, void *left)
{
    CUdeviceptr at;
    (void)stream;
    if (bytes > *(size_t *)left || cuMemAlloc(&at, bytes))
        return NULL;
    *(size_t *)left -= bytes;
    return (void *)(uintptr_t)at;
}

static void well_give(void *memory, size_t bytes, cenote_stream stream, void *left)
{
    (void)stream;
    DONE(cuMemFree(device_address(memory)));
    *(size_t *)left += bytes;
}

/* Filled anew for each run. What an earlier run could not give back comes later. */
static const cenote_source *well_of(size_t bytes)
{
    static size_t left;
    static cenote_source source = {well_take, well_give, &left};
    left = bytes;
    return &source;
}

void scenario_group_on_memory_of_the_program(struct act *act)
{
    const cenote_source *source = well_of(40 * MIB);
    act_armed(act);
    cenote_group *group = act_group(act, act->scene.pool, 0, source);
    struct act_block *held = act_take_from(act, group, 5 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 900, act->scene.stream[A]);
    act_take_from(act, group, MIB, act->scene.stream[B]);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_give_all(act);
    act_drop_group(act, group);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_source_runs_dry(struct act *act)
{
    const cenote_source *source = well_of(24 * MIB);
    cenote_group *group = act_group(act, act->scene.pool, 0, source);
    struct act_block *held = act_take_from(act, group, 20 * MIB, act->scene.stream[A]);
    act_give(held);
    act_armed(act);
    act_take_from(act, group, 22 * MIB, act->scene.stream[B]);
    act_give_all(act);
    act_drop_group(act, group);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* ------------------------------------------------------------------------------------------------------------------ private and captured */

static void replay(struct act *act, CUgraphExec exec)
{
    if (!exec)
        return;
    DONE(cuGraphLaunch(exec, act->scene.stream[A]));
    DONE(cuGraphLaunch(exec, act->scene.stream[A]));
    DONE(cuStreamSynchronize(act->scene.stream[A]));
    DONE(cuGraphExecDestroy(exec));
}

void scenario_capture_and_replay(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    if (!act_capture(act, group, act->scene.stream[A]))
        return;
    struct act_block *held = act_take(act, pool, 5 * MIB, act->scene.stream[A]);
    act_take(act, pool, 700, act->scene.stream[A]);
    act_give(held);
    act_take(act, pool, 6 * MIB, act->scene.stream[A]);
    CUgraphExec exec = act_end_capture(act, act->scene.stream[A]);
    act_take(act, pool, 20 * MIB, act->scene.stream[B]);
    replay(act, exec);
}

/* Nothing may be waited for or moved meanwhile; what is free must do. */
void scenario_capture_while_others_run_short(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    struct act_block *held = act_take(act, pool, 30 * MIB, act->scene.stream[B]);
    struct act_block *old = act_take(act, pool, 12 * MIB, act->scene.stream[B]);
    act_give(old);
    act_armed(act);
    if (!act_capture(act, group, act->scene.stream[A]))
        return;
    act_give(held);
    act_hoard(act, pool, 10 * MIB, act->scene.stream[C]);
    act_hoard(act, pool, 3 * MIB, act->scene.stream[A]);
    act_done(act, cenote_pool_trim(pool, 0, 0));
    replay(act, act_end_capture(act, act->scene.stream[A]));
    act_give_all(act);
    act_take(act, pool, 15 * MIB, act->scene.stream[C]);
}

void scenario_pending_during_capture(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    struct act_block *held = act_take(act, pool, 20 * MIB, act->scene.stream[B]);
    DONE(cenote_stream_set_immortal(pool, act->scene.stream[C]));
    act_use(act, held, act->scene.stream[C]);
    act_armed(act);
    bool open = act_capture(act, group, act->scene.stream[A]);
    act_give(held);
    act_take(act, pool, 10 * MIB, act->scene.stream[C]);
    if (open)
        replay(act, act_end_capture(act, act->scene.stream[A]));
    act_take(act, pool, 25 * MIB, act->scene.stream[B]);
}

void scenario_private_group_destroyed(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    act_armed(act);
    struct act_block *held = act_take_from(act, group, 15 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 900, act->scene.stream[B]);
    struct act_block *kept = act_take_from(act, group, 7 * MIB, act->scene.stream[B]);
    act_give(held);
    act_drop_group(act, group);
    act_take(act, pool, 30 * MIB, act->scene.stream[C]);
    act_give(kept);
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    act_take(act, pool, 8 * MIB, act->scene.stream[B]);
}

/* Segments of an async pool would become nodes of the graph, so these come another way. */
void scenario_private_group_without_pages(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, CENOTE_GROUP_PRIVATE, NULL);
    act_armed(act);
    struct act_block *held = act_take_from(act, group, 5 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 900, act->scene.stream[A]);
    act_give(held);
    act_drop_group(act, group);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* --------------------------------------------------------------------------------------------------------------- put back, lent, whole */

void scenario_group_put_back_as_it_was(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    struct act_block *first = act_take_from(act, group, 5 * MIB, act->scene.stream[A]);
    struct act_block *second = act_take_from(act, group, 900, act->scene.stream[A]);
    char *at[2] = {first ? first->at : NULL, second ? second->at : NULL};
    act_give(first);
    act_give(second);
    struct act_block *between = act_take_from(act, group, 3 * MIB, act->scene.stream[A]);
    act_give(between);
    if (at[0])
        act_take_at(act, pool, group, at[0], 5 * MIB, act->scene.stream[A]);
    if (at[1])
        act_take_at(act, pool, group, at[1], 900, act->scene.stream[A]);
}

void scenario_block_put_back_after_its_pages_left(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    struct act_block *first = act_take(act, pool, 20 * MIB, act->scene.stream[A]);
    char *at = first->at;
    act_give(first);
    DONE(cenote_pool_trim(pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* the pool knows that the device is done with it */
    struct act_block *other = act_take(act, pool, 50 * MIB, act->scene.stream[B]);
    act_give(other);
    act_armed(act);
    act_take_at(act, pool, NULL, at, 20 * MIB, act->scene.stream[A]);
}

void scenario_group_that_lends(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND, NULL);
    struct act_block *lent = act_take_from(act, group, 20 * MIB, act->scene.stream[A]);
    act_give(lent);
    act_take(act, pool, 40 * MIB, act->scene.stream[A]);
    act_armed(act);
    act_take(act, pool, 15 * MIB, act->scene.stream[A]);
    act_take(act, pool, 3 * MIB, act->scene.stream[A]);
}

void scenario_group_of_whole_blocks(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    cenote_group *pages = act_group(act, pool, CENOTE_GROUP_WHOLE, NULL);
    cenote_group *segments = act_group(act, pool, CENOTE_GROUP_WHOLE, well_of(20 * MIB));
    struct act_block *held = act_take_from(act, pages, 3 * MIB, act->scene.stream[A]);
    act_take_from(act, pages, 100, act->scene.stream[A]);
    act_take_from(act, segments, 100, act->scene.stream[A]);
    act_give(held);
    act_take_from(act, pages, 4 * MIB, act->scene.stream[B]);
    act_give_all(act);
    act_drop_group(act, segments);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}
