/* units.h: a large page, or small ones?; see units.c. LOCKING: the turn, and the pool's lock in units_choose. */
#ifndef CENOTE_POOL_MAPPING_UNITS_H
#define CENOTE_POOL_MAPPING_UNITS_H

#include <cenote/cenote.h>

#include "pool/core/pages.h"

struct place;

#define GRADE_PAGES 100u
struct loosening {
    struct region *region;
    uint32_t       from, to;        /* units of a place */
    uint32_t       count;           /* so many of them have aliases and should take pages */
    enum grade     grade;           /* of this grade */
};

extern uint32_t units_grade_pages;  /* a pool makes large pages once it has needed more than so many of them hold */
uint32_t units_grade(const cenote_pool *pool, uint64_t need);
bool units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint32_t grade, uint64_t news,
                  struct loosening *loose);
bool units_loosen(cenote_pool *pool, const struct loosening *loose);

#endif
