/* random.h: numbers for randomised tests, the same on every machine and in every run. */
#ifndef CENOTE_TESTS_BASE_RANDOM_H
#define CENOTE_TESTS_BASE_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state; /* the seed */
};

/* splitmix64: good enough to choose operations, and one line. */
static inline uint64_t random_next(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* A number below `end`, which is not 0. */
static inline uint32_t random_below(struct random *r, uint32_t end)
{
    return (uint32_t)(random_next(r) % end);
}

#endif
