/*
 * test_green.c: green contexts: streams that run on a part of the device's multiprocessors, made as flashinfer, SGLang and PyTorch make them, and
 * the default stream of a thread whose current context is a green one. Their work is covered by what covers the primary context.
 */
#include "driver/device.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)

struct part {
    CUgreenCtx green;
    CUcontext  context;
    CUstream   stream;
};

static struct part part_of(CUdevResource *resource, int device)
{
    struct part p = {0};
    CUdevResourceDesc described;
    DONE(cuDevResourceGenerateDesc(&described, resource, 1));
    DONE(cuGreenCtxCreate(&p.green, described, device, CU_GREEN_CTX_DEFAULT_STREAM));
    DONE(cuCtxFromGreenCtx(&p.context, p.green));
    DONE(cuGreenCtxStreamCreate(&p.stream, p.green, CU_STREAM_NON_BLOCKING, 0));
    return p;
}

/* `count` groups of equal size, and what remains. */
static void split_device(struct part *parts, unsigned count, unsigned least, int device)
{
    CUdevResource whole, groups[4], rest;
    DONE(cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, least));
    for (unsigned i = 0; i < count; i++)
        parts[i] = part_of(&groups[i], device);
    parts[count] = part_of(&rest, device);
}

static void split(struct part *parts, unsigned count, unsigned least)
{
    split_device(parts, count, least, 0);
}

static void end_part(struct part *p)
{
    DONE(cuStreamDestroy(p->stream));
    DONE(cuGreenCtxDestroy(p->green));
}

/* A long look at the contents on one stream, then the memory is wanted on another: it comes when the look is over, not before. */
static void hand_over(struct scene *scene, CUstream from, CUstream to)
{
    struct held held, next;
    REQUIRE(held_take(&held, scene->pool, CARD - 4 * MIB, from));
    held_linger(&held, from);
    DONE(cenote_free(held.at));
    REQUIRE(held_take(&next, scene->pool, CARD - 4 * MIB, to));
    held_give(&next);
    scene_judge(scene);
}

/* flashinfer: split_device_green_ctx. */
CASE(streams_of_equal_parts)
{
    struct scene scene;
    struct part parts[3];
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    split(parts, 2, 16);
    hand_over(&scene, parts[0].stream, parts[1].stream);
    hand_over(&scene, parts[2].stream, scene.stream[A]);
    hand_over(&scene, scene.stream[A], parts[2].stream);
    for (int i = 0; i < 3; i++)
        end_part(&parts[i]);
    scene_close(&scene);
}

/* SGLang: create_greenctx_stream_by_value, a green context split once more; and its way on drivers that cannot create a stream in one. */
CASE(a_part_of_a_part)
{
    struct scene scene;
    struct part outer, inner[2];
    CUdevResource whole, group, groups[2];
    CUcontext popped;
    CUstream pushed;
    unsigned count = 1;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    DONE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevSmResourceSplitByCount(&group, &count, &whole, NULL, 0, 64));
    outer = part_of(&group, 0);
    DONE(cuGreenCtxGetDevResource(outer.green, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevSmResourceSplitByCount(&groups[0], &count, &whole, &groups[1], 0, 40));
    inner[0] = part_of(&groups[0], 0);
    inner[1] = part_of(&groups[1], 0);
    DONE(cuCtxPushCurrent(inner[1].context));
    DONE(cuStreamCreateWithPriority(&pushed, CU_STREAM_NON_BLOCKING, -1));
    DONE(cuCtxPopCurrent(&popped));
    hand_over(&scene, inner[0].stream, inner[1].stream);
    hand_over(&scene, pushed, inner[0].stream);
    hand_over(&scene, inner[0].stream, pushed);
    DONE(cuStreamDestroy(pushed));
    for (int i = 0; i < 2; i++)
        end_part(&inner[i]);
    end_part(&outer);
    scene_close(&scene);
}

