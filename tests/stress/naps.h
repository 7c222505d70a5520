/*
 * naps.h: memory sleeps and wakes in the worlds of test_worlds.c: blocks of one thread, the pool of a program with one thread, and what a graph draws
 * from between its replays. While it sleeps the thread takes and gives other blocks, and frees some that sleep.
 *
 * LOCKING: that of worlds.h; the blocks are the thread's own, and the pool does not end before they are freed.
 */
#ifndef CENOTE_TESTS_STRESS_NAPS_H
#define CENOTE_TESTS_STRESS_NAPS_H

#include <cenote/sleep.h>

#include "tests/stress/worlds.h"

#define NAPPERS 6

/* A pool that is not told of captures is one too many for all of the process. */
static bool all_are_announced(void)
{
    bool all = true;
    for (int i = 0; i < PLACES; i++)
        all = all && world.place[i].announced;
    return all;
}

/* Without announced captures cenote waits for no stream that it must not touch: so the program has waited for all. */
static void wait_before_naps(void)
{
    for (int i = 0; i < PLACES; i++) {
        enter(i);
        MUST(cuCtxSynchronize() == CUDA_SUCCESS);
    }
}

/* BUSY, CAPTURE: a capture is open. INVALID, where no block is named: the pool has ended. */
static bool may_nap(int error, int place, int line)
{
    if (error == CENOTE_CAPTURE || error == CENOTE_BUSY)
        return false;
    return may(error, place, line);
}

/* What sleeps wakes, unless the card has no room. */
static bool wake(cenote_pool *pool, const cenote_sleep *what, int place)
{
    int error;
    do {
        cenote_sleep sleep = *what;
        error = cenote_pool_resume(pool, &sleep);
        if (error == CENOTE_CAPTURE)
            sched_yield();
    } while (error == CENOTE_CAPTURE && world.threads > 1);
    return may_nap(error, place, __LINE__);
}

/* Other blocks come and go meanwhile. */
static void stay_awake(struct worker *w, cenote_pool *pool, int place)
{
    for (uint64_t i = pick(&w->random, 6); i > 0; i--) {
        int kind = (int)pick(&w->random, OF_THREAD);
        void *at = NULL;
        size_t bytes = 1 + (size_t)pick(&w->random, pick(&w->random, 2) ? 9 * KIB : 12 * MIB);
        enter(place);
        if (!MAY(cenote_alloc(pool, bytes, stream_of(w, place, kind), &at)))
            continue;
        struct held held = {at, bytes, pick(&w->random, UINT64_MAX) | 1, stream_of(w, place, kind)};
        launch(&held, sim_launch_fill, held.stream);
        if (pick(&w->random, 3) == 0)
            MAY(cenote_pool_trim(pool, 0, pick(&w->random, 2) ? CENOTE_TRIM_WAIT : 0));
        launch(&held, sim_launch_expect, held.stream);
        MUST(cenote_free(held.at) == CENOTE_OK);
    }
}

/* It may sleep on where the card has no room: then its thread frees what it has, and there must be no more. */
static bool may_sleep_whole(struct worker *w, int place)
{
    bool may = world.threads == 1 && pick(&w->random, 3) == 0;
    for (int i = 0; i < 16; i++)
        may = may && !(world.shelf[i].held.at && world.shelf[i].place == place);
    return may;
}

/* Up to NAPPERS blocks of the thread that are there; the whole pool if no other thread is. */
static void nap(struct worker *w, int place)
{
    struct block *naps[BLOCKS];
    const void *names[BLOCKS];
    int count = 0;
    bool whole = may_sleep_whole(w, place);
    uint32_t contents = (uint32_t)pick(&w->random, CENOTE_CONSTANT + 1);
    if (!all_are_announced() && world.captures)
        return;
    for (int i = 0; i < BLOCKS && (whole || count < NAPPERS); i++)
        if (w->block[i].held.at && w->block[i].place == place) {
            names[count] = w->block[i].held.at;
            naps[count++] = &w->block[i];
        }
    if (!count)
        return;
    cenote_pool *pool = enter_pool(place);
    if (!pool)
        return;
    if (!all_are_announced())
        wait_before_naps();
    enter(place);
    cenote_sleep sleep = {.blocks = whole ? NULL : names, .count = whole ? 0 : (uint64_t)count, .contents = contents}, named = sleep;
    if (may_nap(cenote_pool_pause(pool, &sleep), place, __LINE__))
        atomic_fetch_add(&world.naps, 1);
    stay_awake(w, pool, place);
    enter(place);
    for (int i = 0; i < count; i++)
        if (pick(&w->random, 6) == 0) {
            MUST(cenote_free(naps[i]->held.at) == CENOTE_OK);
            naps[i]->held.at = NULL;
        }
    int left = 0;
    for (int i = 0; i < count; i++)
        if (naps[i]->held.at)
            names[left++] = naps[i]->held.at;
    named.count = whole ? 0 : (uint64_t)left;
    bool woke = !left || wake(pool, &named, place);
    enter(place);
    for (int i = 0; i < count; i++) {
        struct held *held = &naps[i]->held;
        if (!held->at)
            continue;
        if (!woke) { /* it may sleep still: no kernel touches it any more */
            MUST(cenote_free(held->at) == CENOTE_OK);
            held->at = NULL;
        } else if (contents == CENOTE_DISCARD_ALL || contents == CENOTE_DISCARD) {
            launch(held, sim_launch_fill, held->stream);
        }
    }
    leave_pool(place);
}

/* The memory of a graph, between two replays. False: it sleeps on, and the graph must not run. */
static bool nap_of_group(struct worker *w, cenote_pool *pool, cenote_group *group, int place)
{
    if (!all_are_announced())
        return true;
    cenote_sleep sleep = {.group = group, .contents = (uint32_t)pick(&w->random, 2) * CENOTE_DISCARD_ALL}, named = {.group = group};
    if (may_nap(cenote_pool_pause(pool, &sleep), place, __LINE__))
        atomic_fetch_add(&world.naps, 1);
    stay_awake(w, pool, place);
    return wake(pool, &named, place);
}

#endif
