/*
 * share_socket.c: how an importer asks and an exporter answers: datagrams of one size each, between sockets with abstract names.
 *
 *     no server --- first export: share_serve ---> one thread, until the process ends. A fork has none, and closes what it inherited
 *
 * The exporter's name is drawn at random: a process that is gone is not mistaken for one that came later. Whose process is at the other
 * end is the kernel's word (SCM_CREDENTIALS); both sides hear their own user alone. The server waits for nobody: an answer that cannot be
 * delivered at once is dropped, and each has a socket of its own, because what lies unread fills its sender's buffer. An importer waits
 * `share_patience` at most, and less if the name vanishes.
 *
 * LOCKING: `starting` guards the server's start.
 */
#include "pool/share.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

int share_patience = 100;

static struct lock starting = LOCK_INITIALIZER(LOCK_SHARE);
static struct {
    atomic_bool runs;               /* the rest does not change any more */
    int      socket;
    uint64_t exporter[2];
} server;

struct letter {                     /* one datagram and what the kernel says of it */
    struct sockaddr_un from;
    socklen_t from_size;
    bool    trusted;                /* it is of a process of our user */
    int     file;                   /* that came along, or -1 */
    ssize_t length;                 /* -1: none, see errno */
};

static socklen_t name_socket(struct sockaddr_un *name, const uint64_t exporter[2])
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "cenote-share-%016llx%016llx", (unsigned long long)exporter[0],
                          (unsigned long long)exporter[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* A socket that learns who writes to it. It gets a name of its own when it first writes. */
static int new_socket(void)
{
    int yes = 1, s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s >= 0)
        setsockopt(s, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
    return s;
}

/* `files`: how many descriptors are wanted, 0 or 1. Where there is no room for them the kernel closes those that came. */
static struct letter receive(int s, void *data, size_t room, unsigned files)
{
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct letter letter = {.file = -1, .from_size = sizeof letter.from};
    struct iovec part = {data, room};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &letter.from, .msg_namelen = sizeof letter.from,
                       .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + files * CMSG_SPACE(sizeof(int))};
    letter.length = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *c = letter.length < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int came[2] = {-1, -1}; /* by alignment there is room for two */
        struct ucred who;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&who, CMSG_DATA(c), sizeof who);
            letter.trusted = who.uid == getuid();
        } else { /* SCM_RIGHTS: nothing else was asked for */
            memcpy(came, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0) < sizeof came ? c->cmsg_len - CMSG_LEN(0) : sizeof came);
            letter.file = came[0];
            if (came[1] >= 0)
                close(came[1]);
        }
    }
    letter.from_size = m.msg_namelen;
    return letter;
}

/* --------------------------------------------------------------------------------------------------------------------------- the server */

static void send_reply(const struct letter *to, struct share_reply *reply, int file)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {reply, sizeof *reply};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = (void *)(uintptr_t)&to->from, .msg_namelen = to->from_size};
    if (file >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &file, sizeof file);
    }
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sendmsg(s, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (s >= 0)
        close(s);
    if (file >= 0)
        close(file);
}

static void *serve(void *unused)
{
    char request[sizeof(struct share_request) + 1]; /* a longer one shows as longer */
    struct share_reply reply;
    for (;;) {
        int file;
        struct letter letter = receive(server.socket, request, sizeof request, 0);
        if (letter.length <= 0 || !letter.trusted) /* nothing: somebody wants to know whether we are there */
            continue;
        share_answer(request, (size_t)letter.length, &reply, &file);
        send_reply(&letter, &reply, file);
    }
    return unused;
}

/* In the child of a fork: whoever asks the parent must not wait for us. */
static void leave_socket(void)
{
    if (server.runs)
        close(server.socket);
}