/* A block that a stream of a green context uses waits for it, also when the stream is gone by then. */
CASE(blocks_that_a_part_uses)
{
    struct scene scene;
    struct part parts[2];
    struct held held, next;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    split(parts, 1, 16);
    for (int i = 0; i < 2; i++) {
        REQUIRE(held_take(&held, scene.pool, CARD - 4 * MIB, scene.stream[A]));
        order(scene.stream[A], parts[i].stream);
        held_linger(&held, parts[i].stream);
        DONE(cenote_use(held.at, parts[i].stream));
        if (i)
            DONE(cenote_stream_set_immortal(scene.pool, parts[i].stream));
        DONE(cenote_free(held.at));
        if (!i)
            end_part(&parts[0]);
        REQUIRE(held_take(&next, scene.pool, CARD - 4 * MIB, scene.stream[A]));
        held_give(&next);
        scene_judge(&scene);
    }
    end_part(&parts[1]);
    scene_close(&scene);
}

/* The NULL stream is that of the thread's current context: here one of the device's, there one of its part. */
CASE(default_streams_of_the_whole_and_of_a_part)
{
    CUstream names[] = {NULL, CU_STREAM_LEGACY};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        struct part parts[2];
        struct held held, next;
        cenote_block block;
        scene_open(&scene, CARD);
        sim_set_lag(MSEC);
        split(parts, 1, 16);
        REQUIRE(held_take(&held, scene.pool, 20 * MIB, names[i]));
        held_linger(&held, NULL);
        DONE(cenote_free(held.at));
        DONE(cuCtxPushCurrent(parts[0].context));
        REQUIRE(held_take(&next, scene.pool, 20 * MIB, names[i]));
        DONE(cenote_find(next.at, &block));
        EXPECT(block.stream_id != 1ull << 62);
        held_linger(&next, names[i]);
        DONE(cenote_free(next.at));
        REQUIRE(held_take(&held, scene.pool, 20 * MIB, names[!i])); /* in the order of the part */
        EXPECT_EQ(held.at, next.at);
        held_give(&held);
        DONE(cuCtxPopCurrent(NULL));
        REQUIRE(held_take(&held, scene.pool, 20 * MIB, names[i]));
        EXPECT(!held_overlap(&held, &next));
        held_give(&held);
        scene_judge(&scene);
        hand_over(&scene, NULL, parts[0].stream);
        for (int k = 0; k < 2; k++)
            end_part(&parts[k]);
        scene_close(&scene);
    }
}

/* Two green contexts one after the other, under one handle perhaps: two default streams. What a retired one leaves serves the next. */
CASE(default_streams_of_parts_that_come_and_go)
{
    struct scene scene;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    for (int i = 0; i < 12; i++) {
        struct part parts[2];
        struct held held;
        split(parts, 1, 16);
        DONE(cuCtxPushCurrent(parts[0].context));
        REQUIRE(held_take(&held, scene.pool, 12 * MIB, NULL));
        held_linger(&held, NULL);
        DONE(cenote_free(held.at));
        if (i % 2)
            DONE(cenote_stream_retire(scene.pool, NULL));
        DONE(cuCtxPopCurrent(NULL));
        for (int k = 0; k < 2; k++)
            end_part(&parts[k]);
    }
    scene_judge(&scene);
    EXPECT(scene_stats(scene.pool).arenas < 12);
    scene_close(&scene);
}

/* A block of another stream, used on the default stream of a part: cenote_use means the part's, too. */
CASE(blocks_that_the_default_stream_of_a_part_uses)
{
    struct scene scene;
    struct part parts[2];
    struct held held, next;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    split(parts, 1, 16);
    REQUIRE(held_take(&held, scene.pool, CARD - 4 * MIB, scene.stream[A]));
    DONE(cuCtxPushCurrent(parts[0].context));
    order(scene.stream[A], NULL);
    held_linger(&held, NULL);
    DONE(cenote_use(held.at, NULL));
    DONE(cenote_stream_set_immortal(scene.pool, NULL)); /* says nothing */
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_free(held.at));
    REQUIRE(held_take(&next, scene.pool, CARD - 4 * MIB, scene.stream[A]));
    held_give(&next);
    scene_judge(&scene);
    for (int k = 0; k < 2; k++)
        end_part(&parts[k]);
    scene_close(&scene);
}

