/*
 * test_sleep_rare.c: memory that sleeps, and the rare roads of the pool beside it: addresses go back, sums say no, the driver takes no more mappings.
 */
#include <sched.h>

#include "pool/pool.h"
#include "tests/api/copies.h"
#include "tests/api/sleeps.h"

#define MAPPINGS 34u

static struct scene scene;
static struct held at_hand[4];

static void take_on_c(void)
{
    void *block;
    DONE(cuCtxSetCurrent(scene.context));
    DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[C], &block));
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_free(block));
}

/* The addresses of a region go back while pages doze that were mapped there once. */
CASE(addresses_go_back_while_pages_doze)
{
    struct held held;
    void *first;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.address_ratio = 2;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, 16 * MIB, scene.stream[B], &first));
    DONE(cenote_free(first));
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&held, scene.pool, 16 * MIB, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).pages_aliased, 8);
    EXPECT_EQ(scene_stats(scene.pool).address_space, 128 * MIB);
    at_the_next_copy(take_on_c);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    EXPECT(!copies.meanwhile);
    EXPECT_EQ(scene_stats(scene.pool).address_space, 128 * MIB);
    DONE(cenote_pool_check(scene.pool));
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* A request that needs the free end of a page beside a live block, and waits for the rest: what sleeps does not make it hopeless. */
CASE(crumbs_count_although_others_sleep)
{
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        struct held asleep, live, flying, wanted, rest;
        cenote_group *group;
        void *block;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        shape.lag = MSEC;
        options.order = 0;
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_group_create(scene.pool, "asleep", 0, NULL, &group));
        DONE(group_alloc(group, 30 * MIB, 1, scene.stream[C], &block));
        asleep = held_of(block, 30 * MIB, scene.stream[C]);
        if (sleeps)
            DONE(pause_of(scene.pool, group, CENOTE_KEEP, NULL));
        else
            held_give(&asleep);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        REQUIRE(held_take(&live, scene.pool, 3 * MIB / 2 + 512 * KIB / 2, scene.stream[A]));
        REQUIRE(held_take(&rest, scene.pool, 22 * MIB, scene.stream[C]));
        REQUIRE(held_take(&flying, scene.pool, 40 * MIB, scene.stream[B]));
        EXPECT_EQ(used(), 64 * MIB);
        held_linger(&flying, scene.stream[B]);
        DONE(cenote_free(flying.at));
        EXPECT(held_take(&wanted, scene.pool, 40 * MIB + 128 * KIB, scene.stream[A]));
        if (wanted.at)
            held_give(&wanted);
        held_give(&live);
        held_give(&rest);
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        if (sleeps) {
            DONE(resume_of(scene.pool, NULL, NULL));
            held_give(&asleep);
        }
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* What wakes needs mappings: old aliases go, if the driver takes no more, and where an option says how many there are at most. */
static void wake_among(uint64_t quirk, uint32_t most)
{
    struct held held;
    struct sim_books books;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.quirks = quirk;
    shape.mapping_ceiling = MAPPINGS;
    options.mappings = most;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 12 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    for (int i = 0; i < SCENE_STREAMS; i++) {
        struct held other;
        REQUIRE(held_take(&other, scene.pool, 20 * MIB, scene.stream[i]));
        held_give(&other);
        DONE(cuStreamSynchronize(scene.stream[i]));
    }
    sim_books(&books);
    EXPECT(books.mappings + 6 > MAPPINGS);
    DONE(resume_of(scene.pool, NULL, NULL));
    sim_books(&books);
    EXPECT(books.mappings <= MAPPINGS);
    held_give(&held);
    scene_close(&scene);
}

CASE(a_driver_that_takes_no_more_mappings) { wake_among(SIM_QUIRK(MAPPING_CEILING), 0); }
CASE(an_option_that_allows_no_more_mappings) { wake_among(0, MAPPINGS); }

