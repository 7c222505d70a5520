/*
 * test_back_inside.c: a function of a source has run, and the driver does not let the thread back into the device's context. The thread goes on in
 * whatever context is current, here that of another device, and must leave nothing of cenote's there.
 */
#include "driver/driver.h"
#include "tests/api/peers.h"

#define EPOCH (20 * MSEC)
#define BEHIND 8

/* Memory of the program's own on the host, one segment at a time. */
static struct {
    _Alignas(2 * 1024 * 1024) char bytes[4 * 1024 * 1024];
    int   taken, given;
    bool  refuses;          /* from now on */
    void *frees;            /* a block that the give function frees */
} source;

static void refuse(void)
{
    if (source.refuses)
        fault_arm("cuCtxPushCurrent", 1, CUDA_ERROR_NOT_PERMITTED, true);
}

static void *take(size_t bytes, cenote_stream stream, void *arg)
{
    (void)stream, (void)arg;
    refuse();
    source.taken++;
    return bytes <= sizeof source.bytes ? source.bytes : NULL;
}

static void give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)memory, (void)bytes, (void)stream, (void)arg;
    source.given++;
    DONE(cenote_free(source.frees));
    refuse();
}

static cenote_group *open_source(struct peers *p, unsigned decay_ms)
{
    const cenote_source functions = {take, give, NULL};
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_group *group = NULL;
    options.decay_ms = decay_ms;
    shape.devices = 2;
    scene_open_with(&p->scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    source.taken = source.given = 0;
    source.refuses = false;
    source.frees = NULL;
    DONE(cenote_group_create(p->scene.pool, "theirs", 0, &functions, &group));
    return group;
}

static void close_source(struct peers *p)
{
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&p->scene);
}

/* The segment is there: the call fails, and the next one is served from it. */
CASE(an_allocation_ends)
{
    struct peers p;
    void *block = NULL;
    cenote_group *group = open_source(&p, 0);
    source.refuses = true;
    EXPECT_EQ(group_alloc(group, 1 * MIB, 512, p.scene.stream[A], &block), CENOTE_DRIVER);
    EXPECT(fault_fired() >= 2); /* it was asked for once more */
    fault_disarm();
    source.refuses = false;
    DONE(group_alloc(group, 1 * MIB, 512, p.scene.stream[A], &block));
    EXPECT_EQ(source.taken, 1);
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(source.given, 1);
    DONE(cenote_group_destroy(group));
    close_source(&p);
}

/* A trim gives a segment back, and what follows wants a fence. An event made now would be of the other device, and be used for fences ever after. */
CASE(no_event_is_made_in_another_context)
{
    struct peers p;
    struct held behind[BEHIND], last;
    void *block = NULL;
    cenote_group *group = open_source(&p, 8 * EPOCH / MSEC);
    DONE(group_alloc(group, 1 * MIB, 512, p.scene.stream[A], &block));
    for (int i = 0; i < BEHIND; i++)
        REQUIRE(held_take(&behind[i], p.scene.pool, 3 * MIB, p.scene.stream[B]));
    REQUIRE(held_take(&last, p.scene.pool, 3 * MIB, p.scene.stream[B]));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(p.scene.pool, CARD, 0));
    sim_set_lag(2 * EPOCH);
    for (int i = 0; i < BEHIND; i++) { /* until no event is spare */
        held_give(&behind[i]);
        DONE(cenote_pool_trim(p.scene.pool, CARD, 0));
    }
    sim_advance(EPOCH); /* an epoch begins */
    source.frees = last.at;
    source.refuses = true;
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT_EQ(source.given, 1);
    EXPECT(fault_fired() >= 2);
    fault_disarm();
    DONE(cuCtxPopCurrent(NULL));
    sim_set_lag(0);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(p.scene.pool, 0, 0)); /* records a fence */
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    DONE(cenote_group_destroy(group));
    close_source(&p);
}

SCENES_MAIN("api: back inside the device")
