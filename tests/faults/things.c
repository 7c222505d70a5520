/*
 * things.c: pools, groups and captures of a scenario. What a refused call left open is closed by act_clear once the failure is gone.
 */
#include "tests/faults/act.h"

/* ------------------------------------------------------------------------------------------------------------------------------- pools */

cenote_pool *act_pool(struct act *act, int device, const cenote_options *options)
{
    cenote_pool *pool = NULL;
    int place = 0;
    while (act->pools[place])
        place++;
    REQUIRE(place < ACT_THINGS);
    bool done = act_done(act, cenote_pool_create(device, options, &pool));
    EXPECT_EQ(pool != NULL, done);
    return act->pools[place] = pool;
}

void act_drop_pool(struct act *act, cenote_pool *pool)
{
    if (!pool)
        return;
    act->destroyed_while_armed = act->destroyed_while_armed || act->armed;
    other_leaves(act, pool);
    if (!act_done(act, cenote_pool_destroy(pool)))
        return;
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->pools[i] == pool)
            act->pools[i] = NULL;
}

/* ------------------------------------------------------------------------------------------------------------------------------ groups */

cenote_group *act_group(struct act *act, cenote_pool *pool, unsigned flags, const cenote_source *source)
{
    int place = 0;
    if (!pool)
        return NULL;
    while (act->groups[place])
        place++;
    REQUIRE(place < ACT_THINGS);
    act_done(act, cenote_group_create(pool, "swept", flags, source, &act->groups[place]));
    return act->groups[place];
}

void act_drop_group(struct act *act, cenote_group *group)
{
    if (!group || !act_done(act, cenote_group_destroy(group)))
        return;
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->groups[i] == group)
            act->groups[i] = NULL;
}

/* ---------------------------------------------------------------------------------------------------------------------------- captures */

bool act_capture(struct act *act, cenote_group *group, CUstream stream)
{
    if (!group || !act_done(act, cenote_capture_begin(NULL, group, stream)))
        return false;
    int place = 0;
    while (act->captures[place].open)
        place++;
    REQUIRE(place < ACT_THINGS);
    act->captures[place] = (struct act_capture){group, stream, true};
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return true;
}

static void tell_end(struct act *act, struct act_capture *capture)
{
    if (capture->open && act_done(act, cenote_capture_end(NULL, capture->group, capture->stream)))
        capture->open = false;
}

/* What was captured, ready to run: nothing that failed meanwhile may have ended the capture. */
CUgraphExec act_end_capture(struct act *act, CUstream stream)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    DONE(cuStreamEndCapture(stream, &graph));
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->captures[i].stream == stream)
            tell_end(act, &act->captures[i]);
    if (graph) {
        DONE(cuGraphInstantiate(&exec, graph, 0));
        DONE(cuGraphDestroy(graph));
    }
    return exec;
}

/* -------------------------------------------------------------------------------------------------------------------------- everything */

/* In one's own process: the driver's calls are the same. */
void *act_import(struct act *act, const cenote_share *share)
{
    int i = 0;
    while (i < ACT_THINGS && act->imports[i])
        i++;
    REQUIRE(i < ACT_THINGS);
    if (act_done(act, cenote_import(share, sizeof *share, 0, &act->imports[i])))
        return act->imports[i];
    EXPECT_EQ(act->imports[i], NULL);
    return NULL;
}

static bool is_capturing(const struct act *act)
{
    bool open = false;
    for (int i = 0; i < ACT_THINGS; i++)
        open = open || act->captures[i].open;
    return open;
}

void act_close_import(struct act *act, void *at)
{
    for (int i = 0; at && i < ACT_THINGS; i++)
        if (act->imports[i] == at) {
            int error = cenote_import_close(at);
            if (error == CENOTE_BUSY) { /* a capture is open: act_clear closes it */
                EXPECT(is_capturing(act));
                return;
            }
            act_done(act, error); /* the driver may have refused, but it is closed */
            act->imports[i] = NULL;
            return;
        }
}

void act_clear(struct act *act)
{
    for (int i = 0; i < ACT_THINGS; i++)
        tell_end(act, &act->captures[i]);
    for (int i = 0; i < ACT_THINGS; i++)
        act_close_import(act, act->imports[i]);
    act_give_all(act);
    for (int i = 0; i < ACT_THINGS; i++)
        act_drop_group(act, act->groups[i]);
}