/* ------------------------------------------------------------------------------------------------------------- refused waits */

/* The driver refuses to wait for the copies of a pause, so that the device may still read pages which stay awake: they do not go. */
static void go_after_a_refusal(bool announced)
{
    struct held held;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    options.announced = announced;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    REQUIRE(held_take(&held, scene.pool, 8 * MIB, scene.stream[A]));
    DONE(cuStreamSynchronize(scene.stream[A]));
    at_the_next_copy(NULL);
    copies.fetch_ns = 100 * MSEC;
    fault_arm("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL), CENOTE_DRIVER);
    copies.fetch_ns = 0;
    EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_DISCARD_ALL, NULL), CENOTE_DRIVER); /* which copies nothing */
    DONE(cenote_free(held.at));
    cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT);
    EXPECT_EQ(used(), 8 * MIB);
    fault_disarm();
    DONE(resume_of(scene.pool, NULL, NULL)); /* waits for them at last */
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(used(), 0);
    scene_close(&scene);
}

CASE(no_page_goes_under_a_copy) { go_after_a_refusal(true); }
CASE(no_page_goes_under_a_copy_that_is_not_announced) { go_after_a_refusal(false); }

/* What was constant has gone, with its stream; another stream's block has its number, its address and its page. */
CASE(a_constant_copy_ends_with_its_arena)
{
    struct held held, wall;
    void *other;
    cenote_sleep slept;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.address_ratio = 1;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
    char *at = held.at;
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, NULL));
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    DONE(cuCtxSynchronize());
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    REQUIRE(held_take(&wall, scene.pool, 4 * MIB, scene.stream[B])); /* has the pages, at its own addresses */
    held_give(&wall);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, GIB, CENOTE_TRIM_WAIT)); /* no page goes, but empty regions and arenas do */
    DONE(cenote_alloc(scene.pool, 4 * MIB, scene.stream[C], &other));
    EXPECT(other == at);
    held = held_of(other, 4 * MIB, scene.stream[C]);
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    EXPECT_EQ(slept.kept, 4 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* After an error the answer is about what has gone to sleep, and no more. */
CASE(what_did_not_go_is_not_discarded)
{
    struct held held;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 8 * MIB, scene.stream[A]));
    fault_arm("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_DISCARD_ALL, &slept), CENOTE_DRIVER);
    fault_disarm();
    EXPECT_EQ(slept.pages, 2 * MIB);
    EXPECT_EQ(slept.discarded, 2 * MIB);
    EXPECT_EQ(slept.awake, 6 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    DONE(cenote_free(held.at));
    scene_close(&scene);
}

/* The next pause has another page in the hands of each stage. */
CASE(a_pause_waits_for_both_stages_of_an_earlier_one)
{
    struct held held[2];
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&held[i], scene.pool, 2 * MIB, scene.stream[A]));
    at_the_next_copy(NULL);
    copies.fetch_ns = 100 * MSEC;
    fault_arm("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL), CENOTE_DRIVER);
    copies.fetch_ns = 0;
    fault_arm("cuStreamSynchronize", 2, CUDA_ERROR_UNKNOWN, true); /* the first stage can be waited for */
    const void *second[] = {held[1].at};
    cenote_sleep sleep = {.blocks = second, .count = 1, .contents = CENOTE_DISCARD_ALL};
    EXPECT_EQ(cenote_pool_pause(scene.pool, &sleep), CENOTE_DRIVER);
    EXPECT_EQ(sleep.pages, 0);
    fault_disarm();
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* As a replay does that has the memory to itself. */
static void write_there(const struct held *held)
{
    held_launch(held, sim_launch_fill, held->stream);
    held_launch(held, sim_launch_expect, held->stream);
    DONE(cuCtxSynchronize());
}

/* The pages of a graph came from another arena, which maps them still, and maps them first. They sleep and wake with the group all the same. */
CASE(pages_of_a_graph_that_came_from_elsewhere)
{
    struct held held;
    cenote_group *group;
    cenote_sleep slept;
    void *block;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, CARD - 4 * MIB, scene.stream[A]));
    held_give(&held);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 20 * MIB, 512, scene.stream[B], &block));
    held = held_of(block, 20 * MIB, scene.stream[B]);
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, 10);
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, NULL));
    DONE(cenote_free(block)); /* asleep */
    DONE(resume_of(scene.pool, group, NULL));
    write_there(&held);
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, &slept)); /* free */
    EXPECT_EQ(slept.pages, 20 * MIB);
    DONE(resume_of(scene.pool, group, NULL));
    write_there(&held);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL)); /* with all of the pool */
    DONE(resume_of(scene.pool, group, NULL));
    write_there(&held);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------- the end of a pool beside it */

