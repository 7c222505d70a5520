/*
 * budget.h: may free pages move, or are new ones created instead?; see budget.c. LOCKING: the pool's lock and the
 * turn.
 */
#ifndef CENOTE_POOL_MAPPING_BUDGET_H
#define CENOTE_POOL_MAPPING_BUDGET_H

#include "pool/pool.h"

void budget_book_fill(cenote_pool *pool, uint64_t unmapping_ns, uint64_t mapping_ns);
void budget_book_move(cenote_pool *pool, uint64_t ns);
void budget_remember(cenote_pool *pool);
uint64_t budget_growth(cenote_pool *pool, uint64_t bytes, uint64_t now);
uint64_t budget_room(cenote_pool *pool, uint64_t bytes);
uint64_t budget_need(cenote_pool *pool, uint64_t bytes);

#endif
