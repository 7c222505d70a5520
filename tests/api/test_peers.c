/*
 * test_peers.c: kernels of one device on memory of another (cenote_pool_grant). Device 1 looks at memory of device 0's pool with kernels
 * of its own: without access that ends its context, so whether it may is asked of the driver's books first.
 * Not: streams of other devices that a block is used on (tests/hazard/).
 */
#include "driver/driver.h"
#include "tests/api/peers.h"

/* Does every byte of it let device 1 in? Mapped memory only. */
static bool is_open_to(int device, const void *at, size_t bytes)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    unsigned long long flags = 0;
    bool open = true;
    for (size_t i = 0; i < bytes; i += MIB) {
        DONE(cuMemGetAccess(&flags, &location, device_address((const char *)at + i)));
        open = open && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return open;
}

/* Device 1 reads the block and writes something new to it. */
static void visit(struct peers *p, struct held *held)
{
    DONE(cuCtxSynchronize());
    DONE(cuCtxPushCurrent(p->other));
    held_expect(held, p->stream);
    held->pattern = ~held->pattern;
    held_launch(held, sim_launch_fill, p->stream);
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
    held_expect(held, held->stream);
}

CASE(memory_that_is_there_and_memory_that_comes)
{
    for (int i = 0; i < 3; i++) {
        struct peers p;
        struct held before, after;
        open_peers(&p, providers[i], 2);
        REQUIRE(held_take(&before, p.scene.pool, 5 * MIB, p.scene.stream[A]));
        if (providers[i] == CENOTE_VMM)
            EXPECT(!is_open_to(1, before.at, before.bytes));
        DONE(cenote_pool_grant(p.scene.pool, 1));
        DONE(cenote_pool_grant(p.scene.pool, 1)); /* again */
        visit(&p, &before);
        REQUIRE(held_take(&after, p.scene.pool, 20 * MIB, p.scene.stream[B])); /* from a region or segment of its own */
        visit(&p, &after);
        held_give(&before);
        held_give(&after);
        close_peers(&p);
    }
}

/* What the refusal looks like: the other device's context is lost. */
CASE(without_a_grant_there_is_no_access)
{
    for (int i = 0; i < 3; i++) {
        struct peers p;
        struct held held;
        open_peers(&p, providers[i], 2);
        REQUIRE(held_take(&held, p.scene.pool, 5 * MIB, p.scene.stream[A]));
        DONE(cuCtxSynchronize());
        sim_set_quiet(true);
        DONE(cuCtxPushCurrent(p.other));
        sim_launch_touch(p.stream, device_address(held.at), 8);
        EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
        DONE(cuCtxPopCurrent(NULL));
        sim_set_quiet(false);
        DONE(cenote_free(held.at));
        DONE(cenote_pool_destroy(p.scene.pool));
        p.scene.pool = NULL;
        sim_reset(NULL);
        scene_is_open = false;
    }
}

CASE(old_aliases_are_opened_too)
{
    struct peers p;
    struct held hole, kept, wide, again;
    open_peers(&p, CENOTE_VMM, 2);
    REQUIRE(held_take(&hole, p.scene.pool, 6 * MIB, p.scene.stream[A]));
    REQUIRE(held_take(&kept, p.scene.pool, 2 * MIB, p.scene.stream[A]));
    held_give(&hole);
    REQUIRE(held_take(&wide, p.scene.pool, 10 * MIB, p.scene.stream[A]));
    EXPECT(scene_stats(p.scene.pool).pages_aliased >= 3);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    EXPECT(is_open_to(1, hole.at, hole.bytes));
    visit(&p, &wide);
    visit(&p, &kept);
    held_give(&wide);
    uint64_t created = scene_stats(p.scene.pool).pages_created;
    REQUIRE(held_take(&again, p.scene.pool, 6 * MIB, p.scene.stream[A]));
    EXPECT_EQ(again.at, hole.at); /* the old place works again, without a driver call */
    EXPECT_EQ(scene_stats(p.scene.pool).pages_created, created);
    visit(&p, &again);
    held_give(&again);
    held_give(&kept);
    close_peers(&p);
}

