/*
 * devices.c: hazards between devices: blocks of one device that streams of another use. Device 1 is far behind and looks at the block at the
 * very end, so a block that comes back too early shows as contents that differ.
 */
#include <unistd.h>

#include "driver/device.h"
#include "tests/hazard/hazards.h"
#include "tests/patience.h"

#define CARD (64 * MIB)

/* The scene is on device 0; two streams on device 1, whose kernels may use the pool's memory if the pair is not apart. */
struct pair {
    struct scene scene;
    CUcontext    other;
    CUstream     stream[2];
};

static void open_apart(struct pair *p)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    shape.devices = 2;
    scene_open_with(&p->scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    for (int i = 0; i < 2; i++)
        DONE(cuStreamCreate(&p->stream[i], CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static void open_pair(struct pair *p)
{
    open_apart(p);
    DONE(cenote_pool_grant(p->scene.pool, 1));
}

static void synchronize_other(const struct pair *p)
{
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
}

static void close_pair(struct pair *p)
{
    synchronize_other(p);
    scene_judge(&p->scene);
    if (p->scene.pool)
        scene_destroy_pool(&p->scene);
    DONE(cuCtxPushCurrent(p->other));
    for (int i = 0; i < 2; i++)
        if (p->stream[i])
            DONE(cuStreamDestroy(p->stream[i]));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&p->scene);
}

/* Device 1 works for a long time and then looks at the block. */
static void linger_there(struct pair *p, struct held *held, CUstream stream)
{
    DONE(cuStreamSynchronize(held->stream));
    DONE(cuCtxPushCurrent(p->other));
    held_linger(held, stream);
    DONE(cuCtxPopCurrent(NULL));
}

/* The block is freed and in use on device 1. No stream gets it before that is done; then it can be allocated again. */
static void free_and_snatch(struct pair *p, struct held *block)
{
    struct held next;
    cenote_pool *pool = p->scene.pool;
    DONE(cenote_free(block->at));
    REQUIRE(held_take(&next, pool, block->bytes, p->scene.stream[A]));
    EXPECT(!held_overlap(&next, block));
    held_give(&next);
    DONE(cuCtxSynchronize()); /* of device 0: says nothing about device 1 */
    DONE(cenote_pool_trim(pool, 0, 0));
    EXPECT_EQ(scene_stats(pool).pending_blocks, 1);
    REQUIRE(held_take(&next, pool, block->bytes, p->scene.stream[B]));
    EXPECT(!held_overlap(&next, block));
    held_give(&next);
    if (block->bytes < MIB)
        DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    else
        hazard_whole_card(&p->scene, CARD, p->scene.stream[B]); /* shortage waits for device 1 */
    EXPECT_EQ(scene_stats(pool).pending_blocks, 0);
}

void hazard_use_on_a_stream_of_another_device(void)
{
    struct pair p;
    struct held block;
    open_pair(&p);
    for (size_t bytes = 700; bytes <= 12 * MIB; bytes += 12 * MIB - 700) {
        REQUIRE(held_take(&block, p.scene.pool, bytes, p.scene.stream[A]));
        DONE(cenote_use(block.at, p.stream[0]));
        DONE(cenote_use(block.at, p.stream[0]));
        DONE(cenote_use(block.at, p.scene.stream[B]));
        linger_there(&p, &block, p.stream[0]);
        free_and_snatch(&p, &block);
    }
    close_pair(&p);
}

void hazard_use_on_an_immortal_stream_of_another_device(void)
{
    struct pair p;
    struct held block, next;
    open_pair(&p);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream[0]));
    for (int round = 0; round < 2; round++) {
        REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, p.scene.stream[A]));
        DONE(round ? cenote_use_on_device(block.at, 1, p.stream[0]) : cenote_use(block.at, p.stream[0]));
        linger_there(&p, &block, p.stream[0]);
        free_and_snatch(&p, &block);
    }
    REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream[0]));
    linger_there(&p, &block, p.stream[0]);
    DONE(cuCtxPushCurrent(p.other)); /* what comes later on another stream there is not waited for */
    DONE(cenote_free(block.at));
    DONE(sim_launch_wait(p.stream[1], 1000 * MSEC));
    DONE(cuStreamSynchronize(p.stream[0]));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    REQUIRE(held_take(&next, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    EXPECT(held_overlap(&next, &block));
    held_give(&next);
    close_pair(&p);
}

void hazard_use_on_default_streams_of_another_device(void)
{
    static const CUstream defaults[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    struct pair p;
    struct held block;
    open_pair(&p);
    for (int i = 0; i < 3; i++) {
        REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, defaults[i])); /* the one of device 0 with the same handle */
        DONE(cenote_use(block.at, defaults[i]));
        DONE(cenote_use_on_device(block.at, 0, defaults[i]));
        DONE(cenote_use_on_device(block.at, 1, defaults[i]));
        linger_there(&p, &block, defaults[i]);
        free_and_snatch(&p, &block);
    }
    close_pair(&p);
}

