/*
 * test_unannounced_default.c: the default pool of a device, with the option announced:0 in CENOTE_CONF: it opens once, and the promise is taken from
 * the other pools once.
 */
#include "driver/touch.h"
#include "tests/api/whims.h"
#include "tests/patience.h"

static cenote_pool *of_others;
static _Atomic(int) other_thread;

/* It waits until the thread that is opening the pool has told all other pools. */
static void *ask_for_it(void *unused)
{
    (void)unused;
    atomic_store(&other_thread, gettid());
    DONE(cenote_pool_default(0, &of_others));
    return NULL;
}

static pthread_t asking;

static void begin_to_ask(void)
{
    struct wait wait = {0};
    DONE(pthread_create(&asking, NULL, ask_for_it, NULL));
    while (!atomic_load(&other_thread) && wait_on(&wait)) {}
    EXPECT(wait_until_asleep(atomic_load(&other_thread)));
}

CASE(default_pool_that_cannot_be_opened)
{
    cenote_pool *pool = NULL;
    struct sim_shape shape = scene_card(CARD);
    sim_reset(&shape);
    setenv("CENOTE_CONF", "announced:0", 1);
    EXPECT_EQ(cenote_pool_default(7, &pool), CENOTE_NO_DEVICE);
    unsetenv("CENOTE_CONF");
    EXPECT_EQ(pool, NULL);
    EXPECT(touch_captures_are_announced());
}

/* Two threads ask for it at one time: both get the same, and the promise is taken back once. */
CASE(default_pool_that_two_threads_open)
{
    struct scene scene;
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool = NULL;
    void *block;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, 512, scene.stream[A], &block));
    whims_begin();
    setenv("CENOTE_CONF", "announced:0", 1);
    whims_at(WHIM_PUSH, 0, begin_to_ask);
    DONE(cenote_pool_default(0, &pool));
    EXPECT(whims_came());
    pthread_join(asking, NULL);
    unsetenv("CENOTE_CONF");
    EXPECT(pool && pool == of_others);
    EXPECT(!touch_captures_are_announced());
    touch_be_careful(false);
    EXPECT(touch_captures_are_announced()); /* one pool had taken it */
    touch_be_careful(true);
    EXPECT_EQ(cenote_pool_destroy(pool), CENOTE_INVALID);
    DONE(cenote_free(block));
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    scene_destroy_pool(&scene);
    scene_is_open = false; /* the default pool stays */
}

SCENES_MAIN("unannounced: the default pool")
