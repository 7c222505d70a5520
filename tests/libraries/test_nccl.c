/* test_nccl.c: the simulated NCCL: which rank gets what, order on streams, groups, and memory. Ranks are devices of one thread in a group. */
#include "tests/libraries/nccl_world.h"

CASE(says_who_it_is)
{
    int version = 0, value;
    struct id one, two;
    OK(ncclGetVersion(&version));
    EXPECT_EQ(version, 23007);
    EXPECT_TEXT_EQ(ncclGetErrorString(0), "no error");
    EXPECT(strstr(ncclGetErrorString(REMOTE), "remote process exited"));
    EXPECT(strstr(ncclGetErrorString(99), "unknown"));
    OK(ncclGetUniqueId(&one));
    OK(ncclGetUniqueId(&two));
    EXPECT(memcmp(&one, &two, sizeof one) != 0);
    meet();
    for (int r = 0; r < RANKS; r++) {
        OK(ncclCommCount(world[r].comm, &value));
        EXPECT_EQ(value, RANKS);
        OK(ncclCommUserRank(world[r].comm, &value));
        EXPECT_EQ(value, r);
        OK(ncclCommCuDevice(world[r].comm, &value));
        EXPECT_EQ(value, r);
        OK(ncclCommGetAsyncError(world[r].comm, &value));
        EXPECT_EQ(value, FINE);
    }
    EXPECT_EQ(ncclCommCount(NULL, &value), ARGUMENT);
    EXPECT_EQ(ncclAllReduce(NULL, NULL, 1, 77, SUM, world[0].comm, NULL), ARGUMENT);
    EXPECT_EQ(ncclAllReduce(NULL, NULL, 1, INT32, 9, world[0].comm, NULL), ARGUMENT);
    EXPECT_EQ(ncclBroadcast(NULL, NULL, 1, INT32, RANKS, world[0].comm, NULL), ARGUMENT);
    EXPECT_EQ(ncclGroupEnd(), USAGE);
}

CASE(every_rank_gets_what_it_should)
{
    meet();
    fill(16);
    ALL(ncclAllReduce(from, to, 4, INT32, SUM, c, stream));
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 4; i++)
            EXPECT_EQ(at(r, i), 60 + 4 * i);
    fill(16);
    ALL(ncclReduce(from, to, 4, INT32, MOST, 2, c, stream));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(at(r, 1), r == 2 ? 31 : -1);
    fill(16);
    ALL(ncclBroadcast(from, to, 4, INT32, 1, c, stream));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(at(r, 3), 13);
    fill(16);
    ALL(ncclAllGather(from, to, 2, INT32, c, stream));
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 8; i++)
            EXPECT_EQ(at(r, i), i / 2 * 10 + i % 2);
    fill(16);
    ALL(ncclReduceScatter(from, to, 2, INT32, SUM, c, stream));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(at(r, 1), 60 + 4 * (2 * r + 1));
    fill(16);
    ALL(ncclAlltoAll(from, to, 2, INT32, c, stream));
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 8; i++)
            EXPECT_EQ(at(r, i), i / 2 * 10 + 2 * r + i % 2);
    fill(16);
    ALL(ncclGather(from, to, 2, INT32, 3, c, stream));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(at(r, 5), r == 3 ? 21 : -1);
    fill(16);
    ALL(ncclScatter(from, to, 2, INT32, 3, c, stream));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(at(r, 1), 30 + 2 * r + 1);
}

