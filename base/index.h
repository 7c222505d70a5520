/*
 * index.h: from an address to a number, in constant time: open addressing over memory of our own.
 * Addresses are multiples of 512 and never 0. Room for an entry is made before it is needed, so that adding never fails. An index that has grown
 * moves its entries a few at a time, with each that is added: no call takes longer because there are many.
 * LOCKING: that of the index's owner.
 */
#ifndef CENOTE_BASE_INDEX_H
#define CENOTE_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_slots {
    uint64_t *keys;     /* address, 0: empty */
    uint32_t *values;
    uint32_t  shift;    /* 64 - log2(count) */
    uint32_t  count;    /* 0: nothing mapped */
};

struct index {          /* all zero: an empty index */
    struct index_slots now;
    struct index_slots before;  /* what it had until it grew, with the entries that have not moved yet */
    uint32_t  moved;    /* slots of those, from the first one, that are empty */
    uint32_t  count;    /* entries */
    uint32_t  room;     /* entries until it has to grow */
};

bool     index_grow(struct index *x, uint64_t entries); /* see index_reserve */
uint32_t index_find_before(const struct index *x, uint64_t address);    /* see index_find */
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
static inline uint32_t index_home(const struct index_slots *s, uint64_t address)
{
    return (uint32_t)((address >> 9) * 0x9e3779b97f4a7c15ull >> s->shift);
}

/* 0: not there */
static inline uint32_t index_find_in(const struct index_slots *s, uint64_t address)
{
    if (!s->count)
        return 0;
    uint32_t at = index_home(s, address);
    while (s->keys[at] != address) {
        if (!s->keys[at])
            return 0;
        at = (at + 1) & (s->count - 1);
    }
    return s->values[at];
}

/* 0: not there */
static inline uint32_t index_find(const struct index *x, uint64_t address)
{
    uint32_t value = index_find_in(&x->now, address);
    return __builtin_expect(value || !x->before.count, 1) ? value : index_find_before(x, address);
}

#endif
