/*
 * remap.h: the change of mappings that is under way, and what such changes have cost. See attempt.c and budget.c.
 *
 *     a fill: planned ---> created ---> mapped ---> published, all in one hold of the turn
 *
 * OWNERS: attempt.c; budget.c has the times, `need`, `wastes` and what it counted; aliases.c has `drop_above`. watch.c and policy/churn.c read the
 * fill while it is under way, place.c whether the pool wastes.
 * LOCKING: the turn; `need` and `wastes` change with the pool's lock, and may be read with it alone.
 */
#ifndef CENOTE_POOL_REMAP_H
#define CENOTE_POOL_REMAP_H

#include <cenote/cenote.h>

#include "pool/core/fill.h"

struct place;

struct remap {
    struct fill    fill;
    uint64_t       creating_ns;     /* driver time that new pages have taken */
    uint64_t       moving_ns;       /* and that moving pages has */
    uint64_t       exchanged;       /* bytes that went back as pages of one size and have not come back as pages of the other */
    uint64_t       owed;            /* bytes created in place of the other size, for which nothing has gone: less than a large page */
    uint64_t       need;            /* the most bytes that were ever live at one time, as far as the slow path has seen */
    bool           wastes;          /* blocks hold many pages beside what they are: heaps for small blocks, and any hole, serve more */
    uint32_t       counted;         /* budget_look has counted the regions below this number, */
    uint64_t       counted_free;    /* and so many bytes of free pages in them */
    uint64_t       drop_above;      /* mappings of the device at which aliases.c tries again; 0: at the cap */
};

/* --- budget.c. LOCKING: the pool's lock and the turn */
void     budget_book_fill(cenote_pool *pool, uint64_t creating_ns, uint64_t unmapping_ns, uint64_t mapping_ns);
void     budget_book_segments(cenote_pool *pool, uint64_t ns);
void     budget_remember(cenote_pool *pool);
void     budget_look(cenote_pool *pool);
uint64_t budget_growth(cenote_pool *pool, uint64_t bytes, uint64_t now);
uint64_t budget_room(cenote_pool *pool, uint64_t bytes);
uint64_t budget_need(cenote_pool *pool, uint64_t bytes);

/* --- units.c. LOCKING: the turn, and the pool's lock in units_choose */
#define SPLIT_PAGES 128u            /* chosen: docs/design.md, section 11 */
extern uint32_t units_split_pages;  /* a pool that never needed more than what so many large pages hold makes small ones */
struct units_turn {
    struct region *region;
    uint32_t       from, to;        /* units of a place */
    uint32_t       count;           /* so many of them should become wide, or split, and have aliases */
    bool           wide;
};
bool     units_are_wide(const cenote_pool *pool, uint64_t need);
bool     units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint64_t need, uint64_t news, struct units_turn *turn);
bool     units_loosen(cenote_pool *pool, const struct units_turn *turn);

#endif
