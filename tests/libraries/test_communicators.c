/*
 * test_communicators.c: communicators of the simulated NCCL: made from each other, and what happens when a rank disagrees, leaves, dies or
 * cannot be. Ranks are threads, and once a process.
 */
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/libraries/nccl_world.h"
#include "tests/patience.h"

static struct id shared;
static int results[RANKS];

static void in_threads(void *(*work)(void *))
{
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++)
        REQUIRE(!pthread_create(&threads[r], NULL, work, &world[r]));
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
}

static int sum_of_ranks(comm c, struct rank *own)
{
    int value = (int)(own - world) + 1, sum = 0;
    cuMemcpyHtoD(own->from, &value, 4);
    if (ncclAllReduce((void *)own->from, (void *)own->to, 1, INT32, SUM, c, own->stream))
        return -1;
    cuStreamSynchronize(own->stream);
    cuMemcpyDtoH(&sum, own->to, 4);
    return sum;
}

static void *split(void *argument)
{
    struct rank *own = argument;
    int rank = (int)(own - world), place = -1, count = -1;
    comm half = NULL, none = own->comm;
    struct config share = {sizeof share, 0xcafebeef, 23007, 1, INT32_MIN, INT32_MIN, INT32_MIN, NULL, 1};
    cuCtxSetCurrent(own->context);
    results[rank] = -1;
    if (ncclCommInitRank(&own->comm, RANKS, shared, rank) || ncclCommSplit(own->comm, rank % 2, -rank, &half, &share))
        return NULL;
    ncclCommUserRank(half, &place);
    ncclCommCount(half, &count);
    results[rank] = 100 * sum_of_ranks(half, own) + 10 * count + place;
    ncclCommDestroy(half);
    if (ncclCommSplit(own->comm, rank ? -1 : 5, 0, &none, NULL) || !none != (rank != 0))
        results[rank] = -2;
    if (none)
        ncclCommDestroy(none);
    return NULL;
}

CASE(split_by_color_and_key)
{
    MUST(ncclGetUniqueId(&shared));
    in_threads(split);
    EXPECT_EQ(results[0], 400 + 20 + 1);    /* ranks 0 and 2, the later key first: 1 + 3 */
    EXPECT_EQ(results[2], 400 + 20 + 0);
    EXPECT_EQ(results[1], 600 + 20 + 1);
    EXPECT_EQ(results[3], 600 + 20 + 0);
}

static void *shrink_and_grow(void *argument)
{
    struct rank *own = argument;
    int rank = (int)(own - world), without[] = {1}, place = -1, error = -1;
    comm less = NULL, more = NULL;
    static struct id id;
    cuCtxSetCurrent(own->context);
    results[rank] = -1;
    if (ncclCommInitRank(&own->comm, RANKS, shared, rank))
        return NULL;
    if (rank == 0)
        ncclCommGetUniqueId(own->comm, &id);    /* any id would do for a rank that comes anew */
    sum_of_ranks(own->comm, own);
    if (rank != 1)
        error = ncclCommShrink(own->comm, without, 1, &less, NULL, 0);
    if (rank != 1 && error)
        return NULL;
    results[rank] = rank == 1 ? 0 : sum_of_ranks(less, own);
    ncclCommUserRank(less, &place);
    if (ncclCommGrow(rank == 1 ? NULL : less, RANKS, rank < 2 ? &id : NULL, rank == 1 ? 3 : -1, &more, NULL))
        return NULL;
    results[rank] += 100 * sum_of_ranks(more, own) + 10 * (place + 1);
    ncclCommDestroy(more);
    if (less)
        ncclCommDestroy(less);
    return NULL;
}

CASE(shrink_and_grow_again)
{
    MUST(ncclGetUniqueId(&shared));
    in_threads(shrink_and_grow);
    EXPECT_EQ(results[0], 1000 + 10 + 8);
    EXPECT_EQ(results[1], 1000);
    EXPECT_EQ(results[2], 1000 + 20 + 8);
    EXPECT_EQ(results[3], 1000 + 30 + 8);
}

