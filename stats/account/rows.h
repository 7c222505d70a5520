/* rows.h: room for the rows of labels, which begin with the first block that has one; see rows.c. */
#ifndef CENOTE_STATS_ACCOUNT_ROWS_H
#define CENOTE_STATS_ACCOUNT_ROWS_H

#include "pool/pool.h"

bool rows_reserve(cenote_pool *pool, uint64_t mark);
struct row rows_all(const cenote_pool *pool);

#endif