/* Pages that were moved, given back and taken again; regions that come later; private groups. */
CASE(whatever_is_mapped_later_is_open)
{
    struct peers p;
    struct held held, wide;
    cenote_group *group;
    void *block;
    open_peers(&p, CENOTE_VMM, 3);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    DONE(cenote_pool_grant(p.scene.pool, 2));
    for (int round = 0; round < 3; round++) {
        for (size_t bytes = MIB; bytes <= 32 * MIB; bytes *= 2) {
            REQUIRE(held_take(&held, p.scene.pool, bytes, p.scene.stream[round]));
            visit(&p, &held);
            EXPECT(is_open_to(2, held.at, held.bytes));
            held_give(&held);
        }
        if (round == 1)
            DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    }
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&wide, p.scene.pool, 60 * MIB, p.scene.stream[C])); /* harvested from the others */
    visit(&p, &wide);
    held_give(&wide);
    DONE(cuCtxSynchronize());
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 4 * MIB, 512, p.scene.stream[A], &block));
    held = held_of(block, 4 * MIB, p.scene.stream[A]);
    visit(&p, &held);
    held_give(&held);
    DONE(cenote_group_destroy(group));
    close_peers(&p);
}

/* A pool of pages opens contexts for them: of a group that comes after the grant, and of one that was there before. */
CASE(plain_groups_of_a_pool_of_pages_are_open)
{
    for (int after = 0; after < 2; after++) {
        struct peers p;
        cenote_group *group = NULL;
        struct held held, pages;
        void *block;
        open_peers(&p, CENOTE_VMM, 2);
        if (after)
            DONE(cenote_pool_grant(p.scene.pool, 1));
        DONE(cenote_group_create(p.scene.pool, "plain", CENOTE_GROUP_PLAIN, NULL, &group));
        DONE(group_alloc(group, 4 * MIB, 512, p.scene.stream[A], &block));
        held = held_of(block, 4 * MIB, p.scene.stream[A]);
        if (!after)
            DONE(cenote_pool_grant(p.scene.pool, 1));
        visit(&p, &held);
        REQUIRE(held_take(&pages, p.scene.pool, 4 * MIB, p.scene.stream[A]));
        visit(&p, &pages);
        held_give(&pages);
        held_give(&held);
        DONE(cenote_group_destroy(group));
        close_peers(&p);
    }
}

/* An async pool's private groups have memory of cuMemAlloc. */
CASE(private_groups_of_an_async_pool_are_open)
{
    struct peers p;
    cenote_group *group;
    void *block;
    open_peers(&p, CENOTE_ASYNC, 2);
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 4 * MIB, 512, p.scene.stream[A], &block));
    struct held held = held_of(block, 4 * MIB, p.scene.stream[A]);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    visit(&p, &held);
    held_give(&held);
    DONE(cenote_group_destroy(group));
    close_peers(&p);
}

CASE(memory_of_the_program_stays_as_it_is)
{
    static const cenote_source own = {take_source, give_source, NULL};
    struct peers p;
    cenote_group *group;
    void *block;
    open_peers(&p, CENOTE_VMM, 2);
    DONE(cenote_group_create(p.scene.pool, "own", 0, &own, &group));
    DONE(group_alloc(group, 4 * MIB, 512, p.scene.stream[A], &block));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    close_peers(&p);
}

CASE(mistakes_are_told)
{
    struct peers p;
    open_peers(&p, CENOTE_VMM, 2);
    EXPECT_EQ(cenote_pool_grant(NULL, 1), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, 0), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "its own") != NULL);
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, 2), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, -1), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, 1 << 20), CENOTE_NO_DEVICE);
    close_peers(&p);
}

CASE(no_access_to_what_is_guarded)
{
    struct peers p;
    open_peers(&p, CENOTE_GUARD, 2);
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, 1), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "guard") != NULL);
    close_peers(&p);
}

/* The program has let the other device in before, as PyTorch does at a first copy between two. */
CASE(a_context_that_is_let_in_already)
{
    struct peers p;
    struct held held;
    open_peers(&p, CENOTE_PLAIN, 2);
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuCtxEnablePeerAccess(p.scene.context, 0));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    REQUIRE(held_take(&held, p.scene.pool, 3 * MIB, p.scene.stream[A]));
    visit(&p, &held);
    held_give(&held);
    close_peers(&p);
}

