/*
 * test_probe.c: what pages can be is tried with one page, not believed: drivers whose attributes promise what their calls refuse. What they do
 * is in sim/quirks.def. Not: drivers that lack calls (test_driver.c), and calls that fail now and then (tests/faults).
 */
#include "tests/api/scene.h"

#include <cenote/share.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD (64 * MIB)

enum { FILES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, FABRIC = CU_MEM_HANDLE_TYPE_FABRIC };

static void open_as(struct scene *scene, uint64_t quirks, const char *conf)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.quirks = quirks;
    DONE(cenote_options_parse(&options, conf));
    scene_open_with(scene, &shape, &options);
}

/* Memory works, and is made as it says. */
static void expect_memory(struct scene *scene, int handles, int rdma)
{
    struct held held;
    unsigned types = 99, is_rdma = 99;
    held_take(&held, scene->pool, 3 * MIB, scene->stream[A]);
    CUdeviceptr at = (CUdeviceptr)held.at;
    DONE(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at));
    DONE(cuPointerGetAttribute(&is_rdma, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at));
    EXPECT_EQ(types, handles);
    EXPECT_EQ(is_rdma, rdma);
    cenote_stats stats = scene_stats(scene->pool);
    EXPECT_EQ(stats.page_handles, handles);
    EXPECT_EQ(stats.page_rdma, rdma);
    held_give(&held);
}

static void expect_with(uint64_t quirks, const char *conf, int handles, int rdma)
{
    struct scene scene;
    open_as(&scene, quirks, conf);
    expect_memory(&scene, handles, rdma);
    EXPECT_EQ(cenote_pool_provider(scene.pool), CENOTE_VMM);
    scene_close(&scene);
}

CASE(what_works_is_kept)
{
    expect_with(0, "", FILES, 0);
    expect_with(SIM_QUIRK(RDMA_REQUIRED), "", FILES, 1);
    expect_with(SIM_QUIRK(FABRIC), "", FILES, 0);
    expect_with(SIM_QUIRK(FABRIC), "handles:fabric", FILES | FABRIC, 0);
    expect_with(SIM_QUIRK(FABRIC) | SIM_QUIRK(RDMA_REQUIRED), "handles:fabric", FILES | FABRIC, 1);
}

#if CUDA_VERSION >= 12080
static void expect_decompression(uint64_t quirks, const char *conf, bool expected)
{
    struct scene scene;
    struct held held;
    bool takes = !expected;
    open_as(&scene, quirks, conf);
    held_take(&held, scene.pool, 3 * MIB, scene.stream[A]);
    DONE(cuPointerGetAttribute(&takes, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, (CUdeviceptr)held.at));
    EXPECT_EQ(takes, expected);
    held_give(&held);
    scene_close(&scene);
}

/* As memory of cuMemAlloc is: the program may have taken its memory from there before. */
CASE(what_the_decompression_engine_takes)
{
    uint64_t engine = SIM_QUIRK(DECOMPRESSION), refused = SIM_QUIRK(DECOMPRESSION_REFUSED);
    expect_decompression(engine, "", true);
    expect_decompression(engine, "provider:async", true);
    expect_decompression(engine, "provider:plain", true);
    expect_decompression(engine | SIM_QUIRK(RDMA_REQUIRED), "", true);
    expect_decompression(engine | SIM_QUIRK(WSL_RDMA), "", true);
    expect_with(engine | SIM_QUIRK(WSL_RDMA), "", FILES, 0);
    expect_decompression(0, "", false);
    expect_decompression(refused, "", false);
    expect_with(refused | SIM_QUIRK(RDMA_REQUIRED), "", FILES, 1);
}
#endif

CASE(rdma_that_fails_at_the_access)
{
    expect_with(SIM_QUIRK(WSL_RDMA), "", FILES, 0);
}

