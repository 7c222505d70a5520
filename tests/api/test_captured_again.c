/*
 * test_captured_again.c: pools with the option announced:0, and what streams freed and used while they were captured, known by their handles alone.
 * A call that names the stream afterwards is enough to have it back (rule 2 of docs/design.md), whether the pool had met the stream before or not.
 * A stream that ends without a word keeps it, and the next stream of its handle is not taken for it, or contents would be wrong.
 *
 * test_captured_streams.c has what is served and freed in captures, and announced ones.
 */
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/strict.h"

#define ROUNDS 4

/* Mortal streams, which the pool has met or not. */
static void open_mortal(struct scene *scene, bool met)
{
    void *small;
    open_strict(scene, true);
    DONE(cenote_stream_set_immortal(scene->pool, scene->stream[A]));
    DONE(cenote_stream_set_immortal(scene->pool, scene->stream[C]));
    if (!met)
        return;
    DONE(cenote_alloc(scene->pool, 512, scene->stream[B], &small));
    DONE(cenote_free(small));
}

/* The graph is not needed. */
static void end_capture(CUstream stream)
{
    CUgraph graph = NULL;
    DONE(cuStreamEndCapture(stream, &graph));
    REQUIRE(graph);
    DONE(cuGraphDestroy(graph));
}

/* A call names the stream, and the device has done what it was given. */
static void name(struct scene *scene, CUstream stream)
{
    void *small;
    DONE(cenote_alloc(scene->pool, 512, stream, &small));
    DONE(cenote_free(small));
}

/* The last call that names the stream; then the pool goes, and nothing has to be retired. */
static void close_mortal(struct scene *scene)
{
    void *small;
    DONE(cenote_alloc(scene->pool, 512, scene->stream[A], &small));
    DONE(cenote_free_on(small, scene->stream[B]));
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    scene_close(scene);
}

static void expect_nearly_all(struct scene *scene)
{
    struct held next;
    EXPECT_EQ(scene_stats(scene->pool).pending_blocks, 0);
    REQUIRE(held_take(&next, scene->pool, 58 * MIB, scene->stream[C]));
    held_give(&next);
}

/* The stream was at work on the block before it was captured; the block is freed in the capture or after it. */
CASE(a_block_that_was_used_in_a_capture)
{
    for (int round = 0; round < 4; round++) {
        struct scene scene;
        struct held block;
        open_mortal(&scene, round & 1);
        for (int i = 0; i < ROUNDS; i++) {
            REQUIRE(held_take(&block, scene.pool, 50 * MIB, scene.stream[A]));
            order(scene.stream[A], scene.stream[B]);
            held_linger(&block, scene.stream[B]);
            DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
            DONE(cenote_use(block.at, scene.stream[B]));
            if (round & 2)
                DONE(cenote_free(block.at));
            end_capture(scene.stream[B]);
            if (!(round & 2))
                DONE(cenote_free(block.at));
            EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
            name(&scene, scene.stream[B]);
            EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1); /* it is at work still */
            DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
            expect_nearly_all(&scene);
        }
        close_mortal(&scene);
    }
}

/* Without a trim: an allocation on another stream waits for it, and one on the stream itself names it. */
CASE(an_allocation_that_needs_the_block)
{
    for (int itself = 0; itself < 2; itself++) {
        struct scene scene;
        struct held block, next;
        open_mortal(&scene, false);
        REQUIRE(held_take(&block, scene.pool, 50 * MIB, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        held_linger(&block, scene.stream[B]);
        DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED));
        DONE(cenote_use(block.at, scene.stream[B]));
        DONE(cenote_free(block.at));
        end_capture(scene.stream[B]);
        if (!itself)
            name(&scene, scene.stream[B]);
        REQUIRE(held_take(&next, scene.pool, 50 * MIB, scene.stream[itself ? B : C]));
        held_give(&next);
        close_mortal(&scene);
    }
}

/* Memory that was taken on the stream in its capture, freed in it or later, with work behind it that no capture has. */
CASE(memory_that_was_taken_in_a_capture)
{
    for (int round = 0; round < 4; round++) {
        struct scene scene;
        struct held block;
        void *at = NULL;
        open_mortal(&scene, round & 1);
        for (int i = 0; i < ROUNDS; i++) {
            DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
            REQUIRE(!cenote_alloc(scene.pool, 50 * MIB, scene.stream[B], &at));
            if (round & 2)
                DONE(cenote_free(at));
            end_capture(scene.stream[B]);
            if (!(round & 2)) {
                block = held_of(at, 50 * MIB, scene.stream[B]);
                held_linger(&block, scene.stream[B]);
                DONE(cenote_free(at));
            }
            name(&scene, scene.stream[B]);
            expect_nearly_all(&scene);
        }
        close_mortal(&scene);
    }
}

