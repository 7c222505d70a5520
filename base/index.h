/*
 * index.h: from an address to a number, in constant time: open addressing over memory of our own.
 * Addresses are multiples of 512 and never 0. Room for an entry is made before it is needed, so that adding never fails.
 * LOCKING: that of the index's owner.
 */
#ifndef CENOTE_BASE_INDEX_H
#define CENOTE_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index {          /* all zero: an empty index */
    uint64_t *keys;     /* address, 0: empty */
    uint32_t *values;
    uint32_t  shift;    /* 64 - log2(slots) */
    uint32_t  count;
    uint32_t  room;     /* entries until it has to grow */
    uint32_t  slots;    /* 0: nothing mapped yet */
};

bool     index_grow(struct index *x, uint64_t entries); /* see index_reserve */
void     index_add(struct index *x, uint64_t address, uint32_t value);  /* not there yet; value is not 0 */
uint32_t index_remove(struct index *x, uint64_t address);               /* 0: was not there */
void     index_close(struct index *x);
size_t   index_bytes(const struct index *x);
bool     index_is_valid(const struct index *x);

/* The next `more` index_add succeed; false: no memory, nothing changed. */
static inline bool index_reserve(struct index *x, uint32_t more)
{
    uint64_t entries = (uint64_t)x->count + more;
    return entries <= x->room || index_grow(x, entries);
}

/*
 * Where a search for `address` starts. Multiplying by 2^64 / golden ratio spreads runs of equal distance evenly over the slots, and
 * addresses of equal blocks are such runs; the low bits, always 0, are dropped first.
 */
static inline uint32_t index_home(const struct index *x, uint64_t address)
{
    return (uint32_t)((address >> 9) * 0x9e3779b97f4a7c15ull >> x->shift);
}

/* 0: not there */
static inline uint32_t index_find(const struct index *x, uint64_t address)
{
    if (!x->slots)
        return 0;
    uint32_t at = index_home(x, address);
    while (x->keys[at] != address) {
        if (!x->keys[at])
            return 0;
        at = (at + 1) & (x->slots - 1);
    }
    return x->values[at];
}

#endif
