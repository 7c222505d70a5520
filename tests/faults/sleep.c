/*
 * sleep.c: scenarios of memory that sleeps and wakes. What a refusal leaves asleep, the judge wakes.
 */
#include "tests/faults/scenarios.h"

#include <cenote/sleep.h>

/* A second thread may capture, and then nothing sleeps or wakes. */
static void done(struct act *act, int error)
{
    if (error != CENOTE_CAPTURE || !act->armed || act->injection.other == OTHER_NONE)
        act_done(act, error);
}

/* Of a group: a second thread may work in the pool, and its blocks are awake. */
static void put_down_as(struct act *act, cenote_group *group, uint32_t contents)
{
    cenote_sleep sleep = {.group = group, .contents = contents};
    done(act, cenote_pool_pause(act->scene.pool, &sleep));
}

static void put_down(struct act *act, cenote_group *group)
{
    put_down_as(act, group, CENOTE_KEEP);
}

static void wake_up(struct act *act, cenote_group *group)
{
    cenote_sleep sleep = {.group = group};
    done(act, cenote_pool_resume(act->scene.pool, &sleep));
}

static void sleep_and_wake(struct act *act, cenote_group *group)
{
    put_down(act, group);
    wake_up(act, group);
}

void scenario_sleep(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, 0, NULL);
    for (int i = 0; i < 6; i++)
        act_take_from(act, group, (size_t)700 << 2 * i, act->scene.stream[i % 2]);
    act_armed(act);
    sleep_and_wake(act, group);
}

void scenario_sleep_of_both_sizes(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, 0, NULL);
    act_take_from(act, group, 15 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 300, act->scene.stream[B]);
    act_armed(act);
    sleep_and_wake(act, group);
}

/* Others have its memory meanwhile. */
void scenario_sleep_of_a_group(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, CENOTE_GROUP_PRIVATE, NULL);
    act_take_from(act, group, 5 * MIB, act->scene.stream[A]);
    act_armed(act);
    put_down(act, group);
    struct act_block *other = act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[B]);
    act_give(other);
    wake_up(act, group);
}

/* Half of what sleeps is freed. */
void scenario_sleep_and_frees(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, 0, NULL);
    struct act_block *held[6];
    for (int i = 0; i < 6; i++)
        held[i] = act_take_from(act, group, (size_t)(i + 1) * MIB, act->scene.stream[i % 2]);
    act_armed(act);
    put_down(act, group);
    for (int i = 0; i < 6; i += 2) {
        DONE(cenote_free(held[i]->at));
        held[i]->at = NULL;
    }
    wake_up(act, group);
}

/* The second sleep copies nothing, unless the first was refused. */
void scenario_sleep_of_constants(struct act *act)
{
    cenote_group *group = act_group(act, act->scene.pool, 0, NULL);
    act_take_from(act, group, 3 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 3000, act->scene.stream[A]);
    act_armed(act);
    for (int i = 0; i < 2; i++) {
        put_down_as(act, group, CENOTE_CONSTANT);
        wake_up(act, group);
    }
}
