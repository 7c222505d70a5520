/* bits.h: ranges of bits in arrays of 64-bit words. `from` is the first bit, `to` one past the last. No locks, no memory. */
#ifndef CENOTE_BASE_BITS_H
#define CENOTE_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t bits_words(uint32_t bits) { return (bits + 63) / 64; }

static inline bool bit_is_set(const uint64_t *words, uint32_t bit) { return words[bit / 64] >> (bit % 64) & 1; }
static inline void bit_set(uint64_t *words, uint32_t bit) { words[bit / 64] |= 1ull << (bit % 64); }
static inline void bit_clear(uint64_t *words, uint32_t bit) { words[bit / 64] &= ~(1ull << (bit % 64)); }

/* The bits of a range in the word that it begins in, and in the one that it ends in. */
static inline uint64_t bits_from(uint32_t from) { return ~0ull << (from % 64); }
static inline uint64_t bits_to(uint32_t to) { return ~0ull >> (63 - (to - 1) % 64); }

static inline void bits_set(uint64_t *words, uint32_t from, uint32_t to)
{
    uint64_t mask = bits_from(from);
    if (from >= to)
        return;
    for (words += from / 64, to -= from / 64 * 64; to > 64; to -= 64, mask = ~0ull)
        *words++ |= mask;
    *words |= mask & bits_to(to);
}

static inline void bits_clear(uint64_t *words, uint32_t from, uint32_t to)
{
    uint64_t mask = bits_from(from);
    if (from >= to)
        return;
    for (words += from / 64, to -= from / 64 * 64; to > 64; to -= 64, mask = ~0ull)
        *words++ &= ~mask;
    *words &= ~(mask & bits_to(to));
}

/* The first one that is set, or clear, at or after `from`; `to` if there is none before that. */
static inline uint32_t bits_next(const uint64_t *words, uint32_t from, uint32_t to, bool set)
{
    uint64_t mask = bits_from(from);
    for (uint32_t at = from / 64 * 64; at < to; at += 64, mask = ~0ull) {
        uint64_t found = (set ? words[at / 64] : ~words[at / 64]) & mask;
        if (found)
            return at + (uint32_t)__builtin_ctzll(found) < to ? at + (uint32_t)__builtin_ctzll(found) : to;
    }
    return to;
}

/* The last one that is set, at or before `upto`; UINT32_MAX: none. */
static inline uint32_t bits_last(const uint64_t *words, uint32_t upto)
{
    uint64_t mask = bits_to(upto + 1);
    for (uint32_t word = upto / 64 + 1; word-- > 0; mask = ~0ull)
        if (words[word] & mask)
            return word * 64 + 63 - (uint32_t)__builtin_clzll(words[word] & mask);
    return UINT32_MAX;
}

static inline bool bits_all_set(const uint64_t *words, uint32_t from, uint32_t to) { return bits_next(words, from, to, false) >= to; }
static inline bool bits_any_set(const uint64_t *words, uint32_t from, uint32_t to) { return bits_next(words, from, to, true) < to; }

#endif
