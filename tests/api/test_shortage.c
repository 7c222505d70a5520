/*
 * test_shortage.c: what happens when there is no more: of memory, of addresses, of what the driver is willing to do. The error is clear,
 * nothing is lost, and the pool works as soon as the reason is gone.
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define CARD (64 * MIB)

CASE(out_of_memory_and_back)
{
    struct scene scene;
    struct hoard hoard;
    void *block = &scene;
    scene_open(&scene, CARD);
    hoard_take(&hoard, scene.pool, 6 * MIB, scene.stream[A]);
    EXPECT_EQ(hoard.bytes, 60 * MIB);
    EXPECT_EQ(cenote_alloc(scene.pool, 6 * MIB, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(block, &scene);
    EXPECT(strstr(cenote_message(), " out of memory."));
    EXPECT(strstr(cenote_message(), "6.00 MiB"));
    EXPECT_EQ(scene_stats(scene.pool).ooms, 2); /* it was full when the hoard ended, and is still: each counts once, whatever was tried */
    EXPECT_EQ(scene_stats(scene.pool).retries, 2);
    held_give(&hoard.held[4]); /* exactly what is missing */
    REQUIRE(held_take(&hoard.held[4], scene.pool, 6 * MIB, scene.stream[B]));
    hoard_give(&hoard);
    scene_close(&scene);
}

/* Holes that are each too small for it together are enough: that is what pages are for. */
CASE(fragmented_but_enough)
{
    struct scene scene;
    struct held held[16], wide;
    scene_open(&scene, CARD);
    for (int i = 0; i < 16; i++)
        REQUIRE(held_take(&held[i], scene.pool, 4 * MIB, scene.stream[A]));
    for (int i = 0; i < 16; i += 2)
        held_give(&held[i]);
    REQUIRE(held_take(&wide, scene.pool, 32 * MIB, scene.stream[A]));
    EXPECT(scene_stats(scene.pool).reserved.current <= CARD);
    EXPECT(scene_stats(scene.pool).pages_harvested >= 14);
    for (int i = 1; i < 16; i += 2)
        held_give(&held[i]);
    held_give(&wide);
    scene_close(&scene);
}

struct helper {
    struct held *held;
    int calls, frees_at, lies;
    size_t asked;
};

static int free_one(cenote_pool *pool, size_t bytes, void *arg)
{
    struct helper *helper = arg;
    cenote_stats stats;
    helper->calls++;
    helper->asked = bytes;
    if (cenote_pool_stats(pool, &stats)) /* no lock is held */
        return 0;
    if (helper->calls == helper->frees_at && helper->held) {
        held_give(helper->held);
        return 1;
    }
    return helper->calls <= helper->lies;
}

CASE(shortage_callback_frees_a_block)
{
    struct scene scene;
    struct held held[4], more;
    scene_open(&scene, CARD);
    for (int i = 0; i < 4; i++)
        REQUIRE(held_take(&held[i], scene.pool, 16 * MIB, scene.stream[i % 2]));
    struct helper helper = {.held = &held[1], .frees_at = 1};
    DONE(cenote_pool_on_shortage(scene.pool, 1, free_one, &helper));
    REQUIRE(held_take(&more, scene.pool, 12 * MIB, scene.stream[A]));
    EXPECT_EQ(helper.calls, 1);
    EXPECT(helper.asked >= 12 * MIB);

    helper = (struct helper){.lies = 3}; /* says yes, and freed nothing */
    struct held none;
    EXPECT(!held_take(&none, scene.pool, 32 * MIB, scene.stream[A]));
    EXPECT(helper.calls >= 1);
    DONE(cenote_pool_on_shortage(scene.pool, 0, free_one, &helper));
    int calls = helper.calls;
    EXPECT(!held_take(&none, scene.pool, 32 * MIB, scene.stream[A]));
    EXPECT_EQ(helper.calls, calls);

    held_give(&more);
    held_give(&held[0]);
    held_give(&held[2]);
    held_give(&held[3]);
    scene_close(&scene);
}

/* A program may say each time that it freed something: the search starts again eight times, and no more. */
CASE(a_shortage_function_is_called_eight_times_at_most)
{
    struct scene scene;
    struct held held, none;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 16 * MIB, scene.stream[A]));
    struct helper helper = {.lies = 100};
    DONE(cenote_pool_on_shortage(scene.pool, 1, free_one, &helper));
    EXPECT(!held_take(&none, scene.pool, CARD - MIB, scene.stream[A]));
    EXPECT_EQ(helper.calls, 8);
    DONE(cenote_pool_on_shortage(scene.pool, 0, free_one, &helper));
    held_give(&held);
    scene_close(&scene);
}

