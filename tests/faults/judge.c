/*
 * judge.c: what must hold after a failure, whichever call it was.
 *
 *     an error that passes    the pool's invariants hold, its books agree with the scenario's, contents are right, the caller's context is
 *                             current; everything can be given back; the same again works; and the card's own books are empty at the end
 *     a sticky error          the pool is lost: no memory any more, but frees, statistics and checks answer
 *
 * One thing is excused: where the calls that give back were refused for good, what they should have given back is still there.
 */
#include <cenote/sleep.h>

#include "tests/faults/act.h"

/* -------------------------------------------------------------------------------------------------------------------------- identities */

static void judge_pools(const struct act *act)
{
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->pools[i] && cenote_pool_check(act->pools[i])) {
            fprintf(stderr, "    cenote_pool_check: %s\n", cenote_message());
            EXPECT(!"the invariants of the pool hold");
        }
}

/* The library's books against the scenario's. */
static void judge_accounts(const struct act *act)
{
    uint64_t blocks = 0, requested = 0, theirs = 0, their_requested = 0;
    for (int i = 0; i < ACT_BLOCKS; i++) {
        blocks += act->blocks[i].at != NULL;
        requested += act->blocks[i].at ? act->blocks[i].bytes : 0;
    }
    for (int i = 0; i < ACT_THINGS; i++) {
        if (!act->pools[i])
            continue;
        cenote_stats stats = scene_stats(act->pools[i]);
        theirs += stats.blocks.current;
        their_requested += stats.requested.current;
        EXPECT_EQ(stats.reserved.current + stats.asleep, stats.allocated.current + stats.cached.current);
        EXPECT(stats.requested.current <= stats.allocated.current && stats.allocated.current <= stats.active.current);
    }
    EXPECT_EQ(theirs, blocks);
    EXPECT_EQ(their_requested, requested);
}

/* Nothing CUDA forbids was done, and each block had the contents that were written to it. */
static void judge_card(void)
{
    struct sim_books books;
    DONE(cuCtxSynchronize());
    sim_books(&books);
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
}

/* Nothing was left current. Where leaving fails for good, it is excused, and mended here. */
void judge_context(const struct act *act)
{
    CUcontext current = NULL;
    bool could_not_leave = act->injection.kind == FAULT_DRIVER && act->injection.persistent;
    DONE(cuCtxGetCurrent(&current));
    EXPECT(current == act->scene.context || could_not_leave);
    DONE(cuCtxSetCurrent(act->scene.context));
}

static void judge_state(const struct act *act)
{
    judge_context(act);
    judge_card();
    judge_pools(act);
    judge_accounts(act);
}

/* ----------------------------------------------------------------------------------------------------------------------------- the end */

/* Calls that give back were refused for good, or could not be reached. */
static bool is_leak_excused(const struct act *act)
{
    static const enum driver_call gives[] = {CALL_cuMemFree, CALL_cuMemRelease, CALL_cuMemUnmap, CALL_cuMemAddressFree, CALL_cuEventDestroy,
                                             CALL_cuMemPoolDestroy, CALL_cuDevicePrimaryCtxRelease};
    struct driver_tally tallies[DRIVER_CALLS];
    if (act->injection.kind != FAULT_DRIVER || !act->injection.persistent)
        return false;
    driver_tallies(tallies);
    bool refused = act->destroyed_while_armed;
    for (size_t i = 0; i < sizeof gives / sizeof *gives; i++)
        refused = refused || tallies[gives[i]].failed;
    return refused;
}

