/*
 * test_guard.c: provider guard: work that runs over the end of a block, or uses it after its free, meets an illegal address.
 *
 * After that the context is lost, so each such mistake is made in a process of its own, which says what the driver answered.
 */
#include "driver/driver.h"
#include "tests/api/scene.h"
#include "tests/base/child.h"

#define CARD (256 * MIB)

static void open_guarded(struct scene *scene, size_t capacity)
{
    struct sim_shape shape = scene_card(capacity);
    cenote_options options = scene_options();
    options.provider = CENOTE_GUARD;
    scene_open_with(scene, &shape, &options);
    EXPECT_EQ(cenote_pool_provider(scene->pool), CENOTE_GUARD);
}

/* -------------------------------------------------------------------------------------------------------------------- what is found */

struct mistake {
    size_t bytes;       /* of the block */
    size_t from, to;    /* what the work touches, from its start */
    bool   freed;       /* before that */
    bool   copies;      /* a copy to the host; else a kernel */
};

/* Ends with what the driver says. */
static void make(void *arg)
{
    const struct mistake *m = arg;
    struct scene scene;
    static char host[8 * MIB];
    void *neighbours[2], *block = NULL, *next;
    open_guarded(&scene, CARD);
    sim_set_quiet(true);
    DONE(cenote_alloc(scene.pool, m->bytes, scene.stream[A], &neighbours[0]));
    DONE(cenote_alloc(scene.pool, m->bytes, scene.stream[A], &block));
    DONE(cenote_alloc(scene.pool, m->bytes, scene.stream[A], &neighbours[1]));
    if (m->freed) {
        DONE(cenote_free(block));
        DONE(cenote_alloc(scene.pool, m->bytes, scene.stream[A], &next));
        if (next == block)
            _exit(250);
    }
    CUdeviceptr at = device_address(block) + m->from;
    CUresult result = m->copies ? cuMemcpyDtoHAsync(host, at, m->to - m->from, scene.stream[A]) :
                      sim_launch_touch(scene.stream[A], at, m->to - m->from);
    if (!result)
        result = cuCtxSynchronize();
    _exit(result == CUDA_ERROR_ILLEGAL_ADDRESS ? 1 : result == CUDA_ERROR_INVALID_VALUE ? 2 : result ? 255 : 0);
}

static int driver_says(struct mistake m)
{
    struct child_end end = child_run(make, &m);
    EXPECT_EQ(end.signal, 0);
    return end.status;
}

enum { FINE, ILLEGAL, REFUSED };

CASE(what_is_right_is_no_mistake)
{
    static const size_t sizes[] = {1, 512, 1000, 2 * MIB - 512, 2 * MIB, 5 * MIB + 700};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        EXPECT_EQ(driver_says((struct mistake){.bytes = sizes[i], .to = sizes[i]}), FINE);
        EXPECT_EQ(driver_says((struct mistake){.bytes = sizes[i], .to = sizes[i], .copies = true}), FINE);
    }
}

CASE(over_the_end)
{
    static const size_t sizes[] = {1, 512, 1000, 2 * MIB - 512, 2 * MIB, 5 * MIB + 700};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t rounded = (sizes[i] + 511) / 512 * 512;
        EXPECT_EQ(driver_says((struct mistake){.bytes = sizes[i], .to = rounded}), FINE); /* not found: the rounding is the block's */
        EXPECT_EQ(driver_says((struct mistake){.bytes = sizes[i], .to = rounded + 1}), ILLEGAL);
        EXPECT_EQ(driver_says((struct mistake){.bytes = sizes[i], .from = rounded, .to = rounded + 8}), ILLEGAL);
        EXPECT(driver_says((struct mistake){.bytes = sizes[i], .to = rounded + 1, .copies = true}) != FINE);
    }
}

CASE(after_the_free)
{
    EXPECT_EQ(driver_says((struct mistake){.bytes = 1000, .to = 8, .freed = true}), ILLEGAL);
    EXPECT_EQ(driver_says((struct mistake){.bytes = 3 * MIB, .to = 8, .freed = true}), ILLEGAL);
    EXPECT(driver_says((struct mistake){.bytes = 3 * MIB, .to = 8, .freed = true, .copies = true}) != FINE);
}

/* The same mistakes with the usual provider go unnoticed: that is what it is for. */
static void make_unguarded(void *arg)
{
    setenv("CENOTE_CONF", "", 1);
    struct scene scene;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_alloc(scene.pool, 1000, scene.stream[A], &block));
    DONE(sim_launch_touch(scene.stream[A], device_address(block), 1025));
    DONE(cenote_free(block));
    DONE(sim_launch_touch(scene.stream[A], device_address(block), 8));
    _exit(cuCtxSynchronize() ? 1 : *(int *)arg);
}