/* What the page cache has counts as there: a request fails for no word of the driver's, and all that cenote says of the device adds up. */
CASE(memory_of_the_host_that_the_driver_takes_for_used)
{
    struct scene scene;
    struct held held;
    size_t left, total;
    open_as(&scene, SIM_QUIRK(UNIFIED_MEMORY), "");
    DONE(cuMemGetInfo(&left, &total));
    EXPECT(left <= total / 2);
    EXPECT_EQ(total, CARD);
    held_take(&held, scene.pool, CARD - 4 * MIB, scene.stream[A]);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    held_give(&held);
    scene_close(&scene);
}

CASE(fabric_that_is_refused)
{
    expect_with(0, "handles:fabric", FILES, 0);
    expect_with(SIM_QUIRK(FABRIC_NOT_PERMITTED), "handles:fabric", FILES, 0);
    expect_with(SIM_QUIRK(FABRIC_INVALID), "handles:fabric", FILES, 0);
    expect_with(SIM_QUIRK(FABRIC_NOT_PERMITTED) | SIM_QUIRK(WSL_RDMA), "handles:fabric", FILES, 0);
}

/* A share says why it cannot be. */
CASE(handles_that_are_refused)
{
    struct scene scene;
    struct held held;
    cenote_share share;
    expect_with(SIM_QUIRK(ATTRIBUTE_LIES), "", 0, 0);
    open_as(&scene, SIM_QUIRK(ATTRIBUTE_LIES), "");
    held_take(&held, scene.pool, 3 * MIB, scene.stream[A]);
    EXPECT_EQ(cenote_export(held.at, &share), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "refuses"));
    held_give(&held);
    scene_close(&scene);
}

/* Two pools of one device, of which one asks for fabric handles: each has its own. */
CASE(each_pool_has_what_it_asked_for)
{
    struct scene scene;
    cenote_pool *other;
    cenote_options options = scene_options();
    open_as(&scene, SIM_QUIRK(FABRIC), "handles:fabric");
    DONE(cenote_pool_create(0, &options, &other));
    expect_memory(&scene, FILES | FABRIC, 0);
    struct scene beside = scene;
    beside.pool = other;
    expect_memory(&beside, FILES, 0);
    expect_memory(&scene, FILES | FABRIC, 0);
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

static void expect_provider(bool has_pools, enum cenote_provider provider)
{
    struct scene scene;
    struct held held;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.quirks = SIM_QUIRK(VMM_LIES);
    shape.pools = has_pools;
    scene_open_with(&scene, &shape, &options);
    held_take(&held, scene.pool, 3 * MIB, scene.stream[A]);
    EXPECT_EQ(cenote_pool_provider(scene.pool), provider);
    EXPECT_EQ(scene_stats(scene.pool).page_handles, 0);
    held_give(&held);
    cenote_pool *later;
    DONE(cenote_pool_create(0, NULL, &later));
    EXPECT_EQ(cenote_pool_provider(later), provider);
    DONE(cenote_pool_destroy(later));
    options.provider = CENOTE_VMM;
    EXPECT_EQ(cenote_pool_create(0, &options, &later), CENOTE_NOT_SUPPORTED);
    scene_close(&scene);
}

CASE(no_pages_at_all)
{
    expect_provider(true, CENOTE_ASYNC);
    expect_provider(false, CENOTE_PLAIN);
}

CASE(pages_that_were_asked_for_and_are_refused)
{
    struct scene scene;
    void *block;
    open_as(&scene, SIM_QUIRK(VMM_LIES), "provider:vmm");
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &block), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "provider:auto"));
    scene_close(&scene);
}

/* Memory that is short says nothing of what pages can be: the next call tries again. */
CASE(a_full_device_teaches_nothing)
{
    struct scene scene;
    void *block;
    open_as(&scene, SIM_QUIRK(WSL_RDMA), "");
    sim_set_foreign(0, CARD);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    sim_set_foreign(0, 0);
    expect_memory(&scene, FILES, 0);
    scene_close(&scene);
}