/* The numbers of regions that are gone are passed over. */
CASE(regions_that_have_gone)
{
    struct peers p;
    struct held held[2];
    open_peers(&p, CENOTE_VMM, 2);
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&held[i], p.scene.pool, 5 * MIB, p.scene.stream[i]));
    held_give(&held[0]);
    DONE(cuCtxSynchronize());
    DONE(cenote_stream_retire(p.scene.pool, p.scene.stream[0]));
    DONE(cenote_pool_trim(p.scene.pool, 5 * MIB, CENOTE_TRIM_WAIT));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    visit(&p, &held[1]);
    held_give(&held[1]);
    close_peers(&p);
}

/* What a failed allocation could not undo lies in no block: the grant passes over it. */
CASE(slots_that_could_not_be_undone)
{
    int refused = 0;
    for (uint64_t nth = 1; nth < 20; nth++) {
        struct peers p;
        struct held held;
        void *block = NULL;
        open_peers(&p, CENOTE_VMM, 2);
        REQUIRE(held_take(&held, p.scene.pool, 5 * MIB, p.scene.stream[A]));
        fault_arm(NULL, nth, CUDA_ERROR_UNKNOWN, true);
        int error = cenote_alloc(p.scene.pool, 6 * MIB, p.scene.stream[A], &block);
        fault_disarm();
        refused += error != 0;
        DONE(cenote_pool_grant(p.scene.pool, 1));
        visit(&p, &held);
        DONE(cenote_free(block));
        held_give(&held);
        close_peers(&p);
        if (!error)
            break;
    }
    EXPECT(refused >= 5 && refused < 19);
}

/* Each call about a stream of another device is refused once: the use is noted, or is refused and works the next time. */
CASE(another_device_that_cannot_be_asked)
{
    int refused = 0;
    bool fired = true;
    for (uint64_t nth = 1; fired && nth < 40; nth++) {
        struct peers p;
        struct held held;
        open_peers(&p, CENOTE_VMM, 2);
        REQUIRE(held_take(&held, p.scene.pool, 3 * MIB, p.scene.stream[A]));
        fault_arm(NULL, nth, CUDA_ERROR_UNKNOWN, false);
        refused += cenote_use(held.at, p.stream) != CENOTE_OK;
        fired = fault_fired();
        fault_disarm();
        DONE(cenote_use(held.at, p.stream));
        held_give(&held);
        close_peers(&p);
    }
    EXPECT(!fired && refused >= 3);
}

/* Every call that takes memory on a stream refuses the other device's, whatever there is that could serve it at once. */
static void expect_refusals(struct peers *p, cenote_group *group, void *free_place)
{
    void *block = NULL;
    for (size_t bytes = 700; bytes <= 7 * MIB; bytes *= 100) {
        EXPECT_EQ(cenote_alloc(p->scene.pool, bytes, p->stream, &block), CENOTE_INVALID);
        EXPECT(strstr(cenote_message(), "of device 1") != NULL);
        EXPECT_EQ(group_alloc(group, bytes, 512, p->stream, &block), CENOTE_INVALID);
    }
    EXPECT_EQ(alloc_at(p->scene.pool, NULL, free_place, 3 * MIB, p->stream), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "of device 1") != NULL);
    EXPECT_EQ(cenote_capture_begin(NULL, group, p->stream), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "of device 1") != NULL);
}

/* A stream takes memory of the pool, leaves it empty, and is retired. */
static void *leave_an_arena(struct peers *p)
{
    CUstream stream;
    void *small, *large;
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_alloc(p->scene.pool, 700, stream, &small));
    DONE(cenote_alloc(p->scene.pool, 3 * MIB, stream, &large));
    DONE(cenote_free(small));
    DONE(cenote_free(large));
    DONE(cenote_stream_retire(p->scene.pool, stream));
    DONE(cuStreamDestroy(stream));
    DONE(cenote_pool_trim(p->scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* nothing goes, but it is known that the device is done */
    return large;
}

/* An arena that is free to be taken over has all it needs in place; while a capture is open the driver is asked all the same. */
CASE(a_stream_of_another_device_gets_no_arena)
{
    struct peers p;
    cenote_group *group;
    void *block;
    open_peers(&p, CENOTE_VMM, 2);
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    expect_refusals(&p, group, (void *)(uintptr_t)(4 * MIB));
    expect_refusals(&p, group, leave_an_arena(&p));

    DONE(cenote_capture_begin(p.scene.pool, group, p.scene.stream[A]));
    expect_refusals(&p, group, leave_an_arena(&p));
    DONE(cenote_alloc(p.scene.pool, 3 * MIB, p.scene.stream[A], &block)); /* its own streams may come as ever */
    DONE(cenote_free(block));
    DONE(cenote_capture_end(p.scene.pool, group, p.scene.stream[A]));
    expect_refusals(&p, group, leave_an_arena(&p)); /* nothing was remembered */

    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream));
    expect_refusals(&p, group, leave_an_arena(&p));
    DONE(cenote_group_destroy(group));
    close_peers(&p);
}

