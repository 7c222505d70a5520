/*
 * test_remembered.c: what cenote remembers of a context by a handle, an address or an ordinal, when that context ends and the driver gives all of
 * these to the next one. A table: each row remembers something of the first context, and all rows go on alike: the context ends, the next one has
 * its handle and a stream with the handle of the stream before, and that one's work is late. Contents and the books of the simulated card judge.
 *
 * The context ends by a reset, on this thread or on another, or, if it is the program's own, by cuCtxDestroy. Random orders of resets are in
 * tests/processes/test_reset_orders.c.
 */
#include <cenote/host.h>
#include <cenote/share.h>

#include "tests/host/remembered.h"

#define LIVES  2            /* contexts, one after the other */
#define BYTES  (5 * MIB)
#define CONTEXTS 4096 /* more than the simulated driver has handles that rest */

/* The pool is on device 0, and what is remembered of device 1; or all is of the context that the pool is in. */
static struct scene scene;
static cenote_group *group;
static void *left, *imported;

/* --------------------------------------------------------------------------------- what the pool remembers of another device's context */

/* A block that kernels of the other device can see. */
static struct held take_for_far(void)
{
    DONE(cenote_pool_grant(scene.pool, 1));
    struct held block = take_one(&scene, BYTES);
    DONE(cuStreamSynchronize(scene.stream[A]));
    return block;
}

static struct held use_late(void)
{
    struct held block = take_for_far();
    far_enter();
    held_linger(&block, stream);
    far_leave();
    return block;
}

static void a_created_stream(void)
{
    struct held block = use_late();
    DONE(cenote_use(block.at, stream));
    DONE(cenote_free(block.at));
}

static void an_immortal_stream(void)
{
    DONE(cenote_stream_set_immortal(scene.pool, stream));
    a_created_stream();
}

/* Its event is recorded, and due when the context ends. */
static void a_stream_that_was_retired(void)
{
    a_created_stream();
    DONE(cenote_stream_retire(scene.pool, stream));
}

static void a_live_block_that_is_used(void)
{
    left = take_one(&scene, MIB).at;
    DONE(cenote_use(left, stream));
}

static void use_default(CUstream which)
{
    struct held block = take_for_far();
    far_enter();
    held_linger(&block, which);
    DONE(cenote_use_on_device(block.at, 1, which));
    far_leave();
    DONE(cenote_free(block.at));
}

static void a_default_stream(void)
{
    use_default(CU_STREAM_LEGACY);
}

static void a_default_stream_of_a_thread(void)
{
    use_default(CU_STREAM_PER_THREAD);
}

static void a_grant(void)
{
    struct held block = take_for_far();
    held_give(&block);
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* asks the device, by an event there */
}

static void a_grant_of_plain_memory(void)
{
    DONE(cenote_group_create(scene.pool, "plain", CENOTE_GROUP_PLAIN, NULL, &group));
    a_grant();
}

static void a_wait_for_the_device(void)
{
    uint64_t sync;
    a_created_stream();
    far_enter();
    DONE(cenote_pool_sync_begin(scene.pool, &sync));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_sync_end(scene.pool, sync));
    far_leave();
}

/* Of this process: pages that are mapped for the other device. */
static void an_import(void)
{
    cenote_share share;
    left = take_one(&scene, BYTES).at;
    DONE(cenote_export(left, &share));
    DONE(cenote_import(&share, sizeof share, 1, &imported));
}

static void pinned_memory(void)
{
    void *block;
    DONE(cenote_host_alloc(1, 3 * MIB, &block));
    DONE(cenote_host_use(block, 1, stream));
    far_enter();
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cenote_host_use(block, 1, stream));
    far_leave();
    DONE(cenote_host_free(block)); /* pending, registered, and with an event */
    DONE(cenote_host_stream_set_immortal(1, stream));
}

/* Work is late with the block on default streams, whose handles and keys the next context has, too. */
static void use_pinned_late(void)
{
    far_enter();
    for (int i = 0; i < 2; i++) {
        CUstream which = i ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
        DONE(sim_launch_wait(which, 10 * MSEC));
        DONE(cenote_host_use(left, 1, which));
    }
    far_leave();
}

/* It was pinned for the device of the pool, and outlives the context of the other one, which uses it. */
static void pinned_memory_of_the_pools_device(void)
{
    DONE(cenote_host_alloc(0, 3 * MIB, &left));
    use_pinned_late();
}

