/*
 * test_memory.c: cuMemAlloc, cuMemAllocPitch, cuMemAllocAsync and both frees: the device may be behind, streams are ordered by nothing, and contents
 * say whether memory came back too early.
 */
#include "tests/preload/card.h"

ON_CARD(memory_of_every_call_is_cenotes)
{
    CUdeviceptr plain, pitched, async, pooled;
    CUmemoryPool pool;
    size_t pitch = 0;
    DONE(cuMemAlloc(&plain, 3 * MIB + 5));
    DONE(cuMemAllocPitch(&pitched, &pitch, 700, 9, 4));
    DONE(cuMemAllocAsync(&async, 100, card.stream[A]));
    DONE(cuDeviceGetDefaultMemPool(&pool, 0));
    DONE(cuMemAllocFromPoolAsync(&pooled, 5000, pool, card.stream[B]));
    EXPECT_EQ(pitch, 1024);
    EXPECT(is_ours(plain) && is_ours(pitched) && is_ours(async) && is_ours(pooled));
    EXPECT_EQ(driver_allocations(), 0);
    DONE(cuMemFree(plain));
    DONE(cuMemFree(pitched));
    DONE(cuMemFreeAsync(async, card.stream[A]));
    DONE(cuMemFreeAsync(pooled, card.stream[B]));
    EXPECT(!is_ours(plain) && !is_ours(pitched) && !is_ours(async) && !is_ours(pooled));
}

/* The only memory left is what stream A has freed and is still at work on. */
ON_CARD_OF(memory_for_all_streams_is_done_with, 64 * MIB)
{
    struct held first = stream_take(40 * MIB, card.stream[A]);
    REQUIRE(first.at);
    held_linger(&first, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&first), card.stream[A]));
    struct held second = plain_take(40 * MIB, card.stream[B]); /* used at once where nothing is ordered behind A */
    REQUIRE(second.at);
    held_expect(&second, card.stream[C]);
    DONE(cuCtxSynchronize());
    DONE(cuMemFree(at_of(&second)));
}

ON_CARD(a_free_waits_for_all_streams)
{
    struct held first = plain_take(40 * MIB, card.stream[A]);
    order(card.stream[A], card.stream[B]);
    held_linger(&first, card.stream[B]);
    uint64_t before = sim_now();
    DONE(cuMemFree(at_of(&first)));
    EXPECT(sim_now() - before >= 10 * MSEC);
    DONE(cuStreamQuery(card.stream[B]));
    struct held second = plain_take(40 * MIB, card.stream[C]);
    EXPECT_EQ(second.at, first.at);
    DONE(cuMemFree(at_of(&second)));
}

/* In stream order a free waits for nothing, and the next block of the stream may lie there at once. */
ON_CARD(a_free_in_stream_order_does_not_wait)
{
    struct held first = stream_take(40 * MIB, card.stream[A]);
    held_linger(&first, card.stream[A]);
    uint64_t before = sim_now();
    DONE(cuMemFreeAsync(at_of(&first), card.stream[A]));
    struct held second = stream_take(40 * MIB, card.stream[A]);
    EXPECT_EQ(sim_now(), before);
    EXPECT_EQ(second.at, first.at);
    EXPECT_EQ(cuStreamQuery(card.stream[A]), CUDA_ERROR_NOT_READY);
    held_expect(&second, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&second), card.stream[A]));
}

/* Taken on A, used on B behind A, freed on B: A must not write there while B reads. */
ON_CARD_OF(a_free_on_another_stream_is_in_its_order, 64 * MIB)
{
    struct held first = stream_take(40 * MIB, card.stream[A]);
    order(card.stream[A], card.stream[B]);
    held_linger(&first, card.stream[B]);
    DONE(cuMemFreeAsync(at_of(&first), card.stream[B]));
    struct held second = stream_take(40 * MIB, card.stream[A]);
    REQUIRE(second.at);
    held_expect(&second, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&second), card.stream[A]));
}

