/*
 * test_groups.c: groups, captures as the calls pair up, groups that live on a program's own memory, and pins as calls.
 * Not: what replays do to memory (tests/hazard/capture.c), what a pin protects (tests/hazard/pages.c).
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)

CASE(a_group_has_its_own_blocks)
{
    struct scene scene;
    struct held ours, others;
    cenote_group *group = NULL;
    cenote_block found;
    void *block = NULL;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "kv cache", 0, NULL, &group));
    REQUIRE(group != NULL);
    DONE(group_alloc(group, 5 * MIB, 4096, scene.stream[A], &block));
    EXPECT_EQ((uintptr_t)block % 4096, 0);
    ours = held_of(block, 5 * MIB, scene.stream[A]);
    REQUIRE(held_take(&others, scene.pool, 5 * MIB, scene.stream[A]));
    DONE(cenote_find(ours.at, &found));
    EXPECT_EQ(found.group, group);
    EXPECT_EQ(found.pool, scene.pool);
    DONE(cenote_find(others.at, &found));
    EXPECT(!found.group);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 10 * MIB);

    held_give(&others);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    held_give(&ours);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY); /* the group exists */
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(a_group_goes_before_its_blocks)
{
    for (unsigned flags = 0; flags <= CENOTE_GROUP_PRIVATE; flags++) {
        struct scene scene;
        struct held held, whole;
        cenote_group *group = NULL;
        void *block;
        scene_open(&scene, CARD);
        DONE(cenote_group_create(scene.pool, NULL, flags, NULL, &group));
        DONE(group_alloc(group, 5 * MIB, 512, scene.stream[A], &block));
        held = held_of(block, 5 * MIB, scene.stream[A]);
        DONE(cenote_group_destroy(group));
        DONE(cenote_pool_check(scene.pool));
        EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
        held_expect(&held, scene.stream[A]);
        EXPECT(!held_take(&whole, scene.pool, CARD, scene.stream[B]));
        held_give(&held);
        DONE(cuCtxSynchronize());
        REQUIRE(held_take(&whole, scene.pool, CARD, scene.stream[B]));
        held_give(&whole);
        scene_close(&scene);
    }
}

CASE(many_groups_come_and_go)
{
    struct scene scene;
    scene_open(&scene, CARD);
    for (int round = 0; round < 100; round++) {
        cenote_group *group = NULL;
        void *block[2];
        DONE(cenote_group_create(scene.pool, "round", round % 2 ? CENOTE_GROUP_PRIVATE : 0, NULL, &group));
        DONE(group_alloc(group, 3 * MIB, 512, scene.stream[A], &block[0]));
        DONE(group_alloc(group, 700, 512, scene.stream[B], &block[1]));
        DONE(cenote_free(block[0]));
        DONE(cenote_free(block[1]));
        DONE(cenote_group_destroy(group));
    }
    DONE(cenote_pool_check(scene.pool));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    EXPECT_EQ(scene_stats(scene.pool).address_space, 0);
    scene_close(&scene);
}

CASE(captures_pair_up)
{
    struct scene scene;
    cenote_group *open = NULL, *fixed = NULL, *second = NULL;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "open", 0, NULL, &open));
    DONE(cenote_group_create(scene.pool, "fixed", CENOTE_GROUP_PRIVATE, NULL, &fixed));
    DONE(cenote_group_create(scene.pool, "second", CENOTE_GROUP_PRIVATE, NULL, &second));
    EXPECT_EQ(cenote_group_create(scene.pool, "x", 0x80, NULL, &(cenote_group *){NULL}), CENOTE_INVALID);

    EXPECT_EQ(cenote_capture_begin(scene.pool, open, scene.stream[A]), CENOTE_INVALID); /* not private */
    EXPECT_EQ(cenote_capture_end(scene.pool, fixed, scene.stream[A]), CENOTE_CAPTURE);  /* none open */
    DONE(cenote_capture_begin(scene.pool, fixed, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).captures, 1);
    EXPECT_EQ(cenote_capture_begin(scene.pool, fixed, scene.stream[A]), CENOTE_CAPTURE);
    EXPECT_EQ(cenote_capture_begin(scene.pool, second, scene.stream[A]), CENOTE_CAPTURE);
    EXPECT_EQ(cenote_capture_end(scene.pool, second, scene.stream[A]), CENOTE_CAPTURE);
    EXPECT_EQ(cenote_capture_end(scene.pool, fixed, scene.stream[B]), CENOTE_CAPTURE);
    DONE(cenote_capture_begin(scene.pool, second, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).captures, 2);
    EXPECT(cenote_group_destroy(fixed) != CENOTE_OK);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);

    DONE(cenote_capture_end(scene.pool, fixed, scene.stream[A]));
    EXPECT_EQ(cenote_capture_end(scene.pool, fixed, scene.stream[A]), CENOTE_CAPTURE);
    DONE(cenote_capture_end(scene.pool, second, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).captures, 0);
    DONE(cenote_group_destroy(open));
    DONE(cenote_group_destroy(fixed));
    DONE(cenote_group_destroy(second));
    scene_close(&scene);
}

