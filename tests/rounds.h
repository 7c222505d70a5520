/*
 * rounds.h: how often a random or racing test repeats itself.
 *
 *     for (int i = 0; i < rounds(200); i++)
 *
 * is 200 times in an ordinary build. A build with a sanitizer takes 5 to 20 times as long for each, and repeats a fourth as often. `make deep` sets
 * CENOTE_TEST_ROUNDS=K in the environment: K times 200, in any build.
 *
 * A check that needs a number of rounds to have a sense asks for it by its own number and not here.
 */
#ifndef CENOTE_TESTS_ROUNDS_H
#define CENOTE_TESTS_ROUNDS_H

#include <stdlib.h>

static inline int rounds(int ordinary)
{
    const char *factor = getenv("CENOTE_TEST_ROUNDS");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    int fewer = (ordinary + 3) / 4;
#else
    int fewer = ordinary;
#endif
    return factor ? ordinary * atoi(factor) : fewer;
}

#endif
