/*
 * devices.c: scenarios of watch functions, and of memory that other devices use.
 */
#include "tests/api/registry.h"
#include "tests/faults/scenarios.h"

/* ------------------------------------------------------------------------------------------------------------------------------ watch */

static struct registry told;

static void look(const struct act_block *block)
{
    other_end();
    if (block && block->at)
        registry_use(&told, block->at, block->bytes);
}

static void grow_and_shrink(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    if (!act->retry)
        told = (struct registry){.others_use = act->injection.other == OTHER_IN_POOL};
    DONE(cenote_pool_watch(pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &told));
    act_armed(act);
    struct act_block *hole = act_take(act, pool, 6 * MIB, act->scene.stream[A]);
    struct act_block *kept = act_take(act, pool, 2 * MIB, act->scene.stream[A]);
    look(hole);
    act_give(hole);
    struct act_block *wide = act_take(act, pool, 10 * MIB, act->scene.stream[A]);
    look(wide);
    look(kept);
    act_give(wide);
    act_done(act, cenote_pool_trim(pool, 4 * MIB, CENOTE_TRIM_WAIT));
    look(act_take(act, pool, 20 * MIB, act->scene.stream[B]));
    look(act_take(act, pool, 9 * MIB, act->scene.stream[A]));
    look(kept);
    act_give_all(act);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    other_end();
    if (!act_is_sticky(act))
        registry_judge(&told);
    if (act->retry) /* nothing was refused: all of it is gone */
        EXPECT_EQ(told.range_count, 0);
}

void scenario_watched(struct act *act)
{
    grow_and_shrink(act);
}

void scenario_watched_segments(struct act *act)
{
    grow_and_shrink(act);
}

/* ------------------------------------------------------------------------------------------------------------------------------ grant */

/* Device 1 may use all of it. */
static void expect_open(const struct act_block *block)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    unsigned long long flags = 0;
    for (size_t i = 0; block && block->at && i < block->bytes; i += MIB) {
        DONE(cuMemGetAccess(&flags, &location, device_address(block->at + i)));
        EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
}

static void grant_between(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    bool is_mapped = act->ground.provider == CENOTE_AUTO;
    struct act_block *before = act_take(act, pool, 5 * MIB, act->scene.stream[A]);
    struct act_block *other = act_take(act, pool, 3 * MIB, act->scene.stream[A]);
    act_armed(act);
    bool granted = act_done(act, cenote_pool_grant(pool, 1));
    struct act_block *after = act_take(act, pool, 7 * MIB, act->scene.stream[B]);
    for (int i = 0; granted && is_mapped && i < 3; i++)
        expect_open((struct act_block *[]){before, other, after}[i]);
    act_done(act, cenote_pool_grant(pool, 1));
    act_give(before);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_grant(struct act *act)
{
    grant_between(act);
}

void scenario_grant_async(struct act *act)
{
    grant_between(act);
}

void scenario_grant_plain(struct act *act)
{
    grant_between(act);
}

/* ---------------------------------------------------------------------------------------------------- blocks that other devices use */

static void use_there(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    DONE(cenote_pool_grant(pool, 1));
    struct act_block *held = act_take(act, pool, 20 * MIB, act->scene.stream[A]);
    struct act_block *small = act_take(act, pool, 700, act->scene.stream[A]);
    act_armed(act);
    act_use(act, held, act->other_stream);
    act_use(act, small, act->other_stream);
    act_give(held);
    act_give(small);
    act_take(act, pool, 9 * MIB, act->scene.stream[A]);
    act_take(act, pool, 40 * MIB, act->scene.stream[A]); /* only with what device 1 uses */
    act_give_all(act);
    act_done(act, cenote_stream_set_immortal(pool, act->other_stream));
    held = act_take(act, pool, 5 * MIB, act->scene.stream[B]);
    act_use(act, held, act->other_stream);
    act_give(held);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_use_on_another_device(struct act *act)
{
    use_there(act);
}

void scenario_use_on_another_device_without_fences(struct act *act)
{
    use_there(act);
}
