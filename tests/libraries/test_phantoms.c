/*
 * test_phantoms.c: communicators of the simulated NCCL of which only some ranks are real: none waits for a phantom, what phantoms say follows
 * from what we say, and memory depends on which ranks are on our node. Real ranks are devices of one thread in a group.
 */
#include "tests/libraries/nccl_world.h"

#define NODE 8
#define MANY 8192
#define TOO_LARGE 16384         /* elements of 4 bytes: of 1,024 ranks together more than is made up */

static int members[MANY];

static void end_phantoms(void)
{
    end();
    ncclPhantomsWorld(0, 0, NULL);
}

static struct id told(int ranks, int first, int stride)
{
    struct id id;
    MUST(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++)
        members[rank] = first + stride * rank;
    MUST(ncclPhantomsMembers(&id, ranks, members));
    return id;
}

/* Device 0 is `rank` of a world of which no other rank is real. */
static comm alone(int ranks, int rank)
{
    struct id id = told(ranks, 0, 1);
    MUST(ncclPhantomsWorld(NODE, 1, &rank));
    enter(0);
    MUST(ncclCommInitRank(&world[0].comm, ranks, id, rank));
    return world[0].comm;
}

/* Devices 0 and 1 are ranks 1 and 3 of 4. */
static void two_of_four(void)
{
    const int real[] = {3, 1};
    struct id id = told(4, 0, 1);
    MUST(ncclPhantomsWorld(NODE, 2, real));
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        enter(i);
        OK(ncclCommInitRank(&world[i].comm, 4, id, 2 * i + 1));
    }
    MUST(ncclGroupEnd());
}

#define FROM (void *)world[0].from
#define TO (void *)world[0].to
#define STREAM world[0].stream
#define FOR_BOTH(call)                                                         \
    do {                                                                       \
        OK(ncclGroupStart());                                                  \
        for (int r = 0; r < 2; r++) {                                          \
            void *from = (void *)world[r].from, *to = (void *)world[r].to;     \
            comm c = world[r].comm;                                            \
            CUstream stream = world[r].stream;                                 \
            (void)from;                                                        \
            OK(call);                                                          \
        }                                                                      \
        OK(ncclGroupEnd());                                                    \
    } while (0)

static void write_both(int first, int second)
{
    const int values[] = {first, second};
    fill(4);
    for (int r = 0; r < 2; r++) {
        enter(r);
        MUST(cuMemcpyHtoD(world[r].from, &values[r], 4));
    }
}

static void expect_to(int first, int second, int third)
{
    EXPECT_EQ(at(0, 0), first);
    EXPECT_EQ(at(0, 1), second);
    EXPECT_EQ(at(0, 2), third);
}

CASE(a_communicator_of_any_size_is_there_at_once)
{
    int value;
    comm c = alone(MANY, 4097);
    OK(ncclCommCount(c, &value));
    EXPECT_EQ(value, MANY);
    OK(ncclCommUserRank(c, &value));
    EXPECT_EQ(value, 4097);
    fill(4);
    OK(ncclAllReduce(FROM, TO, 2, INT32, SUM, c, STREAM));
    expect_to(0, MANY, -1);
}

CASE(phantoms_of_collectives_say_what_we_say)
{
    comm c = alone(5, 1);
    fill(20);
    OK(ncclAllReduce(FROM, TO, 3, INT32, SUM, c, STREAM));
    expect_to(0, 5, 10);
    OK(ncclAllReduce(FROM, TO, 3, INT32, AVERAGE, c, STREAM));
    expect_to(0, 1, 2);
    OK(ncclAllGather(FROM, TO, 1, INT32, c, STREAM));
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(at(0, i), 0);
    EXPECT_EQ(at(0, 5), -1);
    OK(ncclReduceScatter(FROM, TO, 2, INT32, SUM, c, STREAM));
    expect_to(5 * 2, 5 * 3, 0);             /* parts are numbered by rank, and we are rank 1 */
    OK(ncclAlltoAll(FROM, TO, 1, INT32, c, STREAM));
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(at(0, i), 1);             /* what each would send to us */
    fill(20);
    OK(ncclGather(FROM, TO, 2, INT32, 1, c, STREAM));
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(at(0, i), i % 2);
    OK(ncclReduce(FROM, TO, 2, INT32, SUM, 1, c, STREAM));
    expect_to(0, 5, 0);
    OK(ncclBroadcast(FROM, TO, 3, INT32, 1, c, STREAM));
    expect_to(0, 1, 2);
    OK(ncclScatter(FROM, TO, 2, INT32, 1, c, STREAM));
    expect_to(2, 3, 2);
}

