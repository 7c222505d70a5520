/*
 * test_ends.c: pools that come and go while threads are at them. One thread creates a pool and destroys it again and again, others allocate, free,
 * use, report and trim meanwhile; a pool beside it is short of memory all the time, and asks the one that ends. A call is served or told
 * CENOTE_INVALID, a destroy works or is CENOTE_BUSY, and in the end the card has everything back. The host's time decides what meets what.
 * CENOTE_TEST_ROUNDS: more pools (rounds.h).
 *
 * Not: one meeting at a time (tests/api/test_ends_between.c).
 */
#include "tests/patience.h"
#include "tests/rounds.h"
#include "tests/api/scene.h"

#include <cenote/report.h>
#include <pthread.h>
#include <sched.h>

#define POOLS 60
#define THREADS 3
#define HELD 6

static struct scene scene;
static cenote_pool *_Atomic comes;  /* the pool that ends; NULL: none. Its structure stays, and so threads may come late */
static cenote_pool *stays;          /* is short of memory */
static atomic_bool over;
static atomic_uint at_it, served;

/* It was done, or the pool has ended, or the card is full. */
static bool may_be(int error)
{
    if (error && error != CENOTE_INVALID && error != CENOTE_OUT_OF_MEMORY)
        DONE(error);
    return error == CENOTE_OK;
}

static void look_at(cenote_pool *pool, unsigned i)
{
    cenote_stats stats;
    cenote_piece pieces[16];
    cenote_row rows[16];
    size_t count;
    cenote_group *group;
    switch (i % 6) {
    case 0: may_be(cenote_pool_stats(pool, &stats)); break;
    case 1: may_be(cenote_pool_pieces(pool, NULL, pieces, 16, &count)); break;
    case 2: may_be(cenote_pool_rows(pool, CENOTE_BY_ARENA, rows, 16, &count)); break;
    case 3: may_be(cenote_pool_trim(pool, 0, i % 4 ? 0 : CENOTE_TRIM_WAIT)); break;
    case 4: may_be(cenote_pool_check(pool)); break;
    default:
        if (may_be(cenote_group_create(pool, "of a moment", 0, NULL, &group)))
            DONE(cenote_group_destroy(group)); /* while it is there the pool is */
    }
}

/* All blocks go back before the pool can: so a free always works. */
static void *allocates(void *arg)
{
    CUstream stream = arg, other = scene.stream[C];
    void *held[HELD];
    DONE(cuCtxSetCurrent(scene.context));
    for (unsigned i = 0; !atomic_load(&over); i++) {
        cenote_pool *pool = atomic_load(&comes);
        int count = 0;
        if (!pool) {
            sched_yield();
            continue;
        }
        atomic_fetch_add(&at_it, 1);
        while (count < HELD && may_be(cenote_alloc(pool, (size_t)(i % 7 + 1) << (i % 13 + 9), stream, &held[count])))
            count++;
        atomic_fetch_add(&served, (unsigned)count);
        for (int k = 0; k < count; k++) {
            if (k % 2)
                DONE(cenote_use(held[k], other));
            DONE(cenote_free(held[k]));
        }
        look_at(pool, i);
        atomic_fetch_sub(&at_it, 1);
    }
    return NULL;
}

static void *is_short(void *arg)
{
    void *block;
    DONE(cuCtxSetCurrent(scene.context));
    while (!atomic_load(&over))
        if (may_be(cenote_alloc(stays, 40 * MIB, arg, &block)))
            DONE(cenote_free(block));
    return NULL;
}

/* Threads are at it when it is destroyed. BUSY: they have blocks, or are on their way. */
static void one_pool(const cenote_options *options)
{
    struct wait wait = {0};
    cenote_pool *pool;
    int error;
    unsigned before = atomic_load(&served);
    DONE(cenote_pool_create(0, options, &pool));
    atomic_store(&comes, pool);
    while (atomic_load(&served) == before && wait_on(&wait))
        ;
    EXPECT(atomic_load(&served) != before);
    atomic_store(&comes, NULL); /* threads end what they have begun: if they began anew all the time, the pool would be busy for ever */
    do {
        error = cenote_pool_destroy(pool);
        EXPECT(error == CENOTE_OK || error == CENOTE_BUSY);
    } while (error == CENOTE_BUSY && wait_on(&wait));
    DONE(error);
    while (atomic_load(&at_it) && wait_on(&wait)) /* no call may name the pool of before once another one has its structure */
        ;
    EXPECT_EQ(atomic_load(&at_it), 0);
}

static void run(uint32_t provider)
{
    pthread_t threads[THREADS], beside;
    void *most;
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    shape.lag = MSEC / 5;
    shape.manual_clock = false;
    options.clock = NULL;
    scene_open_with(&scene, &shape, &options);
    stays = scene.pool;
    DONE(cenote_alloc(stays, 180 * MIB, scene.stream[A], &most));
    atomic_store(&over, false);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, allocates, scene.stream[i % 2]));
    REQUIRE(!pthread_create(&beside, NULL, is_short, scene.stream[A]));
    options.provider = provider;
    for (int i = 0; i < rounds(POOLS); i++)
        one_pool(&options);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(beside, NULL);
    DONE(cenote_free(most));
    scene_close(&scene);
}

CASE(pools_end_under_threads)
{
    run(CENOTE_VMM);
}

CASE(pools_of_the_drivers_end_under_threads)
{
    run(CENOTE_ASYNC);
}

SCENES_MAIN("ends of pools")
