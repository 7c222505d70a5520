/*
 * pick.h: which free pages move next, or go back to the driver; see pick.c.
 */
#ifndef CENOTE_POOL_CORE_PICK_H
#define CENOTE_POOL_CORE_PICK_H

#include "pool/core/pages.h"

/* The free pages, longest free first. */
struct pick {
    tick     freed;
    uint32_t page;
};

struct picker {
    const struct requester *who;    /* pages this arena may map elsewhere; NULL: pages that may go back to the driver */
    tick     latest;            /* freed no later than this; with `who`, 0: only spares and pages never used */
    uint32_t only_shift;        /* log2 of their size; 0: any */
    uint32_t skip_shift;        /* none of this size */
    bool     segments;          /* immovable ones instead of movable ones */
    bool     skip_sources;      /* none that functions of the program have to take back (cenote_source) */
    uint32_t only_arena;        /* of regions of this arena alone; 0: of all */
    uint32_t most;
    uint32_t count;
    struct pick *picks;         /* room for `most` */

    /* --- how far pick_some has come */
    bool     begun;
    bool     some;              /* a page of the region may be free, or there was a pause in it */
    uint32_t region, word;      /* region 0: spares are next */
    uint32_t spare;
};

tick pick_behind(const struct pages *s, const struct requester *who, uint32_t page);
void pick_pages(struct pages *s, struct picker *picker);
bool pick_some(struct pages *s, struct picker *picker, uint32_t most);
void pick_sort(struct picker *picker);
bool pick_may_take(const struct pages *s, const struct picker *picker, uint32_t page);

#endif
