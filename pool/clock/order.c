/*
 * order.c: memory that the device is not done with goes to another stream,
 * which is made to wait for it on the device. The host does not wait.
 *
 * A free page belongs to the arena that used it last until the device is done with it (rule 1). If memory is short, a
 * thread need not wait for that: it makes its stream wait for the work that may still use the page, and maps the page
 * for its own arena. What the program gives the stream from then on comes after that work. The old mapping of the page
 * stays, as an alias, for the work that is under way.
 *
 *     in flight in another arena ---order_behind---> mapped here, behind a fence:
 *                                                    `ordered` of the arena covers the page's last free
 *
 * The stream waits for the oldest due fence that covers the latest of the pages' last frees. The fence is over the
 * whole context. Pending blocks and other pools may bring enough earlier (may_order in attempt.c): then the host waits
 * instead (wait.c). It waits, too, if there is no such fence, if the driver refuses, or where a wait of one stream is
 * not enough:
 *
 *     * a capture is open, or captures are not announced: there is no event over the context (rule 5);
 *     * pages were granted to other devices: the fence does not cover their work (rule 14).
 *
 * `reach` in attempt.c has the reasons that lie with the arena.
 *
 * LOCKING: the turn.
 */
#include "base/check.h"
#include "pool/clock/room.h"

/*
 * A stream of the pool's device can be made to wait for all that was
 * freed up to here. 0: for nothing. LOCKING: the pool's lock, too.
 */
tick order_reach(const struct clock *c)
{
    bool may = touch_captures_are_announced() && !clock_is_captured(c) && !c->grants.devices;
    return may ? fences_newest_whole(&c->fences) : 0;
}

/*
 * The stream of that key, which the call names, waits on the device for what was freed up to *freed. *freed: all that
 * it waits for. LOCKING: not the pool's lock.
 */
CUresult order_behind(struct clock *c, uint64_t of, tick *freed)
{
    uint64_t key;
    CUstream stream;
    lock_take(c->lock);
    CUevent event = fences_covering(&c->fences, freed);
    lock_give(c->lock);
    CHECK(event); /* the plan was made with that fence due, and only this thread retires fences */
    bool is_named = lanes_named(&key, &stream);
    CHECK(is_named && key == of);
    (void)is_named, (void)of;
    return c->device->driver->cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT);
}