CASE(operators)
{
    int op, halve = 2;
    meet();
    fill(4);
    ALL(ncclAllReduce(from, to, 2, INT32, LEAST, c, stream));
    EXPECT_EQ(at(3, 1), 1);
    ALL(ncclAllReduce(from, to, 2, INT32, AVERAGE, c, stream));
    EXPECT_EQ(at(2, 1), 16);
    ALL(ncclAllReduce(from, to, 2, INT32, PRODUCT, c, stream));
    EXPECT_EQ(at(1, 1), 1 * 11 * 21 * 31);
    for (int r = 0; r < RANKS; r++) {
        int mine = r == 1 ? halve : 1;
        OK(ncclRedOpCreatePreMulSum(&op, &mine, INT32, 1, world[r].comm));
    }
    ALL(ncclAllReduce(from, to, 2, INT32, op, c, stream));
    EXPECT_EQ(at(0, 1), 1 + 22 + 21 + 31);
    OK(ncclRedOpDestroy(op, world[0].comm));
    EXPECT_EQ(ncclRedOpDestroy(op, world[0].comm), ARGUMENT);
}

/* x + 0 is x for every number of every small type; and a sum rounds once, to even. */
static void round_trip(int type, unsigned bytes, unsigned patterns, uint32_t first_strange, uint32_t sign)
{
    static uint8_t out[2 * 65536], back[2 * 65536];
    for (unsigned i = 0; i < patterns; i++)
        memcpy(out + i * bytes, &i, bytes);
    for (int r = 0; r < RANKS; r++) {
        enter(r);
        MUST(cuMemsetD8(world[r].from, 0, patterns * bytes));
    }
    enter(1);
    MUST(cuMemcpyHtoD(world[1].from, out, patterns * bytes));
    ALL(ncclAllReduce(from, to, patterns, type, SUM, c, stream));
    enter(2);
    MUST(cuMemcpyDtoH(back, world[2].to, patterns * bytes));
    unsigned wrong = 0;
    for (uint32_t i = 0; i < patterns; i++)
        if ((i & ~sign) < first_strange && i != sign)
            wrong += memcmp(out + i * bytes, back + i * bytes, bytes) != 0;
    EXPECT_EQ(wrong, 0);
}

CASE(small_floating_point)
{
    meet();
    round_trip(HALF, 2, 65536, 0x7c01, 0x8000);
    round_trip(BFLOAT16, 2, 65536, 0x7f81, 0x8000);
    round_trip(FLOAT8E5M2, 1, 256, 0x7d, 0x80);
    round_trip(FLOAT8E4M3, 1, 256, 0x7f, 0x80);
    const uint16_t parts[RANKS] = {0x3c00, 0x1000, 0, 0};  /* 1, and half of its last bit: a tie goes to even */
    for (int r = 0; r < RANKS; r++) {
        enter(r);
        MUST(cuMemcpyHtoD(world[r].from, &parts[r], 2));
    }
    ALL(ncclAllReduce(from, to, 1, HALF, SUM, c, stream));
    EXPECT_EQ(at(0, 0) & 0xffff, 0x3c00);
}

CASE(large_messages_wait_for_nobody)
{
    meet();
    fill(4);
    enter(0);
    OK(ncclAllReduce((void *)world[0].from, (void *)world[0].to, LARGE, INT32, SUM, world[0].comm, world[0].stream));
    EXPECT_EQ(at(0, 3), 3);     /* its own part */
    fill(4);
    enter(1);
    OK(ncclBroadcast((void *)world[1].from, (void *)world[1].to, LARGE, INT32, 0, world[1].comm, world[1].stream));
    EXPECT_EQ(at(1, 3), -1);    /* root's, which is not here */
}

CASE(nothing_is_on_a_stream_before_the_group_ends)
{
    struct sim_books before, inside, after;
    meet();
    fill(4);
    sim_books(&before);
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclAllReduce((void *)world[r].from, (void *)world[r].to, 4, INT32, SUM, world[r].comm, world[r].stream));
    OK(ncclGroupEnd());
    sim_books(&inside);
    EXPECT_EQ(inside.kernels, before.kernels);
    OK(ncclGroupEnd());
    sim_books(&after);
    EXPECT_EQ(after.kernels, before.kernels + RANKS);
    EXPECT_EQ(at(0, 0), 60);
    fill(4);
    OK(ncclGroupStart());
    OK(ncclAllReduce((void *)world[0].from, (void *)world[0].to, 4, INT32, SUM, world[0].comm, world[0].stream));
    EXPECT_EQ(ncclGroupSimulateEnd(NULL), USAGE);
    EXPECT_EQ(at(0, 0), -1);
}