/* The handle is not touched at the free. */
void hazard_stream_of_another_device_destroyed_before_the_free(void)
{
    struct pair p;
    struct held block;
    open_pair(&p);
    REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream[0]));
    linger_there(&p, &block, p.stream[0]);
    DONE(cuStreamDestroy(p.stream[0]));
    p.stream[0] = NULL;
    free_and_snatch(&p, &block);
    close_pair(&p);
}

/* Nothing is recorded, queried or waited for on device 1 meanwhile, and the capture is whole afterwards. */
void hazard_free_while_the_other_device_captures(void)
{
    struct pair p;
    struct held block;
    cenote_pool *there;
    cenote_group *group;
    CUgraph graph;
    cenote_options options = scene_options();
    open_pair(&p);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    for (int immortal = 0; immortal < 2; immortal++) {
        REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, p.scene.stream[A]));
        DONE(cenote_use(block.at, p.stream[0]));
        linger_there(&p, &block, p.stream[0]);
        DONE(cenote_capture_begin(NULL, group, p.stream[1]));
        DONE(cuStreamBeginCapture(p.stream[1], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_free(block.at));
        DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
        EXPECT_EQ(cenote_pool_destroy(p.scene.pool), CENOTE_BUSY);
        DONE(cuStreamEndCapture(p.stream[1], &graph));
        DONE(cenote_capture_end(NULL, group, p.stream[1]));
        DONE(cuGraphDestroy(graph));
        if (immortal) { /* what could not be recorded is recorded now: the next look sees that it is done */
            DONE(cenote_pool_trim(p.scene.pool, 0, 0));
            synchronize_other(&p);
        }
        DONE(cenote_pool_trim(p.scene.pool, 0, immortal ? 0 : CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
        DONE(cenote_stream_set_immortal(p.scene.pool, p.stream[0]));
    }
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(there));
    close_pair(&p);
}

/* Destroying the pool waits for device 1 too: what it looks at is mapped until then. */
void hazard_pool_destroyed_while_another_device_uses_a_block(void)
{
    struct pair p;
    struct held block;
    open_pair(&p);
    REQUIRE(held_take(&block, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream[0]));
    linger_there(&p, &block, p.stream[0]);
    DONE(cenote_free(block.at));
    scene_destroy_pool(&p.scene);
    close_pair(&p);
}

void hazard_other_device_is_lost(void)
{
    struct pair p;
    struct held early, late, next;
    open_pair(&p);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream[0])); /* an event is to be had for it on every driver */
    REQUIRE(held_take(&early, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    REQUIRE(held_take(&late, p.scene.pool, 12 * MIB, p.scene.stream[A]));
    DONE(cenote_use(early.at, p.stream[0]));
    DONE(cenote_use(late.at, p.stream[0]));
    DONE(cuStreamSynchronize(p.scene.stream[A]));
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream[0], 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_free(early.at));
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    sim_lose_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_free(late.at));
    REQUIRE(held_take(&next, p.scene.pool, CARD, p.scene.stream[A]));
    held_give(&next);
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    scene_judge(&p.scene);
    scene_destroy_pool(&p.scene);
    sim_reset(NULL);
    scene_is_open = false;
}

