/*
 * test_share_peers.c: shares that are damaged or made up, and processes at the other end that do not behave: foreign, stuck, forked,
 * flooding. Each gets a clear error in time, loses nothing, and holds up no other process. test_share_liars.c has those that lie.
 */
#include "tests/api/own.h"

#include <errno.h>
#include <pthread.h>
#include <sys/un.h>

/* ------------------------------------------------------------------------------------------------------------------- the message */

CASE(every_damaged_bit_is_found)
{
    struct own own;
    void *at;
    open_own(&own);
    for (size_t bit = 0; bit < 8 * sizeof(cenote_share); bit++) {
        cenote_share damaged = own.share;
        ((unsigned char *)&damaged)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        EXPECT_EQ(import(&damaged, &at), CENOTE_INVALID);
    }
    cenote_share nothing = {{0}};
    expect_refusal(&nothing, CENOTE_INVALID, "damaged");
    for (size_t length = 0; length < 200; length++)
        if (length != sizeof own.share)
            EXPECT_EQ(cenote_import(&own.share, length, 0, &at), CENOTE_INVALID);
    EXPECT_EQ(cenote_import(NULL, sizeof own.share, 0, &at), CENOTE_INVALID);
    EXPECT_EQ(import(&own.share, NULL), CENOTE_INVALID);
    close_own(&own);
}

CASE(another_version_is_named)
{
    struct own own;
    open_own(&own);
    struct share_message m = message_of(&own.share);
    m.version = SHARE_VERSION + 1;
    cenote_share newer = sealed(m);
    expect_refusal(&newer, CENOTE_INVALID, "version");
    close_own(&own);
}

CASE(a_device_that_is_not_there)
{
    struct own own;
    void *at;
    open_own(&own);
    const int devices[] = {-1, 1, 63, 64, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        EXPECT_EQ(cenote_import(&own.share, sizeof own.share, devices[i], &at), CENOTE_NO_DEVICE);
    close_own(&own);
}

/* Whole and well summed, but not what was exported. */
CASE(shares_that_are_made_up)
{
    struct own own;
    struct held other;
    open_own(&own);
    REQUIRE(held_take(&other, own.scene.pool, MIB, NULL));
    struct share_message m = message_of(&own.share), was = m;
    m.block = (uint64_t)(uintptr_t)other.at; /* live, and never exported */
    cenote_share share = sealed(m);
    expect_refusal(&share, CENOTE_GONE, "no more");
    for (uint64_t block = 0; block < 64; block++) {
        m.block = block < 32 ? was.block + block * 256 + 256 : 1ull << block;
        share = sealed(m);
        expect_refusal(&share, CENOTE_GONE, "no more");
    }
    m = was;
    m.generation++;
    share = sealed(m);
    expect_refusal(&share, CENOTE_GONE, "no more");
    m = was;
    m.offset = 5 * MIB;
    share = sealed(m);
    expect_refusal(&share, CENOTE_INVALID, "behind the end");
    m.offset = UINT64_MAX;
    share = sealed(m);
    expect_refusal(&share, CENOTE_INVALID, "behind the end");
    m = was;
    m.exporter[0]++;
    share = sealed(m);
    expect_refusal(&share, CENOTE_GONE, "is gone");
    held_give(&other);
    close_own(&own);
}

/* What the server answers to requests that no importer of ours would make. */
CASE(requests_that_are_made_up)
{
    struct own own;
    struct share_reply reply;
    int file;
    open_own(&own);
    struct share_message m = message_of(&own.share);
    const struct share_request right = {
        .key = m.exporter[1], .magic = SHARE_MAGIC, .version = SHARE_VERSION, .block = m.block, .generation = m.generation, .page = 1};
    share_answer(&right, sizeof right, &reply, &file);
    EXPECT_EQ(reply.error, CENOTE_OK);
    EXPECT_EQ(reply.pages, 3);
    REQUIRE(file >= 0);
    close(file);
    struct share_request q = right;
    for (q.page = 4; q.page; q.page *= 2) { /* no page of the block's */
        share_answer(&q, sizeof q, &reply, &file);
        EXPECT_EQ(reply.error, CENOTE_INVALID);
        EXPECT_EQ(file, -1);
    }
    for (size_t length = 0; length < sizeof right; length++) {
        share_answer(&right, length, &reply, &file);
        EXPECT_EQ(reply.error, CENOTE_INVALID);
    }
    q = right;
    q.version++;
    share_answer(&q, sizeof q, &reply, &file);
    EXPECT_EQ(reply.error, CENOTE_INVALID);
    close_own(&own);
}

/* ----------------------------------------------------------------------------------------------------------------- other processes */

static void stop(const struct other *other)
{
    int status = 0;
    kill(other->process, SIGSTOP);
    EXPECT(waitpid(other->process, &status, WUNTRACED) == other->process && WIFSTOPPED(status));
}

CASE(a_process_of_another_user)
{
    struct own own;
    struct other other;
    cenote_share share;
    uint64_t there;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    DONE(other_take(&other, MIB, 7, &share, &there));
    if (getuid() == 0) {
        DONE(other_ask(&other, BECOME, 65534).error);
        share_patience = 2;
        expect_refusal(&share, CENOTE_GONE, "another user"); /* it does not hear us */
        share_patience = 100;
        EXPECT_EQ(other_import(&other, &own.share, &there), CENOTE_GONE);
    }
    other_end(&other);
    close_own(&own);
}

/* The exporter is gone, and that is found out before the patience is at its end. */
static void expect_quick_refusal(const cenote_share *share, const char *words)
{
    int before = share_patience;
    share_patience = 10 * (int)patience(60);
    uint64_t began = clock_ns();
    expect_refusal(share, CENOTE_GONE, words);
    EXPECT(clock_ns() - began < patience(30) * (uint64_t)1000000000);
    share_patience = before;
}

/* It takes the name of one that is gone, reads what importers ask, and says nothing, or sends back what has the right key. */
static void take_the_name(const struct share_message *m, bool answers, int bound)
{
    struct share_request q;
    struct sockaddr_un name = {.sun_family = AF_UNIX}, from;
    socklen_t size = sizeof from;
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx", (unsigned long long)m->exporter[0]);
    bool has_it = !bind(s, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length));
    if (write(bound, &has_it, 1) != 1)
        _exit(1);
    while (recvfrom(s, &q, sizeof q, 0, (struct sockaddr *)&from, &size) == (ssize_t)sizeof q) {
        struct share_reply lie = {.key = q.key_back, .magic = SHARE_MAGIC, .error = CENOTE_GONE};
        while (answers && sendto(s, &lie, sizeof lie, 0, (struct sockaddr *)&from, size) == (ssize_t)sizeof lie)
            ;
        size = sizeof from;
    }
}