CASE(what_only_a_phantom_knows_stays_as_it_was)
{
    int from[4];
    comm c = alone(5, 1);
    fill(20);
    OK(ncclAllReduce(FROM, TO, 3, INT32, SUM, c, STREAM));
    EXPECT_EQ(ncclPhantomsUnheard(4, from), 0);
    fill(20);
    OK(ncclBroadcast(FROM, TO, 3, INT32, 0, c, STREAM));
    OK(ncclScatter(FROM, TO, 3, INT32, 4, c, STREAM));
    OK(ncclReduce(FROM, TO, 3, INT32, SUM, 0, c, STREAM));
    OK(ncclGather(FROM, TO, 3, INT32, 0, c, STREAM));
    OK(ncclRecv(TO, 3, INT32, 2, c, STREAM));
    OK(ncclSend(FROM, 3, INT32, 2, c, STREAM));
    expect_to(-1, -1, -1);
    OK(ncclRecv(TO, LARGE, INT32, 3, c, STREAM));
    expect_to(-1, -1, -1);
    EXPECT_EQ(ncclPhantomsUnheard(4, from), 3);     /* rank 3's was too large to be told by any rank */
    EXPECT_EQ(from[0], 0);
    EXPECT_EQ(from[1], 4);
    EXPECT_EQ(from[2], 2);
    EXPECT_EQ(ncclPhantomsUnheard(1, from), 1);
}

CASE(parts_that_are_large_together_are_not_made_up)
{
    comm c = alone(1024, 1);
    fill(4);
    OK(ncclAllReduce(FROM, TO, TOO_LARGE, INT32, SUM, c, STREAM));
    expect_to(0, 1, 2);                     /* our own */
    OK(ncclAllReduce(FROM, TO, TOO_LARGE / 4, INT32, SUM, c, STREAM));
    expect_to(0, 1024, 2048);
}

/* PyTorch gathers a list of tensors in this way. */
CASE(a_broadcast_from_each_rank_is_a_gathering)
{
    comm c = alone(4, 2);
    fill(16);
    OK(ncclGroupStart());
    for (int root = 0; root < 4; root++) {
        size_t count = root == 3 ? 2 : 1;
        OK(ncclBroadcast(FROM, (char *)TO + 8 * root, count, INT32, root, c, STREAM));
    }
    for (int root = 0; root < 4; root++)
        OK(ncclBroadcast((char *)FROM + 4, (char *)TO + 8 * root + 4, 1, INT32, root, c, STREAM));
    OK(ncclGroupEnd());
    for (int root = 0; root < 3; root++) {
        EXPECT_EQ(at(0, 2 * root), 0);
        EXPECT_EQ(at(0, 2 * root + 1), 1);
    }
    EXPECT_EQ(at(0, 6), -1);                /* a part of another size than ours is not known */
    EXPECT_EQ(at(0, 7), 1);
}

/* And exchanges all with all in this one. */
CASE(a_phantom_returns_what_it_is_sent)
{
    comm c = alone(4, 0);
    fill(16);
    OK(ncclGroupStart());
    for (int peer = 0; peer < 4; peer++) {
        OK(ncclSend((char *)FROM + 4 * peer, 1, INT32, peer, c, STREAM));
        OK(ncclRecv((char *)TO + 4 * peer, 1, INT32, peer, c, STREAM));
    }
    OK(ncclSend((char *)FROM + 20, 1, INT32, 1, c, STREAM));
    OK(ncclRecv((char *)TO + 20, 1, INT32, 1, c, STREAM));
    OK(ncclSend((char *)FROM + 24, 2, INT32, 2, c, STREAM));
    OK(ncclRecv((char *)TO + 24, 1, INT32, 2, c, STREAM));
    OK(ncclGroupEnd());
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(at(0, i), i);
    EXPECT_EQ(at(0, 5), 5);
    EXPECT_EQ(at(0, 6), -1);
}

