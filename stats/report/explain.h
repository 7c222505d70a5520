/* explain.h: gathers the facts of an explanation and has them printed (stats/text/explain.c); see explain.c. */
#ifndef CENOTE_STATS_REPORT_EXPLAIN_H
#define CENOTE_STATS_REPORT_EXPLAIN_H

#include "pool/pool.h"

int explain_shortage(cenote_pool *pool, uint64_t bytes);

#endif
