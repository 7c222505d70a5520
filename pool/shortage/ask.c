/*
 * ask.c: the program's shortage functions: called by threads that run short, and gone once they were taken away.
 *
 * This is not where it is decided when to ask (shortage.c is). Functions run in the order of their ranks until one has
 * freed something, with no lock held, and may call cenote: so several threads may be in one at one time, and each call
 * is noted in a list, on the stack of its thread. A thread that takes a function away waits for the calls that began
 * before, and for no later ones. A thread that is inside a function of the program itself does not wait: it may be the
 * one waited for.
 *
 *     cenote_pool_on_shortage(rank, f)     ask_to_free: f runs, in the list     cenote_pool_on_shortage(0, f): waits
 *                                                                               until f is in it no more
 *
 * LOCKING: the pool's lock guards functions and list. Called with no lock held.
 */
#include "pool/shortage/ask.h"

#include "pool/life/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS_MAX 8         /* chosen: of one function, for one allocation */

struct asking {
    uint64_t number;            /* of the call, in the order they began */
    struct asked asked;         /* what is called */
    struct asking *next;
};

/* The caller's errno is none of our business. */
static void futex(cenote_pool *pool, int operation, uint32_t value)
{
    int before = errno;
    syscall(SYS_futex, &pool->ask.over, operation, value, NULL, NULL, 0);
    errno = before;
}

/* Is that one called later than the other? */
static bool is_behind(const struct asked *a, const struct asked *b)
{
    return a->rank > b->rank || (a->rank == b->rank && a->set > b->set);
}

/* The call of the function behind that of `mine` begins. False: there is none. */
static bool begin_next(cenote_pool *pool, struct asking *mine)
{
    struct ask *ask = &pool->ask;
    uint32_t i = 0;
    lock_take(&pool->lock);
    while (i < ask->count && !is_behind(&ask->of[i], &mine->asked))
        i++;
    bool found = i < ask->count;
    if (found) {
        *mine = (struct asking){++ask->begun, ask->of[i], ask->running};
        ask->running = mine;
    }
    lock_give(&pool->lock);
    return found;
}

static void end_call(cenote_pool *pool, const struct asking *mine)
{
    lock_take(&pool->lock);
    struct asking **link = &pool->ask.running;
    while (*link != mine)
        link = &(*link)->next;
    *link = mine->next;
    lock_give(&pool->lock);
    atomic_fetch_add(&pool->ask.over, 1);
    futex(pool, FUTEX_WAKE_PRIVATE, INT_MAX);
}

/* A program may say every time that it freed something: then it is the next function's turn. */
static void note_freed(struct asks *asks, const struct asked *by)
{
    asks->calls = asks->last.set == by->set ? asks->calls + 1 : 1;
    asks->last = *by;
    if (asks->calls == CALLS_MAX)
        asks->done = *by;
}

/* True: the program says that it freed something. What its functions allocate themselves does without them. */
bool ask_to_free(cenote_pool *pool, uint64_t bytes, struct asks *asks)
{
    struct callback inside;
    struct asking mine = {.asked = asks->done};
    bool freed = false;
    if (callback_runs(pool))
        return false;
    while (!freed && begin_next(pool, &mine)) {
        callback_begin(&inside, pool, pool);
        freed = mine.asked.fn(pool, bytes, mine.asked.arg);
        callback_end();
        end_call(pool, &mine);
    }
    if (freed)
        note_freed(asks, &mine.asked);
    return freed;
}

static bool is_same(const struct asked *a, cenote_shortage_fn function, const void *arg)
{
    return a->fn == function && a->arg == arg;
}

/* Does a call of the function run that began no later than that one? */
static bool runs_still(cenote_pool *pool, uint64_t last, cenote_shortage_fn function, const void *arg)
{
    lock_take(&pool->lock);
    const struct asking *a = pool->ask.running;
    while (a && (a->number > last || !is_same(&a->asked, function, arg)))
        a = a->next;
    lock_give(&pool->lock);
    return a != NULL;
}

/* It goes from its place, if it has one, to that of its rank. False: all places are taken. LOCKING: the pool's lock. */
static bool place(struct ask *ask, const struct asked *new)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ask->count; i++)
        if (!is_same(&ask->of[i], new->fn, new->arg))
            ask->of[kept++] = ask->of[i];
    ask->count = kept;
    if (!new->rank || kept == ASKED_MAX)
        return !new->rank;
    uint32_t i = ask->count++;
    for (; i && is_behind(&ask->of[i - 1], new); i--)
        ask->of[i] = ask->of[i - 1];
    ask->of[i] = *new;
    return true;
}

int cenote_pool_on_shortage(cenote_pool *pool, uint32_t rank, cenote_shortage_fn function, void *arg)
{
    int error = pool_usable(pool);
    if (!error && !function)
        error = error_set(CENOTE_INVALID, 0, "the shortage function is NULL: give the one to call, or to take away");
    if (error || (error = pool_take_lock(pool)))
        return error;
    bool placed = place(&pool->ask, &(struct asked){function, arg, rank, ++pool->ask.set});
    uint64_t last = pool->ask.begun;
    lock_give(&pool->lock);
    if (!placed)
        return error_set(CENOTE_INVALID, 0, "%d shortage functions are set: take one away first", ASKED_MAX);
    if (rank || callback_is_inside())
        return CENOTE_OK;
    uint32_t over = atomic_load(&pool->ask.over);
    while (runs_still(pool, last, function, arg)) {
        futex(pool, FUTEX_WAIT_PRIVATE, over);
        over = atomic_load(&pool->ask.over);
    }
    return CENOTE_OK;
}