CASE(real_ranks_beside_phantoms_get_what_they_say)
{
    two_of_four();
    write_both(100, 7);
    FOR_BOTH(ncclAllGather(from, to, 1, INT32, c, stream));
    for (int r = 0; r < 2; r++) {
        int own = r ? 7 : 100;
        EXPECT_EQ(at(r, 0), own);
        EXPECT_EQ(at(r, 1), 100);
        EXPECT_EQ(at(r, 2), own);
        EXPECT_EQ(at(r, 3), 7);
    }
    FOR_BOTH(ncclAllReduce(from, to, 1, INT32, SUM, c, stream));
    EXPECT_EQ(at(0, 0), 307);
    EXPECT_EQ(at(1, 0), 121);
    FOR_BOTH(ncclBroadcast(from, to, 1, INT32, 3, c, stream));
    EXPECT_EQ(at(0, 0), 7);
    EXPECT_EQ(at(1, 0), 7);
    FOR_BOTH(ncclBroadcast(from, to, 1, INT32, 2, c, stream));
    EXPECT_EQ(at(0, 0), 7);
    FOR_BOTH(r ? ncclRecv(to, 1, INT32, 1, c, stream) : ncclSend(from, 1, INT32, 3, c, stream));
    EXPECT_EQ(at(1, 0), 100);
    for (int i = 0; i < 2; i++)
        MUST(ncclCommDestroy(world[i].comm));
    world[0].comm = world[1].comm = NULL;
}

CASE(a_split_needs_to_be_told)
{
    const int even[] = {0, 2, 4, 6}, other[] = {0, 2}, outside[] = {6, 99}, backwards[] = {6, 4};
    comm c = alone(7, 6), half = NULL, none = c;
    int value;
    EXPECT_EQ(ncclCommSplit(c, 0, 3, &half, NULL), USAGE);
    MUST(ncclPhantomsNextSplit(2, other));          /* we are not in it */
    EXPECT_EQ(ncclCommSplit(c, 0, 3, &half, NULL), USAGE);
    MUST(ncclPhantomsNextSplit(2, outside));
    EXPECT_EQ(ncclCommSplit(c, 0, 3, &half, NULL), USAGE);
    EXPECT_EQ(ncclPhantomsNextSplit(0, even), ARGUMENT);
    EXPECT_EQ(ncclPhantomsNextSplit(1, NULL), ARGUMENT);
    MUST(ncclPhantomsNextSplit(4, even));
    MUST(ncclCommSplit(c, 0, 3, &half, NULL));
    OK(ncclCommCount(half, &value));
    EXPECT_EQ(value, 4);
    OK(ncclCommUserRank(half, &value));
    EXPECT_EQ(value, 3);
    fill(4);
    OK(ncclAllReduce(FROM, TO, 3, INT32, SUM, half, STREAM));
    expect_to(0, 4, 8);
    MUST(ncclCommDestroy(half));
    MUST(ncclCommSplit(c, -1, 0, &none, NULL));
    EXPECT(!none);
    MUST(ncclPhantomsNextSplit(2, backwards));
    MUST(ncclCommSplit(c, 3, 0, &half, NULL));
    OK(ncclCommUserRank(half, &value));
    EXPECT_EQ(value, 0);
    MUST(ncclCommDestroy(half));
}

CASE(real_ranks_meet_in_a_split)
{
    const int parents[] = {0, 1, 3};
    comm child[2];
    two_of_four();
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++) {
        enter(r);
        MUST(ncclPhantomsNextSplit(3, parents));
        OK(ncclCommSplit(world[r].comm, 5, r + 1, &child[r], NULL));
    }
    MUST(ncclGroupEnd());
    write_both(100, 7);
    OK(ncclGroupStart());
    for (int r = 0; r < 2; r++)
        OK(ncclAllGather((void *)world[r].from, (void *)world[r].to, 1, INT32, child[r], world[r].stream));
    OK(ncclGroupEnd());
    expect_to(100, 100, 7);
    EXPECT_EQ(at(1, 0), 7);
    EXPECT_EQ(at(1, 1), 100);
    for (int r = 0; r < 2; r++)
        OK(ncclCommDestroy(child[r]));
}

CASE(phantoms_can_be_shrunk_away_and_not_grown)
{
    int value, without[] = {0, 2};
    struct id id;
    comm c = alone(6, 3), less = NULL, more = NULL;
    MUST(ncclCommShrink(c, without, 2, &less, NULL, 0));
    OK(ncclCommCount(less, &value));
    EXPECT_EQ(value, 4);
    OK(ncclCommUserRank(less, &value));
    EXPECT_EQ(value, 1);
    fill(4);
    OK(ncclAllReduce(FROM, TO, 3, INT32, SUM, less, STREAM));
    expect_to(0, 4, 8);
    OK(ncclCommGetUniqueId(less, &id));
    EXPECT_EQ(ncclCommGrow(less, 8, &id, -1, &more, NULL), USAGE);
    MUST(ncclCommDestroy(less));
}

