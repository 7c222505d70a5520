/*
 * test_share_liars.c: exporters of our own user that answer nonsense, or whose answers get lost. test_share_peers.c has the others.
 */
#include "tests/api/own.h"

#include <pthread.h>
#include <sys/un.h>

/* An exporter of our own user that answers as a case says: each answer `lie` with that many descriptors. */
struct liar {
    int socket;
    int drops;                  /* so many questions get no answer */
    int strays;                 /* letters without the key that go before each answer */
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
        for (int i = 0; i < l->strays; i++)
            sendto(l->socket, &l->lie, sizeof l->lie, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&from, size);
        struct share_reply answer = q.page ? l->second : l->lie;
        answer.key = q.key_back;
        if (l->drops)
            l->drops--;
        else
            send_lie(l, &answer, &from, size);
        pthread_mutex_unlock(&l->lock);
    }
}

/* The right answer about a block of three pages, for the case to spoil. */
static void liar_open(struct liar *l)
{
    struct share_message m = {.magic = SHARE_MAGIC, .version = SHARE_VERSION, .exporter = {(uint64_t)getpid(), 99}, .block = 512};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cenote-share-%016llx", (unsigned long long)m.exporter[0]);
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
    UNSOUND(unit_shift = 20); /* with units larger than any page */
    UNSOUND(unit_shift = UINT32_MAX);
    UNSOUND(span_shift = 1); /* a page larger than a unit */
    SAY(lie.pages = 4);
    UNSOUND(lead = 2 * MIB); /* the block begins behind its first page */
    SAY(lie.pages = 3);
    SAY(length--);
    expect_refusal(&l.share, CENOTE_INVALID, "makes no sense");
    liar_close(&l);
    close_own(&own);
}

/* Each answer makes sense by itself, but the second page would reach beyond the block's last, or be larger than any. */
CASE(pages_that_reach_beyond_the_block)
{
    struct own own;
    struct liar l;
    open_own(&own);
    liar_open(&l);
    SAY(files = 1);
    SAY(second.unit_shift = 2);
    SAY(second.span_shift = 2);
    expect_refusal(&l.share, CENOTE_INVALID, "makes no sense");
    SAY(second.unit_shift = 19);
    SAY(second.span_shift = 19);
    expect_refusal(&l.share, CENOTE_INVALID, "makes no sense");
    SAY(lie.unit_shift = 2);
    SAY(lie.pages = 6); /* one unit more than the block needs at its end */
    SAY(second = l.lie);
    SAY(second.span_shift = 3);
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

/* An answer that did not get through is asked for again, long before the patience is at its end. */
CASE(answers_that_are_dropped)
{
    struct own own;
    struct liar l;
    open_own(&own);
    liar_open(&l);
    SAY(drops = 3);
    expect_refusal(&l.share, CENOTE_OUT_OF_HOST_MEMORY, "no file descriptor"); /* it was answered */
    EXPECT_EQ(l.drops, 0);
    liar_close(&l);
    close_own(&own);
}

/* Any process may write to the importer's socket. */
CASE(letters_of_strangers_are_no_answers)
{
    struct own own;
    struct liar l;
    open_own(&own);
    liar_open(&l);
    SAY(strays = 1000);
    expect_refusal(&l.share, CENOTE_OUT_OF_HOST_MEMORY, "no file descriptor"); /* it heard the answer behind them */
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

SCENES_MAIN("share: liars")