static void *mismatch(void *argument)
{
    struct rank *own = argument;
    int rank = (int)(own - world);
    cuCtxSetCurrent(own->context);
    results[rank] = rank ? ncclAllReduce((void *)own->from, (void *)own->to, 4, INT32, SUM, own->comm, own->stream)
                         : ncclAllReduce((void *)own->from, (void *)own->to, 5, INT32, SUM, own->comm, own->stream);
    return NULL;
}

CASE(ranks_that_disagree_are_told)
{
    meet();
    in_threads(mismatch);
    EXPECT_EQ(results[0], USAGE);
    EXPECT(results[1] == USAGE || results[1] == REMOTE);
    EXPECT(strstr(ncclGetLastError(world[0].comm), "bytes"));
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, 4, INT32, SUM, world[0].comm, world[0].stream), USAGE);
}

static atomic_int waiter;

static void *wait_alone(void *argument)
{
    struct rank *own = argument;
    comm its = own->comm;
    cuCtxSetCurrent(own->context);
    atomic_store(&waiter, gettid());
    results[0] = ncclAllReduce((void *)own->from, (void *)own->to, 4, INT32, SUM, its, own->stream);
    return NULL;
}

CASE(abort_ends_a_wait)
{
    pthread_t thread;
    comm pair[2];
    int error = 0;
    MUST(ncclCommInitAll(pair, 2, NULL));
    world[0].comm = pair[0];
    world[1].comm = pair[1];
    results[0] = -1;
    REQUIRE(!pthread_create(&thread, NULL, wait_alone, &world[0]));
    for (struct wait wait = {0}; !atomic_load(&waiter) && wait_on(&wait);)
        ;
    EXPECT(wait_until_asleep(atomic_load(&waiter)));
    EXPECT_EQ(results[0], -1);
    OK(ncclCommAbort(world[0].comm));
    world[0].comm = NULL;
    pthread_join(thread, NULL);
    EXPECT_EQ(results[0], REMOTE);
    enter(1);                       /* it had said its part before; the next one never comes */
    OK(ncclAllReduce((void *)world[1].from, (void *)world[1].to, 4, INT32, SUM, world[1].comm, world[1].stream));
    EXPECT_EQ(ncclAllReduce((void *)world[1].from, (void *)world[1].to, 4, INT32, SUM, world[1].comm, world[1].stream), REMOTE);
    OK(ncclCommGetAsyncError(world[1].comm, &error));
    EXPECT_EQ(error, REMOTE);
}

/* A thread has an open group with something in it, and another one must not wait for that. */
static int end_group_after(void *(*work)(void *))
{
    struct rank *own = &world[0];
    struct timespec most;
    pthread_t thread;
    MUST(ncclGroupStart());
    OK(ncclAllReduce((void *)own->from, (void *)own->to, 4, INT32, SUM, own->comm, own->stream));
    results[0] = -1;
    REQUIRE(!pthread_create(&thread, NULL, work, own));
    clock_gettime(CLOCK_REALTIME, &most);
    most.tv_sec += patience(10);
    bool came = !pthread_timedjoin_np(thread, NULL, &most);
    EXPECT(came);
    int result = ncclGroupEnd();
    if (!came)
        pthread_join(thread, NULL);
    OK(results[0]);
    return result;
}

static void *abort_it(void *argument)
{
    struct rank *own = argument;
    results[0] = ncclCommAbort(own->comm);
    return NULL;
}

static void *revoke_it(void *argument)
{
    struct rank *own = argument;
    results[0] = ncclCommRevoke(own->comm, 0);
    return NULL;
}