CASE(a_captured_collective_is_a_node)
{
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    struct sim_books before, after;
    meet();
    enter(0);
    MUST(cuStreamBeginCapture(world[0].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(ncclAllReduce((void *)world[0].from, (void *)world[0].from, 4, INT32, SUM, world[0].comm, world[0].stream));
    MUST(cuStreamEndCapture(world[0].stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT_EQ(nodes, 1);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    sim_books(&before);
    OK(cuGraphLaunch(exec, world[0].stream));
    sim_books(&after);
    EXPECT_EQ(after.kernels, before.kernels + 1);
}

CASE(sends_and_receives)
{
    meet();
    fill(16);
    for (int i = 0; i < 8; i++) {   /* no rank receives yet: the sender goes on */
        enter(0);
        OK(ncclSend((void *)(world[0].from + 4 * (size_t)i), 1, INT32, 1, world[0].comm, world[0].stream));
    }
    for (int i = 0; i < 8; i++) {
        enter(1);
        OK(ncclRecv((void *)(world[1].to + 4 * (size_t)i), 1, INT32, 0, world[1].comm, world[1].stream));
    }
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(at(1, i), i);
    fill(16);
    OK(ncclGroupStart());           /* all to all, itself included, in any order, and more than a lane holds */
    for (int r = 0; r < RANKS; r++)
        for (int peer = RANKS - 1; peer >= 0; peer--)
            for (int i = 0; i < 12; i++)
                OK(ncclRecv((void *)(world[r].to + 4 * (size_t)(12 * peer + i)), 1, INT32, peer, world[r].comm, world[r].stream));
    for (int r = 0; r < RANKS; r++)
        for (int peer = 0; peer < RANKS; peer++)
            for (int i = 0; i < 12; i++)
                OK(ncclSend((void *)(world[r].from + 4 * (size_t)i), 1, INT32, peer, world[r].comm, world[r].stream));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 48; i++)
            EXPECT_EQ(at(r, i), i / 12 * 10 + i % 12);
    enter(0);
    EXPECT_EQ(ncclRecv((void *)world[0].to, 1, INT32, 0, world[0].comm, world[0].stream), USAGE);
}

/* --- memory */

static uint64_t used(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.used;
}

/* What moves nothing, and waits for nothing, must not say that it did. */
CASE(one_sided_operations_are_refused)
{
    struct sim_books before, after;
    int signals[4] = {0};
    meet();
    enter(0);
    sim_books(&before);
    void *from = (void *)world[0].from;
    EXPECT_EQ(ncclPutSignal(from, 4, INT32, 1, from, 0, 0, 0, 0, world[0].comm, world[0].stream), USAGE);
    EXPECT_EQ(ncclSignal(1, 0, 0, 0, world[0].comm, world[0].stream), USAGE);
    EXPECT_EQ(ncclWaitSignal(1, signals, world[0].comm, world[0].stream), USAGE);
    sim_books(&after);
    EXPECT_EQ(after.kernels, before.kernels);
}

CASE(buffers_are_taken_once_and_given_back)
{
    uint64_t value, before = used();
    meet();
    EXPECT_EQ(used(), before);
    fill(4);
    ALL(ncclAllReduce(from, to, 4, INT32, SUM, c, stream));
    EXPECT_EQ(used(), before + RANKS * 336 * MIB);
    ALL(ncclAllGather(from, to, 1, INT32, c, stream));
    EXPECT_EQ(used(), before + RANKS * 336 * MIB);
    OK(ncclGroupStart());
    OK(ncclSend((void *)world[0].from, 1, INT32, 1, world[0].comm, world[0].stream));
    OK(ncclRecv((void *)world[1].to, 1, INT32, 0, world[1].comm, world[1].stream));
    OK(ncclGroupEnd());
    EXPECT_EQ(used(), before + RANKS * 336 * MIB + 2 * 448 * MIB);
    OK(ncclCommMemStats(world[0].comm, 3, &value));
    EXPECT_EQ(value, (336 + 448) * MIB);
    OK(ncclCommSuspend(world[0].comm, 1));
    EXPECT_EQ(used(), before + 3 * 336 * MIB + 448 * MIB);
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, LARGE, INT32, SUM, world[0].comm, world[0].stream), USAGE);
    OK(ncclCommResume(world[0].comm));
    EXPECT_EQ(used(), before + RANKS * 336 * MIB + 2 * 448 * MIB);
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommDestroy(world[r].comm));
    EXPECT_EQ(used(), before);
    meet();
    setenv("NCCL_BUFFSIZE", "1048576", 1);
    setenv("NCCL_MAX_CTAS", "2", 1);
    ALL(ncclAllReduce(from, to, 4, INT32, SUM, c, stream));
    EXPECT_EQ(used(), before + RANKS * 2 * (8 + 4) * MIB);
    unsetenv("NCCL_BUFFSIZE");
    unsetenv("NCCL_MAX_CTAS");
}

