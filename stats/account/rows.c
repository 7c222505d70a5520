/*
 * rows.c: room for the rows of labels, which begin with the first block that has one. stats/report/rows.c tells what is in them.
 *
 * LOCKING: the pool's lock.
 */
#include "stats/account/rows.h"

#include "stats/account/count.h"

/* What had no label so far, which is everything. */
struct row rows_all(const cenote_pool *pool)
{
    const cenote_level *all = &pool->account.stats.allocated;
    return (struct row){.current = all->current, .peak = all->peak, .total_in = all->total_in, .blocks = pool->account.stats.blocks.current,
                        .at_peak = all->peak, .epoch = pool->account.epoch, .held = all->total_out + all->current - all->total_in};
}

/* Makes room for the rows of a block with this mark. False: no memory. LOCKING: the pool's lock. */
bool rows_reserve(cenote_pool *pool, uint64_t mark)
{
    if (mark_tag(mark) >= pool->account.by_tag.committed && !table_commit(&pool->account.by_tag, mark_tag(mark) + 1))
        return false;
    if (!pool->account.is_labelled) {
        *count_row_of_tag(pool, 0) = pool->account.by_kind[0] = pool->account.by_phase[0] = rows_all(pool);
        pool->account.is_labelled = true;
    }
    return true;
}
