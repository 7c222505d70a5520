/*
 * prove.c: a pool that was made for pages finds out, before it calls the driver for the first time, whether the device
 * has them. What a page can be is driver/probe.c's to try.
 *
 *     provider vmm ---> the device has pages, of a kind that works
 *               +-----> it has none, and the program left the choice to us: async or plain, as if
 *                       the attributes had said so
 *
 * LOCKING: the turn.
 */
#include "pool/life/prove.h"

/* The pool was made for pages, has none yet, and never will. LOCKING: the turn. */
static int do_without_pages(cenote_pool *pool)
{
    const struct device *d = pool->config.device;
    if (pool->config.options.provider != CENOTE_AUTO)
        return error_set(
            CENOTE_NOT_SUPPORTED, 0,
            "device %d says that it has virtual memory management, and refuses every page; use provider:auto",
            d->ordinal);
    lock_take(&pool->lock);
    pool->config.provider = d->has_pools ? CENOTE_ASYNC : CENOTE_PLAIN;
    lock_give(&pool->lock);
    return CENOTE_OK;
}

/*
 * Before the pool calls the driver for the first time: do pages work, and of which kind (rule 13)? LOCKING: the turn.
 */
int prove_pages(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    bool fabric = pool_wants_fabric(pool);
    if (pool->config.provider != CENOTE_VMM && pool->config.provider != CENOTE_GUARD)
        return CENOTE_OK;
    if (!device_knows_pages(d, fabric))
        device_prove_pages(d, fabric);
    return device_has_pages(d) || pool->store.pages.addresses ? CENOTE_OK : do_without_pages(pool);
}
