/*
 * socket.c: how an importer asks and an exporter answers: datagrams of one size each, between sockets with abstract names.
 *
 *     no server --- first export: share_serve ---> one thread, until the process ends. A fork has none, and closes what it inherited
 *
 * The exporter's name is drawn at random: a process that is gone is not mistaken for one that came later. A letter begins
 * with a key (letters.c): the exporter's is in the share, the importer's in its question.
 *
 * The server waits for no importer: an answer that cannot be delivered at once is dropped, and each has a socket of its own, because what lies unread
 * fills its sender's buffer. An importer asks again every tenth of a second, for `share_patience` at most, and less if the name vanishes or is
 * another user's. Any user can take the name of an exporter that is gone.
 *
 * LOCKING: `starting` guards the server's start.
 */
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
#include "base/exits.h"
#include "base/thread.h"
#include "share/letters.h"
#include "share/share.h"

#define SHIFT_LEAST 12
#define SHIFT_MAX  40

int share_patience = 100;

static LOCK_OF_PROCESS struct lock starting = LOCK_INITIALIZER(LOCK_SHARE);
static struct {
    atomic_bool runs;               /* the rest does not change any more */
    struct ear ear;
    uint64_t exporter[2];
    const struct share_books *books;
} server;

static socklen_t name_socket(struct sockaddr_un *name, const uint64_t exporter[2])
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "cenote-share-%016llx", (unsigned long long)exporter[0]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
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
    int with = s < 0 && letters_is_there(&server.ear) ? server.ear.number : s; /* where no descriptor is left the importer has to hear of it */
    sendmsg(with, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (s >= 0)
        close(s);
    if (file >= 0)
        close(file);
}

/* A program that closes all descriptors closes ours, and another file may get the number: then the thread ends at the next letter. */
static void *serve(void *unused)
{
    char request[sizeof(struct share_request) + 1]; /* a longer one shows as longer */
    struct share_reply reply;
    while (letters_is_there(&server.ear)) {
        int file;
        struct letter letter = letters_receive(server.ear.number, request, sizeof request, 0);
        if (!letter.trusted || !letters_has_key(request, letter.length, server.exporter[1]))
            continue;
        server.books->answer(request, (size_t)letter.length, &reply, &file);
        send_reply(&letter, &reply, file);
    }
    return unused;
}

/* In the child of a fork: a process that asks the parent must not wait for the child. */
static void leave_socket(void)
{
    letters_leave(&server.ear);
}

/* LOCKING: `starting`. */
static bool start(void)
{
    static bool is_watching; /* over failed starts too: handlers cannot be taken back */
    struct sockaddr_un name;
    if (getrandom(server.exporter, sizeof server.exporter, 0) != (ssize_t)sizeof server.exporter)
        return false;
    is_watching = is_watching || (!pthread_atfork(NULL, NULL, leave_socket) && exits_call(server.books->stop));
    socklen_t length = name_socket(&name, server.exporter);
    server.runs = is_watching && letters_listen(&server.ear, server.exporter[1]) && !bind(server.ear.number, (struct sockaddr *)&name, length) &&
                  thread_start("cenote share", serve);
    if (!server.runs)
        leave_socket();
    return server.runs;
}

/* From now on requests are answered, from `books`: the same at every call. `exporter` is this process's name. */
int share_serve(const struct share_books *books, uint64_t exporter[2])
{
    lock_take(&starting);
    if (!server.runs)
        server.books = books;
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
 * Has another user the name? An exporter may give up root's rights once it has its socket, so root counts as no other user. The kernel is asked
 * after a tenth of a second without an answer. What the other user sends is an answer, too: only the holder of the name has the key of the question.
 */
static bool is_taken(const struct sockaddr_un *name, socklen_t length, const struct letter *letter, const void *data, uint64_t key)
{
    uid_t user;
    int why = errno;
    if (letter->length >= 0)
        return !letter->trusted && letters_has_key(data, letter->length, key);
    bool taken = why == EAGAIN && share_owner(name->sun_path, length - offsetof(struct sockaddr_un, sun_path), &user) && user &&
                 !letters_is_our_user(user);
    errno = why;
    return taken;
}

/*
 * The answer, or none (not trusted). What others write to us is passed over. The question is asked again and again: an answer may have been dropped,
 * and where the exporter is gone sending finds that out.
 */
static struct letter ask(int s, const struct sockaddr_un *name, socklen_t length, const struct share_request *q, struct share_reply *reply)
{
    const struct timeval tenth = {0, 100000};
    struct letter letter = {.length = -1, .file = -1};
    uint64_t until = clock_ns() + (uint64_t)share_patience * (uint64_t)tenth.tv_usec * 1000;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth);
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &tenth, sizeof tenth);
    bool sent = false, again = true;
    while (!letter.trusted && !letter.taken && clock_ns() < until) { /* not counted: signals that the program handles cut a try short */
        int flags = MSG_NOSIGNAL | (sent ? MSG_DONTWAIT : 0);
        ssize_t went = again ? sendto(s, q, sizeof *q, flags, (const struct sockaddr *)name, length) : 0;
        if (went < 0 && errno == ECONNREFUSED)
            break;
        sent = sent || went >= 0;
        if (sent)
            letter = letters_receive(s, reply, sizeof *reply, 1);
        again = letter.length < 0;
        letter.taken = is_taken(name, length, &letter, reply, q->key_back);
        letter.trusted = letter.trusted && letters_has_key(reply, letter.length, q->key_back);
        if (!letter.trusted && letter.file >= 0)
            close(letter.file);
    }
    return letter;
}

/* Does the answer make sense? If not nothing in it is used. */
bool share_is_sound(const struct share_reply *reply, size_t length)
{
    if (length != sizeof *reply || reply->magic != SHARE_MAGIC || reply->error)
        return length == sizeof *reply && reply->magic == SHARE_MAGIC;
    if (!reply->serial || !reply->bytes || reply->bytes > BYTES_MAX || reply->lead > BYTES_MAX)
        return false;
    if (!reply->shift)
        return reply->pages == 1;
    if (reply->shift < SHIFT_LEAST || reply->shift > SHIFT_MAX || reply->unit_shift > SHIFT_MAX - reply->shift ||
        reply->span_shift > reply->unit_shift)
        return false;
    uint64_t last = (reply->lead + reply->bytes - 1) >> reply->shift; /* with bytes of the block */
    return !(reply->lead >> reply->shift >> reply->unit_shift) && last < reply->pages && !((reply->pages - 1 - last) >> reply->unit_shift);
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
    struct share_request q = {.key = m->exporter[1], .magic = SHARE_MAGIC, .version = SHARE_VERSION, .block = m->block,
                              .generation = m->generation, .page = page};
    struct sockaddr_un name;
    socklen_t length = name_socket(&name, m->exporter);
    bool drawn = getrandom(&q.key_back, sizeof q.key_back, 0) == (ssize_t)sizeof q.key_back;
    int error = CENOTE_OK, s = drawn ? letters_socket(q.key_back) : -1;
    *file = -1;
    if (s < 0)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no socket to import memory with: %s", strerror(errno));
    struct letter letter = ask(s, &name, length, &q, reply);
    if (letter.taken)
        error = error_set(CENOTE_GONE, 0, "process %lld, which exported the memory, is gone or of another user: its socket's name is another user's",
                          (long long)m->process);
    else if (!letter.trusted)
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
