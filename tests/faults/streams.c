/*
 * streams.c: scenarios of blocks that several streams use, and of streams that come and go.
 */
#include "tests/faults/scenarios.h"

void scenario_use_elsewhere(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    act_armed(act);
    act_use(act, held, act->scene.stream[B]);
    act_use(act, held, act->scene.stream[C]);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    act_take(act, act->scene.pool, 30 * MIB, act->scene.stream[B]);
    sim_advance(50 * MSEC);
    act_give(held);
    act_take(act, act->scene.pool, 8 * MIB, act->scene.stream[A]);
}

/* Events are recorded on them at the free. */
void scenario_use_on_immortal_streams(struct act *act)
{
    act_armed(act);
    for (int i = 0; i < SCENE_STREAMS; i++)
        act_done(act, cenote_stream_set_immortal(act->scene.pool, act->scene.stream[i]));
    struct act_block *first = act_take(act, act->scene.pool, 5 * MIB, act->scene.stream[A]);
    struct act_block *second = act_take(act, act->scene.pool, 3 * MIB, act->scene.stream[B]);
    act_use(act, first, act->scene.stream[B]);
    act_use(act, first, act->scene.stream[C]);
    act_use(act, second, act->scene.stream[A]);
    act_give(first);
    act_give(second);
    act_take(act, act->scene.pool, 4 * MIB, act->scene.stream[A]);
    sim_advance(50 * MSEC);
    act_take(act, act->scene.pool, 7 * MIB, act->scene.stream[B]);
}

