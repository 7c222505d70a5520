/*
 * test_share_peers.c: shares that are damaged or made up, and processes at the other end that do not behave: foreign, stuck, forked,
 * flooding, lying. Each gets a clear error in time, loses nothing, and keeps nobody else.
 */
#include "tests/api/other.h"

#include "pool/share.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/un.h>

static char shape_text[128];

static int import(const cenote_share *share, void **at)
{
    return cenote_import(share, sizeof *share, 0, at);
}

static bool others_are_asleep(void)
{
    int awake = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        int thread = atoi(task->d_name);
        awake += thread && thread != gettid() && !is_asleep(thread);
    }
    if (tasks)
        closedir(tasks);
    return !awake;
}

/* The server's thread opens and closes some on its own time: it is at rest when it sleeps and nothing has changed. */
static uint64_t settled_files(void)
{
    uint64_t files = files_open();
    struct wait wait = {0};
    for (int same = 0; same < 3 && wait_on(&wait); same++) {
        bool rest = others_are_asleep();
        uint64_t now = files_open();
        same = rest && now == files ? same : -1;
        files = now;
    }
    return files;
}

static void expect_files(uint64_t files)
{
    for (struct wait wait = {0}; files_open() != files && wait_on(&wait);)
        ;
    EXPECT_EQ(settled_files(), files);
}

/* An error in words, and nothing was opened. */
static void expect_refusal(const cenote_share *share, int expected, const char *words)
{
    void *at = &shape_text;
    uint64_t files = settled_files();
    EXPECT_EQ(import(share, &at), expected);
    if (!strstr(cenote_message(), words))
        fprintf(stderr, "    \"%s\" is not in \"%s\"\n", words, cenote_message());
    EXPECT(strstr(cenote_message(), words) != NULL);
    EXPECT_EQ((void *)at, (void *)&shape_text);
    expect_files(files);
}

struct own {
    struct scene scene;
    struct held  held;
    cenote_share share;
};

static void open_own(struct own *own)
{
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    snprintf(shape.machine, sizeof shape.machine, "cenote-peers-%d", (int)getpid());
    snprintf(shape_text, sizeof shape_text, "capacity:256MiB,context_bytes:0,machine:%s", shape.machine);
    scene_open_with(&own->scene, &shape, &options);
    REQUIRE(held_take(&own->held, own->scene.pool, 5 * MIB, NULL));
    DONE(cenote_export(own->held.at, &own->share));
}

static void close_own(struct own *own)
{
    void *at;
    DONE(import(&own->share, &at)); /* whatever was done, it works */
    DONE(cenote_import_close(at));
    held_give(&own->held);
    scene_close(&own->scene);
}

static struct share_message message_of(const cenote_share *share)
{
    struct share_message m;
    memcpy(&m, share, sizeof m);
    return m;
}

static cenote_share sealed(struct share_message m)
{
    cenote_share share;
    share_seal(&m);
    memcpy(&share, &m, sizeof share);
    return share;
}

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
    m.exporter[1]++;
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
    const struct share_request right = {SHARE_MAGIC, SHARE_VERSION, m.block, m.generation, 1};
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

/* The exporter is gone, and that is found out before the patience is at its end. */
static void expect_quick_refusal(const cenote_share *share)
{
    int before = share_patience;
    share_patience = 10 * (int)patience(60);
    uint64_t began = clock_ns();
    expect_refusal(share, CENOTE_GONE, "is gone");
    EXPECT(clock_ns() - began < patience(30) * (uint64_t)1000000000);
    share_patience = before;
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
    expect_quick_refusal(&share);
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
    expect_quick_refusal(&share);
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

/* Who asks and never reads keeps nobody. */
CASE(a_flood_of_requests)
{
    struct own own;
    enum { SOCKETS = 50, EACH = 100 };
    int sockets[SOCKETS];
    void *at;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    open_own(&own);
    struct share_message m = message_of(&own.share);
    struct share_request q = {SHARE_MAGIC, SHARE_VERSION, m.block, m.generation, 1};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx%016llx", (unsigned long long)m.exporter[0],
                          (unsigned long long)m.exporter[1]);
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

/* ----------------------------------------------------------------------------------------------------------------------- a liar */

/* An exporter of our own user that answers as a case says: each answer `lie` with that many descriptors. */
struct liar {
    int socket;
    int files;                  /* that go along, up to 3 */
    size_t length;              /* of the answer */
    struct share_reply lie;
    struct share_reply second;  /* to requests for a page */
    pthread_t thread;
    pthread_mutex_t lock;       /* around what it says */
    cenote_share share;
};

static void send_lie(struct liar *l, const struct share_reply *lie, const struct sockaddr_un *to, socklen_t size)
{
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)lie, l->length};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = (void *)(uintptr_t)to, .msg_namelen = size};
    int files[3] = {0, 1, 2};
    if (l->files) {
        size_t bytes = (size_t)l->files * sizeof(int);
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(bytes);
        *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), files, bytes);
    }
    EXPECT_EQ(sendmsg(l->socket, &m, MSG_NOSIGNAL), (ssize_t)l->length);
}

