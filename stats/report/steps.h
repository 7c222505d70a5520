/* steps.h: what each step of the program left behind; see steps.c. */
#ifndef CENOTE_STATS_REPORT_STEPS_H
#define CENOTE_STATS_REPORT_STEPS_H

#include "pool/pool.h"

void steps_list(const cenote_pool *pool, struct sized_list *list);

#endif