/* With so many arenas a new stream takes over an idle one. */
CASE(a_stream_of_another_device_takes_over_no_idle_arena)
{
    enum { MANY = 80 };
    struct peers p;
    CUstream streams[MANY];
    void *block = NULL;
    open_peers(&p, CENOTE_VMM, 2);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i <= MANY; i++) { /* the first again: what is in place lies in the arena that is taken over first */
        DONE(cenote_alloc(p.scene.pool, 3 * MIB, streams[i % MANY], &block));
        DONE(cenote_free(block));
        DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, i % MANY ? 0 : CENOTE_TRIM_WAIT));
    }
    EXPECT_EQ(cenote_alloc(p.scene.pool, 3 * MIB, p.stream, &block), CENOTE_INVALID);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamDestroy(streams[i]));
    close_peers(&p);
}

/* The driver does not answer: the stream gets nothing, and is asked after again. One that cannot say it of this stream is believed. */
CASE(a_stream_that_the_driver_does_not_place)
{
    struct peers p;
    void *block = NULL;
    open_peers(&p, CENOTE_VMM, 2);
    leave_an_arena(&p);
    fault_arm("cuStreamGetCtx_v2", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_alloc(p.scene.pool, 700, p.stream, &block), CENOTE_DRIVER);
    EXPECT_EQ(cenote_alloc(p.scene.pool, 700, p.stream, &block), CENOTE_INVALID);
    fault_arm("cuStreamGetCtx_v2", 1, CUDA_ERROR_NOT_SUPPORTED, false);
    DONE(cenote_alloc(p.scene.pool, 700, p.scene.stream[B], &block));
    fault_disarm();
    DONE(cenote_free(block));
    close_peers(&p);
}

/* A block that two other devices use waits for both, and the one that was done first is not asked again. */
CASE(two_other_devices_that_are_done_one_after_the_other)
{
    struct peers p;
    struct held held;
    CUcontext third;
    CUstream slow;
    open_peers(&p, CENOTE_VMM, 3);
    DONE(cuDevicePrimaryCtxRetain(&third, 2));
    DONE(cuCtxPushCurrent(third));
    DONE(cuStreamCreate(&slow, CU_STREAM_NON_BLOCKING));
    sim_set_lag(MSEC);
    DONE(sim_launch_wait(slow, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    REQUIRE(held_take(&held, p.scene.pool, 3 * MIB, p.scene.stream[A]));
    DONE(cenote_use_on_device(held.at, 2, slow));
    DONE(cenote_use_on_device(held.at, 1, p.stream)); /* is looked at first */
    held_give(&held);
    for (int i = 0; i < 3; i++) {
        sim_advance(2 * MSEC);
        DONE(cenote_pool_trim(p.scene.pool, 0, 0));
        EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    }
    sim_advance(20 * MSEC);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    scene_destroy_pool(&p.scene);
    DONE(cuCtxPushCurrent(third));
    DONE(cuStreamDestroy(slow));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(2));
    DONE(cenote_pool_create(0, NULL, &p.scene.pool));
    close_peers(&p);
}

CASE(a_device_that_cannot_reach_the_other)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct scene scene;
    shape.devices = 2;
    shape.peers = false;
    scene_open_with(&scene, &shape, &options);
    EXPECT_EQ(cenote_pool_grant(scene.pool, 1), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "device 1 cannot reach the memory of device 0") != NULL);
    scene_close(&scene);
}

