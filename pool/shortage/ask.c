/*
 * ask.c: the program's shortage function: called by threads that run short, and gone once it was taken away.
 *
 * This is not where it is decided when to ask (shortage.c is). The function runs with no lock held and may call cenote,
 * so several threads may be in it at one time, and each call is noted in a list, on the stack of its thread. A thread
 * that replaces the function waits for the calls that began before, and for no later ones. A thread that is inside a
 * function of the program itself does not wait: it may be the one waited for.
 *
 *     cenote_pool_on_shortage(f)     ask_to_free: f runs, in the list     cenote_pool_on_shortage(NULL): waits until
 *                                                                         f is in it no more
 *
 * LOCKING: the pool's lock guards function and list. Called with no lock held.
 */
#include "pool/shortage/ask.h"

#include "pool/life/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

struct asking {
    uint64_t number;            /* of the call, in the order they began */
    struct asking *next;
};

/* The caller's errno is none of our business. */
static void futex(cenote_pool *pool, int operation, uint32_t value)
{
    int before = errno;
    syscall(SYS_futex, &pool->ask.over, operation, value, NULL, NULL, 0);
    errno = before;
}

/* True: the program says that it freed something. What its function allocates itself does without it. */
bool ask_to_free(cenote_pool *pool, uint64_t bytes)
{
    struct callback inside;
    struct asking mine;
    if (callback_runs(pool))
        return false;
    lock_take(&pool->lock);
    cenote_shortage_fn function = pool->ask.on_shortage;
    void *arg = pool->ask.arg;
    if (function) {
        mine = (struct asking){++pool->ask.begun, pool->ask.running};
        pool->ask.running = &mine;
    }
    lock_give(&pool->lock);
    if (!function)
        return false;

    callback_begin(&inside, pool, pool);
    bool freed = function(pool, bytes, arg);
    callback_end();

    lock_take(&pool->lock);
    struct asking **link = &pool->ask.running;
    while (*link != &mine)
        link = &(*link)->next;
    *link = mine.next;
    lock_give(&pool->lock);
    atomic_fetch_add(&pool->ask.over, 1);
    futex(pool, FUTEX_WAKE_PRIVATE, INT_MAX);
    return freed;
}

/* Does a call run that began no later than that one? */
static bool runs_still(cenote_pool *pool, uint64_t last)
{
    lock_take(&pool->lock);
    const struct asking *a = pool->ask.running;
    while (a && a->number > last)
        a = a->next;
    lock_give(&pool->lock);
    return a != NULL;
}

int cenote_pool_on_shortage(cenote_pool *pool, cenote_shortage_fn function, void *arg)
{
    int error = pool_usable(pool);
    if (error || (error = pool_take_lock(pool)))
        return error;
    pool->ask.on_shortage = function;
    pool->ask.arg = arg;
    uint64_t last = pool->ask.begun;
    lock_give(&pool->lock);
    if (callback_is_inside())
        return CENOTE_OK;
    uint32_t over = atomic_load(&pool->ask.over);
    while (runs_still(pool, last)) {
        futex(pool, FUTEX_WAIT_PRIVATE, over);
        over = atomic_load(&pool->ask.over);
    }
    return CENOTE_OK;
}