/* cuMemAlloc, and then cuMemFreeAsync: in the order of that stream, and no sooner for the streams of others. */
/* Only the program knows when such a stream goes on. Until then what it has freed serves no other stream, and cuMemFree waits for it. */
ON_CARD_OF(memory_behind_a_word_that_is_waited_for, 64 * MIB)
{
    CUdeviceptr behind, beside, word;
    DONE(cuMemAlloc(&word, 4));
    DONE(cuMemsetD32(word, 0, 1));
    DONE(cuMemAllocAsync(&behind, 20 * MIB, card.stream[A]));
    DONE(cuStreamWaitValue32(card.stream[A], word, 1, CU_STREAM_WAIT_VALUE_EQ));
    DONE(sim_launch_fill(card.stream[A], behind, 1, 20 * MIB));
    DONE(cuMemFreeAsync(behind, card.stream[A]));
    DONE(cuMemAllocAsync(&beside, 20 * MIB, card.stream[B]));
    EXPECT(is_ours(beside));
    DONE(sim_launch_fill(card.stream[B], beside, 2, 20 * MIB));
    DONE(cuStreamSynchronize(card.stream[B]));
    EXPECT_EQ(cuStreamQuery(card.stream[A]), CUDA_ERROR_NOT_READY);
    DONE(cuStreamWriteValue32(card.stream[B], word, 1, 0));
    DONE(cuMemFree(word));
    DONE(cuStreamQuery(card.stream[A]));
    DONE(sim_launch_expect(card.stream[B], beside, 2, 20 * MIB));
    DONE(cuMemFreeAsync(beside, card.stream[B]));
}

ON_CARD_OF(plain_memory_freed_in_stream_order, 64 * MIB)
{
    struct held first = plain_take(40 * MIB, card.stream[A]);
    held_linger(&first, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&first), card.stream[A]));
    EXPECT_EQ(cuStreamQuery(card.stream[A]), CUDA_ERROR_NOT_READY);
    struct held second = plain_take(40 * MIB, card.stream[B]);
    REQUIRE(second.at);
    held_expect(&second, card.stream[B]);
    DONE(cuMemFree(at_of(&second)));
}

/* cuMemAllocAsync, and then cuMemFree, which does not wait: the program has. */
ON_CARD(stream_memory_freed_without_a_stream)
{
    struct held first = stream_take(40 * MIB, card.stream[A]);
    held_expect(&first, card.stream[A]);
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(sim_launch_wait(card.stream[B], 10 * MSEC));
    uint64_t before = sim_now();
    DONE(cuMemFree(at_of(&first)));
    EXPECT_EQ(sim_now(), before);
    EXPECT(!is_ours(at_of(&first)));
}