/* Free memory goes when it is asked to, pools leave nothing, and the driver's books agree. */
static void judge_end(struct act *act)
{
    struct sim_books books;
    DONE(cuCtxSynchronize());
    bool excused = is_leak_excused(act);
    for (int i = 0; i < ACT_THINGS; i++) {
        if (!act->pools[i])
            continue;
        DONE(cenote_pool_trim(act->pools[i], 0, CENOTE_TRIM_WAIT));
        cenote_stats stats = scene_stats(act->pools[i]);
        EXPECT_EQ(stats.active.current, 0);
        EXPECT_EQ(stats.pending_blocks, 0);
        EXPECT(excused || stats.reserved.current == 0);
        if (!act->keeps_pool)
            act_drop_pool(act, act->pools[i]);
    }
    if (act->other_context) {
        DONE(cuStreamDestroy(act->other_stream));
        DONE(cuDevicePrimaryCtxRelease(1));
    }
    sim_books(&books);
    EXPECT_EQ(books.violations, 0);
    if (excused)
        return;
    uint64_t kept = act->keeps_pool;
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(books.reserved, 0);
    EXPECT_EQ(books.handles, 0);
    EXPECT_EQ(books.mappings, 0);
    EXPECT_EQ(books.reservations, 0);
    EXPECT_EQ(books.allocations, 0);
    EXPECT(kept || books.pools == 0);
    EXPECT(kept || books.events == 0);
    EXPECT_EQ(books.contexts, 1 + kept); /* the scene's own */
}

/* -------------------------------------------------------------------------------------------------------------------------- lost pools */

/* True: the pool is lost, and each call says so. */
static bool judge_lost_pool(struct act *act, cenote_pool *pool)
{
    void *at = act;
    CUstream stream = cenote_pool_device(pool) ? act->other_stream : act->scene.stream[C];
    int error = cenote_alloc(pool, CARD / 2 + MIB, stream, &at); /* no scenario has that much cached in one place */
    if (error != CENOTE_DEVICE_LOST) {
        if (!error)
            DONE(cenote_free(at));
        return false;
    }
    EXPECT_EQ(cenote_driver_result(), act->injection.error);
    EXPECT(strstr(cenote_message(), driver_result_name(act->injection.error)) != NULL);
    EXPECT_EQ(cenote_alloc(pool, 512, NULL, &at), CENOTE_DEVICE_LOST);
    EXPECT_EQ(cenote_alloc(pool, 5 * MIB, stream, &at), CENOTE_DEVICE_LOST);
    return true;
}

/*
 * A context that is lost stays lost, so the persistent form is what really happens: no call succeeds any more. After a single sticky
 * answer, which no driver gives, a pool may also have had no need to notice.
 */
static void judge_loss(struct act *act, bool fired)
{
    int pools = 0, lost = 0;
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->pools[i]) {
            pools++;
            lost += judge_lost_pool(act, act->pools[i]);
        }
    EXPECT(!(fired && act->injection.persistent) || lost == pools);
    EXPECT(!act->lost || lost || !pools || act->destroyed_while_armed);
    judge_accounts(act);
    judge_pools(act);
    for (int i = 0; i < ACT_BLOCKS; i++) /* what the device does no more is not looked at */
        if (act->blocks[i].at) {
            DONE(cenote_free(act->blocks[i].at));
            act->blocks[i].at = NULL;
        }
    judge_accounts(act);
    judge_pools(act);
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->pools[i] && !act->keeps_pool) {
            int error = cenote_pool_destroy(act->pools[i]);
            EXPECT(error == CENOTE_OK || error == CENOTE_DEVICE_LOST || error == CENOTE_BUSY); /* groups and captures may be open */
        }
}

/* ------------------------------------------------------------------------------------------------------------------------- the verdict */

/* What sleeps on because a call was refused has its contents. */
static void wake(const struct act *act)
{
    for (int i = 0; i < ACT_THINGS; i++)
        if (act->pools[i])
            DONE(cenote_pool_resume(act->pools[i], NULL));
}

/* The first run is over. True: something failed on order. */
bool judge(struct act *act, void (*scenario)(struct act *))
{
    if (act_is_sticky(act)) {
        if (act->injection.persistent) {
            judge_loss(act, fault_fired() != 0);
            return act_disarm(act);
        }
        bool fired = act_disarm(act);
        judge_loss(act, fired);
        return fired;
    }
    bool fired = act_disarm(act);
    EXPECT(fired || !act->refused);
    wake(act);
    judge_state(act);
    act_clear(act);
    judge_state(act);
    if (act->injection.other == OTHER_IN_POOL) /* holes of the second thread's blocks may be of no use to the scenario: it finds none again */
        DONE(cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));

    act->retry = true;
    act->refused = 0;
    scenario(act);
    EXPECT_EQ(act->refused, 0);
    judge_state(act);
    act_clear(act);
    judge_state(act);
    judge_end(act);
    return fired;
}