CASE(a_capture_takes_from_its_group)
{
    struct scene scene;
    cenote_group *group = NULL;
    cenote_block found;
    void *captured, *other, *after;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[A], &captured));
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[B], &other));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[A], &after));
    DONE(cenote_find(captured, &found));
    EXPECT_EQ(found.group, group);
    DONE(cenote_find(other, &found));
    EXPECT(!found.group);
    DONE(cenote_find(after, &found));
    EXPECT(!found.group);
    DONE(cenote_free(captured));
    DONE(cenote_free(other));
    DONE(cenote_free(after));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* A source that hands out what the driver gives it, up to `left` bytes, and keeps count. */
struct source {
    cenote_pool *pool;
    size_t left;
    int    taken, given;
};

static void *source_take(size_t bytes, cenote_stream stream, void *arg)
{
    struct source *source = arg;
    CUdeviceptr at;
    cenote_stats stats;
    (void)stream;
    if (bytes > source->left || cenote_pool_stats(source->pool, &stats) || cuMemAlloc(&at, bytes)) /* no lock is held */
        return NULL;
    source->left -= bytes;
    source->taken++;
    return (void *)(uintptr_t)at;
}

static void source_give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    struct source *source = arg;
    (void)stream;
    source->left += bytes;
    source->given += cuMemFree(device_address(memory)) == CUDA_SUCCESS;
}

CASE(a_group_on_memory_of_the_program)
{
    struct scene scene;
    struct held held[8], more;
    cenote_group *group = NULL;
    void *block = NULL;
    scene_open(&scene, CARD);
    struct source source = {scene.pool, 48 * MIB, 0, 0};
    cenote_source with = {source_take, source_give, &source};
    DONE(cenote_group_create(scene.pool, "symmetric", 0, &with, &group));
    for (int i = 0; i < 8; i++) {
        DONE(group_alloc(group, (size_t)(i + 1) * 512 * KIB, 512, scene.stream[i % 2], &block));
        held[i] = held_of(block, (size_t)(i + 1) * 512 * KIB, scene.stream[i % 2]);
    }
    EXPECT(source.taken > 0);
    EXPECT_EQ(group_alloc(group, 49 * MIB, 512, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT(cenote_message()[0] != 0);
    REQUIRE(held_take(&more, scene.pool, 2 * MIB, scene.stream[A])); /* the pool itself does not live on it */
    held_give(&more);
    for (int i = 0; i < 8; i++)
        held_give(&held[i]);
    DONE(cenote_group_destroy(group));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(source.given, source.taken);
    scene_close(&scene);
}

/* A source whose give function asks the group for a block, once: while its first segment goes, the second is on its way as well. */
struct hungry {
    struct source source;
    cenote_group *group;
    cenote_stream stream;
    size_t       wants;
    void         *block;
};

static void *hungry_take(size_t bytes, cenote_stream stream, void *arg)
{
    return source_take(bytes, stream, &((struct hungry *)arg)->source);
}

static void hungry_give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    struct hungry *h = arg;
    size_t wants = h->wants;
    h->wants = 0;
    if (wants)
        EXPECT_EQ(group_alloc(h->group, wants, 512, h->stream, &h->block), CENOTE_OK);
    source_give(memory, bytes, stream, &h->source);
}

/* What is on its way back serves no request, and nothing is put in its place. */
CASE(a_segment_that_is_going_serves_no_request)
{
    struct scene scene;
    struct held held;
    void *blocks[2];
    cenote_stats stats;
    scene_open(&scene, 256 * MIB);
    struct hungry h = {.source = {scene.pool, 100 * MIB, 0, 0}, .stream = scene.stream[A]};
    cenote_source with = {hungry_take, hungry_give, &h};
    DONE(cenote_group_create(scene.pool, "hungry", 0, &with, &h.group));
    for (int i = 0; i < 2; i++)
        DONE(group_alloc(h.group, 20 * MIB, 512, h.stream, &blocks[i]));
    for (int i = 0; i < 2; i++)
        DONE(cenote_free(blocks[i]));
    EXPECT_EQ(h.source.taken, 2);
    h.wants = 20 * MIB;
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(h.block);
    EXPECT_EQ(h.source.taken, 3);
    EXPECT_EQ(h.source.given, 2);
    DONE(cenote_pool_stats(scene.pool, &stats));
    EXPECT_EQ(stats.pages_created, 3);
    held = held_of(h.block, 20 * MIB, h.stream);
    held_give(&held);
    DONE(cenote_group_destroy(h.group));
    scene_close(&scene);
    EXPECT_EQ(h.source.given, 3);
}

/*
 * The memory of a destroyed group serves no other group: it goes back, one segment after the other, before another source is asked for more. Also
 * when the budget for giving segments back is used up, as here by the first segment.
 */
CASE(a_destroyed_group_gives_its_source_back)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_group *first = NULL, *second = NULL;
    void *block[2] = {0};
    shape.charge_cost = true;
    options.harvest_budget = 0;
    scene_open_with(&scene, &shape, &options);
    struct source source = {scene.pool, 48 * MIB, 0, 0}, other = {scene.pool, 48 * MIB, 0, 0};
    cenote_source with = {source_take, source_give, &source}, and_with = {source_take, source_give, &other};
    DONE(cenote_group_create(scene.pool, "first", 0, &with, &first));
    DONE(cenote_group_create(scene.pool, "second", 0, &and_with, &second));
    DONE(group_alloc(first, 10 * MIB, 512, scene.stream[A], &block[0]));
    DONE(cenote_free(block[0]));
    DONE(cuCtxSynchronize());
    for (int i = 0; i < 2; i++)
        DONE(group_alloc(first, 22 * MIB, 512, scene.stream[A], &block[i]));
    EXPECT_EQ(source.given, 1);
    for (int i = 0; i < 2; i++)
        DONE(cenote_free(block[i]));
    DONE(cenote_group_destroy(first));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* learns that the device is done with the blocks, and gives nothing back */
    EXPECT_EQ(source.given, 1);
    DONE(group_alloc(second, 22 * MIB, 512, scene.stream[A], &block[0]));
    EXPECT_EQ(source.given, 3);
    DONE(cenote_free(block[0]));
    DONE(cenote_group_destroy(second));
    scene_close(&scene);
}

