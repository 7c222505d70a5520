/* steps.h: a step is over; see steps.c. */
#ifndef CENOTE_STATS_ACCOUNT_STEPS_H
#define CENOTE_STATS_ACCOUNT_STEPS_H

#include "pool/pool.h"

void steps_note(cenote_pool *pool, uint64_t now);

#endif