/* A pool of the device, with blocks, pins and cached memory, which the program forgets. */
static void a_pool(void)
{
    cenote_options options = scene_options();
    cenote_pool *pool;
    void *block;
    DONE(cenote_pool_create(1, &options, &pool));
    DONE(cenote_stream_set_immortal(pool, stream));
    DONE(cenote_stream_set_immortal(pool, scene.stream[A])); /* the pool's end has to know how far it is: it lives on */
    DONE(cenote_alloc(pool, 3 * MIB, stream, &block));
    DONE(cenote_pin(block, 3 * MIB));
    DONE(cenote_use(block, scene.stream[A]));
    DONE(cenote_alloc(pool, 3 * MIB, stream, &block));
    DONE(cenote_free(block));
    left = pool;
}

static void forget_block(void)
{
    DONE(cenote_free(left));
    left = NULL;
}

static void forget_group(void) { DONE(cenote_group_destroy(group)); }

static void forget_import(void)
{
    DONE(cenote_import_close(imported));
    forget_block();
}

/* What was pinned goes once the reset is known, and serves again. */
static void forget_pinned(void)
{
    void *block;
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    DONE(cenote_host_alloc(1, 3 * MIB, &block));
    far_enter();
    DONE(sim_launch_wait(stream, 10 * MSEC));
    far_leave();
    DONE(cenote_host_use(block, 1, stream));
    DONE(cenote_host_free(block));
    cenote_host_stats stats;
    DONE(cenote_host_node_stats(-1, &stats));
    EXPECT_EQ(stats.pending_blocks, 1); /* the copy of the next context is late, too */
    far_enter();
    DONE(cuStreamSynchronize(stream));
    far_leave();
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    DONE(cenote_host_check());
}

static void forget_pinned_of_the_pools_device(void)
{
    cenote_host_stats stats;
    use_pinned_late();
    DONE(cenote_host_free(left));
    left = NULL;
    DONE(cenote_host_trim(UINT64_MAX, 0)); /* looks */
    DONE(cenote_host_node_stats(-1, &stats));
    EXPECT_EQ(stats.pending_blocks, 1);
    far_enter();
    DONE(cuCtxSynchronize());
    far_leave();
    DONE(cenote_host_trim(UINT64_MAX, 0));
    DONE(cenote_host_node_stats(-1, &stats));
    EXPECT_EQ(stats.pending_blocks, 0);
}

static void forget_pool(void)
{
    DONE(cenote_pool_destroy(left));
}

static const struct row {
    const char *name;
    void (*remember)(void), (*forget)(void); /* before and after the end of the context */
} rows[] = {
    {"a created stream", a_created_stream, NULL},
    {"an immortal stream", an_immortal_stream, NULL},
    {"a stream that was retired", a_stream_that_was_retired, NULL},
    {"a live block that is used", a_live_block_that_is_used, forget_block},
    {"a default stream", a_default_stream, NULL},
    {"a default stream of a thread", a_default_stream_of_a_thread, NULL},
    {"a grant", a_grant, NULL},
    {"a grant of plain memory", a_grant_of_plain_memory, forget_group},
    {"a wait for the device", a_wait_for_the_device, NULL},
    {"an import", an_import, forget_import},
    {"pinned memory", pinned_memory, forget_pinned},
    {"pinned memory of the pool's device", pinned_memory_of_the_pools_device, forget_pinned_of_the_pools_device},
    {"a pool", a_pool, forget_pool},
};

#define ROWS (sizeof rows / sizeof rows[0])

/* Work of the next context is late, on its created stream and on its default one. What it reads is not handed out before. */
static void expect_the_next_context_is_known(void)
{
    a_created_stream();
    use_default(CU_STREAM_LEGACY);
    struct held next[5];
    for (int i = 0; i < 5; i++)
        next[i] = take_one(&scene, BYTES);
    for (int i = 0; i < 5; i++)
        held_give(&next[i]);
    DONE(cenote_stream_retire(scene.pool, stream));
    far_enter();
    DONE(cuCtxSynchronize());
    far_leave();
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(sim_mismatches(), 0);
    DONE(cenote_pool_check(scene.pool));
}

