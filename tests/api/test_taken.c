/*
 * test_taken.c: another thread takes pages at the moment at which a trim has picked them and has let go of the pool's lock. trim.c is compiled into
 * this test, so that the moment is known. Not: what happens at any other moment (test_portions.c).
 */
#include <pthread.h>

#include "pool/core/pick.h"

static void picks_were_made(struct picker *picker);

#define pick_sort(picker) (pick_sort(picker), picks_were_made(picker))
#include "pool/mapping/trim.c"
#undef pick_sort

#include "tests/api/scene.h"

#define CARD  (1 * GIB)
#define PAGE  (2 * MIB)
#define PAGES 300

static struct {
    struct scene scene;
    void        *block[PAGES];
    uint32_t     wanted, picked; /* by the other thread, once; how many pages were picked then */
    unsigned     failures;
} t;

static void *take(void *unused)
{
    t.failures += cuCtxPushCurrent(t.scene.context) != 0;
    for (uint32_t i = 0; i < t.wanted; i++)
        t.failures += cenote_alloc(t.scene.pool, PAGE, t.scene.stream[A], &t.block[i]) != 0;
    t.failures += cuCtxPopCurrent(NULL) != 0;
    return unused;
}

/* Pages in place: the thread that trims has the turn, which the other one does not need. */
static void picks_were_made(struct picker *picker)
{
    pthread_t thread;
    if (!t.wanted || !picker->count)
        return;
    t.picked = picker->count;
    REQUIRE_EQ(pthread_create(&thread, NULL, take, NULL), 0);
    REQUIRE_EQ(pthread_join(thread, NULL), 0);
    t.wanted = 0;
}

/* A trim for which so many pages are free, of which another thread takes some that were picked. All others go. */
static void trim_while_others_take(uint32_t pages, uint32_t wanted)
{
    memset(&t, 0, sizeof t);
    scene_open(&t.scene, CARD);
    for (uint32_t i = 0; i < pages; i++)
        REQUIRE_EQ(cenote_alloc(t.scene.pool, PAGE, t.scene.stream[A], &t.block[i]), 0);
    for (uint32_t i = 0; i < pages; i++)
        DONE(cenote_free(t.block[i]));
    DONE(cuCtxSynchronize());
    t.wanted = wanted;
    DONE(cenote_pool_trim(t.scene.pool, 0, 0));
    EXPECT(t.picked > 0 && t.picked <= pages);
    EXPECT_EQ(t.failures, 0);
    EXPECT_EQ(scene_stats(t.scene.pool).reserved.current, wanted * PAGE);
    DONE(cenote_pool_check(t.scene.pool));
    for (uint32_t i = 0; i < wanted; i++)
        DONE(cenote_free(t.block[i]));
    scene_close(&t.scene);
}

CASE(all_pages_that_were_picked_are_taken) { trim_while_others_take(PAGES, 100); }
CASE(all_pages_are_taken)                   { trim_while_others_take(10, 10); }

SCENES_MAIN("trims: pages that other threads take")