CASE(without_it_nobody_notices)
{
    EXPECT_EQ(child_run(make_unguarded, &(int){0}).status, 0);
}

/* ------------------------------------------------------------------------------------------------------------------- what goes on */

/* Contents, order of streams, uses by other streams, alignments, groups: as ever. */
CASE(programs_that_are_right)
{
    struct scene scene;
    struct held held[12];
    cenote_group *group;
    void *block;
    open_guarded(&scene, CARD);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 12; i++)
            REQUIRE(held_take(&held[i], scene.pool, (size_t)(i + 1) * 300 * KIB + (size_t)round, scene.stream[i % SCENE_STREAMS]));
        for (int i = 0; i < 12; i++)
            for (int j = 0; j < i; j++)
                EXPECT(!held_overlap(&held[i], &held[j]));
        for (int i = 0; i < 12; i += 3) {
            order(held[i].stream, scene.stream[B]);
            held_linger(&held[i], scene.stream[B]);
            DONE(cenote_use(held[i].at, scene.stream[B]));
        }
        for (int i = 0; i < 12; i++)
            held_give(&held[i]);
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_check(scene.pool));
    }
    for (size_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
        DONE(alloc_aligned(scene.pool, 5000, alignment, scene.stream[A], &block));
        EXPECT_EQ((uintptr_t)block % alignment, 0);
        DONE(cenote_free(block));
    }
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    REQUIRE(held_take(&held[0], scene.pool, 3 * MIB, scene.stream[A]));
    held_give(&held[0]);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* Thousands of blocks: memory goes back as they are freed, addresses after a while. */
CASE(addresses_go_back)
{
    struct scene scene;
    struct sim_books books;
    void *block, *first = NULL;
    open_guarded(&scene, 64 * MIB);
    for (int i = 0; i < 6000; i++) {
        DONE(cenote_alloc(scene.pool, 1000, scene.stream[A], &block));
        DONE(cenote_free(block));
        EXPECT(block != first || i > 4000);
        first = first ? first : block;
    }
    sim_books(&books);
    EXPECT(books.used <= 64 * MIB);
    EXPECT(books.reservations >= 4096 && books.reservations < 4200);

    uint64_t before = books.reservations;
    for (int i = 0; i < 10; i++) { /* refused once, they are offered once more */
        fault_arm("cuMemAddressFree", 1, CUDA_ERROR_UNKNOWN, false);
        DONE(cenote_alloc(scene.pool, 1000, scene.stream[A], &block));
        DONE(cenote_free(block));
        EXPECT_EQ(fault_fired(), 1);
    }
    fault_disarm();
    sim_books(&books);
    EXPECT_EQ(books.reservations, before);
    scene_close(&scene);
}

CASE(memory_runs_out_and_comes_back)
{
    static struct hoard hoard;
    struct scene scene;
    open_guarded(&scene, 64 * MIB);
    for (int round = 0; round < 3; round++) {
        hoard_take(&hoard, scene.pool, 100 * KIB, scene.stream[round]);
        EXPECT_EQ(hoard.count, 32); /* each has 2 MiB of its own */
        hoard_give(&hoard);
        scene_judge(&scene);
    }
    scene_close(&scene);
}

/* What a block that failed was in the middle of stays until the driver takes it; at the latest when the pool goes, which asks twice. */
CASE(a_pool_that_goes_with_a_block_half_done)
{
    int refused = 0;
    for (uint64_t nth = 1; nth < 40; nth++) {
        struct scene scene;
        void *block = NULL;
        open_guarded(&scene, CARD);
        DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
        DONE(cenote_free(block));
        fault_arm(NULL, nth, CUDA_ERROR_UNKNOWN, true);
        int error = cenote_alloc(scene.pool, MIB, scene.stream[B], &block);
        fault_disarm();
        refused += error != 0;
        if (!error)
            DONE(cenote_free(block));
        fault_arm("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, false);
        scene_destroy_pool(&scene);
        fault_disarm();
        scene_close(&scene);
        if (!error)
            break;
    }
    EXPECT(refused >= 3 && refused < 39);
}

/* A driver that deals in larger pieces than most: gaps and blocks are whole ones. */
CASE(a_coarse_granularity)
{
    struct scene scene;
    struct held held[3];
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.provider = CENOTE_GUARD;
    options.page_mib = 8;
    shape.granularity = 4 * MIB;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 3; i++)
        REQUIRE(held_take(&held[i], scene.pool, (size_t)(i + 1) * MIB, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 12 * MIB);
    for (int i = 0; i < 3; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

CASE(where_it_cannot_be_had)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_pool *pool;
    options.provider = CENOTE_GUARD;
    shape.vmm = false;
    scene_open_card(&scene, &shape);
    EXPECT_EQ(cenote_pool_create(0, &options, &pool), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "virtual memory management") != NULL);
    scene_close(&scene);
}

SCENES_MAIN("api: guard")