#define NAPS 3
#define LONG_MSEC 10

static struct {
    const struct driver *below;
    pthread_t   pausing, ending;
    atomic_bool is_on;
    atomic_int  fetches, waits, waits_of_end;   /* copies begun; waits for stages by each thread */
    int         error;                          /* of the end */
} end_beside;

static void *end_pool(void *unused)
{
    DONE(cuCtxSetCurrent(scene.context));
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(at_hand[i].at));
    end_beside.error = cenote_pool_destroy(scene.pool);
    return unused;
}

/* It waits for a stage, which it should leave to the thread that pauses, or it naps until that is done. */
static void wait_for_the_end_to_wait(void)
{
    bool was_away = true;
    for (int naps = 0; naps < NAPS && !end_beside.waits_of_end; sched_yield()) {
        bool is_away = scene.pool->life.away > 1;
        naps += is_away && !was_away;
        was_away = is_away;
    }
}

static CUresult wait_for_stage(CUstream stream)
{
    bool is_end = end_beside.is_on && !pthread_equal(pthread_self(), end_beside.pausing);
    if (end_beside.is_on && !is_end && end_beside.waits++ == 0) {
        DONE(pthread_create(&end_beside.ending, NULL, end_pool, NULL));
        wait_for_the_end_to_wait();
    }
    while (end_beside.waits == 2 && !is_end && end_beside.waits_of_end == 1)
        sched_yield();
    CUresult result = end_beside.below->cuStreamSynchronize(stream);
    for (int before = is_end ? end_beside.waits_of_end++ : 1; !before && end_beside.fetches < 3;)
        sched_yield();
    return result;
}

static CUresult fetch_slowly(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    end_beside.fetches++;
    DONE(sim_launch_wait(stream, LONG_MSEC * MSEC));
    return end_beside.below->cuMemcpyDtoHAsync(to, from, bytes, stream);
}

static const struct driver *with_an_end(const struct driver *driver)
{
    static struct driver table;
    end_beside.below = driver;
    table = *driver;
    table.cuStreamSynchronize = wait_for_stage;
    table.cuMemcpyDtoHAsync = fetch_slowly;
    return &table;
}

/* All blocks are freed under a pause, and the pool is destroyed: that thread takes no stage for free to which the device copies the next page. */
CASE(a_pool_ends_beside_a_pause)
{
    scene_open(&scene, CARD);
    for (int i = 0; i < 4; i++) {
        REQUIRE(held_take(&at_hand[i], scene.pool, 2 * MIB, scene.stream[A]));
        DONE(cenote_use(at_hand[i].at, scene.stream[B])); /* so that what was freed is still copied */
    }
    driver_interpose(with_an_end);
    end_beside.pausing = pthread_self();
    end_beside.is_on = true;
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    end_beside.is_on = false;
    DONE(pthread_join(end_beside.ending, NULL));
    EXPECT(!end_beside.error || end_beside.error == CENOTE_BUSY);
    scene.pool = end_beside.error ? scene.pool : NULL;
    scene_close(&scene);
}

SCENES_MAIN("sleep_rare")