/* One that frees crumbs does not keep the next one, which has what is needed, from its turn. */
CASE(crumbs_are_freed_eight_times_and_then_the_next_is_asked)
{
    struct scene scene;
    struct held large, got;
    struct helper crumbs = {.lies = 100}, good = {.held = &large, .frees_at = 1};
    scene_open(&scene, CARD);
    REQUIRE(held_take(&large, scene.pool, CARD - 8 * MIB, scene.stream[A]));
    DONE(cenote_pool_on_shortage(scene.pool, 1, free_one, &crumbs));
    DONE(cenote_pool_on_shortage(scene.pool, 2, free_one, &good));
    REQUIRE(held_take(&got, scene.pool, 32 * MIB, scene.stream[A]));
    EXPECT_EQ(crumbs.calls, 8);
    EXPECT_EQ(good.calls, 1);
    DONE(cenote_pool_on_shortage(scene.pool, 0, free_one, &crumbs));
    DONE(cenote_pool_on_shortage(scene.pool, 0, free_one, &good));
    held_give(&got);
    scene_close(&scene);
}

/* Which functions were called, in their order: a letter each. */
static char asked[64];

struct letter {
    char letter;
    bool frees;
};

static int note_letter(cenote_pool *pool, size_t bytes, void *arg)
{
    const struct letter *l = arg;
    size_t length = strlen(asked);
    (void)pool, (void)bytes;
    if (length + 1 < sizeof asked)
        asked[length] = l->letter;
    return l->frees;
}

static void expect_asked(cenote_pool *pool, CUstream stream, const char *letters)
{
    struct held none;
    memset(asked, 0, sizeof asked);
    EXPECT(!held_take(&none, pool, 2 * CARD / 3, stream));
    EXPECT_TEXT_EQ(asked, letters);
}

CASE(shortage_functions_in_their_order)
{
    struct scene scene;
    struct held held;
    struct letter a = {'a', false}, b = {'b', false}, c = {'c', false}, more[8];
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, CARD / 2, scene.stream[A]));
    DONE(cenote_pool_on_shortage(scene.pool, 2, note_letter, &b));
    DONE(cenote_pool_on_shortage(scene.pool, 1, note_letter, &a));
    DONE(cenote_pool_on_shortage(scene.pool, 2, note_letter, &c));
    expect_asked(scene.pool, scene.stream[B], "abc");
    b.frees = true; /* so it says: those behind it are not asked */
    expect_asked(scene.pool, scene.stream[B], "ababababababababc");
    b.frees = false;
    DONE(cenote_pool_on_shortage(scene.pool, UINT32_MAX, note_letter, &a)); /* another rank */
    expect_asked(scene.pool, scene.stream[B], "bca");
    DONE(cenote_pool_on_shortage(scene.pool, 0, note_letter, &b));
    DONE(cenote_pool_on_shortage(scene.pool, 0, note_letter, &b)); /* it is gone */
    expect_asked(scene.pool, scene.stream[B], "ca");
    for (int i = 0; i < 8; i++) {
        more[i] = (struct letter){(char)('0' + i), false};
        EXPECT_EQ(cenote_pool_on_shortage(scene.pool, 2, note_letter, &more[i]), i < 6 ? CENOTE_OK : CENOTE_INVALID);
    }
    EXPECT(strstr(cenote_message(), "8 shortage functions"));
    DONE(cenote_pool_on_shortage(scene.pool, 1, note_letter, &a)); /* there is no ninth, but this is one of the eight */
    expect_asked(scene.pool, scene.stream[B], "ac012345");
    held_give(&held);
    scene_close(&scene);
}

/* A function that is taken away: what another thread learns about it, and it about the other. */
struct taken_away {
    cenote_pool *pool;
    _Atomic(int) running, calls, leaving, over, early;
    bool from_inside;
};

static int stay_a_while(cenote_pool *pool, size_t bytes, void *arg)
{
    struct taken_away *t = arg;
    (void)bytes;
    t->calls++;
    t->running++;
    if (t->from_inside)
        t->over += cenote_pool_on_shortage(pool, 0, stay_a_while, t) == CENOTE_OK;
    else
        for (int i = 0; i < 200 && !t->over; i++) /* as long as a call that does not wait may need to return; no longer is waited for it */
            usleep(t->leaving ? 1000 : 100);
    t->running--;
    return 1;
}

static void *run_short(void *arg)
{
    struct taken_away *t = arg;
    void *block = NULL;
    t->early += cenote_alloc(t->pool, 2 * CARD / 3, NULL, &block) != CENOTE_OUT_OF_MEMORY;
    return NULL;
}

