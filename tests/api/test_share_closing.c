/*
 * test_share_closing.c: how imports end: during captures, after the device, when the driver refuses, and from several threads at once.
 */
#include "tests/api/pair.h"

#include <pthread.h>

#include "driver/driver.h"

/* A mapping that a graph may touch stays, and so does the import: the exporter must not be told that it may free. */
CASE(a_close_during_a_capture_is_refused)
{
    struct pair p;
    cenote_share share;
    cenote_group *group;
    uint64_t there;
    void *here, *more;
    open_pair(&p);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(p.scene.pool, group, p.scene.stream[A]));
    DONE(cuStreamBeginCapture(p.scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(import(&share, &here));
    uint64_t mappings = books().mappings;
    EXPECT_EQ(cenote_import_close(here), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "a capture is open on device 0") != NULL);
    EXPECT_EQ(books().mappings, mappings);
    EXPECT(mappings > 0);
    CUgraph graph;
    DONE(cuStreamEndCapture(p.scene.stream[A], &graph));
    DONE(cenote_capture_end(p.scene.pool, group, p.scene.stream[A]));
    EXPECT(graph != NULL);
    DONE(cuGraphDestroy(graph));
    DONE(import(&share, &more)); /* nothing was closed: the same mapping */
    EXPECT_EQ(more, here);
    EXPECT_EQ(books().mappings, mappings);
    EXPECT_EQ(differ(here, 7, 5 * MIB), 0);
    DONE(cenote_import_close(more));
    EXPECT_EQ(books().mappings, mappings);
    DONE(cenote_import_close(here));
    EXPECT_EQ(books().mappings, 0);
    DONE(cenote_group_destroy(group));
    close_pair(&p);
}

/* What the exporter's driver says to memory that goes back to it, which is undefined while the segment is open here. */
static void free_there(struct pair *p, uint64_t there, uint64_t violations)
{
    DONE(other_give(&p->other, there));
    DONE(other_ask(&p->other, TRIM, 0).error);
    EXPECT_EQ(other_ask(&p->other, BOOKS, 0).error, violations);
}

/* An exporter that frees when the importer's close says that it may does what is right, also with a capture in between. */
CASE(an_exporter_frees_when_the_close_is_done)
{
    for (int round = 0; round < 2; round++) {
        struct pair p;
        cenote_share share;
        cenote_group *group;
        uint64_t there;
        void *here;
        open_pair_with(&p, CENOTE_PLAIN);
        DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
        DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
        DONE(import(&share, &here));
        DONE(cenote_capture_begin(p.scene.pool, group, p.scene.stream[A]));
        int error = cenote_import_close(here);
        if (round == 0)
            free_there(&p, there, error == CENOTE_BUSY); /* too early, and it was told */
        DONE(cenote_capture_end(p.scene.pool, group, p.scene.stream[A]));
        DONE(cenote_import_close(here));
        if (round == 1)
            free_there(&p, there, 0);
        DONE(cenote_group_destroy(group));
        other_end(&p.other);
        scene_close(&p.scene);
    }
}

CASE(a_close_waits_for_the_device)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here;
    open_pair(&p);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    DONE(import(&share, &here));
    DONE(sim_launch_wait(p.scene.stream[A], 50 * MSEC));
    DONE(sim_launch_expect(p.scene.stream[A], device_address(here), 7, 5 * MIB));
    DONE(cenote_import_close(here));
    EXPECT_EQ(books().mappings, 0);
    close_pair(&p); /* an unmapping under the kernel would be a violation */
}

