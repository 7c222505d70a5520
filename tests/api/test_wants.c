/*
 * test_wants.c: letters between processes that lend and those that are short, by an asker that is made up and asks this process. What
 * they lead to is test_lend.c's.
 */
#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "share/lend.h"
#include "tests/api/pair.h"

#include <cenote/sleep.h>

#define UNIT (16 * MIB)

struct asker {
    int                socket;
    int                number;  /* of the lender's socket */
    struct sockaddr_un lender;
    socklen_t          lender_bytes;
    struct want        want;
};

/* It asks this process. */
static void open_asker(struct asker *a)
{
    const struct timeval most = {.tv_sec = patience(OTHER_PATIENCE)};
    const struct sockaddr_un any = {.sun_family = AF_UNIX};
    *a = (struct asker){.lender = {.sun_family = AF_UNIX}, .want = {.magic = WANT_MAGIC, .version = WANT_VERSION}};
    DONE(cuDeviceGetUuid((CUuuid *)a->want.card, 0));
    a->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(!bind(a->socket, (const struct sockaddr *)&any, sizeof any.sun_family));
    setsockopt(a->socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    for (a->number = 3; a->number < 64; a->number++) {
        a->lender_bytes = sizeof a->lender;
        if (!getsockname(a->number, (struct sockaddr *)&a->lender, &a->lender_bytes) && !memcmp(a->lender.sun_path + 1, "cenote-lend-", 12))
            break;
    }
    REQUIRE(a->number < 64);
}

static void send_want(struct asker *a, uint64_t number, uint64_t bytes)
{
    a->want.key_back = a->want.number = (uint64_t)getpid() << 32 | number; /* other tests may ask this process, too */
    a->want.bytes = bytes;
    EXPECT_EQ(sendto(a->socket, &a->want, sizeof a->want, 0, (struct sockaddr *)&a->lender, a->lender_bytes), (ssize_t)sizeof a->want);
}

static uint64_t answer_to(struct asker *a)
{
    struct answer answer = {0};
    ssize_t length;
    while (!(length = recv(a->socket, &answer, sizeof answer, 0))) /* the lender has looked whether the asker waits */
        continue;
    EXPECT_EQ(length, (ssize_t)sizeof answer);
    return answer.gave;
}

/* On a card with a number of its own: other tests that are short of memory ask for theirs. */
static void open_alone(struct scene *scene, uint32_t abort)
{
    struct sim_shape shape = shared_card();
    shape.capacity = GIB;
    cenote_options options = scene_options();
    options.abort = abort;
    scene_open_with(scene, &shape, &options);
}

/* A new block has the address of one that was lent and freed, and a new group the handle of one that has ended: the loan does not name them. */
CASE(what_has_ended_is_lent_no_more)
{
    struct scene scene;
    struct asker asker;
    void *block[2], *again, *grouped;
    cenote_loan *both, *whole;
    cenote_group *group, *other;
    open_alone(&scene, 0);
    for (int i = 0; i < 2; i++)
        DONE(cenote_alloc(scene.pool, UNIT, scene.stream[A], &block[i]));
    cenote_sleep what = {.blocks = (const void *const *)block, .count = 2};
    DONE(cenote_pool_lend(scene.pool, &what, &both));
    open_asker(&asker);
    DONE(cenote_free(block[1]));
    DONE(cenote_alloc(scene.pool, UNIT, scene.stream[A], &again));
    EXPECT(again == block[1]);
    send_want(&asker, 1, GIB);
    EXPECT_EQ(answer_to(&asker), UNIT);
    fill(again, 7, UNIT);
    DONE(cenote_free(block[0]));
    DONE(cenote_loan_end(both, NULL)); /* nothing is left of it */

    DONE(cenote_group_create(scene.pool, "lent", 0, NULL, &group));
    what = (cenote_sleep){.group = group};
    DONE(cenote_pool_lend(scene.pool, &what, &whole));
    DONE(cenote_group_destroy(group));
    for (other = NULL; other != group;) {
        if (other)
            DONE(cenote_group_destroy(other));
        DONE(cenote_group_create(scene.pool, "kept", 0, NULL, &other));
    }
    DONE(group_alloc(other, UNIT, 512, scene.stream[A], &grouped));
    DONE(cuCtxSynchronize());
    send_want(&asker, 2, GIB);
    answer_to(&asker);
    EXPECT_EQ(scene_stats(scene.pool).asleep, 0);
    fill(grouped, 7, UNIT);
    DONE(cenote_loan_end(whole, NULL));
    what = (cenote_sleep){.blocks = (const void *const *)block, .count = 1};
    EXPECT_EQ(cenote_pool_lend(scene.pool, &what, &whole), CENOTE_NOT_OURS);
    DONE(cenote_free(again));
    DONE(cenote_free(grouped));
    DONE(cenote_group_destroy(other));
    close(asker.socket);
    scene_close(&scene);
}

static void *take_whole(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream, (void)arg;
    return cuMemAlloc(&at, bytes) ? NULL : (void *)(uintptr_t)at;
}

static void give_whole(void *memory, size_t bytes, cenote_stream stream, void *thread)
{
    (void)bytes, (void)stream;
    EXPECT(pthread_equal(*(pthread_t *)thread, pthread_self())); /* and the context is the program's */
    DONE(cuMemFree((CUdeviceptr)(uintptr_t)memory));
}

/* What is lent goes on a thread of cenote's: functions of the program run on its own threads. */
CASE(a_loan_that_goes_asks_no_source)
{
    struct scene scene;
    struct asker asker;
    void *block, *sourced;
    cenote_loan *loan;
    cenote_group *group;
    pthread_t self = pthread_self();
    cenote_source source = {take_whole, give_whole, &self};
    open_alone(&scene, 0);
    DONE(cenote_group_create(scene.pool, "sourced", 0, &source, &group));
    DONE(group_alloc(group, UNIT, 512, scene.stream[A], &sourced));
    DONE(cenote_alloc(scene.pool, UNIT, scene.stream[A], &block));
    DONE(cenote_free(sourced));
    uint64_t before = scene_stats(scene.pool).reserved.current;
    DONE(cenote_pool_lend(scene.pool, NULL, &loan));
    open_asker(&asker);
    send_want(&asker, 71, GIB);
    EXPECT_EQ(answer_to(&asker), UNIT);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, before - UNIT); /* what the source gave stays */
    DONE(cenote_loan_end(loan, NULL));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    close(asker.socket);
    scene_close(&scene);
}