static void *take_away(void *arg)
{
    struct taken_away *t = arg;
    t->leaving = 1;
    t->early += cenote_pool_on_shortage(t->pool, 0, stay_a_while, t) != CENOTE_OK;
    t->early += t->running;
    t->over = 1;
    return NULL;
}

CASE(a_shortage_function_that_is_taken_away_runs_no_more)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, CARD / 2, scene.stream[A]));
    for (int inside = 0; inside < 2; inside++) {
        struct taken_away t = {.pool = scene.pool, .from_inside = inside};
        pthread_t short_of_memory[2], other;
        DONE(cenote_pool_on_shortage(scene.pool, 1, stay_a_while, &t));
        for (int i = 0; i < 2; i++)
            DONE(pthread_create(&short_of_memory[i], NULL, run_short, &t));
        while (!t.calls)
            sched_yield();
        if (!inside) {
            DONE(pthread_create(&other, NULL, take_away, &t));
            DONE(pthread_join(other, NULL));
        }
        for (int i = 0; i < 2; i++)
            DONE(pthread_join(short_of_memory[i], NULL));
        EXPECT_EQ(t.early, 0);
        EXPECT(t.over >= 1 && t.calls <= 2); /* each thread was in it once at most */
        EXPECT_EQ(t.running, 0);
    }
    held_give(&held);
    scene_close(&scene);
}

/* The program retires the very stream that it is asked to make room for, and trims: the arena that waits for room stays. */
static int retire_the_asker(cenote_pool *pool, size_t bytes, void *arg)
{
    struct scene *scene = arg;
    (void)bytes;
    DONE(cenote_stream_retire(pool, scene->stream[B]));
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    return 1;
}

CASE(an_arena_stays_while_it_is_waited_for)
{
    struct scene scene;
    struct held held, more;
    scene_open(&scene, CARD);
    sim_set_foreign(0, 40 * MIB);
    REQUIRE(held_take(&held, scene.pool, 20 * MIB, scene.stream[A]));
    DONE(cenote_pool_on_shortage(scene.pool, 1, retire_the_asker, &scene));
    EXPECT(!held_take(&more, scene.pool, 12 * MIB, scene.stream[B]));
    REQUIRE(held_take(&more, scene.pool, 2 * MIB, scene.stream[B]));
    DONE(cenote_pool_on_shortage(scene.pool, 0, retire_the_asker, &scene));
    scene_judge(&scene);
    held_give(&more);
    held_give(&held);
    sim_set_foreign(0, 0);
    scene_close(&scene);
}

CASE(memory_of_other_processes)
{
    struct scene scene;
    struct held held, more;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 16 * MIB, scene.stream[A]));
    sim_set_foreign(0, 40 * MIB);
    EXPECT(!held_take(&more, scene.pool, 16 * MIB, scene.stream[A]));
    REQUIRE(held_take(&more, scene.pool, 8 * MIB, scene.stream[A]));
    held_give(&more);
    sim_set_foreign(0, 0);
    REQUIRE(held_take(&more, scene.pool, 48 * MIB, scene.stream[A]));
    held_give(&more);
    held_give(&held);
    scene_close(&scene);
}

CASE(address_space_exhausted)
{
    struct scene scene;
    void *block[16];
    int count = 0, error;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.address_space = 40 * MIB;
    scene_open_with(&scene, &shape, &options);
    while (count < 16 && !(error = cenote_alloc(scene.pool, 5 * MIB, scene.stream[A], &block[count])))
        count++;
    EXPECT_EQ(error, CENOTE_OUT_OF_ADDRESSES);
    EXPECT(cenote_message()[0] != 0);
    EXPECT(count >= 3);
    DONE(cenote_pool_check(scene.pool));
    for (int round = 0; round < 3; round++) { /* what there is goes on working */
        DONE(cenote_free(block[count - 1]));
        DONE(cenote_alloc(scene.pool, 5 * MIB - (size_t)round * MIB, scene.stream[A], &block[count - 1]));
    }
    while (count > 0)
        DONE(cenote_free(block[--count]));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &block[0])); /* another stream, once the addresses are free again */
    DONE(cenote_free(block[0]));
    scene_close(&scene);
}

