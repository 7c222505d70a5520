/*
 * remap.h: the change of mappings that is under way, and what such changes have cost. See attempt.c and budget.c.
 *
 *     a fill: planned ---> created ---> mapped ---> published, all in one hold of the turn
 *
 * OWNERS: attempt.c; budget.c has the times, `need`, `wastes`, `frays` and what it counted; aliases.c has `drop_above`. watch.c and policy/churn.c
 * read the fill while it is under way, place.c whether the pool wastes, units.c whether it frays.
 * LOCKING: the turn; `need`, `wastes` and `frays` change with the pool's lock, and may be read with it alone.
 */
#ifndef CENOTE_POOL_REMAP_H
#define CENOTE_POOL_REMAP_H

#include <cenote/cenote.h>

#include "pool/core/fill.h"

struct heap;
struct place;

struct remap {
    struct fill    fill;
    uint64_t       creating_ns;     /* driver time that new pages have taken */
    uint64_t       moving_ns;       /* and that moving pages has */
    uint64_t       exchanged;       /* bytes that went back as pages of one size and have not come back as pages of another */
    uint64_t       owed;            /* bytes created in place of other sizes, for which nothing has gone: less than the largest page */
    uint64_t       need;            /* the most bytes that were ever live at one time, as far as the slow path has seen */
    bool           wastes;          /* blocks hold many pages beside what they are: heaps for small blocks, and any hole, serve more */
    bool           frays;           /* blocks hold too much beside what they are for middle pages: it makes small ones */
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
#define GRADE_PAGES 192u            /* chosen: docs/design.md, section 11 */
extern uint32_t units_grade_pages;  /* a pool makes pages of a grade once it has needed more than so many of them hold */
struct units_turn {
    struct region *region;
    uint32_t       from, to;        /* slots of a place, to the borders of its cells */
    uint32_t       count;           /* so many of them, or of their cells, have aliases and should take pages */
    uint32_t       level;           /* log2 of the slots of these */
    uint32_t       grade;           /* of this grade */
};
uint32_t units_grade(const cenote_pool *pool, const struct heap *h, uint64_t need, uint64_t more);
bool     units_are_middle(const cenote_pool *pool, uint64_t need);
uint32_t units_top(const cenote_pool *pool);
bool     units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint32_t grade, uint64_t news, struct units_turn *turn);
bool     units_loosen(cenote_pool *pool, const struct units_turn *turn);

#endif