static void far_lives(const struct row *row, void (*reset)(void))
{
    for (int life = 0; life < LIVES; life++) {
        row->remember();
        end_far(reset);
        if (row->remember != a_pool)
            DONE(cenote_pool_grant(scene.pool, 1)); /* the device has its next context, before it is learnt what was of the last */
        if (row->forget)
            row->forget();
        expect_the_next_context_is_known();
    }
}

static const struct row *the_row;
static bool announced;
static void (*the_reset)(void);

static void far_row(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    options.announced = announced;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    DONE(cuDevicePrimaryCtxRetain(&far, 1));
    make_stream();
    far_lives(the_row, the_reset);
    scene_destroy_pool(&scene);
    DONE(cenote_host_close());
    far_enter();
    DONE(cuStreamDestroy(stream));
    far_leave();
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&scene);
}

static void try_rows(void (*reset)(void))
{
    the_reset = reset;
    for (size_t i = 0; i < 2 * ROWS; i++) {
        the_row = &rows[i / 2];
        announced = i % 2;
        int status = status_of(far_row);
        if (status)
            fprintf(stderr, "%s, %s\n", the_row->name, announced ? "announced" : "announced:0");
        EXPECT_EQ(status, 0);
    }
}

CASE(another_device_is_reset)
{
    try_rows(reset_here);
}

CASE(another_device_is_reset_by_another_thread)
{
    try_rows(reset_on_another_thread);
}

/* ------------------------------------------------------------------------------------- what is remembered of the pool's own context */

/* Who ends it. A context that the program keeps may be the primary one; one of its own ends after its pools. */
enum kind { OWN, KEPT_PRIMARY, PRIMARY, PRIMARY_BY_ANOTHER_THREAD, KINDS };

static enum kind kind;
static cenote_pool *pool;
static cenote_group *graph;

/* With the handle of the one before: the simulated driver gives it after others. */
static void begin_context(CUcontext before)
{
    if (kind != OWN)
        DONE(cuDevicePrimaryCtxRetain(&far, 1));
    for (int i = 0; kind == OWN && i < CONTEXTS && (!i || (before && far != before)); i++) {
        if (i)
            DONE(cuCtxDestroy(far));
        DONE(cuCtxCreate(&far, NULL, 0, 1));
        DONE(cuCtxPopCurrent(NULL));
    }
}

static void end_context(void)
{
    CUcontext before = far;
    far_enter();
    DONE(cuStreamDestroy(stream));
    far_leave();
    if (kind == OWN) {
        DONE(cuCtxDestroy(far));
    } else {
        (kind == PRIMARY_BY_ANOTHER_THREAD ? reset_on_another_thread : reset_here)();
        DONE(cuDevicePrimaryCtxRelease(1));
    }
    begin_context(before);
    EXPECT_EQ(far, before);
    make_stream();
}

static int make_pool(cenote_pool **made)
{
    cenote_options options = scene_options();
    options.announced = announced;
    return kind <= KEPT_PRIMARY ? cenote_pool_create_in(far, &options, made) : cenote_pool_create(1, &options, made);
}

static void *own[2]; /* live blocks, the second is pinned */
static bool is_immortal; /* the stream */

static void *take_own(CUstream of)
{
    void *block = NULL;
    far_enter();
    DONE(cenote_alloc(pool, BYTES, of, &block));
    far_leave();
    return block;
}

static void own_blocks(void)
{
    own[0] = take_own(stream);
    own[1] = take_own(stream);
    DONE(cenote_pin(own[1], BYTES));
    DONE(cenote_free(take_own(stream)));
}

/* Those of a reset context end with their pool, as its streams do. */
static void give_own(void)
{
    if (kind == OWN && own[1])
        DONE(cenote_unpin(own[1], BYTES));
    for (int i = 0; i < 2; i++) {
        if (kind == OWN && own[i])
            DONE(cenote_free(own[i]));
        own[i] = NULL;
    }
    if (kind == OWN && !is_immortal)
        DONE(cenote_stream_retire(pool, stream));
    is_immortal = false;
}

static void own_immortal_stream(void)
{
    DONE(cenote_stream_set_immortal(pool, stream));
    is_immortal = true;
    own_blocks();
}

static void own_fence(void)
{
    own_immortal_stream();
    far_enter();
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cenote_pool_trim(pool, 0, 0));
    far_leave();
}