CASE(too_little_memory_for_buffers_is_an_error)
{
    CUdeviceptr most;
    size_t left, total;
    meet();
    enter(0);
    MUST(cuMemGetInfo(&left, &total));
    MUST(cuMemAlloc(&most, left - 100 * MIB));
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, LARGE, INT32, SUM, world[0].comm, world[0].stream), CUDA_ERROR);
    EXPECT(strstr(ncclGetLastError(world[0].comm), "out of memory"));
}

CASE(memory_from_nccl_and_windows)
{
    void *memory = NULL, *window = NULL, *handle = NULL, *where = NULL;
    uint64_t before = used();
    meet();
    enter(1);
    MUST(ncclMemAlloc(&memory, 3 * MIB));
    EXPECT_EQ(used(), before + 4 * MIB);
    OK(cuMemsetD8((CUdeviceptr)memory, 1, 4 * MIB));
    enter(2);                       /* every device reaches it */
    OK(cuMemcpyDtoD(world[2].to, (CUdeviceptr)memory, 16));
    OK(cuStreamSynchronize(NULL));
    enter(1);
    OK(ncclCommRegister(world[1].comm, memory, MIB, &handle));
    OK(ncclCommDeregister(world[1].comm, handle));
    EXPECT_EQ(ncclCommDeregister(world[1].comm, handle), ARGUMENT);
    EXPECT_EQ(ncclCommRegister(world[1].comm, &before, 8, &handle), ARGUMENT);
    OK(ncclCommWindowRegister(world[1].comm, memory, MIB, &window, 1));
    EXPECT_EQ(ncclCommWindowRegister(world[1].comm, (char *)memory + 8, MIB, &handle, 1), ARGUMENT);
    OK(ncclWinGetUserPtr(world[1].comm, window, &where));
    EXPECT_EQ((uintptr_t)where, (uintptr_t)memory);
    OK(ncclGetPeerDevicePointer(window, 16, 1, &where));
    EXPECT_EQ((uintptr_t)where, (uintptr_t)memory + 16);
    OK(ncclGetPeerDevicePointer(window, 16, 2, &where));
    EXPECT_EQ((uintptr_t)where, 0);
    OK(ncclCommWindowDeregister(world[1].comm, window));
    OK(ncclMemFree(memory));
    EXPECT_EQ(used(), before);
    EXPECT_EQ(ncclMemFree((char *)world[1].from + 8), ARGUMENT);
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.reserved, books.reserved / MIB * MIB);
    EXPECT_EQ(books.handles, 0);
}

SUITE_MAIN_AROUND("nccl", begin, end)
