/*
 * pools.c: scenarios of pools that come and go, of several at a time, and of memory that comes as segments.
 */
#include "tests/faults/scenarios.h"

static void come_and_go(struct act *act)
{
    cenote_options options = act_options(act);
    act_armed(act);
    for (int round = 0; round < 2; round++) {
        cenote_pool *pool = act_pool(act, 0, &options);
        act_give(act_take(act, pool, (size_t)(round + 1) * 5 * MIB, act->scene.stream[A]));
        act_drop_pool(act, pool);
    }
}

void scenario_pool_comes_and_goes(struct act *act)
{
    come_and_go(act);
}

void scenario_async_pool_comes_and_goes(struct act *act)
{
    come_and_go(act);
}

/* Never destroyed, so it leaves the list of pools to be destroyed; what it holds can be trimmed. */
void scenario_default_pool(struct act *act)
{
    cenote_pool *pool = NULL;
    act_armed(act);
    if (!act_done(act, cenote_pool_default(0, &pool)))
        return;
    act->pools[0] = pool;
    act->keeps_pool = true;
    act_take(act, pool, 5 * MIB, act->scene.stream[A]);
    act_done(act, cenote_pool_default(0, &pool));
    EXPECT_EQ(pool, act->pools[0]);
    act_give_all(act);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_pools_of_one_device(struct act *act)
{
    cenote_options options = act_options(act);
    act_armed(act);
    cenote_pool *first = act_pool(act, 0, &options), *second = act_pool(act, 0, NULL);
    struct act_block *held = act_take(act, first, 9 * MIB, act->scene.stream[A]);
    act_take(act, second, 3 * MIB, act->scene.stream[A]);
    act_give(held);
    act_take(act, second, 9 * MIB, act->scene.stream[B]);
    act_give_all(act);
    act_drop_pool(act, first);
    act_drop_pool(act, second);
}

void scenario_pools_of_two_devices(struct act *act)
{
    cenote_options options = act_options(act);
    act_armed(act);
    cenote_pool *other = act_pool(act, 1, &options);
    struct act_block *held = act_take(act, other, 18 * MIB, act->other_stream);
    act_take(act, act->scene.pool, 9 * MIB, act->scene.stream[A]);
    act_give(held);
    act_take(act, other, 24 * MIB, act->other_stream);
    act_give_all(act);
    act_done(act, other ? cenote_pool_trim(other, 0, CENOTE_TRIM_WAIT) : CENOTE_OK);
    act_drop_pool(act, other);
}

/* ---------------------------------------------------------------------------------------------------------------------------- segments */

static void segments(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    struct act_block *held = act_take(act, pool, 9 * MIB, act->scene.stream[A]);
    act_take(act, pool, 900, act->scene.stream[A]);
    act_take_aligned(act, pool, MIB, MIB, act->scene.stream[A]);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    act_take(act, pool, 500, act->scene.stream[A]);
    act_give_all(act);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

void scenario_async(struct act *act)
{
    segments(act);
}

void scenario_plain(struct act *act)
{
    segments(act);
}

/* What other streams hold does not move; it goes back and comes again. */
static void segments_run_short(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[A]);
    act_give(held);
    act_armed(act);
    act_take(act, act->scene.pool, 36 * MIB, act->scene.stream[B]);
    act_hoard(act, act->scene.pool, 12 * MIB, act->scene.stream[C]);
    act_give_all(act);
    act_take(act, act->scene.pool, 50 * MIB, act->scene.stream[A]);
}

void scenario_async_runs_short(struct act *act)
{
    segments_run_short(act);
}

/* There is no room for a segment of the usual size, but for the block there is. */
void scenario_async_card_nearly_full(struct act *act)
{
    act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[A]);
    act_armed(act);
    act_take(act, act->scene.pool, 9 * MIB, act->scene.stream[B]);
}

void scenario_plain_runs_short(struct act *act)
{
    segments_run_short(act);
}

void scenario_guarded(struct act *act)
{
    segments(act);
}

void scenario_guarded_runs_short(struct act *act)
{
    segments_run_short(act);
}

/* What was allowed to one segment is allowed to the next, once the first is back. */
void scenario_segments_within_a_limit(struct act *act)
{
    DONE(cenote_pool_set_limit(act->scene.pool, 20 * MIB));
    act_armed(act);
    for (int round = 0; round < 3; round++) {
        struct act_block *held = act_take(act, act->scene.pool, 12 * MIB, act->scene.stream[round]);
        act_give(held);
        act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    }
}

/* ---------------------------------------------------------------------------------------------------------------------------- questions */

void scenario_abilities_are_asked(struct act *act)
{
    come_and_go(act);
}

void scenario_abilities_are_none(struct act *act)
{
    come_and_go(act);
}

/* Questions are answered from cenote's own books, whatever the driver says. */
void scenario_questions(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 9 * MIB, act->scene.stream[A]);
    cenote_stats stats;
    cenote_options options;
    cenote_block found;
    char text[4096];
    act_armed(act);
    DONE(cenote_pool_stats(act->scene.pool, &stats));
    EXPECT(cenote_stats_text(&stats, text, sizeof text) > 0);
    EXPECT(cenote_stats_json(&stats, text, sizeof text) > 0);
    DONE(cenote_pool_reset_peaks(act->scene.pool));
    DONE(cenote_pool_reset_totals(act->scene.pool));
    DONE(cenote_find(held->at + 5 * MIB, &found));
    EXPECT_EQ(found.start, held->at);
    EXPECT_EQ(cenote_pool_device(act->scene.pool), 0);
    DONE(cenote_options_default(&options));
    DONE(cenote_options_parse(&options, "limit:1GiB"));
    EXPECT_EQ(cenote_free_sized(held->at, 3), CENOTE_WRONG_SIZE);
    EXPECT_EQ(cenote_free(held->at + 512), CENOTE_INTERIOR);
    EXPECT_EQ(cenote_pool_destroy(act->scene.pool), CENOTE_BUSY);
    DONE(cenote_pool_check(act->scene.pool));
    DONE(cenote_pool_set_limit(act->scene.pool, 0));
    act_give(held);
}

/* Host memory is all they need: whatever the driver says, nothing is asked of it. What cannot be recorded is not, and all else goes on. */
static void write_both(struct act *act, cenote_pool *pool, bool recording)
{
    if (recording)
        act_done(act, cenote_pool_record_save(pool, "/dev/null"));
    act_done(act, cenote_pool_snapshot(pool, "/dev/null"));
}

void scenario_records_and_snapshots(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    struct act_block *old = act_take(act, pool, 3 * MIB, act->scene.stream[A]), *small[40];
    act_armed(act);
    bool recording = act_done(act, cenote_pool_record(pool, 64));
    for (int i = 0; i < 40; i++)
        small[i] = act_take(act, pool, 700, act->scene.stream[i % 3]);
    act_use(act, old, act->scene.stream[B]);
    act_give(old);
    write_both(act, pool, recording);
    for (int i = 0; i < 40; i++)
        act_give(small[i]);
    recording = act_done(act, cenote_pool_record(pool, 10)) || recording;
    write_both(act, pool, recording);
    act_done(act, cenote_pool_record(pool, 0));
}

void scenario_pool_that_records_from_its_opening(struct act *act)
{
    cenote_options options = act_options(act);
    options.record = 1000;
    act_armed(act);
    cenote_pool *pool = act_pool(act, 0, &options);
    act_give(act_take(act, pool, 5 * MIB, act->scene.stream[A]));
    if (pool)
        write_both(act, pool, true);
    act_drop_pool(act, pool);
}