/* What a source gives is no block of cenote's, and is given once: an address names one block. */
static void *take_from_group(size_t bytes, cenote_stream stream, void *arg)
{
    void *block = NULL;
    return group_alloc(*(cenote_group **)arg, bytes, 512, stream, &block) ? NULL : block;
}

static void give_to_group(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)stream, (void)arg;
    DONE(cenote_free_sized(memory, bytes));
}

static void *take_the_same(size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream;
    return *(void **)arg;
}

static void give_nothing(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)memory, (void)bytes, (void)stream, (void)arg;
}

CASE(a_source_of_memory_that_cenote_has)
{
    struct scene scene;
    cenote_group *below = NULL, *above = NULL;
    void *block = NULL, *again = NULL, *same;
    CUdeviceptr memory;
    scene_open(&scene, CARD);
    struct source source = {scene.pool, 48 * MIB, 0, 0};
    cenote_source first = {source_take, source_give, &source}, second = {take_from_group, give_to_group, &below},
                  third = {take_the_same, give_nothing, &same};
    DONE(cenote_group_create(scene.pool, "below", 0, &first, &below));
    DONE(cenote_group_create(scene.pool, "above", 0, &second, &above));
    EXPECT_EQ(group_alloc(above, 3 * MIB, 512, scene.stream[A], &block), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "that cenote has already") != NULL);
    EXPECT(source.taken > 0);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0); /* it was given back */
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_group_destroy(above));
    DONE(cenote_group_destroy(below));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(source.given, source.taken);

    DONE(cuMemAlloc(&memory, 40 * MIB));
    same = (void *)(uintptr_t)memory;
    DONE(cenote_group_create(scene.pool, "same", 0, &third, &above));
    DONE(group_alloc(above, 15 * MIB, 512, scene.stream[A], &block));
    EXPECT_EQ(group_alloc(above, 39 * MIB, 512, scene.stream[A], &again), CENOTE_INVALID);
    same = (char *)same + MIB;
    EXPECT_EQ(group_alloc(above, 30 * MIB, 512, scene.stream[A], &again), CENOTE_INVALID);
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(above));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuMemFree(memory));
    scene_close(&scene);
}

