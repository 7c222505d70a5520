/*
 * remembered.h: the contexts of test_remembered.c, which end and begin, each with the handle of the one before and a stream with the handle of the
 * stream before.
 */
#ifndef CENOTE_TESTS_HOST_REMEMBERED_H
#define CENOTE_TESTS_HOST_REMEMBERED_H

#include <pthread.h>

#include "tests/processes/process.h"

#define STREAMS 8

static CUcontext far;
static CUstream stream;

static inline void *reset_there(void *arg)
{
    (void)arg;
    DONE(cuDevicePrimaryCtxReset(1));
    return NULL;
}

static inline void reset_here(void)
{
    reset_there(NULL);
}

static inline void reset_on_another_thread(void)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, reset_there, NULL));
    pthread_join(thread, NULL);
}

static inline void far_enter(void)
{
    DONE(cuCtxPushCurrent(far));
}

static inline void far_leave(void)
{
    DONE(cuCtxPopCurrent(NULL));
}

/* With the handle of the one before: the driver gives those of all streams that have ended, cenote's own, too. */
static inline void make_stream(void)
{
    CUstream before = stream, made[STREAMS];
    int count = 0, found = 0;
    far_enter();
    do
        DONE(cuStreamCreate(&made[count++], CU_STREAM_NON_BLOCKING));
    while (before && made[count - 1] != before && count < STREAMS);
    found = count - 1;
    while (count--)
        if (count != found)
            DONE(cuStreamDestroy(made[count]));
    far_leave();
    stream = made[found];
    EXPECT(!before || stream == before); /* or nothing is remembered wrongly */
}

static inline void end_far(void (*reset)(void))
{
    CUcontext before = far;
    far_enter();
    DONE(cuStreamDestroy(stream));
    far_leave();
    reset();
    DONE(cuDevicePrimaryCtxRelease(1));
    DONE(cuDevicePrimaryCtxRetain(&far, 1));
    EXPECT_EQ(far, before);
    make_stream();
}

#endif
