/*
 * request.h: what a caller asks an arena for, and what becomes of its size; see request.c.
 */
#ifndef CENOTE_POOL_CORE_REQUEST_H
#define CENOTE_POOL_CORE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#define HEAP_OF_SMALL 1u

struct request {
    uint64_t bytes;                 /* asked for */
    uint64_t size;                  /* of the heap block that serves it: rounded up, or a whole slab */
    uint64_t alignment;
    uint64_t at;                    /* where it has to be, 0: anywhere */
    uint64_t mark;                  /* see label.h */
    uint32_t class;                 /* of the slab, CLASS_NONE: a block of its own */
    uint32_t heap;                  /* which of the arena's heaps serves it: 0, or HEAP_OF_SMALL */
    uint32_t extends;               /* the block that grows by it, 0: none; then `at` is where that ends */
    bool     exclusive_pages;       /* shares no page and no segment with another block */
    bool     alone;                 /* the same where memory is segments: it has one to itself */
    uint64_t ahead;                 /* 0, or the tick of a request for pages alone (cenote_pool_reserve) */
    bool     no_wait;               /* CENOTE_NO_WAIT */
    bool     is_held;               /* of a group, it stays MARK_HELD: the caller ends that */
    bool     is_told;               /* watch functions are told of the block */
    bool     at_segment_end;        /* ends where its segment ends, in which no block has been before: provider guard */
};

void request_make(struct request *q, bool slabs);
void request_choose_heap(struct request *q, uint32_t small_shift);
void request_cover_pages(struct request *q, uint64_t page);

#endif
