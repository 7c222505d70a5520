/*
 * sleeps.h: what tests of sleep share: blocks of many sizes, and calls that name a group.
 */
#ifndef CENOTE_TESTS_API_SLEEPS_H
#define CENOTE_TESTS_API_SLEEPS_H

#include <cenote/sleep.h>

#include "tests/api/strict.h"

static inline uint64_t used(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.used;
}

static inline int pause_of(cenote_pool *pool, cenote_group *group, uint32_t contents, cenote_sleep *slept)
{
    cenote_sleep sleep = {.group = group, .contents = contents};
    int error = cenote_pool_pause(pool, &sleep);
    if (slept)
        *slept = sleep;
    return error;
}

static inline int resume_of(cenote_pool *pool, cenote_group *group, cenote_sleep *woken)
{
    cenote_sleep sleep = {.group = group};
    int error = cenote_pool_resume(pool, &sleep);
    if (woken)
        *woken = sleep;
    return error;
}

#define BLOCKS 24

static const size_t sizes[BLOCKS] = {512, 3000, 9 * KIB, 100 * KIB, 700 * KIB, MIB, 3 * MIB, 2 * MIB, 5 * MIB + 512, 512, 8 * KIB, 40 * KIB,
                                     4 * MIB, 6 * MIB, 300 * KIB, 2 * MIB + 512, 1024, 64 * KIB, 2 * MIB, MIB + 512, 7 * MIB, 512, 20 * KIB, 2 * MIB};

#endif
