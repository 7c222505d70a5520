/*
 * order.c: memory that the device is not done with goes to another stream, which is made to wait for it on the device. The host does not wait.
 *
 * A free page belongs to the arena that used it last until the device is done with it (rule 1). If memory is short, a thread need not wait for
 * that: it makes its stream wait for the work that may still use the page, and maps the page for its own arena. What the program gives the stream
 * from then on comes after that work. The old mapping of the page stays, as an alias, for the work that is under way.
 *
 *     in flight in another arena ---order_behind---> mapped here, behind a fence: `ordered` of the arena covers the page's last free
 *
 * The stream waits for the oldest due fence that covers the latest of the pages' last frees. The fence is over the whole context. Pending blocks
 * and other pools may bring enough earlier (may_order in attempt.c): then the host waits instead (wait.c). It waits, too, if there is no such
 * fence, if the driver refuses, or where a wait of one stream is not enough:
 *
 *     * a capture is open, or captures are not announced: there is no event over the context (rule 5);
 *     * the arena is of a private group: its graphs may be replayed on any stream (rule 4);
 *     * pages were granted to other devices: the fence does not cover their work (rule 14);
 *     * with order:0, because the program uses blocks on streams that are not ordered behind their own;
 *     * with aliases:off, because a page has to leave its old slot first;
 *     * the stream has no handle: it is the default stream of a green context.
 *
 * LOCKING: the turn.
 */
#include "pool/clock/order.h"

#include "base/check.h"
#include "pool/life/turn.h"

/* The stream of the arena can be made to wait for all that was freed up to here. 0: for nothing. LOCKING: the pool's lock, too. */
tick order_reach(const cenote_pool *pool, const struct arena *a)
{
    bool is_wanted = pool->config.options.order && !pool->store.pages.mapped_once;
    bool may = is_wanted && touch_captures_are_announced() && !pool_is_capturing(pool) &&
               !a->is_private && !pool->access.granted && !stream_is_unnamed(a->stream);
    return may ? fences_newest_whole(&pool->store.pages.fences) : 0;
}

/* The stream of the arena waits, on the device, for what was freed up to `freed`. LOCKING: not the pool's lock. */
CUresult order_behind(cenote_pool *pool, struct arena *a, tick freed)
{
    uint64_t key;
    CUstream stream;
    tick covers = freed;
    lock_take(&pool->lock);
    CUevent event = fences_covering(&pool->store.pages.fences, &covers);
    lock_give(&pool->lock);
    CHECK(event && covers > a->ordered); /* the plan was made with that fence due, and only this thread retires fences */
    bool is_named = lanes_named(&key, &stream);
    CHECK(is_named && key == a->stream); /* the call asks for memory of that stream */
    (void)is_named;
    CUresult result = pool->config.device->driver->cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT);
    lock_take(&pool->lock);
    a->ordered = result ? a->ordered : covers;
    pool->account.stats.orders += !result;
    lock_give(&pool->lock);
    return result;
}