CASE(what_the_program_tells_is_checked)
{
    const int real = 2;
    comm none = NULL;
    int value;
    EXPECT_EQ(ncclPhantomsWorld(-1, 1, &real), ARGUMENT);
    EXPECT_EQ(ncclPhantomsWorld(NODE, 0, NULL), ARGUMENT);
    EXPECT_EQ(ncclPhantomsMembers(NULL, 1, &real), ARGUMENT);
    MUST(ncclPhantomsWorld(NODE, 1, &real));
    struct id id = told(4, 0, 1);
    enter(0);
    EXPECT_EQ(ncclCommInitRank(&none, 5, id, 2), USAGE);
    EXPECT_EQ(ncclCommInitRank(&none, 4, id, 1), USAGE);   /* a phantom does not call */
    MUST(ncclGetUniqueId(&id));
    MUST(ncclCommInitRank(&world[0].comm, 100, id, 50));        /* of which nothing was told: the others are phantoms */
    fill(4);
    OK(ncclAllReduce(FROM, TO, 2, INT32, SUM, world[0].comm, STREAM));
    expect_to(0, 100, -1);
    MUST(ncclCommDestroy(world[0].comm));
    meet();                                             /* one process with all ranks */
    fill(4);
    ALL(ncclAllReduce(from, to, 2, INT32, SUM, c, stream));
    EXPECT_EQ(at(3, 0), 60);
    OK(ncclCommCount(world[0].comm, &value));
    EXPECT_EQ(value, RANKS);
}

/* --- memory */

static uint64_t used(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.used;
}

static uint64_t taken(comm c)
{
    uint64_t value = 0;
    OK(ncclCommMemStats(c, 3, &value));
    return value;
}

CASE(buffers_of_one_node)
{
    comm c = alone(NODE, 3);
    OK(ncclAllReduce(FROM, TO, 1, INT32, SUM, c, STREAM));
    EXPECT_EQ(taken(c), 336 * MIB);
    OK(ncclAlltoAll(FROM, TO, 1, INT32, c, STREAM));
    EXPECT_EQ(taken(c), (336 + 7 * 448) * MIB);
}

CASE(buffers_of_two_nodes)
{
    uint64_t before = used();
    comm c = alone(2 * NODE, 3);
    OK(ncclAllReduce(FROM, TO, 1, INT32, SUM, c, STREAM));
    EXPECT_EQ(taken(c), 16 * 14 * MIB);
    OK(ncclSend(FROM, 1, INT32, 4, c, STREAM));
    EXPECT_EQ(taken(c), (16 + 4) * 14 * MIB);
    OK(ncclSend(FROM, 1, INT32, 8, c, STREAM));
    EXPECT_EQ(taken(c), ((16 + 4) * 14 + 64) * MIB);
    OK(ncclRecv(TO, 1, INT32, 9, c, STREAM));
    EXPECT_EQ(taken(c), ((16 + 4) * 14 + 64) * MIB);
    OK(ncclCommSuspend(c, 1));
    OK(ncclCommResume(c));
    OK(ncclCommDestroy(c));
    world[0].comm = NULL;
    EXPECT_EQ(used(), before);
}

CASE(buffers_of_many_nodes)
{
    comm c = alone(1024, 3);
    OK(ncclAlltoAll(FROM, TO, 1, INT32, c, STREAM));
    EXPECT_EQ(taken(c), (7 * 14 + 64) * MIB);
    OK(ncclCommDestroy(c));
    setenv("NCCL_NCHANNELS_PER_NET_PEER", "2", 1);
    c = alone(1024, 3);
    OK(ncclAlltoAll(FROM, TO, 1, INT32, c, STREAM));
    EXPECT_EQ(taken(c), (7 * 28 + 64) * MIB);
    unsetenv("NCCL_NCHANNELS_PER_NET_PEER");
}

/* As of the sharded ranks beside tensor parallelism of 8: each is the only one of its node. */
CASE(buffers_of_a_rank_that_is_alone_on_its_node)
{
    int real = 16;
    struct id id = told(128, 0, NODE);
    MUST(ncclPhantomsWorld(NODE, 1, &real));
    enter(0);
    MUST(ncclCommInitRank(&world[0].comm, 128, id, 2));
    OK(ncclAllReduce(FROM, TO, 1, INT32, SUM, world[0].comm, STREAM));
    EXPECT_EQ(taken(world[0].comm), 2 * 14 * MIB);
    OK(ncclAlltoAll(FROM, TO, 1, INT32, world[0].comm, STREAM));
    EXPECT_EQ(taken(world[0].comm), (2 * 14 + 8) * MIB);
}

SUITE_MAIN_AROUND("phantoms", begin, end_phantoms)