void hazard_streams_nobody_can_wait_for(void)
{
    struct pair p;
    CUcontext own;
    CUstream stream;
    void *block;
    open_pair(&p);
    DONE(cenote_alloc(p.scene.pool, MIB, p.scene.stream[A], &block));
    DONE(cuCtxCreate(&own, NULL, 0, 1));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cenote_use(block, stream), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "primary context of device 1") != NULL);
    EXPECT_EQ(cenote_use_on_device(block, 2, NULL), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_use_on_device(block, -1, NULL), CENOTE_NO_DEVICE);
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxDestroy(own));
    DONE(cenote_free(block));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    close_pair(&p);
}

/* --------------------------------------------------------------------------------------------------------------- both ways at a time */

struct stay {
    struct device *device;
    sem_t          entered, leave;
};

static void *stay_inside(void *arg)
{
    struct stay *stay = arg;
    device_enter(stay->device, stay->device->generation);
    sem_post(&stay->entered);
    sem_wait(&stay->leave);
    device_leave(stay->device);
    return NULL;
}

static void *announce(void *arg)
{
    device_announce_capture(arg);
    device_end_capture(arg);
    return NULL;
}

/* A capture is being announced there, and a thread there keeps it waiting: a thread of this device goes on. */
void hazard_visit_while_a_capture_is_announced(void)
{
    struct pair p;
    pthread_t inside, announcing;
    struct stay stay;
    int error;
    open_pair(&p);
    struct device *here = device_open(0, &error), *there = device_open(1, &error);
    REQUIRE(here && there);
    stay.device = there;
    sem_init(&stay.entered, 0, 0);
    sem_init(&stay.leave, 0, 0);
    pthread_create(&inside, NULL, stay_inside, &stay);
    sem_wait(&stay.entered);
    DONE(device_enter(here, here->generation));
    DONE(device_visit(there, there->generation));
    device_visit_end(there);
    pthread_create(&announcing, NULL, announce, there);
    alarm(patience(20)); /* or it would hang */
    while (!device_visit(there, there->generation))
        device_visit_end(there);
    alarm(0);
    device_leave(here);
    sem_post(&stay.leave);
    pthread_join(inside, NULL);
    pthread_join(announcing, NULL);
    device_close(here);
    device_close(there);
    close_pair(&p);
}

/* Asked by an allocation that is short: from now on the gate of the other device is shut, and opens while the allocation waits. */
struct shut {
    struct stay  stay;
    pthread_t    inside, announcing, opening;
    pid_t        allocating;    /* the thread */
};

#define TICKS 5     /* of CPU time, 10 ms each: the thread has looked at the gate many times */

/* An allocation that asks again and again uses the CPU. One that waits for the device sleeps at the gate. Either way it has come there. */
static void *open_again(void *arg)
{
    struct shut *shut = arg;
    struct wait wait = {0};
    uint64_t begin = thread_ticks(shut->allocating);
    for (int asleep = 0; asleep < 20 && thread_ticks(shut->allocating) < begin + TICKS && wait_on(&wait);)
        asleep = is_asleep(shut->allocating) ? asleep + 1 : 0;
    sem_post(&shut->stay.leave);
    return NULL;
}

static int shut_the_other_gate(cenote_pool *pool, size_t bytes, void *arg)
{
    struct shut *shut = arg;
    (void)pool, (void)bytes;
    if (shut->allocating)
        return 0; /* it asks once more */
    DONE(cuCtxSynchronize()); /* so that this device's own fences are not what the allocation waits for */
    pthread_create(&shut->inside, NULL, stay_inside, &shut->stay);
    sem_wait(&shut->stay.entered);
    pthread_create(&shut->announcing, NULL, announce, shut->stay.device);
    while (!pthread_rwlock_tryrdlock(&shut->stay.device->card->gate)) /* until the announcement has come to it */
        pthread_rwlock_unlock(&shut->stay.device->card->gate);
    shut->allocating = gettid();
    pthread_create(&shut->opening, NULL, open_again, shut);
    return 0;
}

