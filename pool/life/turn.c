/*
 * turn.c: the turn. The thread that has it is the only one that changes mappings
 * of its pool, and is inside the device if it calls the driver.
 *
 * LOCKING: the gate of the device is passed first, then the turn is taken. The pool's lock is not held here. Calls that
 * need no driver take the turn without the gate (turn_take): cenote_group_destroy, cenote_pool_check,
 * cenote_pool_watch, cenote_block_read_asleep, cenote_pool_sync_end for another device, and the first look of
 * peer_access_open_contexts.
 *
 * A thread that lets go of the turn for a while, to wait or for a function of the program, is `away`, and the pool does
 * not end before it is back (cenote_pool_destroy waits). So a thread has either the turn of an open pool, or is told
 * that the pool has ended: turn_begin, turn_take, turn_try and turn_go_over say so, and after the others the pool is
 * open still (invariant 31).
 */
#include "pool/life/turn.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"

/*
 * The turn without the gate, given back with lock_give. An error: the pool
 * has ended, maybe while this thread waited. LOCKING: no lock above it.
 */
int turn_take(cenote_pool *pool)
{
    lock_take(&pool->turn);
    int error = pool_usable(pool);
    if (error)
        lock_give(&pool->turn);
    return error;
}

/* The same for a thread that is inside, unless another thread has the turn. */
bool turn_try(cenote_pool *pool)
{
    if (!lock_try(&pool->turn))
        return false;
    if (pool->life.open)
        return true;
    lock_give(&pool->turn);
    return false;
}

/* The thread is inside, as `result` says, and has the turn: may it go on? */
static int begun(cenote_pool *pool, CUresult result)
{
    int error = pool_usable(pool); /* the pool may have been destroyed while this thread waited */
    if (!result && !error && !(error = prove_pages(pool)))
        return CENOTE_OK;
    turn_end(pool);
    if (error || device_context(pool->config.device))
        return error ? error : pool_driver_error(pool, result, "entering the context");
    return error_set(CENOTE_DRIVER, result, "the context of device %d could not be made: %s",
                     pool->config.device->ordinal, driver_result_name(result));
}

/*
 * Takes the turn, inside the device. The thread ends it around functions of the program that may call cenote, and
 * pauses with it in waits and while it looks at other pools.
 */
int turn_begin(cenote_pool *pool)
{
    CUresult result = device_enter(pool->config.device, pool->config.generation);
    lock_take(&pool->turn);
    return begun(pool, result);
}

/* The same for a thread that waits for no other. CENOTE_BUSY: another has the turn, or announces a capture. */
int turn_begin_now(cenote_pool *pool)
{
    CUresult result = CUDA_SUCCESS;
    bool entered = device_try_enter(pool->config.device, pool->config.generation, &result);
    if (entered && lock_try(&pool->turn))
        return begun(pool, result);
    if (entered)
        device_leave(pool->config.device);
    return error_set(CENOTE_BUSY | ERROR_ANSWER, 0, "another thread changes mappings of the pool: ask again");
}

void turn_end(cenote_pool *pool)
{
    lock_give(&pool->turn);
    device_leave(pool->config.device);
}

/* Lets go of the turn and leaves the device, for turn_resume. */
void turn_leave(cenote_pool *pool)
{
    pool->life.away++;
    turn_end(pool);
}

/*
 * The thread is back. Invariant 31: the pool has not ended meanwhile,
 * unless this thread ends it and a source had a segment back.
 */
static void take_again(cenote_pool *pool)
{
    lock_take(&pool->turn);
    CHECK(pool->life.away && (pool->life.open || (pool->life.ending && pool->life.away == 1)));
    pool->life.away--;
}

/* Lets go of the turn around `wait`, which opens the gate itself if it has to. */
CUresult turn_let_go(cenote_pool *pool, CUresult (*wait)(struct device *device, bool *whole), bool *whole)
{
    pool->life.away++;
    lock_give(&pool->turn);
    CUresult result = wait(pool->config.device, whole);
    take_again(pool);
    return result;
}

/*
 * Takes the turn again after turn_leave. The thread has to finish what it began, so that a refusal is asked for once
 * more. After an error the thread has the turn and is inside, but any context may be current. `device_entered` returns
 * the error until the thread leaves. So a caller may drop it: no event is made then (event_take), and a climb ends
 * (climb). All other calls name what they mean, a page, an address or a context; what the driver refuses stays as it
 * is.
 */
CUresult turn_resume(cenote_pool *pool)
{
    CUresult result = device_enter(pool->config.device, pool->config.generation);
    if (result) {
        device_leave(pool->config.device);
        result = device_enter(pool->config.device, pool->config.generation);
    }
    take_again(pool);
    return result;
}

/* Gives the turn to other threads for a moment, and opens the gate. The context and the thread's mode stay. */
void turn_pause(cenote_pool *pool)
{
    pool->life.away++;
    lock_give(&pool->turn);
    device_wait_begin(pool->config.device);
}

/* The turn again, after turn_pause. */
void turn_go_on(cenote_pool *pool)
{
    device_wait_end(pool->config.device);
    take_again(pool);
}

/*
 * The turn of another pool of the device, by a thread that paused with its own. That pool may be in another context,
 * which is current then. While the thread is there, or away from there, the pool does not end. False: the thread pauses
 * still. That pool has ended, maybe while this thread waited, or has done nothing yet, its context is lost, or the
 * driver refuses to make it current.
 */
bool turn_go_over(const cenote_pool *pool, cenote_pool *other)
{
    bool is_elsewhere = pool->config.device != other->config.device;
    device_wait_end(other->config.device);
    lock_take(&other->turn);
    if (other->life.open &&
        (!is_elsewhere || (!other->life.lost && !device_go_over(other->config.device, other->config.generation))))
        return true;
    lock_give(&other->turn);
    device_wait_begin(other->config.device);
    return false;
}

/* Gives the other pool's turn back: the thread pauses as before. */
void turn_come_back(const cenote_pool *pool, cenote_pool *other)
{
    if (pool->config.device != other->config.device)
        device_come_back(other->config.device);
    lock_give(&other->turn);
    device_wait_begin(other->config.device);
}
