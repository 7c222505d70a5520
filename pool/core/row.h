/*
 * row.h: what one part of a pool's allocated bytes amounts to: an arena's, a tag's, a size class's. See rows.c.
 *
 * at_peak is kept without walking all rows at each new peak: a new peak of the pool only moves its epoch on, and a row
 * that changes for the first time after that writes down what it was. A row that changed since has it written; for the
 * others it is what they are.
 *
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_CORE_ROW_H
#define CENOTE_POOL_CORE_ROW_H

#include <stdint.h>

struct row {
    uint64_t current, peak, total_in;
    uint64_t blocks;
    uint64_t at_peak, epoch;    /* of the pool's peak in that epoch */
    uint64_t held;              /* when the totals were reset */
};

static inline void row_touch(struct row *r, uint64_t epoch)
{
    if (r->epoch == epoch)
        return;
    r->at_peak = r->current;
    r->epoch = epoch;
}

static inline void row_in(struct row *r, uint64_t epoch, uint64_t bytes)
{
    row_touch(r, epoch);
    r->current += bytes;
    r->total_in += bytes;
    r->blocks++;
    if (r->current > r->peak)
        r->peak = r->current;
}

static inline void row_to(struct row *r, uint64_t epoch, uint64_t before, uint64_t now)
{
    row_touch(r, epoch);
    r->current += now - before;
    r->total_in += now > before ? now - before : 0;
    if (r->current > r->peak)
        r->peak = r->current;
}

static inline void row_out(struct row *r, uint64_t epoch, uint64_t bytes)
{
    row_touch(r, epoch);
    r->current -= bytes;
    r->blocks--;
}

#endif
