/*
 * socket.c: how an importer asks and an exporter answers: datagrams of one size each, between sockets with abstract names.
 *
 *     no server --- first export: share_serve ---> one thread, until the process ends. A fork has none, and closes what it inherited
 *
 * The exporter's name is drawn at random: a process that is gone is not mistaken for one that came later. Whose process is at the other
 * end is the kernel's word (SCM_CREDENTIALS); both sides hear their own user alone. Any process may write to a socket whose name it reads in
 * /proc/net/unix, so a letter begins with a key: the exporter's is in the share, the importer's in its question. A filter has the kernel throw
 * away all others, before they take room in a queue.
 *
 * The server waits for no importer: an answer that cannot be delivered at once is dropped, and each has a socket of its own, because what lies unread
 * fills its sender's buffer. An importer asks again every tenth of a second, for `share_patience` at most, and less if the name vanishes or is
 * another user's. Any user can take the name of an exporter that is gone.
 *
 * LOCKING: `starting` guards the server's start.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
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
#include "share/share.h"

#define SHIFT_LEAST 12
#define SHIFT_MAX  40

int share_patience = 100;

static LOCK_OF_PROCESS struct lock starting = LOCK_INITIALIZER(LOCK_SHARE);
static struct {
    atomic_bool runs;               /* the rest does not change any more */
    int      socket;
    uint64_t exporter[2];
    const struct share_books *books;
} server;

struct letter {                     /* one datagram and what the kernel says of it */
    struct sockaddr_un from;
    socklen_t from_size;
    bool    trusted;                /* it is of a process of our user */
    bool    taken;                  /* an importer: another user has the exporter's name */
    int     file;                   /* that came along, or -1 */
    ssize_t length;                 /* -1: none, see errno */
};

static socklen_t name_socket(struct sockaddr_un *name, const uint64_t exporter[2])
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "cenote-share-%016llx", (unsigned long long)exporter[0]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Only letters that begin with the key. Where the kernel has no such filter the key is looked at all the same, but others can fill the queue. */
static void hear_only(int s, uint64_t key)
{
    uint32_t word[2];
    memcpy(word, &key, sizeof word);
    struct sock_filter is_ours[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* in the order of the network; a letter that is too short ends here */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog filter = {sizeof is_ours / sizeof *is_ours, is_ours};
    setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/* A socket that learns which process writes to it. It gets a name of its own when it first writes. */
static int new_socket(uint64_t key)
{
    int yes = 1, s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s >= 0) {
        setsockopt(s, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
        hear_only(s, key);
    }
    return s;
}

static bool has_key(const void *data, ssize_t length, uint64_t key)
{
    return length >= (ssize_t)sizeof key && !memcmp(data, &key, sizeof key);
}

static unsigned read_number(const char *path, const char *format, unsigned otherwise)
{
    unsigned number = otherwise;
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, format, &number) != 1)
        number = otherwise;
    if (file)
        fclose(file);
    return number;
}

/*
 * In a user namespace that does not know all users the kernel gives one number to those it does not know, and getuid() says it where it does not know
 * this process's. So that number is no user there. A user with another number is known, which stays so while getuid() says it: it is remembered.
 */
static bool is_our_user(uid_t user)
{
    static _Atomic uint64_t known; /* and 1; 0: none */
    if (user != getuid())
        return false;
    if (atomic_load_explicit(&known, memory_order_relaxed) == user + 1ull)
        return true;
    unsigned unknown = read_number("/proc/sys/kernel/overflowuid", "%u", 65534);
    if (user != unknown)
        atomic_store_explicit(&known, user + 1ull, memory_order_relaxed);
    return user != unknown || read_number("/proc/self/uid_map", "%*u %*u %u", 0) == UINT32_MAX;
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
            letter.trusted = is_our_user(who.uid);
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
    sendmsg(s >= 0 ? s : server.socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT); /* where no descriptor is left the importer has to hear of it */
    if (s >= 0)
        close(s);
    if (file >= 0)
        close(file);
}

/* A program that closes all descriptors closes ours, and another file may get the number: then the thread ends, and importers find the name gone. */
static void *serve(void *unused)
{
    char request[sizeof(struct share_request) + 1]; /* a longer one shows as longer */
    struct share_reply reply;
    for (;;) {
        int file;
        struct letter letter = receive(server.socket, request, sizeof request, 0);
        if (letter.length < 0 && (errno == EBADF || errno == ENOTSOCK))
            break;
        if (!letter.trusted || !has_key(request, letter.length, server.exporter[1]))
            continue;
        server.books->answer(request, (size_t)letter.length, &reply, &file);
        send_reply(&letter, &reply, file);
    }
    return unused;
}

/* In the child of a fork: a process that asks the parent must not wait for the child. Once: in a child of the child the number is another file's. */
static void leave_socket(void)
{
    if (server.socket >= 0)
        close(server.socket);
    server.socket = -1;
}

/* LOCKING: `starting`. */
static bool start(void)
{
    static bool is_watching; /* over failed starts too: handlers cannot be taken back */
    struct sockaddr_un name;
    if (getrandom(server.exporter, sizeof server.exporter, 0) != (ssize_t)sizeof server.exporter)
        return false;
    is_watching = is_watching || (!pthread_atfork(NULL, NULL, leave_socket) && exits_call(server.books->stop));
    server.socket = is_watching ? new_socket(server.exporter[1]) : -1;
    socklen_t length = name_socket(&name, server.exporter);
    server.runs = server.socket >= 0 && !bind(server.socket, (struct sockaddr *)&name, length) && thread_start("cenote share", serve);
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
        return !letter->trusted && has_key(data, letter->length, key);
    bool taken = why == EAGAIN && share_owner(name->sun_path, length - offsetof(struct sockaddr_un, sun_path), &user) && user && !is_our_user(user);
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
            letter = receive(s, reply, sizeof *reply, 1);
        again = letter.length < 0;
        letter.taken = is_taken(name, length, &letter, reply, q->key_back);
        letter.trusted = letter.trusted && has_key(reply, letter.length, q->key_back);
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
    int error = CENOTE_OK, s = drawn ? new_socket(q.key_back) : -1;
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