/*
 * A gate that is shut for a moment is no reason to wait for all that the other device has to do. The pool grants nothing: a fence of a pool that
 * does waits for that device anyway (rule 14).
 */
void hazard_gate_of_the_other_device_is_shut(void)
{
    struct pair p;
    struct shut shut = {.allocating = 0};
    struct held block, next;
    int error;
    open_apart(&p);
    shut.stay.device = device_open(1, &error);
    REQUIRE(shut.stay.device);
    sem_init(&shut.stay.entered, 0, 0);
    sem_init(&shut.stay.leave, 0, 0);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream[0]));
    REQUIRE(held_take(&block, p.scene.pool, 40 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream[0]));
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream[0], 20 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_free(block.at));
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream[1], 3600 * 1000 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_on_shortage(p.scene.pool, shut_the_other_gate, &shut));
    alarm(patience(20)); /* or it would hang */
    bool taken = held_take(&next, p.scene.pool, 40 * MIB, p.scene.stream[A]);
    pthread_join(shut.inside, NULL);
    pthread_join(shut.announcing, NULL);
    pthread_join(shut.opening, NULL);
    EXPECT(taken || held_take(&next, p.scene.pool, 40 * MIB, p.scene.stream[A])); /* it may have come while the capture was open (rule 5) */
    alarm(0);
    EXPECT(sim_now() < 3600 * 1000 * MSEC);
    held_give(&next);
    device_close(shut.stay.device);
    close_pair(&p);
}

struct neighbour {
    cenote_pool *pool;
    CUcontext    context;
    CUstream     own, others;
    cenote_group *group;        /* NULL: it allocates */
    int          failures;
};

static void *visit_each_other(void *arg)
{
    struct neighbour *n = arg;
    n->failures += cuCtxSetCurrent(n->context) != 0;
    for (int i = 0; i < 400; i++) {
        void *block;
        int error = cenote_alloc(n->pool, 3 * MIB, n->own, &block);
        if (error) { /* while a capture is open no thread waits for what is in use */
            n->failures += error != CENOTE_OUT_OF_MEMORY;
            continue;
        }
        n->failures += cenote_use(block, n->others) || cenote_free(block);
        if (i % 16 == 0)
            n->failures += cenote_pool_trim(n->pool, 0, i % 32 ? CENOTE_TRIM_WAIT : 0) != 0;
    }
    return NULL;
}

static void *announce_captures(void *arg)
{
    struct neighbour *n = arg;
    for (int i = 0; i < 400; i++)
        n->failures += cenote_capture_begin(NULL, n->group, n->own) || cenote_capture_end(NULL, n->group, n->own);
    return NULL;
}

/* Each device's pool asks after the other's streams while captures are announced on both: no thread waits for ever. */
void hazard_devices_visit_each_other(void)
{
    struct pair p;
    cenote_pool *there;
    cenote_group *group[2];
    pthread_t threads[4];
    cenote_options options = scene_options();
    open_pair(&p);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group[0]));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group[1]));
    struct neighbour neighbours[] = {{p.scene.pool, p.scene.context, p.scene.stream[A], p.stream[0], NULL, 0},
                                     {there, p.other, p.stream[0], p.scene.stream[A], NULL, 0},
                                     {p.scene.pool, p.scene.context, p.scene.stream[C], NULL, group[0], 0},
                                     {there, p.other, p.stream[1], NULL, group[1], 0}};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, i < 2 ? visit_each_other : announce_captures, &neighbours[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(neighbours[i].failures, 0);
    }
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_group_destroy(group[0]));
    DONE(cenote_group_destroy(group[1]));
    DONE(cenote_pool_destroy(there));
    close_pair(&p);
}
