/*
 * moments.h: a driver in which something happens while an event is recorded: another thread makes calls, or the stream is captured for that moment.
 * And a scene with a stream on a second device.
 */
#ifndef CENOTE_TESTS_API_MOMENTS_H
#define CENOTE_TESTS_API_MOMENTS_H

#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/strict.h"

static const struct driver *below;
static CUstream watched;            /* what happens while an event is recorded there */
static void *(*meanwhile)(void *);  /* in another thread, once */

static CUstream brief;              /* is captured for the moment in which an event is recorded on it */
static int brief_times;             /* so often still */
static _Atomic CUevent captured;    /* the event of the last such moment, until it is recorded anew */

static inline void do_elsewhere(void *(*what)(void *), void *arg)
{
    pthread_t thread;
    DONE(pthread_create(&thread, NULL, what, arg));
    DONE(pthread_join(thread, NULL));
}

static inline CUresult record_in_a_moment(CUevent event, CUstream stream)
{
    void *(*now)(void *) = stream == watched ? meanwhile : NULL;
    if (now) {
        meanwhile = NULL;
        do_elsewhere(now, NULL);
    }
    CUevent same = event;
    atomic_compare_exchange_strong(&captured, &same, NULL); /* threads record, each an event of its own */
    if (!brief_times || stream != brief)
        return below->cuEventRecord(event, stream);
    brief_times--;
    captured = event;
    return record_in_a_capture_of_a_moment(below, event, stream);
}

/* As the driver answers; the simulated one counts the question among the mistakes. */
static inline CUresult query_in_a_moment(CUevent event)
{
    return event == captured ? CUDA_ERROR_CAPTURED_EVENT : below->cuEventQuery(event);
}


static inline const struct driver *with_moments(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuEventRecord = record_in_a_moment;
    table.cuEventQuery = query_in_a_moment;
    return &table;
}

static inline void open_moments(struct scene *scene, bool mortal)
{
    open_strict(scene, mortal);
    if (!below)
        driver_interpose(with_moments);
}

static inline void open_two(struct peers *p, const cenote_options *options)
{
    struct sim_shape shape = scene_card(2 * CARD);
    shape.devices = 2;
    scene_open_with(&p->scene, &shape, options);
    if (!below)
        driver_interpose(with_moments);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static inline void close_two(struct peers *p)
{
    for (int i = 0; i < SCENE_STREAMS; i++)
        if (p->scene.stream[i])
            cenote_stream_retire(p->scene.pool, p->scene.stream[i]);
    close_peers(p);
}

static inline void end_other_stream(struct peers *p)
{
    DONE(cenote_stream_retire(p->scene.pool, p->stream));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamDestroy(p->stream));
    DONE(cuCtxPopCurrent(NULL));
}

static inline void make_other_stream(struct peers *p)
{
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

/* A block that the other device's stream uses is freed, and the event of the free falls into a capture of a moment. */
static inline void free_in_a_capture(struct peers *p)
{
    struct held block;
    REQUIRE(held_take(&block, p->scene.pool, 16 * MIB, p->scene.stream[A]));
    DONE(cenote_use(block.at, p->stream));
    DONE(sim_launch_wait(p->stream, 10 * MSEC));
    brief = p->stream;
    brief_times = 1;
    DONE(cenote_free(block.at));
    EXPECT_EQ(brief_times, 0);
}

#endif