/* Each call of an import of a segment, refused once: nothing stays. */
CASE(segments_that_the_driver_refuses)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here = NULL;
    open_pair_with(&p, CENOTE_PLAIN);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    fault_arm("cuIpcOpenMemHandle", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(import(&share, &here), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_arm("cuCtxPushCurrent", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(import(&share, &here), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_arm("cuIpcCloseMemHandle", 1, CUDA_ERROR_UNKNOWN, false);
    DONE(import(&share, &here));
    EXPECT_EQ(cenote_import_close(here), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    EXPECT_EQ(cenote_import_close(here), CENOTE_NOT_OURS); /* for the program it is closed */
    EXPECT(books().allocations > 0);
    fault_disarm();
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(books().allocations, 0);
    close_pair(&p);
}

/*
 * A pool with announced:0: a close waits for the default stream and for immortal ones, and for no other. While one of them is captured it is refused,
 * and the capture goes on.
 */
CASE(a_close_where_captures_are_not_announced)
{
    struct pair p;
    cenote_share share;
    cenote_options options = scene_options();
    cenote_pool *careful;
    uint64_t there;
    void *here;
    CUgraph graph = NULL;
    open_pair(&p);
    CUstream immortal = p.scene.stream[A], mortal = p.scene.stream[B];
    options.announced = 0;
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    DONE(cenote_pool_create(0, &options, &careful));
    DONE(cenote_stream_set_immortal(careful, immortal));
    DONE(cenote_import(&share, sizeof share, 0, &here));
    DONE(sim_launch_wait(mortal, 500 * MSEC));
    DONE(sim_launch_wait(immortal, 50 * MSEC));
    DONE(sim_launch_wait(NULL, 60 * MSEC));
    DONE(cenote_import_close(here));
    EXPECT_EQ(books().mappings, 0);
    DONE(cuStreamQuery(immortal));
    DONE(cuStreamQuery(NULL));
    EXPECT_EQ(cuStreamQuery(mortal), CUDA_ERROR_NOT_READY);

    DONE(cenote_import(&share, sizeof share, 0, &here));
    DONE(cuStreamBeginCapture(immortal, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(cenote_import_close(here), CENOTE_BUSY);
    DONE(cuStreamEndCapture(immortal, &graph));
    EXPECT(graph != NULL);
    DONE(cuGraphDestroy(graph));
    DONE(cenote_import_close(here));
    EXPECT_EQ(books().mappings, 0);
    DONE(cenote_pool_destroy(careful));
    close_pair(&p);
}

/*
 * A reset ends segments that were opened, and leaves pages mapped. What was imported can be closed all the same, and imported again: also at the same
 * address, which is the next import's then.
 */
static void over_a_reset(unsigned provider, bool closes_first)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here, *again;
    open_pair_with(&p, provider);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    DONE(import(&share, &here));
    DONE(cuDevicePrimaryCtxReset(0));
    for (int i = 0; i < SCENE_STREAMS; i++)
        p.scene.stream[i] = NULL;
    scene_destroy_pool(&p.scene);
    if (closes_first)
        DONE(cenote_import_close(here));
    EXPECT(!closes_first || books().mappings == 0);
    DONE(cuDevicePrimaryCtxRetain(&p.scene.context, 0));
    DONE(cuDevicePrimaryCtxRelease(0)); /* the scene's is there still */
    DONE(import(&share, &again));
    EXPECT_EQ(differ(again, 7, 5 * MIB), 0);
    DONE(cenote_import_close(again));
    if (!closes_first && again != here)
        DONE(cenote_import_close(here));
    EXPECT(cenote_import_close(again) != CENOTE_OK);
    EXPECT_EQ(books().mappings + books().reservations + books().allocations, 0);
    DONE(other_give(&p.other, there));
    close_pair(&p);
}

CASE(imports_outlive_a_reset_of_their_device)
{
    over_a_reset(CENOTE_VMM, true);
    over_a_reset(CENOTE_VMM, false);
    over_a_reset(CENOTE_PLAIN, true);
    over_a_reset(CENOTE_PLAIN, false);
}

/* It is imported for two pools: it stays until the first of them goes, however often it was closed, and goes with that one. */
CASE(an_import_ends_with_its_pool)
{
    struct pair p;
    cenote_share share;
    cenote_pool *first, *second;
    uint64_t there;
    void *here, *again, *start;
    size_t size;
    open_pair(&p);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    DONE(cenote_pool_create_in(p.scene.context, NULL, &first));
    DONE(cenote_pool_create_in(p.scene.context, NULL, &second));
    DONE(cenote_pool_import(first, &share, sizeof share, &here));
    DONE(cenote_pool_import(second, &share, sizeof share, &again));
    EXPECT_EQ(again, here);
    DONE(cenote_pool_destroy(second));
    DONE(cenote_import_range((char *)here + MIB, &start, &size));
    EXPECT_EQ(start, here);
    EXPECT_EQ(size, 5 * MIB);
    EXPECT_EQ(differ(here, 7, 5 * MIB), 0);
    DONE(cenote_pool_destroy(first));
    EXPECT_EQ(cenote_import_range(here, &start, &size), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_import_close(here), CENOTE_NOT_OURS);
    EXPECT_EQ(books().mappings, 0);
    close_pair(&p);
}

static pthread_barrier_t both_open;
static const struct driver *below;
static struct driver above;

static CUresult open_together(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags)
{
    pthread_barrier_wait(&both_open);
    return below->cuIpcOpenMemHandle(at, handle, flags);
}

static const struct driver *opens_together(const struct driver *inner)
{
    below = inner;
    above = *inner;
    above.cuIpcOpenMemHandle = open_together;
    return &above;
}

struct opener {
    const cenote_share *share;
    void *here;
    int   error;
};

static void *import_in_thread(void *arg)
{
    struct opener *o = arg;
    o->error = import(o->share, &o->here);
    return NULL;
}

/* The driver gives the same address to both, and counts them: so must we. The last case: no call fails on order after it. */
CASE(a_segment_that_two_threads_open_at_once)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    pthread_t threads[2];
    open_pair_with(&p, CENOTE_PLAIN);
    DONE(other_take(&p.other, 5 * MIB, 7, &share, &there));
    struct opener opener[2] = {{&share, NULL, 0}, {&share, NULL, 0}};
    pthread_barrier_init(&both_open, NULL, 2);
    driver_interpose(opens_together);
    for (int i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, import_in_thread, &opener[i]));
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        DONE(opener[i].error);
    }
    EXPECT_EQ(opener[0].here, opener[1].here);
    DONE(cenote_import_close(opener[0].here));
    EXPECT_EQ(differ(opener[1].here, 7, 5 * MIB), 0);
    DONE(cenote_import_close(opener[1].here));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(books().allocations, 0);
    pthread_barrier_destroy(&both_open);
    close_pair(&p);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("share: closing", argc > 1 ? argv[1] : "", NULL, scene_after);
}
