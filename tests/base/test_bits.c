/* test_bits.c: every range of three words, on patterns that make each border of a range matter, against loops over single bits. */
#include "base/bits.h"

#include <string.h>

#include "tests/harness.h"

#define BITS  192
#define WORDS 3

/* Empty, full, every other bit, and one single bit wherever `lone` says. */
#define PATTERNS 4

static void fill(uint64_t words[WORDS], int pattern, uint32_t lone)
{
    static const uint64_t plain[PATTERNS - 1] = {0, ~0ull, 0xaaaaaaaaaaaaaaaaull};
    for (int w = 0; w < WORDS; w++)
        words[w] = pattern < PATTERNS - 1 ? plain[pattern] : 0;
    if (pattern == PATTERNS - 1)
        bit_set(words, lone);
}

static uint32_t count_in(const uint64_t words[WORDS], uint32_t from, uint32_t to)
{
    uint32_t count = 0;
    for (uint32_t bit = from; bit < to; bit++)
        count += bit_is_set(words, bit);
    return count;
}

/* How many bits of `after` are not what writing `value` to [from, to) of `before` makes of them. */
static uint32_t wrong_bits(const uint64_t *before, const uint64_t *after, uint32_t from, uint32_t to, bool value)
{
    uint32_t wrong = 0;
    for (uint32_t bit = 0; bit < BITS; bit++)
        wrong += bit_is_set(after, bit) != (bit >= from && bit < to ? value : bit_is_set(before, bit));
    return wrong;
}

static uint32_t wrong_answers(const uint64_t words[WORDS], uint32_t from, uint32_t to)
{
    uint64_t changed[WORDS];
    uint32_t wrong = 0;
    uint32_t count = count_in(words, from, to);
    wrong += bits_all_set(words, from, to) != (count == to - from);
    wrong += bits_any_set(words, from, to) != (count > 0);

    memcpy(changed, words, sizeof(changed));
    bits_set(changed, from, to);
    wrong += wrong_bits(words, changed, from, to, true);

    memcpy(changed, words, sizeof(changed));
    bits_clear(changed, from, to);
    return wrong + wrong_bits(words, changed, from, to, false);
}

CASE(every_range)
{
    uint32_t wrong = 0;
    for (uint32_t from = 0; from <= BITS; from++)
        for (uint32_t to = from; to <= BITS; to++)
            for (int pattern = 0; pattern < PATTERNS; pattern++) {
                uint64_t words[WORDS];
                fill(words, pattern, (from * 7 + to) % BITS);
                wrong += wrong_answers(words, from, to);
            }
    EXPECT_EQ(wrong, 0);
}

/* A bit just outside a range must not count, one just inside must. */
CASE(borders)
{
    for (uint32_t at = 1; at < BITS - 1; at++) {
        uint64_t words[WORDS] = {0};
        bit_set(words, at);
        EXPECT(!bits_any_set(words, 0, at));
        EXPECT(!bits_any_set(words, at + 1, BITS));
        EXPECT(bits_any_set(words, 0, at + 1));
        EXPECT(bits_any_set(words, at, BITS));
        EXPECT(bits_all_set(words, at, at + 1));
        bit_clear(words, at);
        EXPECT(!bits_any_set(words, 0, BITS));
    }
}

CASE(words_for_bits)
{
    EXPECT_EQ(bits_words(0), 0);
    EXPECT_EQ(bits_words(1), 1);
    EXPECT_EQ(bits_words(64), 1);
    EXPECT_EQ(bits_words(65), 2);
}

SUITE_MAIN("bits")
