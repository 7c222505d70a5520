/*
 * other.c: a second thread, which works while a call of the scenario's thread is in the driver: what that looked up before it asked the driver may be
 * the second thread's by then. The second thread takes blocks of several sizes, uses and frees them, and trims: in the scenario's pool, or in one of
 * its own on the same device, which it destroys. Where it is refused memory it goes on without.
 *
 *     the n-th call comes             the second thread begins; the call waits until that is done, or asleep: it waits for the scenario's thread
 *     the call fails, or is made      where the second thread was asleep, it goes on beside the scenario's: in which order is up to the system
 *     a pool ends, the judge looks    the second thread is done, and holds nothing
 *
 * A call that a thread of the library makes is not waited in: the scenario's thread would go on beside the wait.
 *
 * LOCKING: none; what the threads share are the library's pools. other_begin and other_end are the scenario's thread's.
 */
#include "tests/faults/act.h"
#include "tests/patience.h"

#include <pthread.h>
#include <stdatomic.h>

#define BLOCKS 24
#define WORDS  64   /* bytes at the start of each block that are looked at */

static struct act  *act_of;
static pthread_t    scenario, thread;
static CUstream     streams[2];  /* of the blocks, and of their uses; the first is the scenario's A, so that both want the same places */
static bool         is_begun;
static atomic_bool  is_done;
static atomic_int   id;     /* the system's, of the second thread; 0: it has not begun */
static cenote_pool *own;    /* a capture of the scenario held off its end */

/* ------------------------------------------------------------------------------------------------------------------ the second thread */

static bool take(cenote_pool *pool, size_t bytes, struct act_block *block)
{
    static uint64_t serial; /* patterns that no block of the scenario has */
    void *at = NULL;
    int error = cenote_alloc(pool, bytes, streams[0], &at);
    EXPECT(!error || error == CENOTE_OUT_OF_MEMORY || error == CENOTE_OUT_OF_ADDRESSES);
    if (error)
        return false;
    *block = (struct act_block){at, bytes, ~(++serial * 0x9e3779b97f4a7c15u), streams[0]};
    DONE(sim_launch_fill(streams[0], device_address(at), block->pattern, WORDS));
    return true;
}

static void use(const struct act_block *block)
{
    DONE(cenote_use(block->at, streams[1]));
    order(streams[0], streams[1]);
    DONE(sim_launch_wait(streams[1], 10 * MSEC));
    DONE(sim_launch_expect(streams[1], device_address(block->at), block->pattern, WORDS));
}

static void give(const struct act_block *block)
{
    DONE(sim_launch_expect(streams[0], device_address(block->at), block->pattern, WORDS));
    DONE(cenote_free(block->at));
}

/* Where captures are not announced, what a stream that lives used is over when a call names it, or as here at once: it is immortal. */
static void name_streams(cenote_pool *pool)
{
    for (int i = 0; i < 2 && act_of->ground.no_promise; i++)
        DONE(cenote_stream_set_immortal(pool, streams[i]));
}

static void work_in(cenote_pool *pool)
{
    struct act_block held[BLOCKS];
    int count = 0;
    name_streams(pool);
    for (int i = 0; i < BLOCKS; i++)
        count += take(pool, (size_t)512 << i % 13, &held[count]);
    for (int i = 0; i < count; i += 3)
        use(&held[i]);
    while (count--)
        give(&held[count]);
    DONE(cenote_pool_trim(pool, 0, 0));
}

static void work_in_own(void)
{
    cenote_options options = act_options(act_of);
    int error = cenote_pool_create(0, &options, &own);
    EXPECT(!error || error == CENOTE_OUT_OF_MEMORY || error == CENOTE_OUT_OF_ADDRESSES);
    if (error)
        return;
    work_in(own);
    error = cenote_pool_destroy(own);
    EXPECT(!error || error == CENOTE_BUSY);
    if (!error)
        own = NULL;
}

static void *work(void *unused)
{
    atomic_store(&id, gettid());
    DONE(cuCtxSetCurrent(act_of->scene.context));
    if (act_of->injection.other == OTHER_IN_POOL)
        work_in(act_of->scene.pool);
    else
        work_in_own();
    atomic_store(&is_done, true);
    return unused;
}

/* -------------------------------------------------------------------------------------------------------------- the scenario's thread */

static void visit(void)
{
    struct wait wait = {0};
    if (!pthread_equal(pthread_self(), scenario))
        return;
    is_begun = !pthread_create(&thread, NULL, work, NULL);
    REQUIRE(is_begun);
    while (!atomic_load(&is_done) && !is_asleep(atomic_load(&id)) && wait_on(&wait))
        ;
}

void other_begin(struct act *act)
{
    act_of = act;
    scenario = pthread_self();
    for (int i = 0; i < 2; i++)
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    if (!act->ground.captures_a)
        streams[0] = act->scene.stream[A];
    fault_meanwhile(visit);
}

/* A pool that a capture kept from its end is the judge's to destroy. */
void other_end(void)
{
    int place = 0;
    if (!is_begun)
        return;
    pthread_join(thread, NULL);
    is_begun = false;
    while (own && act_of->pools[place])
        place++;
    REQUIRE(place < ACT_THINGS);
    if (own)
        act_of->pools[place] = own;
    own = NULL;
}

void other_leaves(const struct act *act, const cenote_pool *pool)
{
    if (act->injection.other != OTHER_IN_POOL || pool != act->scene.pool)
        return;
    fault_meanwhile(NULL);
    other_end();
}
