/*
 * grades.c: scenarios of a pool that has pages of both sizes: large ones of 16 MiB and small ones of 2. In each a block lies on both, and the driver
 * refuses somewhere between them.
 */
#include "tests/api/registry.h"
#include "tests/faults/scenarios.h"

#include "pool/mapping/units.h"
#include "pool/pool.h"

#define LARGE  (16 * MIB)
#define SMALL  (2 * MIB)

static uint64_t in_pages(const struct act *act, enum grade grade) { return act->scene.pool->store.pages.held[grade]; }

/* Idle units take pages of that grade. */
static struct act_block *take_of(struct act *act, enum grade grade, size_t bytes, int stream)
{
    units_grade_pages = grade == GRADE_LARGE ? 0 : 1u << 20;
    return act_take(act, act->scene.pool, bytes, act->scene.stream[stream]);
}

/* The device is done with it, and the pool has seen that. */
static void leave_free(struct act *act, struct act_block *block)
{
    act_give(block);
    DONE(cenote_pool_trim(act->scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
}

/* Two neighbours, and the second one lies on pages of both sizes: the rest of a unit of small pages, a unit, and a slot. */
struct mixed {
    struct act_block *beside, *block;
};

static struct mixed take_mixed(struct act *act)
{
    struct mixed mixed = {.beside = take_of(act, GRADE_SMALL, 5 * MIB, A)};
    leave_free(act, take_of(act, GRADE_SMALL, 11 * MIB, A));
    mixed.block = take_of(act, GRADE_LARGE, 11 * MIB + LARGE + SMALL, A);
    for (enum grade grade = 0; grade < GRADES; grade++)
        EXPECT(act->retry || in_pages(act, grade)); /* at the second time pages are there, and take each other's places */
    return mixed;
}

void scenario_grades_from_the_first_block(struct act *act)
{
    act_armed(act);
    take_of(act, GRADE_SMALL, 5 * MIB, A);
    act_give(take_of(act, GRADE_SMALL, 11 * MIB, A));
    struct act_block *block = take_of(act, GRADE_LARGE, 11 * MIB + LARGE + SMALL, A);
    act_give(block);
    take_of(act, GRADE_SMALL, 20 * MIB, B);
}

/* -------------------------------------------------------------------------------------------------------------- what is free is used first */

/* Free pages of each size move to places of the other: units are joined, lose their aliases, and are split again. */
static void turn_there_and_back(struct act *act)
{
    struct mixed mixed = take_mixed(act);
    struct act_block *small = take_of(act, GRADE_SMALL, 3 * SMALL, C);
    leave_free(act, mixed.block);
    leave_free(act, small);
    act_armed(act);
    act_give(take_of(act, GRADE_SMALL, 30 * MIB, B));
    sim_advance(20 * MSEC);
    struct act_block *again = take_of(act, GRADE_LARGE, 37 * MIB, A);
    take_of(act, GRADE_SMALL, 7 * MIB, C);
    act_give(again);
    sim_advance(20 * MSEC);
    act_done(act, cenote_pool_trim(act->scene.pool, 30 * MIB, 0)); /* units with nothing mapped in them are left */
    again = take_of(act, GRADE_SMALL, 29 * MIB, A);
    act_give(again);
    sim_advance(20 * MSEC);
    take_of(act, GRADE_LARGE, 40 * MIB, A);
    act_give(mixed.beside);
}

void scenario_grades_that_turn(struct act *act) { turn_there_and_back(act); }
void scenario_grades_of_pages_that_are_mapped_once(struct act *act) { turn_there_and_back(act); }
void scenario_grades_where_streams_wait(struct act *act) { turn_there_and_back(act); }
void scenario_grades_within_a_budget(struct act *act) { turn_there_and_back(act); }
void scenario_grades_with_few_mappings(struct act *act) { turn_there_and_back(act); }

static struct registry told;

void scenario_watched_pages_of_all_sizes(struct act *act)
{
    if (!act->retry)
        told = (struct registry){.others_use = act->injection.other == OTHER_IN_POOL};
    DONE(cenote_pool_watch(act->scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, registry_hear, &told));
    turn_there_and_back(act);
    act_give_all(act);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    other_end();
    if (!act_is_sticky(act))
        registry_judge(&told);
    if (act->retry)
        EXPECT_EQ(told.range_count, 0);
}

/* A device that is let in has to come to pages of every size, those that it was given late, too. */
void scenario_grant_of_pages_of_all_sizes(struct act *act)
{
    struct mixed mixed = take_mixed(act);
    act_armed(act);
    act_done(act, cenote_pool_grant(act->scene.pool, 1));
    act_give(mixed.block);
    sim_advance(20 * MSEC);
    take_of(act, GRADE_SMALL, 19 * MIB, B);
    take_of(act, GRADE_LARGE, 20 * MIB, A);
}

/* --------------------------------------------------------------------------------------------------------------------------- shortage */

/* Large pages first; what is left of the card takes small ones, and in the end one block lies on all that the others left. */
void scenario_grades_to_the_end_of_the_card(struct act *act)
{
    act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[A]);
    units_grade_pages = 0;
    act_armed(act);
    act_hoard(act, act->scene.pool, 11 * MIB, act->scene.stream[A]);
    act_give(&act->blocks[1]);
    act_give(&act->blocks[3]);
    units_grade_pages = 3;
    act_hoard(act, act->scene.pool, 5 * MIB + 512, act->scene.stream[B]);
    act_give_all(act);
    act_take(act, act->scene.pool, 50 * MIB, act->scene.stream[C]);
}

/* Free pages are of the wrong sizes, and not all can turn: those go back for what is created. */
void scenario_grades_are_exchanged(struct act *act)
{
    struct act_block *between[4];
    for (int i = 0; i < 4; i++) {
        between[i] = take_of(act, GRADE_SMALL, 6 * MIB, A);
        take_of(act, GRADE_SMALL, SMALL, A);
    }
    leave_free(act, take_of(act, GRADE_LARGE, LARGE, B));
    leave_free(act, take_of(act, GRADE_SMALL, 12 * MIB, C));
    for (int i = 0; i < 4; i += 2)
        leave_free(act, between[i]);
    act_armed(act);
    struct act_block *held = take_of(act, GRADE_SMALL, 25 * MIB, C);
    act_give(held);
    sim_advance(20 * MSEC);
    act_take_from(act, act_group(act, act->scene.pool, 0, NULL), 30 * MIB, act->scene.stream[B]);
}

/* ------------------------------------------------------------------------------------------------------ given back, put back, kept, captured */

void scenario_trims_of_all_sizes(struct act *act)
{
    struct mixed mixed = take_mixed(act);
    struct act_block *large = take_of(act, GRADE_LARGE, LARGE, B);
    act_use(act, mixed.block, act->scene.stream[C]);
    act_give(mixed.block);
    act_give(large);
    act_armed(act);
    act_done(act, cenote_pool_trim(act->scene.pool, 30 * MIB, 0));
    act_done(act, cenote_pool_trim(act->scene.pool, 25 * MIB, CENOTE_TRIM_WAIT));
    take_of(act, GRADE_SMALL, 9 * MIB, A);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* Others took its pages, and its units have become what these pleased. */
void scenario_block_put_back_on_pages_of_all_sizes(struct act *act)
{
    struct mixed mixed = take_mixed(act);
    char *at = mixed.block->at;
    size_t bytes = mixed.block->bytes;
    leave_free(act, mixed.block);
    leave_free(act, take_of(act, GRADE_SMALL, 40 * MIB, B));
    act_armed(act);
    act_take_at(act, act->scene.pool, NULL, at, bytes, act->scene.stream[A]);
}

void scenario_pins_of_all_sizes(struct act *act)
{
    struct mixed mixed = take_mixed(act);
    char *at = mixed.block->at;
    size_t bytes = mixed.block->bytes;
    DONE(cenote_pin(at, bytes));
    act_give(mixed.block);
    act_armed(act);
    act_give(take_of(act, GRADE_LARGE, 15 * MIB, B));
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cenote_unpin(at, bytes));
    take_of(act, GRADE_LARGE, 40 * MIB, C);
}

/* Idle units change although nothing may be unmapped, and what the group took it keeps. */
void scenario_capture_on_pages_of_all_sizes(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    cenote_group *group = act_group(act, pool, CENOTE_GROUP_PRIVATE, NULL);
    struct mixed mixed = take_mixed(act);
    leave_free(act, mixed.block);
    act_armed(act);
    if (!act_capture(act, group, act->scene.stream[C]))
        return;
    struct act_block *small = take_of(act, GRADE_SMALL, 7 * MIB, C), *large = take_of(act, GRADE_LARGE, 20 * MIB, C);
    act_give(small);
    act_give(large);
    CUgraphExec exec = act_end_capture(act, act->scene.stream[C]);
    act_drop_group(act, group);
    if (exec)
        DONE(cuGraphExecDestroy(exec));
    take_of(act, GRADE_LARGE, 36 * MIB, B);
}

/* Blocks that share no page: one on large pages alone, one between two on small ones. */
void scenario_whole_blocks_on_pages_of_all_sizes(struct act *act)
{
    act_armed(act);
    cenote_group *group = act_group(act, act->scene.pool, CENOTE_GROUP_WHOLE, NULL);
    units_grade_pages = 0;
    struct act_block *first = act_take_from(act, group, 17 * MIB, act->scene.stream[A]);
    units_grade_pages = 1 << 20;
    act_take_from(act, group, 3 * MIB, act->scene.stream[A]);
    act_give(first);
    act_take_from(act, group, 7 * MIB, act->scene.stream[A]);
    act_take_from(act, group, 11 * MIB, act->scene.stream[B]);
}

void scenario_import_of_pages_of_all_sizes(struct act *act)
{
    cenote_share share;
    struct mixed mixed = take_mixed(act);
    DONE(cuCtxSynchronize());
    DONE(cenote_export(mixed.block->at, &share));
    act_armed(act);
    void *here = act_import(act, &share);
    if (here)
        DONE(sim_launch_expect(act->scene.stream[A], device_address(here), mixed.block->pattern, 8));
    act_give(mixed.block);
    act_close_import(act, here);
    take_of(act, GRADE_SMALL, 30 * MIB, B);
}
