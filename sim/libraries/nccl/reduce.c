/*
 * reduce.c: arithmetic on the contents of small messages: NCCL's types and operators, rank 0 first, so that all ranks get the same bits.
 * Floating point is summed in double and rounded once at the end; the real library rounds at every step, in an order of its own.
 */
#include <math.h>
#include <string.h>

#include "sim/libraries/nccl/nccl.h"

enum { SUM, PRODUCT, MOST, LEAST, AVERAGE };

/* TYPE(number, bytes, kind, exponent bits, mantissa bits); the last two of FLOAT only. */
enum type_kind { SIGNED, UNSIGNED, FLOAT };
static const struct type {
    uint8_t bytes, kind, exponent, mantissa;
} types[] = {
    {1, SIGNED, 0, 0}, {1, UNSIGNED, 0, 0}, {4, SIGNED, 0, 0}, {4, UNSIGNED, 0, 0}, {8, SIGNED, 0, 0}, {8, UNSIGNED, 0, 0},
    {2, FLOAT, 5, 10}, {4, FLOAT, 8, 23}, {8, FLOAT, 11, 52}, {2, FLOAT, 8, 7}, {1, FLOAT, 4, 3}, {1, FLOAT, 5, 2},
};

#define TYPES (int)(sizeof types / sizeof *types)

size_t type_bytes(int type)
{
    return type >= 0 && type < TYPES ? types[type].bytes : 0;
}

/* e4m3 has no infinity: only the all-ones pattern is no number. */
static bool has_infinity(const struct type *t)
{
    return t->exponent != 4;
}

static double decode_float(uint64_t bits, const struct type *t)
{
    int most = (1 << t->exponent) - 1, bias = most >> 1;
    int exponent = (int)(bits >> t->mantissa) & most;
    uint64_t fraction = bits & ((1ull << t->mantissa) - 1);
    double sign = bits >> (t->exponent + t->mantissa) & 1 ? -1.0 : 1.0;
    if (exponent == most && (has_infinity(t) ? true : fraction == (1u << t->mantissa) - 1))
        return has_infinity(t) && !fraction ? sign * INFINITY : NAN;
    if (!exponent)
        return sign * ldexp((double)fraction, 1 - bias - t->mantissa);
    return sign * ldexp((double)(fraction | 1ull << t->mantissa), exponent - bias - t->mantissa);
}

static uint64_t encode_float(double value, const struct type *t)
{
    int most = (1 << t->exponent) - 1, bias = most >> 1, exponent;
    uint64_t sign = (uint64_t)(signbit(value) != 0) << (t->exponent + t->mantissa);
    uint64_t infinite = has_infinity(t) ? (uint64_t)most << t->mantissa : (1ull << (t->exponent + t->mantissa)) - 1;
    if (isnan(value))
        return sign | ((1ull << (t->exponent + t->mantissa)) - 1);
    if (isinf(value))
        return sign | infinite;
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    if (exponent - 1 < 1 - bias)
        exponent = 2 - bias;
    double exact = ldexp(value < 0 ? -value : value, t->mantissa - (exponent - 1));
    uint64_t bits = (uint64_t)exact;
    double rest = exact - (double)bits;
    bits += rest > 0.5 || (rest == 0.5 && bits & 1);
    if (bits >> t->mantissa)            /* not subnormal; a carry goes on into the exponent by itself */
        bits += (uint64_t)(exponent - 2 + bias) << t->mantissa;
    return sign | (bits >= infinite ? infinite : bits);
}

union value {
    double   real;
    int64_t  whole;
    uint64_t bits;
};

static union value load(const char *at, const struct type *t)
{
    union value value = {.bits = 0};
    memcpy(&value.bits, at, t->bytes);
    if (t->kind == SIGNED)
        value.whole = (int64_t)(value.bits << (64 - 8 * t->bytes)) >> (64 - 8 * t->bytes);
    else if (t->kind == FLOAT && t->bytes == 4) {
        float narrow;
        memcpy(&narrow, at, sizeof narrow);
        value.real = (double)narrow;
    } else if (t->kind == FLOAT && t->bytes < 4)
        value.real = decode_float(value.bits, t);
    return value;
}

static void store(char *at, union value value, const struct type *t)
{
    if (t->kind == FLOAT && t->bytes == 4) {
        float narrow = (float)value.real;
        memcpy(at, &narrow, sizeof narrow);
        return;
    }
    if (t->kind == FLOAT && t->bytes < 4)
        value.bits = encode_float(value.real, t);
    memcpy(at, &value.bits, t->bytes);
}

static double join_real(double a, double b, int reduction)
{
    switch (reduction) {
    case PRODUCT:
        return a * b;
    case MOST:
        return a > b ? a : b;
    case LEAST:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

static union value join(union value a, union value b, const struct type *t, int reduction)
{
    bool more = t->kind == SIGNED ? a.whole > b.whole : a.bits > b.bits;
    if (t->kind == FLOAT)
        return (union value){.real = join_real(a.real, b.real, reduction)};
    switch (reduction) {
    case PRODUCT:
        return (union value){.bits = a.bits * b.bits};
    case MOST:
        return more ? a : b;
    case LEAST:
        return more ? b : a;
    default:
        return (union value){.bits = a.bits + b.bits};
    }
}

static union value divide(union value a, int by, const struct type *t)
{
    if (t->kind == FLOAT)
        return (union value){.real = a.real / by};
    if (t->kind == SIGNED)
        return (union value){.whole = a.whole / by};
    return (union value){.bits = a.bits / (uint64_t)by};
}

/* Operators of a communicator's own are sums of what reduce_scale has been at. */
void reduce_parts(void *result, const char *parts, int ranks, size_t count, int type, int reduction)
{
    const struct type *t = &types[type];
    for (size_t i = 0; i < count; i++) {
        union value sum = load(parts + i * t->bytes, t);
        for (int rank = 1; rank < ranks; rank++)
            sum = join(sum, load(parts + ((size_t)rank * count + i) * t->bytes, t), t, reduction);
        store((char *)result + i * t->bytes, reduction == AVERAGE ? divide(sum, ranks, t) : sum, t);
    }
}

void reduce_scale(void *data, size_t count, int type, const void *factor)
{
    const struct type *t = &types[type];
    union value by = load(factor, t);
    for (size_t i = 0; i < count; i++) {
        char *at = (char *)data + i * t->bytes;
        store(at, join(load(at, t), by, t, PRODUCT), t);
    }
}