static pid_t start_taker(const cenote_share *share, bool answers)
{
    struct share_message m = message_of(share);
    int ends[2];
    bool has_it = false;
    REQUIRE(!pipe(ends));
    fflush(NULL);
    pid_t taker = fork();
    if (!taker) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(patience(60));
        if (!setuid(65534))
            take_the_name(&m, answers, ends[1]);
        _exit(1);
    }
    close(ends[1]);
    EXPECT(read(ends[0], &has_it, 1) == 1 && has_it);
    close(ends[0]);
    return taker;
}

/* The exporter has died, and another user has its name: that is found out before the patience is at its end. */
CASE(a_name_that_another_user_has_taken)
{
    struct own own;
    struct other other;
    cenote_share share;
    uint64_t there;
    open_own(&own);
    for (int answers = 0; answers < 2 && getuid() == 0; answers++) {
        other_start(&other, shape_text, CENOTE_VMM);
        DONE(other_take(&other, MIB, 7, &share, &there));
        other_kill(&other);
        pid_t taker = start_taker(&share, answers);
        expect_quick_refusal(&share, "another user's");
        kill(taker, SIGKILL);
        EXPECT(waitpid(taker, NULL, 0) == taker);
        expect_quick_refusal(&share, "network namespace");
    }
    close_own(&own);
}

/* It comes into a user namespace that knows no user: to it all users have one number, its own among them. Before, it knew its own user. */
CASE(an_exporter_that_cannot_tell_users_apart_hears_none)
{
    struct own own;
    struct other other;
    cenote_share share;
    uint64_t there;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    DONE(other_import(&other, &own.share, &there));
    DONE(other_close(&other, there));
    if (!other_ask(&other, UNKNOW, 0).error) { /* else the system has none for us */
        DONE(other_take(&other, MIB, 7, &share, &there));
        share_patience = 2;
        expect_refusal(&share, CENOTE_GONE, "another user");
        share_patience = 100;
    }
    other_end(&other);
    close_own(&own);
}

CASE(a_stuck_exporter_is_not_waited_for_for_ever)
{
    struct own own;
    struct other other;
    cenote_share share;
    uint64_t there;
    void *at;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    DONE(other_take(&other, MIB, 7, &share, &there));
    stop(&other);
    share_patience = 3;
    expect_refusal(&share, CENOTE_GONE, "does not answer");
    share_patience = 100;
    kill(other.process, SIGCONT);
    DONE(import(&share, &at));
    DONE(cenote_import_close(at));
    other_end(&other);
    close_own(&own);
}

static void *kill_soon(void *arg)
{
    struct timespec while_ago = {0, 150000000};
    nanosleep(&while_ago, NULL);
    kill(*(pid_t *)arg, SIGKILL);
    return NULL;
}

/* It takes the request and dies. */
CASE(an_exporter_that_dies_while_it_is_asked)
{
    struct own own;
    struct other other;
    cenote_share share;
    uint64_t there;
    pthread_t killer;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    DONE(other_take(&other, MIB, 7, &share, &there));
    stop(&other);
    REQUIRE(!pthread_create(&killer, NULL, kill_soon, &other.process));
    expect_quick_refusal(&share, "is gone");
    pthread_join(killer, NULL);
    other_kill(&other);
    close_own(&own);
}

