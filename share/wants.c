/*
 * wants.c: how a process that is short of memory asks the others on its card, and how they answer.
 *
 *     no server --- first loan: wants_serve ---> one thread, until the process ends. A fork has none, and closes what it inherited
 *
 * A process that lends has a socket whose name begins with the user's number, so that /proc/net/unix is the list of lenders: it ends with them,
 * and a process that is short reads one file to learn that there are none. It asks one after the other until it has enough. The answer comes when the
 * memory is with the driver. Until then the question is asked again every tenth of a second, which finds out whether the lender is there still; a
 * question that comes again is answered as before. After WANT_PATIENCE the asker goes on without.
 *
 * Who asks holds no lock and no turn. So two processes may ask each other at a time: each has a thread that answers.
 *
 * LOCKING: `starting` guards the server's start.
 */
#include "share/lend.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exits.h"
#include "base/thread.h"
#include "share/letters.h"

#define WANT_MAGIC    0x746e6157u
#define WANT_VERSION  1u
#define WANT_PATIENCE 30000000000ull    /* ns, chosen: 60 GiB leave a card in a tenth of that */
#define LENDERS_MAX   256
#define NAME_BYTES    80

struct want {
    uint64_t key_back;              /* for the answer */
    uint32_t magic, version;
    uint64_t number;                /* of this want: the same when it is asked again */
    uint64_t bytes;
    unsigned char card[LEND_CARD_BYTES];
};

struct answer {
    uint64_t key;                   /* the asker's */
    uint64_t number;                /* of the want */
    uint64_t gave;                  /* bytes that went to the driver for it */
};

static LOCK_OF_PROCESS struct lock starting = LOCK_INITIALIZER(LOCK_SHARE);
static struct {
    atomic_bool runs;
    const struct lend_books *books;
    int  socket;
    char name[NAME_BYTES];          /* without the 0 in front of it */
} server;

static socklen_t address_of(struct sockaddr_un *address, const char *name)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strnlen(name, sizeof address->sun_path - 1);
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int prefix(char name[NAME_BYTES])
{
    return snprintf(name, NAME_BYTES, "cenote-lend-%u-", (unsigned)getuid());
}

/* --------------------------------------------------------------------------------------------------------------------------- the server */

/* A program that closes all descriptors closes ours: then the thread ends, and nobody finds the name any more. */
static void *serve(void *unused)
{
    struct want want;
    struct answer answer = {0};
    for (;;) {
        struct letter letter = letters_receive(server.socket, &want, sizeof want, 0);
        if (letter.length < 0 && (errno == EBADF || errno == ENOTSOCK))
            break;
        if (letter.length != (ssize_t)sizeof want || !letter.trusted || want.magic != WANT_MAGIC || want.version != WANT_VERSION)
            continue;
        if (answer.key != want.key_back || answer.number != want.number)
            answer = (struct answer){want.key_back, want.number, server.books->give(want.card, want.bytes)};
        int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sendto(s >= 0 ? s : server.socket, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&letter.from, letter.from_size);
        if (s >= 0)
            close(s);
    }
    return unused;
}

/* In the child of a fork, which lends nothing. Once: in a child of the child the number is another file's. */
static void leave_socket(void)
{
    if (server.socket > 0)
        close(server.socket);
    server.socket = -1;
}

/* LOCKING: `starting`. */
static bool start(void)
{
    static bool is_watching; /* over failed starts too: handlers cannot be taken back */
    struct sockaddr_un address;
    uint64_t drawn;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return false;
    int length = prefix(server.name);
    snprintf(server.name + length, NAME_BYTES - (size_t)length, "%016llx", (unsigned long long)drawn);
    is_watching = is_watching || (!pthread_atfork(NULL, NULL, leave_socket) && exits_call(server.books->stop));
    server.socket = is_watching ? letters_socket(0) : -1;
    socklen_t bytes = address_of(&address, server.name);
    server.runs = server.socket >= 0 && !bind(server.socket, (struct sockaddr *)&address, bytes) && thread_start("cenote lend", serve);
    if (!server.runs)
        leave_socket();
    return server.runs;
}

bool wants_serve(const struct lend_books *books)
{
    lock_take(&starting);
    if (!server.runs)
        server.books = books;
    bool runs = server.runs || start();
    lock_give(&starting);
    return runs;
}

/* ---------------------------------------------------------------------------------------------------------------------------- the asker */

/* The names of sockets of this user's processes that lend, but for this process. How many. */
static uint32_t find_lenders(char (*names)[NAME_BYTES])
{
    char begin[NAME_BYTES], line[512];
    int length = prefix(begin);
    uint32_t count = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    while (file && count < LENDERS_MAX && fgets(line, sizeof line, file)) {
        char *name = strchr(line, '@');
        if (!name || strncmp(++name, begin, (size_t)length))
            continue;
        name[strcspn(name, "\n")] = 0;
        if (strlen(name) < NAME_BYTES && !(atomic_load(&server.runs) && !strcmp(name, server.name)))
            strcpy(names[count++], name);
    }
    if (file)
        fclose(file);
    return count;
}

/* What one lender gave until then; 0: nothing, or it is gone. */
static uint64_t ask(const char *name, struct want *want, uint64_t until)
{
    const struct timeval tenth = {0, 100000};
    struct sockaddr_un address;
    struct answer answer;
    socklen_t bytes = address_of(&address, name);
    uint64_t gave = 0;
    bool ends = getrandom(&want->key_back, sizeof want->key_back, 0) != (ssize_t)sizeof want->key_back || !want->key_back;
    int s = ends ? -1 : letters_socket(want->key_back);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth);
    for (ends = s < 0; !ends && clock_ns() < until;) {
        ssize_t went = sendto(s, want, sizeof *want, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&address, bytes);
        if (went < 0 && errno == ECONNREFUSED)
            break;
        struct letter letter = letters_receive(s, &answer, sizeof answer, 0);
        bool sound = letter.length == (ssize_t)sizeof answer && letter.trusted && answer.key == want->key_back;
        if ((ends = sound && answer.number == want->number))
            gave = answer.gave;
    }
    if (s >= 0)
        close(s);
    return gave;
}

/*
 * Asks the other processes that lend, one after the other, until they gave so many bytes of the pool's card to the driver. The caller holds no lock
 * and no turn; no driver call is made here.
 */
uint64_t wants_ask(cenote_pool *pool, uint64_t bytes)
{
    char names[LENDERS_MAX][NAME_BYTES];
    struct want want = {.magic = WANT_MAGIC, .version = WANT_VERSION, .bytes = bytes};
    uint64_t gave = 0, until = clock_ns() + WANT_PATIENCE;
    uint32_t count = find_lenders(names);
    if (!count || getrandom(&want.number, sizeof want.number, 0) != (ssize_t)sizeof want.number)
        return 0;
    memcpy(want.card, pool->config.device->uuid, sizeof want.card);
    for (uint32_t i = 0; i < count && gave < bytes; i++) {
        want.bytes = bytes - gave;
        gave += ask(names[i], &want, until);
    }
    return gave;
}