CASE(abort_does_not_wait_for_an_open_group)
{
    struct sim_books before, after;
    comm alone;
    enter(0);
    sim_books(&before);
    MUST(ncclCommInitAll(&alone, 1, NULL));
    world[0].comm = alone;
    EXPECT_EQ(end_group_after(abort_it), REMOTE);
    sim_books(&after);
    EXPECT_EQ(after.kernels, before.kernels);
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, 4, INT32, SUM, NULL, world[0].stream), ARGUMENT);
    world[0].comm = NULL;
}

CASE(revoke_does_not_wait_for_an_open_group)
{
    comm alone;
    enter(0);
    MUST(ncclCommInitAll(&alone, 1, NULL));
    world[0].comm = alone;
    EXPECT_EQ(end_group_after(revoke_it), USAGE);
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, 4, INT32, SUM, alone, world[0].stream), USAGE);
}

CASE(a_revoked_one_can_still_shrink)
{
    comm less[RANKS];
    int without[] = {0};
    meet();
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommRevoke(world[r].comm, 0));
    EXPECT_EQ(ncclAllReduce((void *)world[1].from, (void *)world[1].to, 4, INT32, SUM, world[1].comm, world[1].stream), USAGE);
    OK(ncclGroupStart());
    for (int r = 1; r < RANKS; r++)
        OK(ncclCommShrink(world[r].comm, without, 1, &less[r], NULL, 1));
    OK(ncclGroupEnd());
    for (int r = 1; r < RANKS; r++)
        OK(ncclCommDestroy(less[r]));
}

/* --- a rank in a process of its own: this program again, for the case below alone; it finds its id in the environment */

extern char **environ;

static void write_id(char text[257], const struct id *id)
{
    for (int i = 0; i < 128; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)id->bytes[i]);
}

CASE(as_the_other_process)
{
    const char *text = getenv("TEST_NCCL_ID");
    struct id id;
    EXPECT(!text || strlen(text) == 256);
    for (int i = 0; text && i < 128; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        id.bytes[i] = (char)byte;
    }
    if (!text)
        return;
    enter(1);
    if (ncclCommInitRank(&world[1].comm, 2, id, 1))
        _exit(1);
    _exit(sum_of_ranks(world[1].comm, &world[1]) == 3 ? 42 : 2);    /* without a word of farewell */
}

CASE(ranks_in_processes_and_one_that_dies)
{
    char text[257], *arguments[] = {"/proc/self/exe", "as_the_other_process", NULL};
    struct id id;
    pid_t child;
    int status = 0;
    MUST(ncclGetUniqueId(&id));
    write_id(text, &id);
    setenv("TEST_NCCL_ID", text, 1);
    REQUIRE(!posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ));
    unsetenv("TEST_NCCL_ID");
    enter(0);
    REQUIRE(!ncclCommInitRank(&world[0].comm, 2, id, 0));
    EXPECT_EQ(sum_of_ranks(world[0].comm, &world[0]), 3);
    EXPECT_EQ(ncclAllReduce((void *)world[0].from, (void *)world[0].to, 1, INT32, SUM, world[0].comm, world[0].stream), REMOTE);
    EXPECT(strstr(ncclGetLastError(world[0].comm), "rank 1"));
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 42);
}

CASE(ranks_that_cannot_be)
{
    struct id id;
    comm a, b;
    MUST(ncclGetUniqueId(&id));
    enter(0);
    EXPECT_EQ(ncclCommInitRank(&a, 2, id, 2), ARGUMENT);
    EXPECT_EQ(ncclCommInitRank(&a, 0, id, 0), ARGUMENT);
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&a, 3, id, 0));
    EXPECT_EQ(ncclCommInitRank(&b, 3, id, 0), USAGE);
    EXPECT_EQ(ncclCommInitRank(&b, 2, id, 1), USAGE);
    EXPECT_EQ(ncclGroupSimulateEnd(NULL), USAGE);   /* forgets the first */
    struct config config = {0};
    EXPECT_EQ(ncclCommInitRankConfig(&a, 1, id, 0, &config), ARGUMENT);
}

SUITE_MAIN_AROUND("communicators", begin, end)
