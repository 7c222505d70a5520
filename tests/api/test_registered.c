/*
 * test_registered.c: what libraries see that register memory (NCCL, UCX, RDMA): of a range the first allocation, and at an address for ever what
 * lay there at registration. An observer does as they do: it asks the driver for the allocation under a block, remembers its id, and counts where
 * a second allocation, or another one, lies there.
 * Not: the notices that a library can follow instead (test_watch.c), pins as calls (test_groups.c).
 */
#include "tests/api/scene.h"

#define CARD       (256 * MIB)
#define STEP       (512 * KIB)   /* at which the observer looks: no allocation of the driver's is smaller */
#define REMEMBERED 4096

#define ONE_ALLOCATION (CENOTE_GROUP_PLAIN | CENOTE_GROUP_WHOLE)

/* ----------------------------------------------------------------------------------------------------------------- the observer */

struct registration {
    CUdeviceptr at;
    unsigned long long id;      /* of the allocation that lay there */
};

static struct registration remembered[REMEMBERED];
static unsigned            count;

static unsigned long long id_at(CUdeviceptr at)
{
    unsigned long long id = 0;
    return cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) ? 0 : id;
}

/* How many allocations lie under the block; a registration reaches the first of them. From now on what lies there is remembered. */
static unsigned register_block(const void *block, size_t bytes)
{
    CUdeviceptr at = device_address(block), end = at + bytes;
    unsigned allocations = 0;
    for (unsigned long long before = 0; at < end; at = at / STEP * STEP + STEP) {
        unsigned long long id = id_at(at);
        allocations += id != before;
        before = id;
        REQUIRE(count < REMEMBERED);
        remembered[count++] = (struct registration){at, id};
    }
    return allocations;
}

/* Addresses under which something else lies now than when they were registered. Nothing there is fine: nothing is written to. */
static unsigned moved(void)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned long long id = id_at(remembered[i].at);
        sum += id && id != remembered[i].id;
    }
    return sum;
}

static void open_observed(struct scene *scene)
{
    scene_open(scene, CARD);
    count = 0;
}

static cenote_group *group_with(const struct scene *scene, unsigned flags)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene->pool, "registered", flags, NULL, &group));
    REQUIRE(group);
    return group;
}

static void *take_of(cenote_group *group, size_t bytes, CUstream stream)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, 512, stream, &block));
    REQUIRE(block);
    return block;
}

/* ------------------------------------------------------------------------------------------------------ one allocation under a block */

/* Blocks larger than a page lie on several, whether these are theirs alone or not: the observer sees the second. */
CASE(how_many_allocations_lie_under_a_block)
{
    static const size_t sizes[] = {512, 3 * MIB, 5 * MIB + 512, 2 * MIB, 41 * MIB};
    static const unsigned flags[] = {0, CENOTE_GROUP_WHOLE, ONE_ALLOCATION, CENOTE_GROUP_PRIVATE | ONE_ALLOCATION};
    for (int i = 0; i < 4; i++) {
        struct scene scene;
        void *block[5];
        unsigned most = 0;
        open_observed(&scene);
        cenote_group *group = group_with(&scene, flags[i]);
        for (int k = 0; k < 5; k++) {
            block[k] = take_of(group, sizes[k], scene.stream[A]);
            unsigned allocations = register_block(block[k], sizes[k]);
            most = allocations > most ? allocations : most;
        }
        if (flags[i] & CENOTE_GROUP_PLAIN)
            EXPECT_EQ(most, 1);
        else
            EXPECT(most >= 21);
        for (int k = 0; k < 5; k++)
            DONE(cenote_free(block[k]));
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* And of no two blocks the same one: what is registered for one says nothing of another. */
CASE(no_allocation_lies_under_two_blocks)
{
    struct scene scene;
    void *block[8];
    open_observed(&scene);
    cenote_group *group = group_with(&scene, ONE_ALLOCATION);
    for (int k = 0; k < 8; k++)
        block[k] = take_of(group, 300 * KIB, scene.stream[A]);
    for (int k = 0; k < 8; k++)
        for (int other = 0; other < k; other++)
            EXPECT(id_at(device_address(block[k])) != id_at(device_address(block[other])));
    for (int k = 0; k < 8; k++)
        DONE(cenote_free(block[k]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* --------------------------------------------------------------------------------------------------------------- what lies there stays */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* All that is to be had, on another stream, and back. */
static void others_take_all(const struct scene *scene, size_t each)
{
    void *other[CARD / MIB];
    unsigned taken = 0;
    while (!cenote_alloc(scene->pool, each, scene->stream[B], &other[taken]))
        taken++;
    EXPECT(taken > 0);
    while (taken)
        DONE(cenote_free(other[--taken]));
}

/*
 * A program that registers each block once and never forgets: blocks of the group come and go, others take what is free, memory is short and trimmed.
 * What was registered lies there still, whatever lives on it. Returns how often the observer saw something else.
 */
static unsigned live_with_registrations(struct scene *scene, cenote_group *group, bool pins)
{
    static const size_t sizes[] = {MIB, 3 * MIB, 6 * MIB, 12 * MIB};
    void *block[6] = {0};
    size_t bytes[6];
    uint32_t state = 7;
    unsigned seen = 0;
    for (int step = 0; step < 200; step++) {
        unsigned k = next_random(&state) % 6;
        if (block[k] && pins) {
            DONE(cenote_unpin(block[k], bytes[k]));
            count = 0; /* deregistered, with all others: they are registered anew */
        }
        if (block[k])
            DONE(cenote_free(block[k]));
        bytes[k] = sizes[next_random(&state) % 4];
        block[k] = take_of(group, bytes[k], scene->stream[A]);
        if (pins)
            DONE(cenote_pin(block[k], bytes[k]));
        if (count < REMEMBERED / 2)
            register_block(block[k], bytes[k]);
        others_take_all(scene, sizes[step % 4] * 2);
        if (step % 8 == 7)
            DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
        seen += moved();
    }
    for (unsigned k = 0; k < 6; k++) {
        if (pins && block[k])
            DONE(cenote_unpin(block[k], bytes[k]));
        DONE(cenote_free(block[k]));
    }
    return seen;
}

CASE(registrations_that_outlive_their_blocks)
{
    struct scene scene;
    open_observed(&scene);
    cenote_group *group = group_with(&scene, CENOTE_GROUP_PRIVATE | ONE_ALLOCATION);
    EXPECT_EQ(live_with_registrations(&scene, group, false), 0);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(registrations_that_are_pinned)
{
    struct scene scene;
    open_observed(&scene);
    cenote_group *group = group_with(&scene, CENOTE_GROUP_WHOLE);
    EXPECT_EQ(live_with_registrations(&scene, group, true), 0);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* The observer does see it: with pages of a group that is neither private nor pinned something else comes to lie under an old registration. */
CASE(registrations_that_nothing_protects)
{
    struct scene scene;
    open_observed(&scene);
    cenote_group *group = group_with(&scene, CENOTE_GROUP_WHOLE);
    EXPECT(live_with_registrations(&scene, group, false) > 0);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

SCENES_MAIN("registered")