CASE(half_a_source)
{
    struct scene scene;
    struct source source = {0};
    cenote_source takes = {source_take, NULL, &source}, gives = {NULL, source_give, &source}, whole = {source_take, source_give, &source};
    cenote_group *group = NULL;
    scene_open(&scene, CARD);
    EXPECT_EQ(cenote_group_create(scene.pool, "g", 0, &takes, &group), CENOTE_INVALID);
    EXPECT_EQ(cenote_group_create(scene.pool, "g", 0, &gives, &group), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "both take and give") != NULL);
    EXPECT_EQ(cenote_group_create(scene.pool, "g", 1u << 30, &whole, &group), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "flags 0x40000000") != NULL);
    EXPECT_EQ(group, NULL);
    scene_close(&scene);
}

/* The last look at the device before a capture finds that its context is lost: there is no capture. */
CASE(a_context_that_is_lost_before_a_capture)
{
    struct scene scene;
    struct held held;
    cenote_group *group = NULL;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    held_give(&held);
    fault_arm("cuEventQuery", 1, CUDA_ERROR_LAUNCH_FAILED, false);
    EXPECT_EQ(cenote_capture_begin(scene.pool, group, scene.stream[A]), CENOTE_DEVICE_LOST);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    EXPECT_EQ(cenote_capture_end(scene.pool, group, scene.stream[A]), CENOTE_CAPTURE);
    DONE(cenote_group_destroy(group));
    cenote_pool_destroy(scene.pool);
    sim_reset(NULL);
    scene_is_open = false;
}

/* The driver does not identify a stream any more: the handle does. */
CASE(captures_end_in_any_order_when_the_context_is_lost)
{
    struct scene scene;
    cenote_group *group[2] = {NULL, NULL};
    scene_open(&scene, CARD);
    for (int i = 0; i < 2; i++) {
        DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group[i]));
        DONE(cenote_capture_begin(scene.pool, group[i], scene.stream[i]));
    }
    fault_arm("cuStreamGetId", 1, CUDA_ERROR_ILLEGAL_ADDRESS, true);
    EXPECT_EQ(cenote_capture_end(scene.pool, group[1], scene.stream[C]), CENOTE_CAPTURE);
    for (int i = 2; i-- > 0;)
        DONE(cenote_capture_end(scene.pool, group[i], scene.stream[i]));
    for (int i = 0; i < 2; i++)
        DONE(cenote_group_destroy(group[i]));
    EXPECT(fault_fired() >= 3);
    fault_disarm();
    cenote_pool_destroy(scene.pool);
    sim_reset(NULL);
    scene_is_open = false;
}

