/*
 * memory.c: scenarios of one pool while there is enough of everything: blocks, pages that move, memory that goes back.
 * Not: shortage (shortage.c).
 */
#include "tests/faults/scenarios.h"

#include "pool/mapping/units.h"

#include <unistd.h>

void scenario_first_allocation(struct act *act)
{
    act_armed(act);
    act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[A]);
}

void scenario_small_blocks(struct act *act)
{
    struct act_block *held[40];
    act_armed(act);
    for (int i = 0; i < 40; i++)
        held[i] = act_take(act, act->scene.pool, (size_t)1 << i % 20, act->scene.stream[i / 20]);
    for (int i = 0; i < 40; i += 3)
        act_give(held[i]);
    for (int i = 0; i < 40; i += 3)
        act_take(act, act->scene.pool, (size_t)3 << i % 17, act->scene.stream[A]);
}

void scenario_aligned_blocks(struct act *act)
{
    act_armed(act);
    act_take(act, act->scene.pool, 700, act->scene.stream[A]);
    for (size_t alignment = 4096; alignment <= 2 * MIB; alignment *= 8)
        act_take_aligned(act, act->scene.pool, 3 * MIB - alignment / 4, alignment, act->scene.stream[A]);
    act_take_aligned(act, act->scene.pool, 100, 2 * MIB, act->scene.stream[B]);
}

void scenario_large_block(struct act *act)
{
    act_armed(act);
    struct act_block *large = act_take(act, act->scene.pool, 47 * MIB + 512, act->scene.stream[A]);
    act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[A]);
    act_give(large);
    act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[A]);
}

void scenario_growth(struct act *act)
{
    struct act_block *held[6];
    act_take(act, act->scene.pool, MIB, act->scene.stream[A]);
    act_armed(act);
    for (int i = 0; i < 6; i++)
        held[i] = act_take(act, act->scene.pool, (size_t)(i + 1) * MIB + 512, act->scene.stream[i % 2]);
    act_give(held[1]);
    act_give(held[3]);
    act_take(act, act->scene.pool, 7 * MIB, act->scene.stream[A]);
}

/* Moving is cheaper than its budget at first and dearer later: the clock stands still, so any time spent is too much. */
void scenario_growth_within_a_budget(struct act *act)
{
    act_armed(act);
    for (int round = 0; round < 4; round++) {
        struct act_block *held = act_take(act, act->scene.pool, (size_t)(round + 2) * 2 * MIB, act->scene.stream[round % 3]);
        act_give(held);
        sim_advance(2 * MSEC);
    }
}

void scenario_harvest_from_another_stream(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    act_give(held);
    DONE(cuCtxSynchronize());
    act_armed(act);
    held = act_take(act, act->scene.pool, 18 * MIB, act->scene.stream[B]);
    act_give(held);
    sim_advance(20 * MSEC);
    act_take(act, act->scene.pool, 24 * MIB, act->scene.stream[C]);
}

/* Small pages move on, large ones are free: units lose their aliases for them, and the block lies on both. */
void scenario_units_that_turn(struct act *act)
{
    struct act_block *beside = act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[A]);
    struct act_block *held = act_take(act, act->scene.pool, 13 * MIB, act->scene.stream[A]);
    act_give(held);
    DONE(cuCtxSynchronize());
    act_armed(act);
    act_take(act, act->scene.pool, 12 * MIB, act->scene.stream[B]);
    units_grade_pages = 0;
    held = act_take(act, act->scene.pool, 16 * MIB, act->scene.stream[C]);
    act_give(held);
    sim_advance(20 * MSEC);
    units_grade_pages = 128;
    held = act_take(act, act->scene.pool, 13 * MIB, act->scene.stream[A]);
    act_give(held);
    act_give(beside);
}

/* A hole whose pages lie under another block too, and which is wanted back. */
void scenario_aliases(struct act *act)
{
    struct act_block *hole = act_take(act, act->scene.pool, 6 * MIB, act->scene.stream[A]);
    act_take(act, act->scene.pool, 2 * MIB, act->scene.stream[A]);
    act_give(hole);
    act_armed(act);
    struct act_block *wide = act_take(act, act->scene.pool, 10 * MIB, act->scene.stream[A]);
    hole = act_take(act, act->scene.pool, 6 * MIB, act->scene.stream[A]);
    act_give(wide);
    sim_advance(20 * MSEC);
    act_take(act, act->scene.pool, 6 * MIB, act->scene.stream[A]);
    act_take(act, act->scene.pool, 4 * MIB, act->scene.stream[B]);
    act_give(hole);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_trim_as_far_as_possible(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 12 * MIB, act->scene.stream[A]);
    struct act_block *other = act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[B]);
    act_give(held);
    act_armed(act);
    act_done(act, cenote_pool_trim(act->scene.pool, 8 * MIB, 0));
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_trim(act->scene.pool, 8 * MIB, 0));
    act_give(other);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, 0));
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, 0));
}

void scenario_trim_and_wait(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 12 * MIB, act->scene.stream[A]);
    struct act_block *used = act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[B]);
    act_take(act, act->scene.pool, MIB, act->scene.stream[B]);
    act_use(act, used, act->scene.stream[C]);
    act_give(used);
    act_give(held);
    act_armed(act);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* Steps, allocations and looks give back what was freed some steps before. */
void scenario_decay(struct act *act)
{
    act_armed(act);
    for (int step = 0; step < 16; step++) {
        struct act_block *held = act_take(act, act->scene.pool, (size_t)(16 - step) * 2 * MIB, act->scene.stream[step % 2]);
        act_give(held);
        sim_advance(5 * MSEC);
        act_done(act, step % 5 ? cenote_pool_step(act->scene.pool) : cenote_pool_trim(act->scene.pool, UINT64_MAX, 0));
    }
}

/* The thread gives it back while this one waits, or goes on: whose call fails is chance. */
void scenario_decay_in_the_background(struct act *act)
{
    act_armed(act);
    struct act_block *held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    act_give(held);
    for (int look = 0; look < 20; look++) {
        sim_advance(5 * MSEC);
        usleep(1000);
    }
    held = act_take(act, act->scene.pool, 6 * MIB, act->scene.stream[B]);
    act_give(held);
}

void scenario_trims_that_come_often(struct act *act)
{
    act_armed(act);
    for (int step = 0; step < 12; step++) {
        struct act_block *held = act_take(act, act->scene.pool, 10 * MIB, act->scene.stream[A]);
        act_give(held);
        sim_advance(5 * MSEC);
        act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC));
    }
}

void scenario_steps(struct act *act)
{
    act_armed(act);
    for (int step = 0; step < 6; step++) {
        struct act_block *held = act_take(act, act->scene.pool, (size_t)(6 - step) * 2 * MIB, act->scene.stream[A]);
        act_give(held);
        sim_advance(5 * MSEC);
        act_done(act, cenote_pool_step(act->scene.pool));
    }
}

/* Pins call no driver; what they protect outlives its block. */
void scenario_pins(struct act *act)
{
    struct act_block *pinned = act_take(act, act->scene.pool, 9 * MIB, act->scene.stream[A]);
    char *at = pinned->at;
    DONE(cenote_pin(at, 9 * MIB));
    act_give(pinned);
    act_armed(act);
    struct act_block *held = act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[B]);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_give(held);
    act_take(act, act->scene.pool, 8 * MIB, act->scene.stream[A]);
    DONE(cenote_unpin(at, 9 * MIB));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}