/* The next stream has the handle of the last one: its frees are not those of the old stream. */
ON_CARD_OF(a_stream_with_the_handle_of_an_earlier_one, 64 * MIB)
{
    struct held first = stream_take(40 * MIB, card.stream[A]);
    CUstream old = card.stream[A];
    DONE(cuStreamSynchronize(old));
    DONE(cuStreamDestroy(old));
    DONE(cuStreamCreate(&card.stream[A], CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(card.stream[A], old);
    held_linger(&first, card.stream[A]);
    DONE(cuMemFreeAsync(at_of(&first), card.stream[A]));
    struct held second = stream_take(40 * MIB, card.stream[B]);
    REQUIRE(second.at);
    held_expect(&second, card.stream[B]);
    DONE(cuMemFreeAsync(at_of(&second), card.stream[B]));
}

/* What a destroyed stream freed serves others. */
ON_CARD_OF(memory_of_a_destroyed_stream_comes_back, 64 * MIB)
{
    for (int i = 0; i < 5; i++) {
        CUstream stream;
        DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        struct held block = stream_take(40 * MIB, stream);
        REQUIRE(block.at);
        held_linger(&block, stream);
        DONE(cuMemFreeAsync(at_of(&block), stream));
        DONE(cuStreamDestroy(stream));
    }
    struct held last = plain_take(40 * MIB, card.stream[B]);
    REQUIRE(last.at);
    DONE(cuMemFree(at_of(&last)));
}

ON_CARD(default_streams)
{
    CUstream defaults[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    for (int i = 0; i < 3; i++) {
        struct held first = stream_take(3 * MIB, defaults[i]), second;
        held_linger(&first, defaults[i]);
        DONE(cuMemFreeAsync(at_of(&first), defaults[i]));
        second = stream_take(3 * MIB, defaults[i]);
        EXPECT_EQ(second.at, first.at);
        EXPECT(is_ours(at_of(&second)));
        held_expect(&second, defaults[i]);
        DONE(cuMemFreeAsync(at_of(&second), defaults[i]));
    }
}

/* Errors are those of the driver, and harm nothing. */
ON_CARD(what_is_refused)
{
    CUdeviceptr at = 0;
    size_t pitch;
    sim_set_quiet(true);
    EXPECT_EQ(cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc(&at, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&at, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocAsync(&at, 300 * MIB, card.stream[A]), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocPitch(&at, &pitch, 100, 100, 3), CUDA_ERROR_INVALID_VALUE);
    DONE(cuMemFree(0));
    DONE(cuMemAlloc(&at, 2 * MIB));
    EXPECT_EQ(cuMemFree(at + 512), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFreeAsync(at + 512, card.stream[A]), CUDA_ERROR_INVALID_VALUE);
    DONE(cuMemFree(at));
    EXPECT(cuMemFree(at) != CUDA_SUCCESS);
    EXPECT(cuMemFreeAsync(at, card.stream[A]) != CUDA_SUCCESS);
    sim_reset(NULL); /* the refusals of the driver count as violations */
    scene_is_open = false;
    exit(failures_said());
}

/* Memory that fits once and not twice goes round and round, through every pair of calls. */
ON_CARD_OF(every_way_round, 64 * MIB)
{
    for (int i = 0; i < 16; i++) {
        CUstream stream = card.stream[i % 3];
        struct held block = i & 1 ? plain_take(40 * MIB, stream) : stream_take(40 * MIB, stream);
        REQUIRE(block.at);
        held_linger(&block, stream);
        if (i & 2) {
            DONE(i & 1 ? CUDA_SUCCESS : cuStreamSynchronize(stream)); /* cuMemFree of stream memory: the program waits */
            DONE(cuMemFree(at_of(&block)));
        } else {
            DONE(cuMemFreeAsync(at_of(&block), stream));
        }
    }
}

/* The driver refuses each free in a context that is lost. */
ON_CARD(frees_in_a_context_that_is_lost)
{
    struct held plain = plain_take(MIB, card.stream[A]), async = stream_take(MIB, card.stream[A]);
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuMemFree(at_of(&plain)), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuMemFree(at_of(&async)), CUDA_ERROR_ILLEGAL_ADDRESS);
    scene_is_open = false;
    exit(failures_said());
}

static double calls_of_a_pair(bool is_async)
{
    struct sim_books before, after;
    for (int i = 0; i < 200; i++) {
        CUdeviceptr at;
        if (i == 100)
            sim_books(&before);
        DONE(is_async ? cuMemAllocAsync(&at, 64 * KIB, card.stream[A]) : cuMemAlloc(&at, 64 * KIB));
        DONE(is_async ? cuMemFreeAsync(at, card.stream[A]) : cuMemFree(at));
    }
    sim_books(&after);
    return (double)(after.calls - before.calls) / 100;
}

/* No context is current to the thread: the driver refuses, and the block stays. */
static void free_without_a_context(const char *is_on, const char *options)
{
    CUdeviceptr at[2], start;
    size_t size;
    setenv("CENOTE_PRELOAD", is_on, 1);
    setenv("CENOTE_CONF", options, 1);
    card_open(CAPACITY, 1);
    DONE(cuMemAlloc(&at[0], MIB));
    DONE(cuMemAllocAsync(&at[1], MIB, card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuCtxSetCurrent(NULL));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(cuMemFree(at[i]), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuMemGetAddressRange(&start, &size, at[i]), CUDA_ERROR_INVALID_CONTEXT);
    }
    DONE(cuCtxSetCurrent(card.context));
    for (int i = 0; i < 2; i++) {
        DONE(cuMemGetAddressRange(&start, &size, at[i]));
        DONE(cuMemFree(at[i]));
    }
    card_close();
}

ENDS_WITH(frees_without_a_context, 0) { free_without_a_context("on", "announced:1"); }
ENDS_WITH(frees_without_a_context_nor_announcements, 0) { free_without_a_context("on", "announced:0"); }
ENDS_WITH(frees_without_a_context_of_the_driver, 0) { free_without_a_context("off", ""); }

/* What a pair asks the driver: the context and, twice, the id of the stream; or the context twice, the mode of captures twice, and for an event. */
ON_CARD(calls_of_the_driver)
{
    EXPECT(calls_of_a_pair(true) < 3.5);
    EXPECT(calls_of_a_pair(false) < 6.5);
}

PRELOAD_MAIN("memory")
