/*
 * quantity.c: reads and writes counts, bytes and shares.
 *
 * Numbers are plain decimals: no sign, no exponent, no hexadecimal, no "inf", and a point whatever the program's locale says. That is
 * why strtod is not used: it would accept all of these, and "1,5" in half of Europe.
 *
 * LOCKING: none; no state.
 */
#include "stats/text/quantity.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The longest suffix comes first where one ends with another. */
static const struct unit {
    const char *suffix;
    uint64_t    bytes;
} units[] = {
    {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40},
    {"kB", 1000ull}, {"MB", 1000000ull}, {"GB", 1000000000ull}, {"TB", 1000000000000ull},
    {"B", 1}, {"", 1},
};

struct decimal {
    uint64_t whole;
    double   fraction; /* 0 <= fraction < 1 */
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *skip_spaces(const char *text)
{
    while (is_space(*text))
        text++;
    return text;
}

/* Reads digits with at most one point between or beside them. Where it stopped; NULL if there is no number or it is too large. */
static const char *read_decimal(const char *text, struct decimal *number)
{
    int digits = 0;
    number->whole = 0;
    number->fraction = 0;
    for (; *text >= '0' && *text <= '9'; text++, digits++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (number->whole > (UINT64_MAX - digit) / 10)
            return NULL;
        number->whole = number->whole * 10 + digit;
    }
    if (*text == '.') {
        double digits_read = 0, place = 1;
        for (text++; *text >= '0' && *text <= '9'; text++, digits++) {
            if (place >= 1e15)
                continue; /* finer than a double can tell */
            digits_read = digits_read * 10 + (*text - '0');
            place *= 10;
        }
        number->fraction = digits_read / place;
    }
    return digits ? text : NULL;
}

/* `text` is `word` and then nothing but spaces. */
static bool is_last_word(const char *text, const char *word)
{
    for (; *word; text++, word++)
        if (strncasecmp(text, word, 1) != 0)
            return false;
    return !*skip_spaces(text);
}

bool quantity_read_count(const char *text, uint64_t *count)
{
    struct decimal number;
    const char *rest = read_decimal(skip_spaces(text), &number);
    if (!rest || strchr(text, '.') || *skip_spaces(rest))
        return false;
    *count = number.whole;
    return true;
}

bool quantity_read_bytes(const char *text, uint64_t *bytes)
{
    struct decimal number;
    const char *rest = read_decimal(skip_spaces(text), &number);
    if (!rest)
        return false;
    rest = skip_spaces(rest);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (!is_last_word(rest, units[i].suffix))
            continue;
        if (number.whole > (UINT64_MAX >> 1) / units[i].bytes)
            return false;
        *bytes = number.whole * units[i].bytes + (uint64_t)(number.fraction * (double)units[i].bytes + 0.5);
        return true;
    }
    return false;
}

bool quantity_read_share(const char *text, double *share)
{
    struct decimal number;
    const char *rest = read_decimal(skip_spaces(text), &number);
    if (!rest)
        return false;
    double value = (double)number.whole + number.fraction;
    rest = skip_spaces(rest);
    if (is_last_word(rest, "%"))
        value /= 100;
    else if (*rest)
        return false;
    *share = value;
    return true;
}

char *quantity_write_bytes(char text[QUANTITY_TEXT], uint64_t bytes)
{
    static const char *const suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int scale = 0;
    for (; value >= 1023.5; value /= 1024)
        scale++;
    int decimals = scale == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, QUANTITY_TEXT, "%.*f %s", decimals, value, suffixes[scale]);
    return text;
}
