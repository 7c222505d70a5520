/*
 * pools.c: the list of pools of the process, and the devices they
 * have open. How one is made and ends is in pool/library.c.
 *
 * A structure is never unmapped; a new pool takes over that of a closed one, once no thread is at it any more and
 * POOLS_KEPT more pools have ended: so a thread that names the closed one still finds no other pool in its place.
 *
 * LOCKING: the lock of the pools guards the list and how often a device is open.
 */
#include "pool/life/pools.h"

#include "base/board.h"
#include "pool/life/pool.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT_BYTES offsetof(cenote_pool, groups.has_sources) /* of a structure, when a new pool takes it over */

LOCK_OF_PROCESS struct lock pools_lock = LOCK_INITIALIZER(LOCK_POOLS);
static cenote_pool *pools;                      /* open and closed ones */
static uint64_t pools_ended;

/*
 * The next open pool of the same device, in whichever of its contexts (NULL: of any device) after `after` (NULL: the
 * first), for what concerns the device as a whole: to be asked until it answers NULL. A pool may be destroyed while a
 * thread looks at it, but no other pool gets its structure before that thread has gone on.
 */
cenote_pool *pool_next_on_device(const cenote_pool *pool, cenote_pool *after)
{
    lock_take(&pools_lock);
    cenote_pool *p = after ? after->list.next : pools;
    while (p && (!p->life.open || (pool && p->config.device->card != pool->config.device->card)))
        p = p->list.next;
    if (after)
        after->list.walkers--;
    if (p)
        p->list.walkers++;
    lock_give(&pools_lock);
    return p;
}

/*
 * For what ends before the pool of the device does: a context that the
 * pool's caller keeps is not retained. LOCKING: the lock of the pools.
 */
static struct device *open_as_it_is(int ordinal, int *error)
{
    bool exists = ordinal >= 0 && ordinal < DEVICES_MAX;
    struct device *device = exists ? device_open_again(ordinal) : NULL;
    *error = CENOTE_OK;
    return device ? device : device_open(ordinal, error);
}

struct device *pool_open_device(int ordinal, int *error)
{
    lock_take(&pools_lock);
    struct device *device = open_as_it_is(ordinal, error);
    lock_give(&pools_lock);
    return device;
}

/* One that the pool has open, in a context that lives. LOCKING: none. */
static struct device *find_other(const cenote_pool *pool, int ordinal)
{
    bool known = ordinal >= 0 && ordinal < DEVICES_MAX;
    struct device *other = known ? atomic_load(&pool->config.others[ordinal]) : NULL;
    return other && device_lives(other, atomic_load(&other->generation)) ? other : NULL;
}

/*
 * The device of that number, the pool's own or another: that one stays open as long as the pool, in a context that
 * lives. An error also: the device was reset, and pools of it are there still, which its next context has to wait for.
 * LOCKING: none.
 */
int pool_other_device(cenote_pool *pool, int ordinal, struct device **other)
{
    int error = CENOTE_OK;
    *other = ordinal == pool->config.device->ordinal ? pool->config.device : find_other(pool, ordinal);
    if (*other)
        return CENOTE_OK;
    lock_take(&pools_lock);
    if (!pool->life.open) { /* nothing would close that device again */
        lock_give(&pools_lock);
        return pool_usable(pool);
    }
    bool known = ordinal >= 0 && ordinal < DEVICES_MAX && (*other = atomic_load(&pool->config.others[ordinal]));
    if (!known && (*other = open_as_it_is(ordinal, &error)))
        atomic_store(&pool->config.others[ordinal], *other);
    bool lives = *other && device_begin_anew(*other);
    lock_give(&pools_lock);
    if (!error && !lives)
        error =
            error_set(CENOTE_DEVICE_LOST, 0, "the program has reset device %d: destroy all pools there first", ordinal);
    return error;
}

void pool_close_device(struct device *device)
{
    lock_take(&pools_lock);
    device_close(device);
    lock_give(&pools_lock);
}

/*
 * A structure whose last parts, from the board on, are whole pages of the system, and a slot of the board of the
 * process if there is one.
 */
static cenote_pool *map_structure(const char *head)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = offsetof(cenote_pool, board);
    size_t shift = (page - before % page) % page, slot = sizeof(cenote_pool) - before + page - 1;
    slot -= slot % page;
    char *memory = memory_map(shift + before + slot);
    if (memory && board_place(memory + shift + before, slot, head))
        return (cenote_pool *)(void *)(memory + shift);
    return NULL;
}

/* LOCKING: the lock of the pools. */
void pools_give_structure(cenote_pool *pool)
{
    pool->list.reusable_from = ++pools_ended + POOLS_KEPT;
    pool->list.reusable = true;
}

/* The system has the whole pages back, but for those of a board. LOCKING: the lock of the pools. */
static void wipe(cenote_pool *pool)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *from = (char *)pool + KEPT_BYTES, *board = (char *)pool + offsetof(cenote_pool, board);
    char *first = from + (page - (size_t)from % page) % page;
    if (madvise(first, (size_t)(board - first), MADV_DONTNEED))
        first = board;
    memset(from, 0, (size_t)(first - from));
    memset(board, 0, (size_t)((char *)(pool + 1) - board));
}

/* A closed pool's structure, wiped but for what must outlive it, or a new one. `head`: board_place. */
cenote_pool *pools_take_structure(const char *head)
{
    cenote_pool *pool = pools;
    while (pool && (!pool->list.reusable || pool->list.walkers || pool->list.reusable_from > pools_ended))
        pool = pool->list.next;
    if (pool) {
        wipe(pool);
        return pool;
    }
    pool = map_structure(head);
    if (!pool)
        return NULL;
    lock_open(&pool->lock, LOCK_POOL);
    lock_open(&pool->turn, LOCK_TURN);
    lock_open(&pool->watching, LOCK_WATCH);
    pool->list.next = pools;
    pools = pool;
    return pool;
}