/* Pages that have fabric handles are shared by files within the machine, as others are. */
CASE(pages_with_both_handles_are_shared)
{
    struct scene scene;
    struct held held;
    cenote_share share;
    void *at = NULL;
    open_as(&scene, SIM_QUIRK(FABRIC), "handles:fabric");
    held_take(&held, scene.pool, 3 * MIB, scene.stream[A]);
    DONE(cenote_export(held.at, &share));
    DONE(cenote_import(&share, sizeof share, 0, &at));
    DONE(sim_launch_expect(scene.stream[A], device_address(at), held.pattern, 4 * KIB));
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_import_close(at));
    held_give(&held);
    scene_close(&scene);
}

/* The device is full when what it refuses could be found out, of memory that another pool has free. The request is served all the same. */
static void expect_on_full_device(uint64_t quirks, const char *conf)
{
    struct scene scene;
    struct held all, held[2];
    cenote_options options = scene_options();
    cenote_pool *late;
    open_as(&scene, quirks, "provider:plain");
    REQUIRE(held_take(&all, scene.pool, CARD, scene.stream[A]));
    held_give(&all);
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_options_parse(&options, conf));
    DONE(cenote_pool_create(0, &options, &late));
    for (int i = 0; i < 2; i++)
        EXPECT(held_take(&held[i], late, 5 * MIB, scene.stream[A]));
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    DONE(cenote_pool_check(late));
    DONE(cenote_pool_destroy(late));
    scene_close(&scene);
}

CASE(a_full_device_that_refuses_what_it_promises)
{
    static const char *const providers[] = {"provider:vmm,handles:fabric", "provider:guard,handles:fabric"};
    for (int i = 0; i < 2; i++) {
        expect_on_full_device(0, providers[i]);
        expect_on_full_device(SIM_QUIRK(WSL_RDMA), providers[i]);
        expect_on_full_device(SIM_QUIRK(FABRIC_NOT_PERMITTED), providers[i]);
        expect_on_full_device(SIM_QUIRK(FABRIC_INVALID) | SIM_QUIRK(WSL_RDMA), providers[i]);
        expect_on_full_device(SIM_QUIRK(ATTRIBUTE_LIES), providers[i]);
        expect_on_full_device(SIM_QUIRK(DECOMPRESSION_REFUSED), providers[i]);
    }
}

/* A capture of the program's own goes on, and the page that is tried does no harm to it. */
CASE(the_first_call_comes_during_a_capture)
{
    struct scene scene;
    CUgraph graph;
    void *block;
    open_as(&scene, SIM_QUIRK(WSL_RDMA), "");
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    DONE(cuStreamEndCapture(scene.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_free(block));
    scene_close(&scene);
}

#define THREADS 8

static void *allocates(void *arg)
{
    struct scene *scene = arg;
    void *block;
    if (cenote_alloc(scene->pool, MIB, scene->stream[A], &block) || cenote_free(block))
        return scene;
    return NULL;
}

CASE(first_calls_of_many_threads)
{
    struct scene scene;
    pthread_t threads[THREADS];
    open_as(&scene, SIM_QUIRK(WSL_RDMA), "");
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, allocates, &scene));
    for (int i = 0; i < THREADS; i++) {
        void *failed = &scene;
        REQUIRE(!pthread_join(threads[i], &failed));
        EXPECT(!failed);
    }
    expect_memory(&scene, FILES, 0);
    scene_close(&scene);
}

/* A child has nothing to do with the parent's device, proven or not. */
CASE(a_child_tries_nothing)
{
    struct scene scene;
    int status = -1;
    open_as(&scene, SIM_QUIRK(WSL_RDMA), "");
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        void *block;
        _exit(cenote_alloc(scene.pool, MIB, scene.stream[A], &block) != CENOTE_FORKED);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    expect_memory(&scene, FILES, 0);
    scene_close(&scene);
}

SCENES_MAIN("api: probe")
