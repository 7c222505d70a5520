/*
 * ranges.h: a set of ranges of numbers (addresses, offsets) that do not overlap, in order; every call is O(log n). See ranges.c.
 * LOCKING: the model's lock.
 */
#ifndef CENOTE_SIM_RANGES_H
#define CENOTE_SIM_RANGES_H

#include <stdbool.h>
#include <stdint.h>

struct range {
    uint64_t start;
    uint64_t size;
    uint64_t largest;       /* size of the largest range below this node */
    uint32_t left, right;
    uint32_t weight;        /* of a parent at least that of its children: keeps the tree flat */
    uint32_t value;         /* the owner's */
};

struct ranges {
    struct range *nodes;    /* node 0 is "none"; moves when the set grows */
    uint32_t room;
    uint32_t used;
    uint32_t free;          /* chain through `left` */
    uint32_t root;
    uint32_t count;
    uint64_t random;
};

void ranges_clear(struct ranges *r);

/* --- a set of things with extent: the caller sees to it that they do not overlap */
bool          ranges_add(struct ranges *r, uint64_t start, uint64_t size, uint32_t value);  /* false: no host memory */
void          ranges_remove(struct ranges *r, uint64_t start);      /* it is there */
struct range *ranges_holding(const struct ranges *r, uint64_t at);  /* NULL: none; valid until the next change */
struct range *ranges_at_or_after(const struct ranges *r, uint64_t at);

/* --- a set of free space: neighbours melt together */
bool ranges_give(struct ranges *r, uint64_t start, uint64_t size);
bool ranges_take(struct ranges *r, uint64_t size, uint64_t alignment, uint64_t *start);  /* the lowest that fits */
bool ranges_take_at(struct ranges *r, uint64_t start, uint64_t size);                    /* false: not wholly free */

#endif