/* A refusal half way: no device has access to a part, and the next call succeeds. */
CASE(all_or_nothing)
{
    static const char *const call[] = {"cuMemSetAccess", "cuMemPoolSetAccess", "cuCtxEnablePeerAccess", "cuCtxEnablePeerAccess"};
    static const unsigned of[] = {CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN, CENOTE_ASYNC};
    for (int i = 0; i < 4; i++)
        for (uint64_t nth = 1; nth <= (i ? 1 : 3); nth++) {
            struct peers p;
            struct held held[3];
            open_peers(&p, of[i], 2);
            for (int stream = 0; stream < SCENE_STREAMS; stream++) /* each in a region of its own */
                REQUIRE(held_take(&held[stream], p.scene.pool, 5 * MIB, p.scene.stream[stream]));
            fault_arm(call[i], nth, CUDA_ERROR_OUT_OF_MEMORY, false);
            EXPECT_EQ(cenote_pool_grant(p.scene.pool, 1), CENOTE_DRIVER);
            EXPECT_EQ(fault_fired(), 1);
            fault_disarm();
            for (int stream = 0; i == 0 && stream < SCENE_STREAMS; stream++)
                EXPECT(!is_open_to(1, held[stream].at, held[stream].bytes));
            DONE(cenote_pool_grant(p.scene.pool, 1));
            for (int stream = 0; stream < SCENE_STREAMS; stream++) {
                visit(&p, &held[stream]);
                held_give(&held[stream]);
            }
            close_peers(&p);
        }
}

/* A stream of device 1 joins a capture of device 0 and leaves it again, while device 1's pool has reasons to ask how far its device got. */
static CUgraph capture_over_both(struct peers *p, cenote_group *near, cenote_group *far, cenote_pool *pool)
{
    CUgraph graph = NULL;
    void *block, *captured;
    CUstream first = p->scene.stream[A];
    DONE(cenote_alloc(pool, 5 * MIB, p->stream, &block));
    DONE(cenote_free(block));
    DONE(cenote_capture_begin(NULL, near, first));
    if (far)
        DONE(cenote_capture_begin(NULL, far, p->stream));
    DONE(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    order(first, p->stream);
    if (far) {
        DONE(cenote_alloc(pool, MIB, p->stream, &captured));
        DONE(cenote_free(captured));
    }
    cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT);
    DONE(cuCtxPushCurrent(p->other));
    cuEventRecord(p->back, p->stream);
    DONE(cuCtxPopCurrent(NULL));
    cuStreamWaitEvent(first, p->back, 0);
    cuStreamEndCapture(first, &graph);
    DONE(cenote_capture_end(NULL, near, first));
    if (far)
        DONE(cenote_capture_end(NULL, far, p->stream));
    return graph;
}

/* It is announced on each device whose streams join: what a pool of another device does would end it. */
CASE(a_capture_over_two_devices)
{
    for (int announced = 0; announced < 2; announced++) {
        struct peers p;
        cenote_pool *pool = NULL;
        cenote_group *near = NULL, *far = NULL;
        cenote_options options = scene_options();
        open_peers(&p, CENOTE_VMM, 2);
        DONE(cenote_pool_create(1, &options, &pool));
        DONE(cenote_group_create(p.scene.pool, "near", CENOTE_GROUP_PRIVATE, NULL, &near));
        DONE(cenote_group_create(pool, "far", CENOTE_GROUP_PRIVATE, NULL, &far));
        DONE(cuCtxPushCurrent(p.other));
        DONE(cuEventCreate(&p.back, CU_EVENT_DISABLE_TIMING));
        DONE(cuCtxPopCurrent(NULL));
        sim_set_quiet(true);
        CUgraph graph = capture_over_both(&p, near, announced ? far : NULL, pool);
        sim_set_quiet(false);
        EXPECT_EQ(graph != NULL, announced);
        if (graph)
            DONE(cuGraphDestroy(graph));
        DONE(cuEventDestroy(p.back));
        DONE(cenote_group_destroy(near));
        DONE(cenote_group_destroy(far));
        DONE(cenote_pool_destroy(pool));
        if (announced) {
            close_peers(&p);
            continue;
        }
        DONE(cenote_pool_destroy(p.scene.pool));
        sim_reset(NULL); /* with the violation */
        scene_is_open = false;
    }
}

SCENES_MAIN("peers")
