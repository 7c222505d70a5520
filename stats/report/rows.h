/* rows.h: the allocated bytes of a pool, divided by arena, group, size, tag, phase and kind; see rows.c. */
#ifndef CENOTE_STATS_REPORT_ROWS_H
#define CENOTE_STATS_REPORT_ROWS_H

#include "stats/report/pieces.h"

void rows_reset(struct look *look, bool peaks);
const char *rows_broken_rule(struct look *look);
void rows_list(struct look *look, enum cenote_division division, const struct arena_sums *sums, struct sized_list *list);

#endif
