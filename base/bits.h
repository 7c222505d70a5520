/* bits.h: ranges of bits in arrays of 64-bit words. `from` is the first bit, `to` one past the last. No locks, no memory. */
#ifndef CENOTE_BASE_BITS_H
#define CENOTE_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t bits_words(uint32_t bits) { return (bits + 63) / 64; }

static inline bool bit_is_set(const uint64_t *words, uint32_t bit) { return words[bit / 64] >> (bit % 64) & 1; }
static inline void bit_set(uint64_t *words, uint32_t bit) { words[bit / 64] |= 1ull << (bit % 64); }
static inline void bit_clear(uint64_t *words, uint32_t bit) { words[bit / 64] &= ~(1ull << (bit % 64)); }

/* The bits of word `word` that lie in [from, to). */
static inline uint64_t bits_mask(uint32_t word, uint32_t from, uint32_t to)
{
    uint64_t mask = ~0ull;
    if (word == from / 64)
        mask &= ~0ull << (from % 64);
    if (word == (to - 1) / 64)
        mask &= ~0ull >> (63 - (to - 1) % 64);
    return mask;
}

static inline void bits_set(uint64_t *words, uint32_t from, uint32_t to)
{
    for (uint32_t w = from / 64; from < to && w <= (to - 1) / 64; w++)
        words[w] |= bits_mask(w, from, to);
}

static inline void bits_clear(uint64_t *words, uint32_t from, uint32_t to)
{
    for (uint32_t w = from / 64; from < to && w <= (to - 1) / 64; w++)
        words[w] &= ~bits_mask(w, from, to);
}

static inline bool bits_all_set(const uint64_t *words, uint32_t from, uint32_t to)
{
    for (uint32_t w = from / 64; from < to && w <= (to - 1) / 64; w++)
        if (~words[w] & bits_mask(w, from, to))
            return false;
    return true;
}

static inline bool bits_any_set(const uint64_t *words, uint32_t from, uint32_t to)
{
    for (uint32_t w = from / 64; from < to && w <= (to - 1) / 64; w++)
        if (words[w] & bits_mask(w, from, to))
            return true;
    return false;
}

#endif