static void *lie(void *arg)
{
    struct liar *l = arg;
    for (;;) {
        struct share_request q = {0};
        struct sockaddr_un from;
        socklen_t size = sizeof from;
        if (recvfrom(l->socket, &q, sizeof q, 0, (struct sockaddr *)&from, &size) != (ssize_t)sizeof q || !q.magic)
            return NULL;
        pthread_mutex_lock(&l->lock);
        send_lie(l, q.page ? &l->second : &l->lie, &from, size);
        pthread_mutex_unlock(&l->lock);
    }
}

/* The right answer about a block of three pages, for the case to spoil. */
static void liar_open(struct liar *l)
{
    struct share_message m = {.magic = SHARE_MAGIC, .version = SHARE_VERSION, .exporter = {(uint64_t)getpid(), 99}, .block = 512};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx%016llx", (unsigned long long)m.exporter[0],
                          (unsigned long long)m.exporter[1]);
    *l = (struct liar){.lock = PTHREAD_MUTEX_INITIALIZER, .length = sizeof l->lie, .share = sealed(m)};
    l->lie = (struct share_reply){.magic = SHARE_MAGIC, .shift = 21, .pages = 3, .serial = 1, .lead = 512, .bytes = 5 * MIB};
    l->second = l->lie;
    l->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    DONE(bind(l->socket, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)));
    REQUIRE(!pthread_create(&l->thread, NULL, lie, l));
}

static void liar_close(struct liar *l)
{
    struct sockaddr_un name;
    socklen_t size = sizeof name;
    struct share_request end = {0};
    getsockname(l->socket, (struct sockaddr *)&name, &size);
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(sendto(s, &end, sizeof end, 0, (struct sockaddr *)&name, size), (ssize_t)sizeof end);
    pthread_join(l->thread, NULL);
    close(s);
    close(l->socket);
}

/* What it says from now on is another thing. */
#define SAY(change) (pthread_mutex_lock(&l.lock), (void)(l.change), pthread_mutex_unlock(&l.lock))

#define UNSOUND(change)                                             \
    do {                                                            \
        struct share_reply kept = l.lie;                            \
        SAY(lie.change);                                            \
        expect_refusal(&l.share, CENOTE_INVALID, "makes no sense"); \
        SAY(lie = kept);                                            \
    } while (0)

CASE(answers_that_make_no_sense)
{
    struct own own;
    struct liar l;
    open_own(&own);
    liar_open(&l);
    UNSOUND(magic = 1);
    UNSOUND(shift = 1);
    UNSOUND(shift = 64);
    UNSOUND(shift = UINT32_MAX);
    UNSOUND(pages = 0);
    UNSOUND(pages = 2);
    UNSOUND(pages = UINT64_MAX);
    UNSOUND(serial = 0);
    UNSOUND(lead = 2 * MIB);
    UNSOUND(lead = UINT64_MAX);
    UNSOUND(bytes = 0);
    UNSOUND(bytes = UINT64_MAX);
    UNSOUND(bytes = 1ull << 50);
    UNSOUND(shift = 0); /* a segment of three pages */
    SAY(lie.pages = 4);
    UNSOUND(lead = 2 * MIB); /* the block begins behind its first page */
    SAY(lie.pages = 3);
    SAY(length--);
    expect_refusal(&l.share, CENOTE_INVALID, "makes no sense");
    SAY(length = 0);
    expect_refusal(&l.share, CENOTE_INVALID, "makes no sense");
    liar_close(&l);
    close_own(&own);
}

CASE(answers_with_errors)
{
    struct own own;
    struct liar l;
    open_own(&own);
    liar_open(&l);
    const int errors[][2] = {{CENOTE_GONE, CENOTE_GONE}, {CENOTE_EXITING, CENOTE_GONE}, {CENOTE_DEVICE_LOST, CENOTE_GONE},
                             {CENOTE_INVALID, CENOTE_INVALID}, {CENOTE_DRIVER, CENOTE_DRIVER}, {-1, CENOTE_GONE}, {12345, CENOTE_GONE}};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        SAY(lie.error = errors[i][0]);
        SAY(lie.result = (int32_t)i * 1000 - 1);
        expect_refusal(&l.share, errors[i][1], "no more");
    }
    liar_close(&l);
    close_own(&own);
}

/* The description is right, the pages are not: no descriptor, one that is no memory, several. */
CASE(pages_that_are_none)
{
    struct own own;
    struct liar l;
    void *at;
    open_own(&own);
    sim_set_quiet(true);
    liar_open(&l);
    expect_refusal(&l.share, CENOTE_OUT_OF_HOST_MEMORY, "no file descriptor");
    for (SAY(files = 1); l.files <= 3; SAY(files++))
        expect_refusal(&l.share, CENOTE_DRIVER, "INVALID_VALUE");
    liar_close(&l);
    struct sim_books b;
    sim_books(&b);
    EXPECT_EQ(b.violations, 3); /* the driver's word on descriptors that are no memory */
    EXPECT_EQ(b.handles, 3);    /* of our own block, as before */
    DONE(import(&own.share, &at));
    DONE(cenote_import_close(at));
    DONE(cenote_free(own.held.at));
    DONE(cenote_pool_destroy(own.scene.pool));
    sim_reset(NULL); /* with the violations */
    scene_is_open = false;
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