static const unsigned providers[] = {CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN};

/* The driver's own pools would order memory behind the primary's default stream. */
CASE(default_streams_of_parts_and_segments)
{
    for (int i = 0; i < 3; i++) {
        struct scene scene;
        struct part parts[2];
        struct held held;
        struct sim_shape shape = scene_card(256 * MIB);
        cenote_options options = scene_options();
        options.provider = providers[i];
        scene_open_with(&scene, &shape, &options);
        sim_set_lag(MSEC);
        split(parts, 1, 16);
        fault_arm("cuMemAllocFromPoolAsync", 1, CUDA_ERROR_UNKNOWN, true);
        DONE(cuCtxPushCurrent(parts[0].context));
        for (int k = 0; k < 3; k++) {
            REQUIRE(held_take(&held, scene.pool, (size_t)(k + 1) * 30 * MIB, NULL));
            held_give(&held);
        }
        DONE(cuCtxPopCurrent(NULL));
        fault_disarm();
        scene_judge(&scene);
        for (int k = 0; k < 2; k++)
            end_part(&parts[k]);
        scene_close(&scene);
    }
}

/* cenote_use_on_device means the default stream of the part of that device that is current. */
CASE(a_part_of_another_device)
{
    for (int named = 0; named < 2; named++) {
        struct scene scene;
        struct part parts[2];
        struct held held, next;
        CUcontext other;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        shape.devices = 2;
        scene_open_with(&scene, &shape, &options);
        sim_set_lag(MSEC);
        DONE(cuDevicePrimaryCtxRetain(&other, 1));
        split_device(parts, 1, 16, 1);
        DONE(cenote_pool_grant(scene.pool, 1));
        REQUIRE(held_take(&held, scene.pool, CARD - 4 * MIB, scene.stream[A]));
        DONE(cuCtxSynchronize());
        DONE(cuCtxPushCurrent(parts[0].context));
        held_linger(&held, named ? NULL : parts[0].stream);
        DONE(named ? cenote_use_on_device(held.at, 1, NULL) : cenote_use(held.at, parts[0].stream));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_free(held.at));
        REQUIRE(held_take(&next, scene.pool, CARD - 4 * MIB, scene.stream[A]));
        held_give(&next);
        scene_judge(&scene);
        scene_destroy_pool(&scene);
        for (int k = 0; k < 2; k++)
            end_part(&parts[k]);
        DONE(cuDevicePrimaryCtxRelease(1));
        scene_close(&scene);
    }
}

/* A context beside the primary one is none of its parts: nothing that cenote waits for covers its streams. */
CASE(contexts_beside_the_primary_one_are_refused)
{
    struct scene scene;
    CUcontext beside;
    CUstream stream;
    void *block;
    scene_open(&scene, CARD);
    DONE(cuCtxCreate(&beside, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, stream, &block), CENOTE_INVALID);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, NULL, &block), CENOTE_INVALID); /* its default stream */
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxDestroy(beside));
    scene_close(&scene);
}

/* A driver of CUDA 12.4 has green contexts, and does not say of a stream's context that it is one. */
CASE(a_driver_that_does_not_tell_them_apart)
{
    struct scene scene;
    struct part parts[2];
    void *block;
    int error;
    scene_open(&scene, CARD);
    struct device *device = device_open(0, &error);
    REQUIRE(device);
    const struct driver *real = device->driver;
    struct driver old = *real;
    old.cuStreamGetCtx_v2 = NULL;
    device->driver = &old;
    split(parts, 1, 16);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, parts[0].stream, &block), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "belongs to another context") != NULL);
    DONE(cuCtxPushCurrent(parts[0].context));
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, NULL, &block), CENOTE_INVALID);
    DONE(cuCtxPopCurrent(NULL));
    device->driver = real;
    device_close(device);
    for (int k = 0; k < 2; k++)
        end_part(&parts[k]);
    scene_close(&scene);
}

SCENES_MAIN("green contexts")
