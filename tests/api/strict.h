/*
 * strict.h: scenes whose pool has the option announced:0: captures may begin on any stream without a word to cenote.
 */
#ifndef CENOTE_TESTS_API_STRICT_H
#define CENOTE_TESTS_API_STRICT_H

#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)

static inline cenote_options strict(void)
{
    cenote_options options = scene_options();
    options.announced = 0;
    return options;
}

/* The streams live as long as the program, unless `mortal`. The device is a moment behind. */
static inline void open_strict(struct scene *scene, bool mortal)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = strict();
    shape.lag = MSEC;
    scene_open_with(scene, &shape, &options);
    for (int i = 0; i < SCENE_STREAMS && !mortal; i++)
        DONE(cenote_stream_set_immortal(scene->pool, scene->stream[i]));
}

static inline void close_strict(struct scene *scene)
{
    for (int i = 0; i < SCENE_STREAMS; i++)
        if (scene->stream[i])
            cenote_stream_retire(scene->pool, scene->stream[i]); /* which is said of mortal ones */
    scene_destroy_pool(scene);
    scene_close(scene);
}

/* A capture of the stream begins before the event is recorded, and has ended afterwards. */
static inline CUresult record_in_a_capture_of_a_moment(const struct driver *driver, CUevent event, CUstream stream)
{
    CUgraph graph = NULL;
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult result = driver->cuEventRecord(event, stream);
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuGraphDestroy(graph));
    return result;
}

/* A block, freed, with work behind it that looks at it at the very end. */
static inline void leave_block_in(cenote_pool *pool, CUstream stream, size_t bytes)
{
    struct held block;
    REQUIRE(held_take(&block, pool, bytes, stream));
    held_linger(&block, stream);
    DONE(cenote_free(block.at));
}

static inline void leave_block(struct scene *scene, CUstream stream, size_t bytes)
{
    leave_block_in(scene->pool, stream, bytes);
}

/* A block of nearly the whole card. */
static inline void leave_card(struct scene *scene, CUstream stream)
{
    leave_block_in(scene->pool, stream, 48 * MIB);
}

#endif
