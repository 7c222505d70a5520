/* test_unannounced.c: pinned memory with the option announced:0: no capture ends, whatever waits, and no block is handed out too early. */
#include <stdlib.h>

#include "driver/touch.h"
#include "tests/api/whims.h"
#include "tests/host/pinned.h"

#define BYTES (64 * KIB)

struct scene_card { struct scene scene; CUdeviceptr there; };

static void card_open(struct scene_card *card)
{
    cenote_host_options options = pinned_options();
    options.announced = 0;
    options.limit = 8 * MIB;
    options.chunk_mib = 2;
    pinned_open_devices(&card->scene, &options, 1);
    DONE(cuMemAlloc(&card->there, BYTES));
}

static void card_close(struct scene_card *card)
{
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(card->there));
    pinned_close(&card->scene);
}

static void copy_late(struct scene_card *card, char *block, CUstream stream)
{
    DONE(sim_launch_wait(stream, 10 * MSEC));
    DONE(cuMemcpyHtoDAsync(card->there, block, BYTES, stream));
    DONE(cenote_host_use(block, 0, stream));
}

static void expect_whole(CUstream stream)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    DONE(cuStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cuGraphDestroy(graph));
}

struct replayed { CUgraph graph; CUgraphExec exec; };

/* A capture of stream A, in which the graph is given a copy of the block, some work before it. */
static struct replayed capture(struct scene_card *card, char *block)
{
    struct replayed r;
    DONE(cuStreamBeginCapture(card->scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    copy_late(card, block, card->scene.stream[A]);
    DONE(cuStreamEndCapture(card->scene.stream[A], &r.graph));
    DONE(cuGraphInstantiate(&r.exec, r.graph, 0));
    return r;
}

static void forget(struct replayed *r)
{
    DONE(cuGraphExecDestroy(r->exec));
    DONE(cuGraphDestroy(r->graph));
}

/* Almost all that may be registered: no room beside it. */
#define ALMOST_ALL (6 * MIB)

static bool comes_back(struct scene_card *card)
{
    void *other = NULL;
    (void)card;
    if (cenote_host_alloc(0, 7 * MIB, &other))
        return false;
    DONE(cenote_host_free(other));
    return pinned_stats().pending_blocks == 0;
}

CASE(copy_in_a_capture)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    forget(&r);
    DONE(cenote_host_free(block));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(comes_back(&card));
    card_close(&card);
}

/* Also by calls that wait for nothing. */
CASE(copy_in_a_capture_and_a_trim)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    DONE(cuGraphLaunch(r.exec, NULL));
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    DONE(cuStreamSynchronize(NULL));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    forget(&r);
    card_close(&card);
}

/* A replay before the free, on a stream that lives as long as the program, is waited for. So is a second block that was freed after it. */
CASE(replay_on_an_immortal_stream)
{
    struct scene_card card;
    card_open(&card);
    DONE(cenote_host_stream_set_immortal(0, card.scene.stream[B]));
    DONE(cenote_host_stream_set_immortal(0, NULL));
    DONE(cenote_host_stream_set_immortal(0, CU_STREAM_PER_THREAD));
    char *first = pinned_take(MIB), *second = pinned_take(MIB);
    struct replayed one = capture(&card, first), two = capture(&card, second);
    DONE(cuGraphLaunch(one.exec, card.scene.stream[B]));
    DONE(cenote_host_free(first));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    DONE(cuGraphLaunch(two.exec, card.scene.stream[B]));
    DONE(cenote_host_free(second));
    EXPECT_EQ(pinned_stats().pending_blocks, 2);
    sim_advance(15 * MSEC);
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    DONE(cenote_host_trim(UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    EXPECT_EQ(cuStreamQuery(card.scene.stream[B]), CUDA_SUCCESS);
    forget(&one);
    forget(&two);
    card_close(&card);
}

/* The stream on which a replay may run is being captured by a library: the block waits, and comes back when that has ended. */
CASE(replay_beside_a_capture)
{
    struct scene_card card;
    card_open(&card);
    CUstream stream = card.scene.stream[B];
    DONE(cenote_host_stream_set_immortal(0, stream));
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    DONE(cuGraphLaunch(r.exec, stream));
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_host_free(block));
    EXPECT(!comes_back(&card));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT_EQ(cenote_host_close(), CENOTE_BUSY);
    expect_whole(stream);
    EXPECT(comes_back(&card));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    forget(&r);
    card_close(&card);
}

/* A copy before the capture of the same stream is waited for, although the stream may not be touched. */
CASE(copy_before_a_capture)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(ALMOST_ALL);
    copy_late(&card, block, card.scene.stream[A]);
    struct replayed r = capture(&card, block);
    forget(&r);
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(comes_back(&card));
    EXPECT_EQ(cuStreamQuery(card.scene.stream[A]), CUDA_SUCCESS);
    card_close(&card);
}

/* A replay that the program has told, on a stream that may end. */
CASE(replay_on_another_stream_is_told)
{
    struct scene_card card;
    card_open(&card);
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    DONE(cuGraphLaunch(r.exec, card.scene.stream[C]));
    DONE(cenote_host_use(block, 0, card.scene.stream[C]));
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(comes_back(&card));
    EXPECT_EQ(cuStreamQuery(card.scene.stream[C]), CUDA_SUCCESS);
    forget(&r);
    card_close(&card);
}

