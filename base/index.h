/*
 * index.h: from an address to a number, in constant time: open addressing over memory of our own.
 * Addresses are multiples of 512 and never 0. Room for an entry is made before it is needed, so that adding never fails.
 * LOCKING: whoever owns the index.
 */
#ifndef CENOTE_BASE_INDEX_H
#define CENOTE_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index {
    uint64_t *keys;     /* address, 0: empty */
    uint32_t *values;
    uint32_t  shift;    /* 64 - log2(slots) */
    uint32_t  count;
    uint32_t  slots;    /* 0: nothing mapped yet */
};

bool     index_reserve(struct index *x, uint32_t more); /* the next `more` index_add succeed; false: no memory, nothing changed */
void     index_add(struct index *x, uint64_t address, uint32_t value);  /* not there yet; value is not 0 */
uint32_t index_find(const struct index *x, uint64_t address);           /* 0: not there */
uint32_t index_remove(struct index *x, uint64_t address);               /* 0: was not there */
void     index_close(struct index *x);
size_t   index_bytes(const struct index *x);

#endif
