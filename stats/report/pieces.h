/* pieces.h: the picture of a pool: what lies where in the memory it holds; see pieces.c. LOCKING: the pool's lock. */
#ifndef CENOTE_STATS_REPORT_PIECES_H
#define CENOTE_STATS_REPORT_PIECES_H

#include "pool/arenas/look.h"

struct arena_sums {
    uint64_t *of_arena;             /* bytes of physical memory that lie in each arena, by its number */
    uint32_t  arenas;               /* room; later ones are not told of */
};

bool pieces_sums_open(struct arena_sums *sums, cenote_pool *pool);
void pieces_sums_close(struct arena_sums *sums);
void pieces_sum(struct look *look, struct arena_sums *sums);
void pieces_draw(struct look *look, const cenote_group *group, struct sized_list *list);

static inline uint64_t sum_of_arena(const struct arena_sums *sums, uint32_t arena) { return arena < sums->arenas ? sums->of_arena[arena] : 0; }

#endif
