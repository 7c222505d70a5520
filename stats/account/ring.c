/*
 * ring.c: one allocation, use or free is written into the ring of its pool. What becomes of the ring is in record.c.
 *
 * LOCKING: the pool's lock.
 */
#include "base/clock.h"
#include "stats/account/record.h"

/* By the system's clock: the pool's may be the program's, and this is under the lock. */
void record_write(cenote_pool *pool, char op, uint64_t at, uint64_t bytes, uint64_t stream, uint32_t tag)
{
    struct ring *r = &pool->recorder.ring;
    r->entries[r->next] = (struct ring_entry){clock_ns(), at, stream, bytes, op == 'a' ? 0 : op == 'f' ? 1 : op == 'u' ? 2 : 3, tag,
                                              pool->store.pages.reserved};
    r->next = r->next + 1 < r->room ? r->next + 1 : 0;
    r->written++;
}