/* ------------------------------------------------------------------------------------------------------------------ a driver with whims */

/* An event that fell into a capture says nothing: another one takes its place. */
CASE(capture_of_a_moment)
{
    struct scene_card card;
    card_open(&card);
    CUstream stream = card.scene.stream[B];
    DONE(cenote_host_stream_set_immortal(0, stream));
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    DONE(cuGraphLaunch(r.exec, stream));
    DONE(cenote_host_free(block));
    whims.brief = stream;
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT(whims.brief == NULL);
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(comes_back(&card));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    forget(&r);
    card_close(&card);
}

/* A stream that gets no event at the moment of the copy may be touched later, if it lives as long as the program. Otherwise the block stays. */
CASE(event_that_is_refused)
{
    struct scene_card card;
    card_open(&card);
    CUstream stream = card.scene.stream[B];
    DONE(cenote_host_stream_set_immortal(0, stream));
    char *block = pinned_take(ALMOST_ALL);
    whims.refused = stream;
    copy_late(&card, block, stream);
    whims.refused = NULL;
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 1);
    EXPECT(comes_back(&card));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    card_close(&card);
}

/* ----------------------------------------------------------------------------------------------------- captures cease to be announced */

/* Pinned memory was opened with the promise, which the program takes back, and gives again. */
CASE(the_promise_is_taken_back)
{
    struct scene_card card;
    cenote_host_options options = pinned_options();
    options.limit = 8 * MIB;
    options.chunk_mib = 2;
    pinned_open_devices(&card.scene, &options, 1);
    DONE(cuMemAlloc(&card.there, BYTES));
    EXPECT_EQ(cenote_host_set_announced(2), CENOTE_INVALID);
    CUstream stream = card.scene.stream[A];
    char *block = pinned_take(ALMOST_ALL);
    struct replayed r = capture(&card, block);
    DONE(cuGraphLaunch(r.exec, NULL));
    DONE(cenote_host_set_announced(0));
    DONE(cenote_host_set_announced(0));
    DONE(cuStreamBeginCapture(card.scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_host_free(block));
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT(comes_back(&card));
    expect_whole(card.scene.stream[B]);
    DONE(cenote_host_set_announced(1));
    EXPECT(touch_captures_are_announced());
    block = pinned_take(ALMOST_ALL);
    DONE(cuGraphLaunch(r.exec, stream));
    struct replayed again = capture(&card, block);
    DONE(cenote_host_free(block));
    EXPECT(comes_back(&card)); /* the whole device was waited for */
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    forget(&again);
    forget(&r);
    card_close(&card);
}

/* A trim that waits, and an allocation that has to, beside a capture of a library. */
CASE(waits_beside_a_capture)
{
    struct scene_card card;
    card_open(&card);
    CUstream stream = card.scene.stream[A];
    for (int round = 0; round < 2; round++) {
        char *block = pinned_take(6 * MIB);
        copy_late(&card, block, stream);
        DONE(cuStreamBeginCapture(card.scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_host_free(block));
        if (!round)
            DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
        char *other = pinned_take(7 * MIB);
        EXPECT(other != NULL);
        EXPECT_EQ(pinned_stats().pending_blocks, 0);
        DONE(cenote_host_free(other));
        expect_whole(card.scene.stream[B]);
    }
    card_close(&card);
}

/* The default stream has an event although a blocking stream is being captured. */
CASE(default_stream_beside_a_capture_of_a_blocking_stream)
{
    struct scene_card card;
    CUstream blocking;
    card_open(&card);
    DONE(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DONE(cenote_host_stream_set_immortal(0, blocking)); /* while it is captured a sweep says nothing */
    char *block = pinned_take(BYTES);
    copy_late(&card, block, NULL);
    char *later = pinned_take(BYTES);
    DONE(sim_launch_wait(NULL, 10 * MSEC));
    DONE(cuMemcpyHtoDAsync(card.there, later, BYTES, NULL));
    DONE(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_host_use(later, 0, NULL));
    DONE(cenote_host_free(block));
    DONE(cenote_host_free(later));
    DONE(cenote_host_trim(UINT64_MAX, 0));
    EXPECT_EQ(pinned_stats().pending_blocks, 2);
    DONE(cenote_host_trim(UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    expect_whole(blocking);
    DONE(cuStreamDestroy(blocking));
    card_close(&card);
}

CASE(one_promise_for_both_libraries)
{
    cenote_host_options options;
    DONE(cenote_host_options_default(&options));
    EXPECT_EQ(options.announced, 1);
    setenv("CENOTE_CONF", "page_mib:2, announced:0,decay_ms:1", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT_EQ(options.announced, 0);
    setenv("CENOTE_HOST_CONF", "announced:1", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT_EQ(options.announced, 1);
    unsetenv("CENOTE_HOST_CONF");
    setenv("CENOTE_CONF", "page_mib:2,announced:1", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT_EQ(options.announced, 1);
    unsetenv("CENOTE_CONF");
}

int main(int argc, char **argv)
{
    driver_interpose(with_whims);
    return test_run("host: unannounced", argc > 1 ? argv[1] : "", NULL, scene_after);
}