static void fence_streams(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    act_armed(act);
    struct act_block *first = act_take(act, pool, 20 * MIB, act->scene.stream[A]);
    struct act_block *second = act_take(act, pool, 9 * MIB, NULL);
    act_use(act, second, act->scene.stream[C]);
    act_give(first);
    act_give(second);
    act_take(act, pool, 40 * MIB, act->scene.stream[B]); /* only with what the others had */
    act_give_all(act);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

/* No promise to announce captures: an event on each stream. */
void scenario_fences_on_streams(struct act *act)
{
    fence_streams(act);
}

void scenario_fences_on_streams_of_an_old_driver(struct act *act)
{
    fence_streams(act);
}

/* No promise either: what they left comes back when the program has waited for the context, or by the call that named the stream. */
void scenario_streams_that_end_without_a_word(struct act *act)
{
    cenote_pool *pool = act->scene.pool;
    CUstream mortal[2];
    uint64_t sync;
    for (int i = 0; i < 2; i++)
        DONE(cuStreamCreate(&mortal[i], CU_STREAM_NON_BLOCKING));
    act_armed(act);
    struct act_block *first = act_take(act, pool, 20 * MIB, mortal[0]);
    struct act_block *second = act_take(act, pool, 9 * MIB, act->scene.stream[A]);
    act_use(act, second, mortal[1]);
    act_give(first);
    act_give(second);
    for (int i = 0; i < 2; i++)
        DONE(cuStreamDestroy(mortal[i]));
    bool begun = act_done(act, cenote_pool_sync_begin(pool, &sync));
    DONE(cuCtxSynchronize());
    if (begun)
        act_done(act, cenote_pool_sync_end(pool, sync));
    act_take(act, pool, 40 * MIB, act->scene.stream[B]);
    act_give_all(act);
    act_done(act, cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    if (act_done(act, cenote_pool_sync_begin(pool, &sync))) {
        DONE(cuCtxSynchronize());
        act_done(act, cenote_pool_sync_end(pool, sync));
    }
}

void scenario_use_on_default_streams(struct act *act)
{
    act_armed(act);
    struct act_block *first = act_take(act, act->scene.pool, 5 * MIB, CU_STREAM_LEGACY);
    struct act_block *second = act_take(act, act->scene.pool, 3 * MIB, CU_STREAM_PER_THREAD);
    act_use(act, first, CU_STREAM_PER_THREAD);
    act_use(act, second, NULL);
    act_use(act, second, act->scene.stream[A]);
    act_give(first);
    act_give(second);
    act_take(act, act->scene.pool, 9 * MIB, NULL);
    sim_advance(50 * MSEC);
    act_take(act, act->scene.pool, 9 * MIB, CU_STREAM_PER_THREAD);
}

void scenario_small_blocks_in_use(struct act *act)
{
    struct act_block *held[24];
    act_armed(act);
    for (int i = 0; i < 24; i++)
        held[i] = act_take(act, act->scene.pool, (size_t)300 << i % 4, act->scene.stream[A]);
    for (int i = 0; i < 24; i += 2)
        act_use(act, held[i], act->scene.stream[B]);
    for (int i = 0; i < 24; i++)
        act_give(held[i]);
    for (int i = 0; i < 12; i++)
        act_take(act, act->scene.pool, 300, act->scene.stream[A]);
    sim_advance(500 * MSEC);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* So many allocations while blocks wait that these are looked after. */
void scenario_many_pending(struct act *act)
{
    struct act_block *held[20];
    act_done(act, cenote_stream_set_immortal(act->scene.pool, act->scene.stream[C]));
    for (int i = 0; i < 20; i++) {
        held[i] = act_take(act, act->scene.pool, MIB, act->scene.stream[A]);
        act_use(act, held[i], act->scene.stream[i % 2 ? B : C]);
    }
    act_armed(act);
    for (int i = 0; i < 20; i++)
        act_give(held[i]);
    for (int i = 0; i < 80; i++) {
        act_give(act_take(act, act->scene.pool, 100 * KIB, act->scene.stream[A]));
        sim_advance(4 * MSEC);
    }
}

void scenario_stream_retired_and_reused(struct act *act)
{
    CUstream stream;
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    struct act_block *held = act_take(act, act->scene.pool, 12 * MIB, stream);
    act_take(act, act->scene.pool, 700, act->scene.stream[A]);
    act_armed(act);
    act_give(held);
    act_done(act, cenote_stream_retire(act->scene.pool, stream));
    DONE(cuStreamSynchronize(stream));
    DONE(cuStreamDestroy(stream));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); /* by the same handle */
    held = act_take(act, act->scene.pool, 10 * MIB, stream);
    act_use(act, held, act->scene.stream[B]);
    act_give(held);
    DONE(cuStreamSynchronize(stream));
    DONE(cuStreamDestroy(stream)); /* without a word */
    act_take(act, act->scene.pool, 50 * MIB, act->scene.stream[C]);
}

/* More than an arena is kept for each. */
void scenario_streams_come_and_go(struct act *act)
{
    act_take(act, act->scene.pool, 700, act->scene.stream[A]);
    act_armed(act);
    for (int i = 0; i < 70; i++) {
        CUstream stream;
        DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        act_give(act_take(act, act->scene.pool, 600 * KIB, stream));
        DONE(cuStreamSynchronize(stream));
        DONE(cuStreamDestroy(stream));
    }
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
}

/* Everything that wants a fence, where only the context itself can be waited for. */
static void without_fences(struct act *act)
{
    struct act_block *held = act_take(act, act->scene.pool, 20 * MIB, act->scene.stream[A]);
    struct act_block *used = act_take(act, act->scene.pool, 10 * MIB, act->scene.stream[B]);
    act_armed(act);
    act_use(act, used, act->scene.stream[C]);
    act_give(held);
    act_give(used);
    act_take(act, act->scene.pool, 40 * MIB, act->scene.stream[C]);
    act_done(act, cenote_pool_trim(act->scene.pool, 0, CENOTE_TRIM_WAIT));
    act_take(act, act->scene.pool, 10 * MIB, act->scene.stream[B]);
}

void scenario_no_whole_context_fences(struct act *act)
{
    without_fences(act);
}

void scenario_no_stream_ids(struct act *act)
{
    without_fences(act);
}