static void own_default_stream(void)
{
    void *block = take_own(NULL);
    own[0] = take_own(CU_STREAM_PER_THREAD);
    far_enter();
    DONE(sim_launch_wait(NULL, 10 * MSEC));
    far_leave();
    DONE(cenote_free(block));
}

static void own_capture(void)
{
    DONE(cenote_group_create(pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &graph));
    far_enter();
    DONE(cenote_capture_begin(NULL, graph, stream));
    far_leave();
}

static void own_import(void)
{
    cenote_share share;
    left = take_one(&scene, BYTES).at;
    DONE(cenote_export(left, &share));
    DONE(cenote_pool_import(pool, &share, sizeof share, &imported));
}

/* It is of the primary context. */
static void own_pinned_memory(void)
{
    if (kind != OWN)
        pinned_memory();
}

static void forget_own_pinned_memory(void)
{
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
}

static void forget_capture(void)
{
    DONE(cenote_capture_end(NULL, graph, stream)); /* by the handle: the stream has ended with its context */
    DONE(cenote_group_destroy(graph));
}

static const struct row own_rows[] = {
    {"blocks", own_blocks, NULL},
    {"an immortal stream", own_immortal_stream, NULL},
    {"a fence", own_fence, NULL},
    {"default streams", own_default_stream, NULL},
    {"a capture", own_capture, forget_capture},
    {"an import for the pool", own_import, forget_block},
    {"an import for the device", an_import, forget_import},
    {"pinned memory", own_pinned_memory, forget_own_pinned_memory},
};

#define OWN_ROWS (sizeof own_rows / sizeof own_rows[0])

/* The stream is late with the block: it comes back when the stream is done, and not before. */
static void expect_the_pool_serves(void)
{
    CUstream second;
    far_enter();
    DONE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    struct held block, next;
    EXPECT(held_take(&block, pool, BYTES, second));
    DONE(cuStreamSynchronize(second));
    held_linger(&block, stream);
    DONE(cenote_use(block.at, stream));
    DONE(cenote_free(block.at));
    for (int i = 0; i < 5; i++) {
        EXPECT(held_take(&next, pool, BYTES, second));
        held_give(&next);
    }
    DONE(cenote_stream_retire(pool, stream));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_check(pool));
    DONE(cenote_stream_retire(pool, second));
    DONE(cuStreamDestroy(second));
    far_leave();
    EXPECT_EQ(sim_mismatches(), 0);
}

/* A pool of the next context waits for the end of the one before: what it hands out might have the addresses of blocks that are freed there. */
static void expect_the_lost_pool_stands_in_the_way(void)
{
    void *block;
    cenote_pool *next;
    EXPECT_EQ(cenote_alloc(pool, 90 * MIB, stream, &block), CENOTE_DEVICE_LOST); /* that asks the driver */
    DONE(make_pool(&next));
    EXPECT_EQ(cenote_alloc(next, BYTES, stream, &block), CENOTE_DEVICE_LOST);
    DONE(cenote_pool_destroy(next));
}

static void own_row(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    options.announced = announced;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    begin_context(NULL);
    make_stream();
    DONE(make_pool(&pool));
    for (int life = 0; life < LIVES; life++) {
        the_row->remember();
        if (kind != OWN)
            end_context();
        if (the_row->forget)
            the_row->forget();
        if (kind != OWN)
            expect_the_lost_pool_stands_in_the_way();
        give_own();
        DONE(cenote_pool_destroy(pool));
        if (kind == OWN)
            end_context();
        DONE(make_pool(&pool));
        expect_the_pool_serves();
    }
    DONE(cenote_pool_destroy(pool));
    scene_destroy_pool(&scene);
    DONE(cenote_host_close());
    far_enter();
    DONE(cuStreamDestroy(stream));
    far_leave();
    DONE(kind == OWN ? cuCtxDestroy(far) : cuDevicePrimaryCtxRelease(1));
    scene_close(&scene);
}

CASE(the_context_of_a_pool_ends)
{
    for (kind = OWN; kind < KINDS; kind++)
        for (size_t i = 0; i < 2 * OWN_ROWS; i++) {
            the_row = &own_rows[i / 2];
            announced = i % 2;
            int status = status_of(own_row);
            if (status)
                fprintf(stderr, "%s, %s, context %d\n", the_row->name, announced ? "announced" : "announced:0", kind);
            EXPECT_EQ(status, 0);
        }
}

PROCESSES_MAIN("what is remembered of a context")