/* The stream joined the capture of another, and its use is named once more, or its last one, when that is over. */
CASE(a_stream_that_joined_a_capture)
{
    struct scene scene;
    struct held block, other;
    open_mortal(&scene, false);
    REQUIRE(held_take(&block, scene.pool, 40 * MIB, scene.stream[C]));
    REQUIRE(held_take(&other, scene.pool, 8 * MIB, scene.stream[C]));
    order(scene.stream[C], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(scene.stream[A], scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cenote_use(other.at, scene.stream[B]));
    order(scene.stream[B], scene.stream[A]);
    end_capture(scene.stream[A]);
    DONE(cenote_free(block.at));
    DONE(cenote_free_on(other.at, scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    name(&scene, scene.stream[B]);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    expect_nearly_all(&scene);
    close_mortal(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- the handle of another stream */

static void wait_for_context(struct scene *scene)
{
    uint64_t sync;
    DONE(cenote_pool_sync_begin(scene->pool, &sync));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_sync_end(scene->pool, sync));
}

/* The stream ends without a word while it is at work, and another has its handle. */
static void replace(struct scene *scene)
{
    CUstream first = scene->stream[B];
    DONE(cuStreamDestroy(first));
    DONE(cuStreamCreate(&scene->stream[B], CU_STREAM_NON_BLOCKING));
    REQUIRE(scene->stream[B] == first); /* the simulated driver gives the handle to the next one, as drivers do */
}

/* It takes memory in a capture. */
static struct held take_captured(struct scene *scene, size_t bytes)
{
    void *at;
    DONE(cuStreamBeginCapture(scene->stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(!cenote_alloc(scene->pool, bytes, scene->stream[B], &at));
    end_capture(scene->stream[B]);
    return held_of(at, bytes, scene->stream[B]);
}

/* It takes memory in a capture, gives it back while it is at work on it, and ends. */
static void take_and_end(struct scene *scene)
{
    struct held block = take_captured(scene, 30 * MIB);
    held_linger(&block, scene->stream[B]);
    DONE(cenote_free(block.at));
    replace(scene);
}

/* What the stream takes in a capture is not what the first of its handle has left. All is back at its name. */
static void expect_other_memory(struct scene *scene)
{
    struct held block = take_captured(scene, 20 * MIB);
    held_give(&block);
    wait_for_context(scene);
    name(scene, scene->stream[B]);
    DONE(cenote_pool_trim(scene->pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    expect_nearly_all(scene);
}

/* The stream uses a block, and is captured. The next stream of its handle is named, retired, captured, or announced; its own uses come back. */
CASE(a_stream_that_ended_after_its_capture)
{
    for (int how = 0; how < 4; how++) {
        struct scene scene;
        struct held block, later;
        void *none;
        open_mortal(&scene, how == 1);
        REQUIRE(held_take(&block, scene.pool, 30 * MIB, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        held_linger(&block, scene.stream[B]);
        DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_use(block.at, scene.stream[B]));
        DONE(cenote_free(block.at));
        end_capture(scene.stream[B]);
        replace(&scene);
        if (how == 1)
            DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
        else if (how == 3)
            DONE(cenote_capture_begin(scene.pool, NULL, scene.stream[B]));
        if (how == 3)
            DONE(cenote_capture_end(scene.pool, NULL, scene.stream[B]));
        else if (how != 1)
            name(&scene, scene.stream[B]);
        EXPECT_EQ(cenote_alloc(scene.pool, 50 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
        if (how == 2) {
            REQUIRE(held_take(&later, scene.pool, 20 * MIB, scene.stream[A]));
            DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
            DONE(cenote_use(later.at, scene.stream[B]));
            DONE(cenote_alloc(scene.pool, 512, scene.stream[B], &none));
            DONE(cenote_free(none));
            held_give(&later);
            end_capture(scene.stream[B]);
            name(&scene, scene.stream[B]);
            DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
        }
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
        wait_for_context(&scene);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        expect_nearly_all(&scene);
        close_mortal(&scene);
    }
}

/* The same for memory that was taken in the capture. */
CASE(a_stream_that_took_memory_and_ended)
{
    struct scene scene;
    void *none;
    open_mortal(&scene, false);
    take_and_end(&scene);
    name(&scene, scene.stream[B]);
    EXPECT_EQ(cenote_alloc(scene.pool, 50 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    expect_other_memory(&scene);
    close_mortal(&scene);
}

/* No call names the next stream of the handle before it is captured, too: it does not get what the first has freed and is still at work on. */
CASE(a_stream_that_ended_and_one_that_is_captured_at_once)
{
    struct scene scene;
    open_mortal(&scene, false);
    take_and_end(&scene);
    expect_other_memory(&scene);
    close_mortal(&scene);
}

/* The same stream, captured again and again, and no call names it between. In one capture it has its memory in order; all is back at its name. */
CASE(a_stream_that_is_captured_several_times)
{
    struct scene scene;
    void *at[2];
    open_mortal(&scene, false);
    for (int i = 0; i < 3; i++) {
        DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int j = 0; j < 2; j++) {
            REQUIRE(!cenote_alloc(scene.pool, 15 * MIB, scene.stream[B], &at[j]));
            DONE(cenote_free(at[j]));
        }
        EXPECT_EQ(at[0], at[1]);
        end_capture(scene.stream[B]);
    }
    name(&scene, scene.stream[B]);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    expect_nearly_all(&scene);
    close_mortal(&scene);
}

/* The stream ends in the capture that it had joined, which ends that capture. */
CASE(a_stream_that_ended_in_a_capture)
{
    struct scene scene;
    struct held block;
    CUgraph graph = NULL;
    void *none;
    open_mortal(&scene, true);
    REQUIRE(held_take(&block, scene.pool, 30 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cuStreamBeginCapture(scene.stream[C], CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(scene.stream[C], scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cenote_free(block.at));
    sim_set_quiet(true);
    replace(&scene);
    EXPECT(cuStreamEndCapture(scene.stream[C], &graph) != CUDA_SUCCESS);
    sim_set_quiet(false);
    name(&scene, scene.stream[B]);
    EXPECT_EQ(cenote_alloc(scene.pool, 50 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    wait_for_context(&scene);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    expect_nearly_all(&scene);
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    scene_destroy_pool(&scene);
    sim_reset(NULL); /* the card has written down what is forbidden, and a scene would be judged by that */
    scene_is_open = false;
}

/* ------------------------------------------------------------------------------------------------------------------- other devices, other drivers */

/* A stream of another device uses a block in a capture there. */
CASE(a_stream_of_another_device)
{
    struct peers p = {0};
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = strict();
    struct held block, small;
    shape.devices = 2;
    scene_open_with(&p.scene, &shape, &options);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.scene.stream[A]));
    DONE(cuDevicePrimaryCtxRetain(&p.other, 1));
    REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, p.scene.stream[A]));
    REQUIRE(held_take(&small, p.scene.pool, 512, p.scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cuStreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_use(block.at, p.stream));
    DONE(cenote_free(block.at));
    end_capture(p.stream);
    DONE(cenote_use(small.at, p.stream));
    DONE(cuCtxPopCurrent(NULL));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1); /* it is at work still */
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_free_on(small.at, p.stream));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    close_peers(&p);
}

static const struct driver *below;
static bool falls;

static CUresult falling_id(CUstream stream, unsigned long long *id)
{
    CUresult result = below->cuStreamGetId(stream, id);
    if (!result && falls)
        *id = (1ull << 40) - *id;
    return result;
}

static const struct driver *with_falling_ids(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuStreamGetId = falling_id;
    return &table;
}

/* If a driver gave ids that do not rise, no stream would be taken for the one that was captured: what that used waits. The last case: it is known. */
CASE(ids_that_do_not_rise)
{
    struct scene scene;
    struct held block;
    void *none;
    open_mortal(&scene, false);
    driver_interpose(with_falling_ids);
    falls = true;
    REQUIRE(held_take(&block, scene.pool, 30 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cenote_free(block.at));
    end_capture(scene.stream[B]);
    replace(&scene);
    name(&scene, scene.stream[B]);
    EXPECT_EQ(cenote_alloc(scene.pool, 50 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    wait_for_context(&scene);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    expect_nearly_all(&scene);
    close_mortal(&scene);
    falls = false;
}

SCENES_MAIN("api: captured again")
