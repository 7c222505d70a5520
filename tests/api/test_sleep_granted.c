/*
 * test_sleep_granted.c: memory sleeps and wakes that kernels of another device may touch (cenote_pool_grant).
 */
#include "tests/api/peers.h"

#include <cenote/sleep.h>
#include <pthread.h>

#include "driver/driver.h"
#include "tests/rounds.h"

static void pause_all(struct peers *p)
{
    DONE(cenote_pool_pause(p->scene.pool, NULL));
}

static void resume_all(struct peers *p)
{
    DONE(cenote_pool_resume(p->scene.pool, NULL));
}

static void read_there(struct peers *p, struct held *held)
{
    DONE(cuCtxPushCurrent(p->other));
    held_linger(held, p->stream);
    DONE(cuCtxPopCurrent(NULL));
}

static void judge_there(struct peers *p)
{
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
    scene_judge(&p->scene);
}

/* The other device reads a live block for a long time: nothing was freed, and the pause waits for that device all the same. */
CASE(live_blocks_are_waited_for_there)
{
    struct peers p;
    struct held held;
    open_peers(&p, CENOTE_VMM, 2);
    sim_set_lag(MSEC);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    REQUIRE(held_take(&held, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    DONE(cuCtxSynchronize());
    for (int i = 0; i < 2; i++) {
        read_there(&p, &held);
        pause_all(&p);
        judge_there(&p);
        resume_all(&p);
    }
    held_give(&held);
    close_peers(&p);
}

/* A device that cannot be waited for may be at work on any block: nothing sleeps. */
CASE(not_while_a_capture_is_open_there)
{
    struct peers p;
    struct held held;
    cenote_pool *there;
    cenote_group *group;
    cenote_options options = scene_options();
    cenote_sleep sleep = {0};
    open_peers(&p, CENOTE_VMM, 2);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    REQUIRE(held_take(&held, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    DONE(cenote_capture_begin(NULL, group, p.stream));
    EXPECT_EQ(cenote_pool_pause(p.scene.pool, &sleep), CENOTE_BUSY);
    EXPECT_EQ(sleep.pages, 0);
    DONE(cenote_capture_end(NULL, group, p.stream));
    pause_all(&p);
    resume_all(&p);
    held_give(&held);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(there));
    close_peers(&p);
}

/* ---------------------------------------------------------------------------------------------- a grant while a call waits */

static const struct driver *below;
static cenote_pool *to_grant;   /* while the next copy is waited for */

static void *grant(void *pool)
{
    DONE(cenote_pool_grant(pool, 1));
    return NULL;
}

static CUresult wait_and_grant(CUstream stream)
{
    cenote_pool *pool = to_grant;
    pthread_t thread;
    to_grant = NULL;
    if (pool) {
        DONE(pthread_create(&thread, NULL, grant, pool));
        DONE(pthread_join(thread, NULL));
    }
    return below->cuStreamSynchronize(stream);
}

static const struct driver *with_grant(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuStreamSynchronize = wait_and_grant;
    return &table;
}

/* What is waking has its access when the call is over, and what is going to sleep has it when it wakes. */
static void grant_meanwhile(bool wakes)
{
    struct peers p;
    struct held held;
    open_peers(&p, CENOTE_VMM, 2);
    if (!below)
        driver_interpose(with_grant);
    REQUIRE(held_take(&held, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    to_grant = wakes ? NULL : p.scene.pool;
    pause_all(&p);
    to_grant = wakes ? p.scene.pool : NULL;
    resume_all(&p);
    EXPECT(!to_grant);
    read_there(&p, &held);
    judge_there(&p);
    held_give(&held);
    close_peers(&p);
}

CASE(a_grant_during_a_pause) { grant_meanwhile(false); }
CASE(a_grant_during_a_resume) { grant_meanwhile(true); }

static void *grant_once(void *pool)
{
    DONE(cenote_pool_grant(pool, 1));
    return NULL;
}

/* Blocks are freed in their sleep, which takes their pages out of the slots that a grant goes through. */
CASE(a_grant_beside_frees_asleep)
{
    static struct held held[32];
    for (int round = 0; round < rounds(8); round++) {
        struct peers p;
        pthread_t thread;
        open_peers(&p, CENOTE_VMM, 2);
        for (int i = 0; i < 32; i++)
            REQUIRE(held_take(&held[i], p.scene.pool, 2 * MIB, p.scene.stream[A]));
        pause_all(&p);
        DONE(pthread_create(&thread, NULL, grant_once, p.scene.pool));
        for (int i = 0; i < 31; i++)
            DONE(cenote_free(held[i].at));
        DONE(pthread_join(thread, NULL));
        resume_all(&p);
        read_there(&p, &held[31]);
        judge_there(&p);
        held_give(&held[31]);
        close_peers(&p);
    }
}

SCENES_MAIN("sleep_granted")
