/*
 * remap.h: the change of mappings that is under way, and what such changes have cost. See attempt.c and budget.c.
 *
 *     a fill: planned ---> created ---> mapped ---> published, all in one hold of the turn
 *
 * OWNERS: attempt.c; budget.c has the times and `need`; aliases.c has `drop_above`. watch.c and policy/churn.c read the fill while it is under way.
 * LOCKING: the turn; `need` changes with the pool's lock, and may be read with it alone.
 */
#ifndef CENOTE_POOL_REMAP_H
#define CENOTE_POOL_REMAP_H

#include <cenote/cenote.h>

#include "pool/core/fill.h"

struct heap;
struct place;

struct remap {
    struct fill    fill;
    uint64_t       moving_ns;       /* driver time that moving pages has taken */
    uint64_t       owed;            /* bytes created in place of other sizes, for which nothing has gone: less than the largest page */
    uint64_t       need;            /* the most bytes that were ever live at one time, as far as the slow path has seen */
    uint64_t       drop_above;      /* mappings of the device at which aliases.c tries again; 0: at the cap */
};

/* --- budget.c. LOCKING: the pool's lock and the turn */
void     budget_book_fill(cenote_pool *pool, uint64_t unmapping_ns, uint64_t mapping_ns);
void     budget_book_move(cenote_pool *pool, uint64_t ns);
void     budget_remember(cenote_pool *pool);
uint64_t budget_growth(cenote_pool *pool, uint64_t bytes, uint64_t now);
uint64_t budget_room(cenote_pool *pool, uint64_t bytes);
uint64_t budget_need(cenote_pool *pool, uint64_t bytes);

/* --- units.c. LOCKING: the turn, and the pool's lock in units_choose */
#define GRADE_PAGES 100u
extern uint32_t units_grade_pages;  /* a pool makes large pages once it has needed more than so many of them hold */
struct loosening {
    struct region *region;
    uint32_t       from, to;        /* units of a place */
    uint32_t       count;           /* so many of them have aliases and should take pages */
    enum grade     grade;           /* of this grade */
};
uint32_t units_grade(const cenote_pool *pool, uint64_t need);
bool     units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint32_t grade, uint64_t news, struct loosening *loose);
bool     units_loosen(cenote_pool *pool, const struct loosening *loose);

#endif