CASE(group_sizes_and_alignments)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *block = &scene;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "g", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 0, 512, scene.stream[A], &block));
    EXPECT(!block);
    EXPECT_EQ(group_alloc(group, 512, 768, scene.stream[A], &block), CENOTE_INVALID);
    EXPECT_EQ(group_alloc(group, SIZE_MAX, 512, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(group_alloc(group, (size_t)1 << 63, 512, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    for (size_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
        DONE(group_alloc(group, 100, alignment, scene.stream[A], &block));
        EXPECT_EQ((uintptr_t)block % alignment, 0);
        DONE(cenote_free(block));
    }
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

static uint64_t reserved_of(cenote_group *group)
{
    uint64_t bytes = 0;
    DONE(cenote_group_reserved(group, &bytes));
    return bytes;
}

/* What is free in one group goes: what is live there, free in another or in none, and what is private, stays. */
CASE(one_group_is_trimmed)
{
    static const enum cenote_provider providers[] = {CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN};
    enum { ONE, OTHER, FIXED, GROUPS };
    for (size_t i = 0; i < sizeof providers / sizeof *providers; i++) {
        struct sim_shape shape = scene_card(GIB);
        cenote_options options = scene_options();
        struct scene scene;
        struct held stays;
        cenote_group *group[GROUPS];
        uint64_t before[GROUPS];
        void *block, *blocks[GROUPS][2];
        options.provider = providers[i];
        scene_open_with(&scene, &shape, &options);
        for (int g = 0; g < GROUPS; g++) {
            DONE(cenote_group_create(scene.pool, "g", g == FIXED ? CENOTE_GROUP_PRIVATE : 0, NULL, &group[g]));
            for (int stream = A; stream <= B; stream++)
                DONE(group_alloc(group[g], 40 * MIB, 512, scene.stream[stream], &blocks[g][stream]));
        }
        for (int g = 0; g < GROUPS; g++)
            for (int stream = A; stream <= B; stream++)
                DONE(cenote_free(blocks[g][stream]));
        DONE(group_alloc(group[ONE], 6 * MIB, 512, scene.stream[A], &block));
        stays = held_of(block, 6 * MIB, scene.stream[A]);
        for (int g = 0; g < GROUPS; g++)
            before[g] = reserved_of(group[g]);
        EXPECT(before[ONE] >= 80 * MIB);
        for (int g = 0; g < GROUPS; g += FIXED)
            DONE(cenote_group_trim(group[g], CENOTE_TRIM_WAIT));
        EXPECT(reserved_of(group[ONE]) >= 6 * MIB && reserved_of(group[ONE]) <= before[ONE] / 2);
        EXPECT_EQ(reserved_of(group[OTHER]), before[OTHER]);
        EXPECT_EQ(reserved_of(group[FIXED]), before[FIXED]);
        EXPECT_EQ(scene_stats(scene.pool).trimmed, before[ONE] - reserved_of(group[ONE]));
        EXPECT_EQ(cenote_group_trim(group[ONE], CENOTE_TRIM_PERIODIC), CENOTE_INVALID);
        DONE(cenote_pool_check(scene.pool));
        held_give(&stays);
        for (int g = 0; g < GROUPS; g++)
            DONE(cenote_group_destroy(group[g]));
        scene_close(&scene);
    }
}

/* Without the flag nothing is waited for: what the device is at work with stays. */
CASE(a_trim_of_a_group_waits_only_if_asked)
{
    struct scene scene;
    struct held held;
    cenote_group *group = NULL;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "g", 0, NULL, &group));
    DONE(group_alloc(group, 20 * MIB, 512, scene.stream[A], &block));
    held = held_of(block, 20 * MIB, scene.stream[A]);
    held_linger(&held, scene.stream[A]);
    DONE(cenote_free(block));
    DONE(cenote_group_trim(group, 0));
    EXPECT_EQ(reserved_of(group), 20 * MIB);
    DONE(cenote_group_trim(group, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved_of(group), 0);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(a_capture_that_takes_no_memory)
{
    struct scene scene;
    cenote_group *fixed = NULL;
    void *block = NULL;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "fixed", CENOTE_GROUP_PRIVATE, NULL, &fixed));
    EXPECT_EQ(cenote_capture_end(scene.pool, NULL, scene.stream[A]), CENOTE_CAPTURE); /* none open */
    DONE(cenote_capture_begin(scene.pool, NULL, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).captures, 1);
    EXPECT_EQ(cenote_capture_begin(scene.pool, NULL, scene.stream[A]), CENOTE_CAPTURE);
    EXPECT_EQ(cenote_capture_begin(scene.pool, fixed, scene.stream[A]), CENOTE_CAPTURE);
    EXPECT_EQ(cenote_capture_end(scene.pool, fixed, scene.stream[A]), CENOTE_CAPTURE); /* not of this group */
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);

    EXPECT_EQ(cenote_alloc(scene.pool, 3000, scene.stream[A], &block), CENOTE_CAPTURE);
    EXPECT(strstr(cenote_message(), "takes no memory"));
    EXPECT(!block);
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[B], &block)); /* another stream */
    DONE(cenote_free(block));
    DONE(group_alloc(fixed, 3000, 512, scene.stream[A], &block)); /* the caller knows why */
    DONE(cenote_free(block));

    DONE(cenote_capture_end(scene.pool, NULL, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).captures, 0);
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(fixed));
    scene_close(&scene);
}

CASE(pins_as_calls)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 9 * MIB, scene.stream[A]));
    EXPECT_EQ(cenote_pin(NULL, 512), CENOTE_NOT_OURS);
    EXPECT(cenote_unpin(held.at, held.bytes) != CENOTE_OK);     /* never pinned */
    EXPECT(cenote_pin(held.at, (size_t)1 << 62) != CENOTE_OK); /* not all of that is ours */
    EXPECT(cenote_pin(held.at, SIZE_MAX) != CENOTE_OK);
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);        /* all or nothing */
    DONE(cenote_pin(held.at + 3 * MIB, 1));                    /* any part of a block, to the byte */
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 1);
    DONE(cenote_unpin(held.at + 3 * MIB, 1));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);
    DONE(cenote_pin(held.at, held.bytes));
    held_give(&held);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(scene_stats(scene.pool).reserved.current >= 9 * MIB);
    DONE(cenote_unpin(held.at, held.bytes));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

SCENES_MAIN("api: groups")
