/* test_unannounced.c: pinned memory with the option announced:0: no capture ends, whatever waits, and no block is handed out too early. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/host/pinned.h"

#define BYTES (64 * KIB)

struct card { struct scene scene; CUdeviceptr there; };

static void card_open(struct card *card)
{
    cenote_host_options options = pinned_options();
    options.announced = 0;
    options.limit = 8 * MIB;
    options.chunk_mib = 2;
    pinned_open_devices(&card->scene, &options, 1);
    DONE(cuMemAlloc(&card->there, BYTES));
}

static void card_close(struct card *card)
{
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(card->there));
    pinned_close(&card->scene);
}

static void copy_late(struct card *card, char *block, CUstream stream)
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

/*
 * What a captured stream used has no event. It is not handed out again, and pinned memory stays open: so in a process of its own, and first, because
 * a child of a process that uses the driver may not.
 */
CASE(copy_in_a_capture)
{
    pid_t child = fork();
    int status = 0;
    if (child) {
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
    }
    struct card card;
    void *other = NULL;
    CUgraph graph;
    card_open(&card);
    void *block = pinned_take(6 * MIB);
    cuStreamBeginCapture(card.scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL);
    cuMemcpyHtoDAsync(card.there, block, BYTES, card.scene.stream[A]);
    bool right = !cenote_host_use(block, 0, card.scene.stream[A]);
    right = right && !cuStreamEndCapture(card.scene.stream[A], &graph) && !cuGraphDestroy(graph) && !cenote_host_free(block);
    right = right && cenote_host_alloc(0, 7 * MIB, &other) == CENOTE_OUT_OF_HOST_MEMORY && !cenote_host_trim(0, CENOTE_TRIM_WAIT);
    right = right && pinned_stats().pending_blocks == 1 && cenote_host_close() == CENOTE_BUSY;
    _exit(!right);
}

/* A trim that waits, and an allocation that has to, beside a capture of a library. */
CASE(waits_beside_a_capture)
{
    struct card card;
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
    struct card card;
    CUstream blocking;
    card_open(&card);
    DONE(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
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

SCENES_MAIN("host: unannounced")
