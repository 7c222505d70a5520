/*
 * fences.c: memory that changes streams while work on it is under way. The driver is asked how far the device got on streams that captured,
 * died, belong to a thread or to another device, or that cenote never heard of.
 * Not: captures (capture.c), which pages move and how often (pages.c).
 */
#include "driver/driver.h"
#include "tests/hazard/hazards.h"
#include "tests/patience.h"

#include <errno.h>
#include <time.h>

#define CARD (32 * MIB)
#define SMALL_CARD (12 * MIB)    /* for what is tried hundreds of times */

/* cenote has seen this stream: older drivers record their fences on all streams seen. */
static void introduce(struct scene *scene, CUstream stream)
{
    void *block;
    DONE(cenote_alloc(scene->pool, 512, stream, &block));
    DONE(cenote_free(block));
}

/* Another stream takes all there is, at once: half of the card at least. */
static void snatch(struct scene *scene, CUstream stream)
{
    struct hoard hoard;
    hoard_take(&hoard, scene->pool, 2 * MIB, stream);
    EXPECT(hoard.bytes >= scene_stats(scene->pool).capacity / 2);
    hoard_give(&hoard);
}

/* A block freed while a stream that waited for its own still reads it; its own stream waits for that one only afterwards. */
void hazard_free_before_the_wait_in_the_other_direction(void)
{
    for (int snatched_before = 0; snatched_before < 2; snatched_before++) {
        struct scene scene;
        struct held block, next;
        hazard_open(&scene, CARD);
        introduce(&scene, scene.stream[B]);
        REQUIRE(held_take(&block, scene.pool, 20 * MIB, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        held_linger(&block, scene.stream[B]);
        DONE(cenote_free(block.at));
        if (snatched_before)
            snatch(&scene, scene.stream[C]);
        order(scene.stream[B], scene.stream[A]);
        REQUIRE(held_take(&next, scene.pool, 20 * MIB, scene.stream[A]));
        held_give(&next);
        snatch(&scene, scene.stream[C]);
        scene_close(&scene);
    }
}

/* The same with a word to cenote: not even its own stream gets the block before the other one is done with it. */
void hazard_free_after_a_use_on_another_stream(void)
{
    struct scene scene;
    struct held block, next;
    hazard_open(&scene, CARD);
    REQUIRE(held_take(&block, scene.pool, 12 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    order(scene.stream[A], scene.stream[C]);
    held_linger(&block, scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cenote_use(block.at, scene.stream[C]));
    DONE(cenote_use(block.at, scene.stream[A]));
    held_linger(&block, scene.stream[C]); /* after the word and before the free counts too */
    held_linger(&block, scene.stream[C]);
    DONE(cenote_free(block.at));

    REQUIRE(held_take(&next, scene.pool, 12 * MIB, scene.stream[A]));
    EXPECT(!held_overlap(&next, &block));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    held_give(&next);
    snatch(&scene, scene.stream[A]);
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[A]);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

static void use_on_an_unknown_stream(bool waited_for)
{
    struct scene scene;
    struct held block;
    CUstream unknown;
    hazard_open(&scene, CARD);
    DONE(cuStreamCreate(&unknown, CU_STREAM_NON_BLOCKING));
    REQUIRE(held_take(&block, scene.pool, 20 * MIB, scene.stream[A]));
    order(scene.stream[A], unknown);
    held_linger(&block, unknown);
    if (waited_for)
        order(unknown, scene.stream[A]);
    DONE(cenote_free(block.at));
    snatch(&scene, scene.stream[B]);
    scene_judge(&scene);
    DONE(cuStreamDestroy(unknown));
    scene_close(&scene);
}

void hazard_kernel_on_an_unknown_stream_that_is_waited_for(void)
{
    use_on_an_unknown_stream(true);
}

void hazard_kernel_on_an_unknown_stream(void)
{
    use_on_an_unknown_stream(false);
}

/* A new stream with the handle of a dead one, whose work is still under way, inherits nothing. */
static void new_stream_with_an_old_handle(bool retired)
{
    struct scene scene;
    struct held block, next;
    hazard_open(&scene, CARD);
    CUstream old = scene.stream[A];
    REQUIRE(held_take(&next, scene.pool, 12 * MIB, old)); /* it is known already */
    held_give(&next);
    REQUIRE(held_take(&block, scene.pool, 12 * MIB, old));
    held_linger(&block, old);
    DONE(cenote_free(block.at));
    if (retired)
        DONE(cenote_stream_retire(scene.pool, old));
    DONE(cuStreamDestroy(old));
    DONE(cuStreamCreate(&scene.stream[A], CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(scene.stream[A], old);

    REQUIRE(held_take(&next, scene.pool, 12 * MIB, scene.stream[A]));
    held_give(&next);
    snatch(&scene, scene.stream[A]);
    snatch(&scene, scene.stream[B]);
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[C]); /* and what the dead one left is not lost */
    scene_close(&scene);
}

void hazard_stream_destroyed_after_the_free(void)
{
    new_stream_with_an_old_handle(true);
}

void hazard_stream_destroyed_without_a_word(void)
{
    new_stream_with_an_old_handle(false);
}

/* No event can be recorded on a stream that is gone, and one on its successor would say nothing. */
void hazard_used_stream_destroyed_before_the_free(void)
{
    for (int reused = 0; reused < 2; reused++) {
        struct scene scene;
        struct held block, next;
        hazard_open(&scene, CARD);
        CUstream old = scene.stream[C];
        REQUIRE(held_take(&block, scene.pool, 12 * MIB, scene.stream[A]));
        order(scene.stream[A], old);
        held_linger(&block, old);
        DONE(cenote_use(block.at, old));
        DONE(cuStreamDestroy(old));
        scene.stream[C] = NULL;
        if (reused)
            DONE(cuStreamCreate(&scene.stream[C], CU_STREAM_NON_BLOCKING));
        EXPECT_EQ(scene.stream[C], reused ? old : NULL);
        DONE(cenote_free(block.at));

        REQUIRE(held_take(&next, scene.pool, 12 * MIB, scene.stream[A]));
        held_give(&next);
        snatch(&scene, scene.stream[B]);
        scene_judge(&scene);
        hazard_whole_card(&scene, CARD, scene.stream[A]);
        scene_close(&scene);
    }
}

void hazard_immortal_stream_frees_into_itself(void)
{
    struct scene scene;
    hazard_open(&scene, CARD);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    for (int i = 0; i < 5; i++) {
        struct held block;
        REQUIRE(held_take(&block, scene.pool, (size_t)(i + 1) * 4 * MIB, scene.stream[A]));
        held_linger(&block, scene.stream[A]);
        held_give(&block);
        snatch(&scene, scene.stream[B]);
    }
    scene_close(&scene);
}

/*
 * The tracer looks at its clock before and after every driver call. At the n-th look another thread puts work on a block of A and frees
 * it; for some n that falls between a fence's number and its event. If the library called the driver with its lock held, the intruder
 * would hang.
 */
struct intruder {
    struct held *victim;
    CUstream     stream;
    _Atomic int  looks_left;
    sem_t        go, done;
    int          failures;
};

static void *intrude(void *arg)
{
    struct intruder *intruder = arg;
    while (sem_wait(&intruder->go))
        ;
    if (intruder->victim) {
        struct held *victim = intruder->victim;
        intruder->failures += sim_launch_wait(intruder->stream, 10 * MSEC) != CUDA_SUCCESS;
        for (size_t from = 0; from < victim->bytes; from += MIB) {
            CUdeviceptr at = device_address(victim->at + from);
            intruder->failures += sim_launch_expect(intruder->stream, at, victim->pattern + from, MIB) != CUDA_SUCCESS;
        }
        intruder->failures += cenote_free(victim->at) != CENOTE_OK;
    }
    sem_post(&intruder->done);
    return NULL;
}

static uint64_t clock_with_an_intruder(void *arg)
{
    struct intruder *intruder = arg;
    if (atomic_fetch_sub(&intruder->looks_left, 1) == 1) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += patience(2);
        sem_post(&intruder->go);
        while (sem_timedwait(&intruder->done, &until))
            if (errno != EINTR) {
                intruder->failures += 1000; /* a driver call under a lock that a free needs */
                break;
            }
    }
    return sim_now();
}

/* True while there was an n-th look. */
static bool free_at_the_nth_look(int n)
{
    struct scene scene;
    struct held first, victim;
    pthread_t thread;
    hazard_open(&scene, SMALL_CARD);
    REQUIRE(held_take(&first, scene.pool, SMALL_CARD / 3, scene.stream[A]));
    REQUIRE(held_take(&victim, scene.pool, SMALL_CARD / 3, scene.stream[A]));
    struct intruder intruder = {.victim = &victim, .stream = scene.stream[A], .looks_left = n};
    sem_init(&intruder.go, 0, 0);
    sem_init(&intruder.done, 0, 0);
    DONE(pthread_create(&thread, NULL, intrude, &intruder));
    held_give(&first);

    driver_trace_clock(clock_with_an_intruder, &intruder);
    snatch(&scene, scene.stream[B]);
    driver_trace_clock(NULL, NULL);

    bool looked = intruder.looks_left <= 0;
    if (!looked) {
        intruder.victim = NULL;
        sem_post(&intruder.go);
    }
    DONE(pthread_join(thread, NULL));
    EXPECT_EQ(intruder.failures, 0);
    if (!looked)
        held_give(&victim);
    sem_destroy(&intruder.go);
    sem_destroy(&intruder.done);
    snatch(&scene, scene.stream[C]);
    scene_close(&scene);
    return looked;
}

void hazard_free_while_another_thread_records_the_fence(void)
{
    int looks = 0;
    while (looks < 1000 && free_at_the_nth_look(looks + 1))
        looks++;
    EXPECT(looks > 4 && looks < 1000);
}

/* A thread works on its own default stream and frees; handle 2 means another stream in every other thread. */
struct worker {
    cenote_pool *pool;
    CUcontext    context;
    sem_t        freed, leave;
    int          failures;
};

static void *work_on_the_default_stream(void *arg)
{
    struct worker *worker = arg;
    void *block = NULL;
    worker->failures += cuCtxPushCurrent(worker->context) != CUDA_SUCCESS;
    worker->failures += cenote_alloc(worker->pool, 14 * MIB, CU_STREAM_PER_THREAD, &block) != CENOTE_OK;
    CUdeviceptr at = device_address(block);
    worker->failures += sim_launch_fill(CU_STREAM_PER_THREAD, at, 4711, 14 * MIB) != CUDA_SUCCESS;
    worker->failures += sim_launch_wait(CU_STREAM_PER_THREAD, 10 * MSEC) != CUDA_SUCCESS;
    worker->failures += sim_launch_expect(CU_STREAM_PER_THREAD, at, 4711, 14 * MIB) != CUDA_SUCCESS;
    worker->failures += cenote_free(block) != CENOTE_OK;
    sem_post(&worker->freed);
    while (sem_wait(&worker->leave))
        ;
    worker->failures += cuCtxPopCurrent(NULL) != CUDA_SUCCESS;
    return NULL;
}

static void per_thread_stream(bool thread_ended)
{
    struct scene scene;
    struct held block;
    pthread_t thread;
    hazard_open(&scene, CARD);
    struct worker worker = {.pool = scene.pool, .context = scene.context};
    sem_init(&worker.freed, 0, 0);
    sem_init(&worker.leave, 0, 0);
    DONE(pthread_create(&thread, NULL, work_on_the_default_stream, &worker));
    while (sem_wait(&worker.freed))
        ;
    if (thread_ended) {
        sem_post(&worker.leave);
        DONE(pthread_join(thread, NULL));
    }
    REQUIRE(held_take(&block, scene.pool, 14 * MIB, CU_STREAM_PER_THREAD));
    held_give(&block);
    snatch(&scene, scene.stream[B]);
    snatch(&scene, CU_STREAM_PER_THREAD);
    snatch(&scene, CU_STREAM_LEGACY);
    if (!thread_ended) {
        sem_post(&worker.leave);
        DONE(pthread_join(thread, NULL));
    }
    EXPECT_EQ(worker.failures, 0);
    sem_destroy(&worker.freed);
    sem_destroy(&worker.leave);
    scene_close(&scene);
}

void hazard_fence_due_on_a_per_thread_stream(void)
{
    per_thread_stream(false);
}

void hazard_fence_due_on_the_stream_of_a_thread_that_ended(void)
{
    per_thread_stream(true);
}

/* Handle 0 means the current device's stream: work on device 0 is waited for though device 1 is current, and stays so for the caller. */
void hazard_fence_due_with_another_device_current(void)
{
    struct scene scene;
    struct held block, next[CARD / (4 * MIB)];
    CUcontext other, current;
    int count = 0;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&other, 1));
    REQUIRE(held_take(&block, scene.pool, 20 * MIB, NULL));
    held_linger(&block, NULL);

    DONE(cuCtxPushCurrent(other));
    DONE(cenote_free(block.at));
    for (size_t i = 0; i < CARD / (4 * MIB); i++) {
        void *at;
        if (cenote_alloc(scene.pool, 4 * MIB, i % 2 ? scene.stream[B] : scene.stream[C], &at))
            break;
        next[count] = (struct held){.at = at, .bytes = 4 * MIB, .stream = i % 2 ? scene.stream[B] : scene.stream[C]};
        DONE(cuCtxGetCurrent(&current));
        EXPECT_EQ(current, other);
        DONE(cuCtxPushCurrent(scene.context));
        next[count] = held_of(at, 4 * MIB, next[count].stream);
        DONE(cuCtxPopCurrent(NULL));
        count++;
    }
    EXPECT(count >= 2);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, other);
    DONE(cuCtxPopCurrent(NULL));
    while (count > 0)
        held_give(&next[--count]);
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&scene);
}
