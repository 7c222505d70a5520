/* numbers.h: arithmetic that many files need. */
#ifndef CENOTE_SIM_NUMBERS_H
#define CENOTE_SIM_NUMBERS_H

#include <stdint.h>

static inline uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

#endif