/* Each asks again and again while memory goes: that is one want. */
CASE(two_that_ask_at_a_time_get_it_once_each)
{
    struct scene scene;
    struct asker asker[2];
    void *block[8];
    cenote_loan *loan[8];
    open_alone(&scene, 0);
    for (int i = 0; i < 8; i++) {
        cenote_sleep what = {.blocks = (const void *const *)&block[i], .count = 1};
        DONE(cenote_alloc(scene.pool, UNIT, scene.stream[A], &block[i]));
        DONE(cenote_pool_lend(scene.pool, &what, &loan[i]));
    }
    open_asker(&asker[0]);
    open_asker(&asker[1]);
    for (int i = 0; i < 6; i++)
        send_want(&asker[i % 2], 11 + (uint64_t)i % 2, UNIT);
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(answer_to(&asker[i % 2]), UNIT);
    EXPECT_EQ(scene_stats(scene.pool).asleep, 2 * UNIT);
    for (int i = 0; i < 8; i++) {
        DONE(cenote_loan_end(loan[i], NULL));
        DONE(cenote_free(block[i]));
    }
    close(asker[0].socket);
    close(asker[1].socket);
    scene_close(&scene);
}

static atomic_bool is_enough;

static void *ask_on(void *arg)
{
    struct asker *asker = arg;
    for (uint64_t number = 100; !atomic_load(&is_enough); number++)
        send_want(asker, number, GIB);
    return NULL;
}

/* That a pool has ended is no mistake of the program. In a process with abort:1 from here on. */
CASE(a_pool_ends_while_others_ask)
{
    struct scene scene;
    struct asker asker;
    cenote_loan *loan;
    cenote_pool *pool;
    cenote_options options = scene_options();
    pthread_t thread;
    open_alone(&scene, 1);
    options.abort = 1;
    DONE(cenote_pool_lend(scene.pool, NULL, &loan));
    open_asker(&asker);
    REQUIRE(!pthread_create(&thread, NULL, ask_on, &asker));
    for (int round = 0; round < 300; round++) {
        DONE(cenote_pool_create(0, &options, &pool));
        for (int i = 0; i < 100; i++)
            DONE(cenote_pool_lend(pool, NULL, &loan));
        DONE(cenote_pool_destroy(pool));
    }
    atomic_store(&is_enough, true);
    pthread_join(thread, NULL);
    close(asker.socket);
    scene_close(&scene);
}

/* A program that closes all numbers: another file gets the lender's, and is the program's alone. The last case: this process lends no more. */
CASE(the_socket_s_number_is_another_file_s)
{
    struct scene scene;
    struct asker asker;
    cenote_loan *loan;
    struct stat is;
    int ends[2], status = -1;
    char word[8];
    open_alone(&scene, 0);
    DONE(cenote_pool_lend(scene.pool, NULL, &loan));
    open_asker(&asker);
    int lender = asker.number;
    REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) && dup2(ends[0], lender) == lender);
    sendto(asker.socket, &asker.want, sizeof asker.want, 0, (struct sockaddr *)&asker.lender, asker.lender_bytes);
    usleep(20000); /* a thread that waited for a letter has had this one, and looked again */
    for (int i = 0; i < 10; i++) {
        EXPECT_EQ(write(ends[1], "letter", 6), 6);
        usleep(1000);
        EXPECT_EQ(recv(lender, word, sizeof word, MSG_DONTWAIT), 6);
    }
    pid_t child = fork();
    if (!child)
        _exit(fstat(lender, &is) ? 1 : 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    close(ends[1]);
    close(lender);
    close(asker.socket);
    DONE(cenote_loan_end(loan, NULL));
    scene_close(&scene);
}

SCENES_MAIN("letters of lenders and askers")
