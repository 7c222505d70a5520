/*
 * turn.c: the turn. The thread that has it is the only one that changes mappings of its pool, and is inside the device if it calls the driver.
 *
 * LOCKING: the gate of the device is passed first, then the turn is taken. The pool's lock is not held here. Calls that need no driver take the turn
 * without the gate, and not here: cenote_group_destroy, cenote_pool_check, cenote_pool_watch, and the first look of peer_access_open_contexts.
 */
#include "pool/pool.h"

/*
 * Takes the turn, inside the device. The thread ends it around functions of the program that may call cenote, and pauses with it in waits and
 * while it looks at other pools.
 */
int turn_begin(cenote_pool *pool)
{
    CUresult result = device_enter(pool->config.device);
    lock_take(&pool->turn);
    int error = pool_usable(pool); /* the pool may have been destroyed while this thread waited */
    if (!result && !error && !(error = prove_pages(pool)))
        return CENOTE_OK;
    turn_end(pool);
    if (error || device_context(pool->config.device))
        return error ? error : pool_driver_error(pool, result, "entering the context");
    return error_set(CENOTE_DRIVER, result, "the context of device %d could not be made: %s", pool->config.device->ordinal,
                     driver_result_name(result));
}

void turn_end(cenote_pool *pool)
{
    lock_give(&pool->turn);
    device_leave(pool->config.device);
}

/*
 * Takes the turn again after a function of the program has run. The thread has to finish what it began, so that a refusal is asked for once more.
 * After an error the thread has the turn and is inside, but any context may be current. `device_entered` returns the error until the thread leaves.
 * So a caller may drop it: no event is made then (event_take), and a climb ends (climb). All other calls name what they mean, a page, an address or
 * a context; what the driver refuses stays as it is.
 */
CUresult turn_resume(cenote_pool *pool)
{
    CUresult result = device_enter(pool->config.device);
    if (result) {
        device_leave(pool->config.device);
        result = device_enter(pool->config.device);
    }
    lock_take(&pool->turn);
    return result;
}

/* Gives the turn to other threads for a moment, and opens the gate. The context and the thread's mode stay. */
void turn_pause(cenote_pool *pool)
{
    lock_give(&pool->turn);
    device_wait_begin(pool->config.device);
}

/* The turn of the pool, by a thread that paused with this one or another of the same context. */
void turn_go_on(cenote_pool *pool)
{
    device_wait_end(pool->config.device);
    lock_take(&pool->turn);
}

/*
 * The turn of another pool of the device, by a thread that paused with its own. That pool may be in another context, which is current then. It is
 * open as long as the thread has its turn; without that, its caller may end the context at any time. False: the thread pauses still. That pool was
 * destroyed, or has done nothing yet, its context is lost, or the driver refuses to make it current.
 */
bool turn_go_over(const cenote_pool *pool, cenote_pool *other)
{
    turn_go_on(other);
    bool is_elsewhere = pool->config.device != other->config.device;
    if (other->life.open && (!is_elsewhere || (!other->life.lost && !device_go_over(other->config.device))))
        return true;
    turn_pause(other);
    return false;
}

/* Gives the other pool's turn back: the thread pauses as before. */
void turn_come_back(const cenote_pool *pool, cenote_pool *other)
{
    if (pool->config.device != other->config.device)
        device_come_back(other->config.device);
    turn_pause(other);
}