/* No address is left but behind work that is under way, and the thread that waits for it learns that the context is lost. */
CASE(context_that_is_lost_while_addresses_are_short)
{
    bool fired = true;
    int lost = 0;
    for (uint64_t nth = 1; fired; nth++) {
        struct scene scene;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        void *block[16];
        int count = 0;
        shape.address_space = 40 * MIB;
        scene_open_with(&scene, &shape, &options);
        sim_set_lag(MSEC);
        while (count < 16 && !cenote_alloc(scene.pool, 5 * MIB, scene.stream[A], &block[count]))
            count++;
        REQUIRE(count >= 3);
        DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
        while (count)
            DONE(cenote_free(block[--count]));
        fault_arm("cuEventQuery", nth, CUDA_ERROR_ILLEGAL_ADDRESS, false);
        int error = cenote_alloc(scene.pool, 5 * MIB, scene.stream[B], &block[0]);
        fired = fault_fired() > 0;
        fault_disarm();
        EXPECT_EQ(error, fired ? CENOTE_DEVICE_LOST : CENOTE_OK);
        lost += fired;
        if (fired) {
            cenote_pool_destroy(scene.pool);
            sim_reset(NULL);
            scene_is_open = false;
        } else {
            DONE(cenote_free(block[0]));
            scene_close(&scene);
        }
    }
    EXPECT(lost > 1);
}

CASE(driver_needs_no_memory_for_a_free)
{
    struct scene scene;
    struct held held[3];
    scene_open(&scene, CARD);
    for (int i = 0; i < 3; i++)
        REQUIRE(held_take(&held[i], scene.pool, 5 * MIB, scene.stream[A]));
    for (int i = 0; i < 3; i++)
        held_expect(&held[i], scene.stream[A]);
    DONE(cenote_use(held[1].at, scene.stream[B]));
    fault_arm(NULL, 1, CUDA_ERROR_OUT_OF_MEMORY, true);
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(held[i].at));
    fault_disarm();
    DONE(cenote_pool_check(scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

/* Growth, a second stream that wants what the first has, a waiting block, a trim: every kind of driver call. False: something failed. */
static bool all_slow_paths(struct scene *scene)
{
    void *block[3] = {NULL, NULL, NULL};
    int errors[6] = {0};
    errors[0] = cenote_alloc(scene->pool, 20 * MIB, scene->stream[A], &block[0]);
    DONE(cenote_free(block[0]));
    errors[1] = cenote_alloc(scene->pool, 30 * MIB, scene->stream[B], &block[1]);
    errors[2] = cenote_alloc(scene->pool, 30 * MIB, scene->stream[C], &block[2]);
    if (block[1])
        errors[5] = cenote_use(block[1], scene->stream[C]);
    DONE(cenote_free(block[1]));
    DONE(cenote_free(block[2]));
    errors[3] = cenote_pool_trim(scene->pool, 10 * MIB, 0);
    errors[4] = cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT);
    bool passed = true;
    for (int i = 0; i < 6; i++) {
        passed = passed && !errors[i];
        EXPECT(!errors[i] || cenote_message()[0] != 0);
        EXPECT(!errors[i] || errors[i] == CENOTE_OUT_OF_MEMORY || errors[i] == CENOTE_OUT_OF_ADDRESSES || errors[i] == CENOTE_DRIVER);
    }
    return passed;
}

static void fail_each_call_once(CUresult error)
{
    uint64_t nth = 0, fired;
    do {
        struct scene scene;
        scene_open(&scene, CARD);
        fault_arm(NULL, ++nth, error, false);
        all_slow_paths(&scene);
        fired = fault_fired();
        fault_disarm();
        DONE(cenote_pool_check(scene.pool));
        EXPECT(all_slow_paths(&scene)); /* a retry works */
        scene_close(&scene);
    } while (fired && nth < 2000);
    EXPECT(nth > 20 && nth < 2000);
}

CASE(each_driver_call_fails_once_for_memory)
{
    fail_each_call_once(CUDA_ERROR_OUT_OF_MEMORY);
}

CASE(each_driver_call_fails_once_for_no_reason)
{
    fail_each_call_once(CUDA_ERROR_UNKNOWN);
}

/* The first sticky error poisons the pool: no memory any more, but everything else still has an answer. */
CASE(context_lost)
{
    struct scene scene;
    void *block, *more;
    scene_open(&scene, CARD);
    DONE(cenote_alloc(scene.pool, 5 * MIB, scene.stream[A], &block));
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_alloc(scene.pool, 50 * MIB, scene.stream[A], &more), CENOTE_DEVICE_LOST);
    EXPECT_EQ(cenote_driver_result(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(strstr(cenote_message(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_EQ(cenote_alloc(scene.pool, 512, scene.stream[B], &more), CENOTE_DEVICE_LOST);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 5 * MIB);
    DONE(cenote_free(block));
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    DONE(cenote_pool_check(scene.pool));
    int error = cenote_pool_destroy(scene.pool);
    EXPECT(error == CENOTE_OK || error == CENOTE_DEVICE_LOST);
    sim_reset(NULL);
    sim_set_quiet(false);
    scene_is_open = false;
}

SCENES_MAIN("api: shortage")
