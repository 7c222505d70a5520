/*
 * test_words.c: streams that write words and wait for them (cuStreamWaitValue32, cuStreamBatchMemOp): on the device and in pinned memory, without and
 * with lag, through events, host functions, captures and replays.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/patience.h"
#include "tests/sim/simulated.h"

static CUstream one, two;
static CUdeviceptr words;       /* 16 of 4 bytes, zeros */
static _Atomic uint32_t *flag;  /* pinned, zero */

/* `lag` 0: host time counts. Otherwise the clock moves by hand, and each piece of work is done so much later. */
static void begin(uint64_t lag)
{
    struct sim_shape shape = simulated_shape();
    shape.lag = lag;
    shape.manual_clock = lag != 0;
    simulated_begin_as(&shape);
    REQUIRE_OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuMemAlloc(&words, 64));
    REQUIRE_OK(cuMemsetD32(words, 0, 16));
    void *memory;
    REQUIRE_OK(cuMemHostAlloc(&memory, 64, CU_MEMHOSTALLOC_PORTABLE));
    memset(memory, 0, 64);
    flag = memory;
}

static void end(void)
{
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_OK(cuMemFree(words));
    EXPECT_OK(cuMemFreeHost((void *)flag));
    EXPECT_OK(cuStreamDestroy(one));
    EXPECT_OK(cuStreamDestroy(two));
    machine_end();
}

static uint32_t word(int i)
{
    uint32_t read = 0;
    EXPECT_OK(cuMemcpyDtoHAsync(&read, words + 4 * (size_t)i, 4, two));
    EXPECT_OK(cuStreamSynchronize(two));
    return read;
}

