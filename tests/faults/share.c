/*
 * share.c: scenarios of memory that is exported and imported. One process does both, so that each call of either side fails in turn: the
 * thread that answers is of this process too. Blocks are taken before anything fails: a page that the driver would not make exportable
 * is one that cannot be shared, and tests/api/test_share.c has that.
 */
#include "tests/faults/scenarios.h"

static struct act_block *exported(struct act *act, size_t bytes, cenote_share *share)
{
    struct act_block *block = act_take(act, act->scene.pool, bytes, act->scene.stream[A]);
    DONE(cuCtxSynchronize());
    DONE(cenote_export(block->at, share));
    return block;
}

/* The import shows what the block holds; both are looked at where the contents are kept: at the start. */
static void look(struct act *act, const struct act_block *block, void *here)
{
    if (here)
        DONE(sim_launch_expect(act->scene.stream[A], device_address(here), block->pattern, 8));
}

void scenario_export_and_import(struct act *act)
{
    cenote_share share;
    struct act_block *block = exported(act, 7 * MIB, &share);
    act_armed(act);
    void *here = act_import(act, &share);
    look(act, block, here);
    act_close_import(act, here);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_give(block);
}

void scenario_imports_of_one_page(struct act *act)
{
    cenote_share first, second;
    struct act_block *a = exported(act, 3000, &first), *b = exported(act, 5000, &second);
    act_armed(act);
    void *here = act_import(act, &first), *there = act_import(act, &second);
    act_close_import(act, here);
    look(act, b, there);
    here = act_import(act, &first);
    look(act, a, here);
    act_close_import(act, there);
    act_close_import(act, here);
    act_give(a);
    act_give(b);
}

void scenario_import_during_a_capture(struct act *act)
{
    cenote_share share;
    struct act_block *block = exported(act, 3 * MIB, &share);
    act_armed(act);
    cenote_group *group = act_group(act, act->scene.pool, CENOTE_GROUP_PRIVATE, NULL);
    bool captures = act_capture(act, group, act->scene.stream[B]);
    act_close_import(act, act_import(act, &share));
    CUgraphExec graph = captures ? act_end_capture(act, act->scene.stream[B]) : NULL;
    if (graph)
        DONE(cuGraphExecDestroy(graph));
    act_close_import(act, act_import(act, &share));
    act_give(block);
    act_drop_group(act, group);
}

/* Of one's own process a segment cannot be opened; but it is asked for. */
void scenario_export_of_a_segment(struct act *act)
{
    cenote_share share;
    void *here = NULL;
    struct act_block *block = exported(act, 3 * MIB, &share);
    act_armed(act);
    int error = cenote_import(&share, sizeof share, 0, &here);
    EXPECT(error && !here);
    if (error != CENOTE_NOT_SUPPORTED)
        act_done(act, error);
    act_give(block);
}
