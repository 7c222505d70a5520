/*
 * report.h: what reports remember of a pool. See report.c and explain.c.
 * OWNERS: report.c, explain.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_STATS_REPORT_REPORT_H
#define CENOTE_STATS_REPORT_REPORT_H

#include <cenote/report.h>

#include "pool/core/pages.h"

struct report {
    uint64_t       driver_calls_before, driver_ns_before;  /* of the process, when the totals were reset */
    char           user[32];        /* what takes memory from it, for explanations; "": not known */
    void          *nvtx;            /* of libcenote_nvtx.so, option sanitize; NULL: off */
};

struct report_sums {                /* over all regions */
    struct pages_sums pages;
    uint64_t address_used, metadata;
};

struct look;
struct report_sums report_sum(struct look *look);
cenote_stats report_stats(const cenote_pool *pool, const struct report_sums *sums);

#endif