/* The child of a fork exports nothing, and does not keep alive the name of a parent that died. */
CASE(a_fork_of_the_exporter)
{
    struct own own;
    struct other other;
    uint64_t there;
    void *at;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    struct order o = {.op = TAKE, .bytes = MIB, .pattern = 7};
    DONE(other_order(&other, &o));
    cenote_share share = o.share;
    there = o.at;
    o.op = FORK;
    DONE(other_order(&other, &o));
    DONE(import(&share, &at));
    EXPECT(there != 0);
    DONE(cenote_import_close(at));
    other_kill(&other);
    EXPECT_EQ(kill((pid_t)o.pattern, 0), 0);
    expect_quick_refusal(&share, "is gone");
    kill((pid_t)o.pattern, SIGKILL);
    close_own(&own);
}

static int importing_in_a_fork(const cenote_share *share)
{
    void *at;
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(import(share, &at) == CENOTE_FORKED && cenote_import_close(&at) == CENOTE_FORKED ? 0 : 1);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CASE(a_fork_cannot_import)
{
    struct own own;
    open_own(&own);
    EXPECT_EQ(importing_in_a_fork(&own.share), 0);
    close_own(&own);
}

/* A process that asks and never reads holds up no other. */
CASE(a_flood_of_requests)
{
    struct own own;
    enum { SOCKETS = 50, EACH = 100 };
    int sockets[SOCKETS];
    void *at;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    open_own(&own);
    struct share_message m = message_of(&own.share);
    struct share_request q = {
        .key = m.exporter[1], .magic = SHARE_MAGIC, .version = SHARE_VERSION, .block = m.block, .generation = m.generation, .page = 1};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx", (unsigned long long)m.exporter[0]);
    DONE(import(&own.share, &at)); /* the simulated card keeps a descriptor for each page it has shared */
    DONE(cenote_import_close(at));
    uint64_t files = settled_files();
    for (int i = 0; i < SOCKETS; i++) {
        sockets[i] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        DONE(bind(sockets[i], (struct sockaddr *)&name, sizeof(sa_family_t))); /* any name */
        DONE(connect(sockets[i], (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)));
        for (int j = 0; j < EACH; j++)
            send(sockets[i], &q, sizeof q - (size_t)(j % 3), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    DONE(import(&own.share, &at));
    DONE(cenote_import_close(at));
    for (int i = 0; i < SOCKETS; i++)
        close(sockets[i]);
    expect_files(files);
    close_own(&own);
}

/* Nor do letters without the key, which any user may send, take the room of those that have it, while the exporter reads nothing. */
CASE(letters_of_strangers_take_no_room)
{
    struct own own;
    struct other other;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    cenote_share share;
    uint64_t there;
    void *at;
    open_own(&own);
    other_start(&other, shape_text, CENOTE_VMM);
    DONE(other_take(&other, MIB, 7, &share, &there));
    struct share_message m = message_of(&share);
    struct share_request q = {m.exporter[1] + 1, 0, SHARE_MAGIC, SHARE_VERSION, m.block, m.generation, 1};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx", (unsigned long long)m.exporter[0]);
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), refused = 0;
    DONE(connect(s, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)));
    stop(&other);
    for (int i = 0; i < 2000; i++)
        refused += send(s, &q, i % 2 ? sizeof q : (size_t)(i % 9), MSG_DONTWAIT | MSG_NOSIGNAL) < 0;
    EXPECT_EQ(refused, 0);
    kill(other.process, SIGCONT);
    DONE(import(&share, &at));
    DONE(cenote_import_close(at));
    close(s);
    other_end(&other);
    close_own(&own);
}

/* --------------------------------------------------------------------------------------------------------------------- threads */

enum { THREADS = 6, ROUNDS = 60, BLOCKS = 5 };
static cenote_share shares[BLOCKS];
static CUcontext context_of_threads;

static void *import_and_close(void *arg)
{
    uint64_t failed = cuCtxSetCurrent(context_of_threads) != CUDA_SUCCESS;
    for (int round = 0; round < ROUNDS; round++) {
        void *at = NULL;
        failed += import(&shares[(round + (int)(uintptr_t)arg) % BLOCKS], &at) != CENOTE_OK;
        failed += sim_launch_touch(NULL, device_address(at), 4096) != CUDA_SUCCESS;
        failed += cenote_import_close(at) != CENOTE_OK;
    }
    return (void *)(uintptr_t)failed;
}

CASE(many_threads_import_the_same)
{
    struct own own;
    struct held held[BLOCKS];
    pthread_t threads[THREADS];
    open_own(&own);
    context_of_threads = own.scene.context;
    for (int i = 0; i < BLOCKS; i++) {
        REQUIRE(held_take(&held[i], own.scene.pool, i < 3 ? 4096 : (size_t)i * MIB, NULL));
        DONE(cenote_export(held[i].at, &shares[i]));
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, import_and_close, (void *)i));
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        EXPECT_EQ((uintptr_t)failed, 0);
    }
    for (int i = 0; i < BLOCKS; i++)
        held_give(&held[i]);
    close_own(&own);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("share_peers", argc > 1 ? argv[1] : "", NULL, scene_after);
}