/* What comes after a wait is done once the word is there, and not before; another stream goes on meanwhile. */
static void one_waits_for_two(uint64_t lag)
{
    begin(lag);
    EXPECT_OK(cuStreamWaitValue32(one, words, 7, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuMemsetD32Async(words + 4, 11, 1, one));
    EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(word(1), 0);
    EXPECT_OK(cuStreamWriteValue32(two, words, 7, 0));
    EXPECT_OK(cuStreamSynchronize(one));
    EXPECT_EQ(word(1), 11);
    end();
}

CASE(a_stream_waits_for_a_word_of_another)
{
    one_waits_for_two(0);
    one_waits_for_two(1000);
}

CASE(a_word_that_is_there_is_not_waited_for)
{
    begin(0);
    EXPECT_OK(cuStreamWaitValue32(one, words, 0, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuStreamQuery(one));
    end();
    begin(1000);
    EXPECT_OK(cuStreamWaitValue32(one, words, 0, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY); /* it is there when the stream has come so far */
    sim_advance(1000);
    EXPECT_OK(cuStreamQuery(one));
    end();
}

/* The comparison is that of a counter that goes round. */
CASE(each_comparison)
{
    static const struct {
        unsigned flags;
        uint32_t asked, no, yes;
    } row[] = {
        {CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
        {CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0u, 0xffffff00u, 3},
        {CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
        {CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
        {CU_STREAM_WAIT_VALUE_NOR, 0xffff0000u, 0x0000ffffu, 0x0000fffeu},
    };
    begin(0);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        EXPECT_OK(cuStreamWriteValue32(two, words, row[i].no, 0));
        EXPECT_OK(cuStreamWaitValue32(one, words, row[i].asked, row[i].flags));
        EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
        EXPECT_OK(cuStreamWriteValue32(two, words, row[i].yes, 0));
        EXPECT_OK(cuStreamQuery(one));
    }
    EXPECT_OK(cuStreamWriteValue64(two, words + 8, 1ull << 40, 0));
    EXPECT_OK(cuStreamWaitValue64(one, words + 8, 1ull << 41, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamWriteValue64(two, words + 8, 1ull << 41, 0));
    EXPECT_OK(cuStreamQuery(one));
    end();
}

static void *set_flag(void *nothing)
{
    (void)nothing;
    atomic_store(flag, 1);
    return NULL;
}

static void set_flag_on_thread(void)
{
    pthread_t thread;
    REQUIRE_EQ(pthread_create(&thread, NULL, set_flag, NULL), 0);
    pthread_join(thread, NULL);
}

CASE(a_question_sees_what_the_host_has_written)
{
    begin(0);
    EXPECT_OK(cuStreamWaitValue32(one, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    set_flag_on_thread();
    REQUIRE_OK(cuStreamQuery(one));
    end();
}

/* The host sets a word, the device sets another, and neither asks the driver. */
CASE(the_host_and_a_stream_take_turns_without_a_call)
{
    begin(0);
    for (uint32_t i = 1; i < 20; i += 2) {
        EXPECT_OK(cuStreamWaitValue32(one, (CUdeviceptr)flag, i, CU_STREAM_WAIT_VALUE_EQ));
        EXPECT_OK(cuStreamWriteValue32(one, (CUdeviceptr)flag, i + 1, 0));
    }
    struct wait wait = {0};
    for (uint32_t i = 1; i < 20; i += 2) {
        atomic_store(flag, i);
        while (atomic_load(flag) == i && wait_on(&wait))
            ;
        EXPECT_EQ(atomic_load(flag), i + 1);
    }
    end();
}

/* A thread that waits for the stream sees what the host writes, though the clock moves by hand. */
CASE(a_thread_waits_for_a_stream_that_waits_for_the_host)
{
    pthread_t thread;
    begin(1000);
    EXPECT_OK(cuStreamWaitValue32(one, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuMemsetD32Async(words, 5, 1, one));
    REQUIRE_EQ(pthread_create(&thread, NULL, set_flag, NULL), 0);
    EXPECT_OK(cuStreamSynchronize(one));
    pthread_join(thread, NULL);
    EXPECT_EQ(word(0), 5);
    end();
}

/* Two streams that wait for each other in turns: neither wait may hold up the other. */
static void ping_pong(uint64_t lag)
{
    begin(lag);
    for (uint32_t i = 1; i <= 8; i++) {
        EXPECT_OK(cuStreamWaitValue32(one, words, i, CU_STREAM_WAIT_VALUE_GEQ));
        EXPECT_OK(cuStreamWriteValue32(one, words + 4, i, 0));
        EXPECT_OK(cuStreamWaitValue32(two, words + 4, i, CU_STREAM_WAIT_VALUE_GEQ));
        EXPECT_OK(cuStreamWriteValue32(two, words, i + 1, 0));
    }
    EXPECT_EQ(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuMemsetD32Async(words, 1, 1, NULL));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(word(0), 9);
    EXPECT_EQ(word(1), 8);
    end();
}

CASE(two_streams_wait_for_each_other_in_turns)
{
    ping_pong(0);
    ping_pong(700);
}

/* Who comes after two waits goes on when both have passed, whichever is the first. */
static void after_two_waits(uint64_t lag, int first)
{
    CUevent event;
    CUstream third;
    begin(lag);
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    REQUIRE_OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    EXPECT_OK(cuStreamWaitValue32(one, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuStreamWaitValue32(third, words + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuEventRecord(event, third));
    EXPECT_OK(cuStreamWaitEvent(one, event, 0));
    EXPECT_OK(cuMemsetD32Async(words + 8, 3, 1, one));
    EXPECT_OK(cuEventRecord(event, one));
    EXPECT_OK(cuStreamWriteValue32(two, words + 4 * (size_t)first, 1, 0));
    EXPECT_EQ(word(2), 0);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamWriteValue32(two, words + 4 * (size_t)!first, 1, 0));
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_EQ(word(2), 3);
    EXPECT_OK(cuStreamDestroy(third));
    EXPECT_OK(cuEventDestroy(event));
    end();
}

CASE(what_comes_after_two_waits_comes_after_both)
{
    for (int first = 0; first < 2; first++) {
        after_two_waits(0, first);
        after_two_waits(1000, first);
    }
}

static void CUDA_CB count(void *counter)
{
    atomic_fetch_add((_Atomic int *)counter, 1);
}

CASE(a_host_function_comes_after_the_word)
{
    _Atomic int called = 0;
    begin(0);
    EXPECT_OK(cuStreamWaitValue32(one, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuLaunchHostFunc(one, count, &called));
    EXPECT_OK(cuStreamSynchronize(two));
    EXPECT_EQ(atomic_load(&called), 0);
    set_flag_on_thread();
    struct wait wait = {0};
    while (!atomic_load(&called) && wait_on(&wait))
        ;
    EXPECT_EQ(atomic_load(&called), 1);
    end();
}

CASE(memory_that_is_freed_after_a_word_is_not_used_before)
{
    CUdeviceptr block, other;
    begin(0);
    REQUIRE_OK(cuMemAllocAsync(&block, 1 << 20, one));
    EXPECT_OK(cuStreamWaitValue32(one, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuMemsetD32Async(block, 9, 1, one));
    EXPECT_OK(cuMemFreeAsync(block, one));
    REQUIRE_OK(cuMemAllocAsync(&other, 1 << 20, two));
    EXPECT(other != block);
    EXPECT_OK(cuMemFreeAsync(other, two));
    EXPECT_OK(cuStreamWriteValue32(two, words, 1, 0));
    end();
}

CASE(a_batch_is_in_order_and_whole_or_refused)
{
    CUstreamBatchMemOpParams part[4];
    memset(part, 0, sizeof part);
    begin(0);
    part[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    part[0].waitValue.address = words;
    part[0].waitValue.value = 1;
    part[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    part[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    part[1].writeValue.address = words + 4;
    part[1].writeValue.value = 21;
    part[2].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
    part[3].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    part[3].writeValue.address = words + 8;
    part[3].writeValue.value64 = 22;
    EXPECT_OK(cuStreamBatchMemOp(one, 4, part, 0));
    EXPECT_EQ(word(1), 0);
    EXPECT_OK(cuStreamWriteValue32(two, words, 1, 0));
    EXPECT_EQ(word(1), 21);
    EXPECT_EQ(word(2), 22);
    part[1].writeValue.value = 30;
    part[3].writeValue.address = words + 9;
    EXPECT_EQ(cuStreamBatchMemOp(one, 4, part, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(word(1), 21);
    EXPECT_EQ(cuStreamBatchMemOp(one, 0, part, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamBatchMemOp(one, 257, part, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamBatchMemOp(one, 4, part, 1), CUDA_ERROR_INVALID_VALUE);
    end();
}

CASE(wrong_words_are_refused)
{
    uint32_t own = 0;
    begin(0);
    EXPECT_EQ(cuStreamWaitValue32(one, words + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamWaitValue64(one, words + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamWaitValue32(one, words, 1, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamWaitValue32(one, (CUdeviceptr)&own, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamWaitValue32(one, words, 0, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_OK(cuStreamQuery(one));
    end();
}

CASE(a_captured_wait_is_waited_for_at_each_replay)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node[2];
    CUgraphNodeType type;
    size_t count = 2;
    begin(0);
    REQUIRE_OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_OK(cuStreamWaitValue32(one, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuStreamWriteValue32(one, words, 2, 0));
    REQUIRE_OK(cuStreamEndCapture(one, &graph));
    EXPECT_OK(cuGraphGetNodes(graph, node, &count));
    EXPECT_EQ(count, 2);
    EXPECT_OK(cuGraphNodeGetType(node[0], &type));
    EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    REQUIRE_OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(cuGraphLaunch(exec, one));
        EXPECT_EQ(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
        EXPECT_OK(cuStreamWriteValue32(two, words, 1, 0));
        EXPECT_OK(cuStreamSynchronize(one));
        EXPECT_EQ(word(0), 2);
    }
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphDestroy(graph));
    end();
}

CASE(a_wait_at_an_address_that_is_gone_loses_the_context)
{
    begin(1000);
    struct machine_range range = machine_map(1);
    EXPECT_OK(cuStreamWaitValue32(one, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuStreamWaitValue32(one, range.at, 1, CU_STREAM_WAIT_VALUE_EQ));
    machine_unmap(range); /* which is a violation: work that is not done will read there */
    EXPECT_OK(cuStreamWriteValue32(two, words, 1, 0));
    EXPECT_EQ(cuStreamSynchronize(one), CUDA_ERROR_ILLEGAL_ADDRESS);
    sim_reset(NULL);
}

/* The handle of a stream that waits serves another; a stream that waits is not done when its handle is gone. */
CASE(a_stream_is_destroyed_while_it_waits)
{
    begin(1000);
    CUevent event;
    REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    EXPECT_OK(cuStreamWaitValue32(one, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuMemsetD32Async(words + 4, 4, 1, one));
    EXPECT_OK(cuEventRecord(event, one));
    EXPECT_OK(cuStreamDestroy(one));
    REQUIRE_OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    EXPECT_OK(cuStreamSynchronize(one));
    EXPECT_EQ(word(1), 0);
    EXPECT_OK(cuStreamWriteValue32(two, words, 1, 0));
    EXPECT_OK(cuEventSynchronize(event));
    EXPECT_EQ(word(1), 4);
    EXPECT_OK(cuEventDestroy(event));
    end();
}

SUITE_MAIN("simulated driver: words that streams write and wait for")