/* LOCKING: `starting`. */
static bool start(void)
{
    static bool is_watching; /* over failed starts too: handlers cannot be taken back */
    struct sockaddr_un name;
    if (getrandom(server.exporter, sizeof server.exporter, 0) != (ssize_t)sizeof server.exporter)
        return false;
    is_watching = is_watching || (!pthread_atfork(NULL, NULL, leave_socket) && !atexit(share_stop));
    server.socket = is_watching ? new_socket() : -1;
    socklen_t length = name_socket(&name, server.exporter);
    server.runs = server.socket >= 0 && !bind(server.socket, (struct sockaddr *)&name, length) && thread_start("cenote share", serve);
    if (!server.runs && server.socket >= 0)
        close(server.socket);
    return server.runs;
}

/* From now on requests are answered. `exporter` is this process's name. */
int share_serve(uint64_t exporter[2])
{
    lock_take(&starting);
    bool runs = server.runs || start();
    memcpy(exporter, server.exporter, sizeof server.exporter);
    lock_give(&starting);
    return runs ? CENOTE_OK : error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no socket or thread to share memory with: %s", strerror(errno));
}

bool share_is_own(const uint64_t exporter[2])
{
    return atomic_load(&server.runs) && !memcmp(exporter, server.exporter, sizeof server.exporter);
}

/* ------------------------------------------------------------------------------------------------------------------------- the importer */

/*
 * The answer, or none (not trusted). What others write to us is passed over. Once the question is on its way empty letters find out whether
 * the exporter is still there.
 */
static struct letter ask(int s, const struct sockaddr_un *name, socklen_t length, const struct share_request *q, struct share_reply *reply)
{
    const struct timeval tenth = {0, 100000};
    struct letter letter = {.length = -1, .file = -1};
    uint64_t until = clock_ns() + (uint64_t)share_patience * (uint64_t)tenth.tv_usec * 1000;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth);
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &tenth, sizeof tenth);
    bool sent = false;
    while (!letter.trusted && clock_ns() < until) { /* not counted: signals that the program handles cut a try short */
        ssize_t went = sendto(s, q, sent ? 0 : sizeof *q, MSG_NOSIGNAL | (sent ? MSG_DONTWAIT : 0), (const struct sockaddr *)name, length);
        if (went < 0 && errno == ECONNREFUSED)
            break;
        sent = sent || went >= 0;
        if (sent)
            letter = receive(s, reply, sizeof *reply, 1);
        if (!letter.trusted && letter.file >= 0)
            close(letter.file);
    }
    return letter;
}

/* What the other process's trouble is to us. */
static int refusal(const struct share_reply *reply)
{
    int e = reply->error;
    e = e == CENOTE_DRIVER || e == CENOTE_INVALID ? e : CENOTE_GONE;
    const char *result = reply->result ? driver_result_name((CUresult)reply->result) : "";
    return error_set(e, e == CENOTE_DRIVER ? reply->result : 0, "the process that exported the memory shares it no more: %s %s",
                     cenote_error_text(reply->error), result);
}

/* Asks about the block, and with `page` for a page of it. *file: the page, the caller's to close; or -1. */
int share_ask(const struct share_message *m, uint64_t page, struct share_reply *reply, int *file)
{
    struct share_request q = {SHARE_MAGIC, SHARE_VERSION, m->block, m->generation, page};
    struct sockaddr_un name;
    socklen_t length = name_socket(&name, m->exporter);
    int error = CENOTE_OK, s = new_socket();
    *file = -1;
    if (s < 0)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no socket to import memory with: %s", strerror(errno));
    struct letter letter = ask(s, &name, length, &q, reply);
    if (!letter.trusted)
        error = error_set(CENOTE_GONE, 0, "process %lld, which exported the memory, does not answer: it is gone, of another user, or in "
                          "another network namespace (%s)", (long long)m->process, strerror(errno));
    else if (!share_is_sound(reply, (size_t)letter.length))
        error = error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "the answer about shared memory makes no sense");
    else if (reply->error)
        error = refusal(reply);
    else if (page && letter.file < 0)
        error = error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no file descriptor came with a page: this process may have none left");
    if (!error && page)
        *file = letter.file;
    else if (letter.trusted && letter.file >= 0)
        close(letter.file);
    close(s);
    return error;
}
