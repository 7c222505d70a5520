/*
 * wants.c: how a process that is short of memory asks the others on its card, and how they answer.
 *
 *     no server --- first loan: wants_serve ---> one thread, until the process ends. A fork has none, and closes what it inherited
 *
 * A process that lends has a socket whose name begins with the user's number, so that /proc/net/unix is the list of lenders: it ends with them,
 * and a process that is short reads one file to learn that there are none. It asks one after the other until it has enough. The answer comes when the
 * memory is with the driver. Until then the question is asked again every tenth of a second, which finds out whether the lender is there still; a
 * question that comes again is answered as before. One that is silent for longer than WANT_FIRST is asked again after the others: it may be stopped.
 * After its patience the asker goes on without, and this process does not ask a lender that was silent all that time for ten times as long: one
 * stopped process must not hold up each shortage of the others. Any user can take a name that looks like a lender's of this one: that one is not
 * waited for.
 *
 * Who asks holds no lock and no turn. So two processes may ask each other at a time: each has a thread that answers.
 *
 * LOCKING: `starting` guards the server's start, and which lenders are silent.
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
#include "share/share.h"

#define WANT_PATIENCE 30000000000ull    /* ns, chosen: 60 GiB leave a card in a tenth of that */
#define SILENT_MAX    16
#define WANT_FIRST    1000000000ull     /* ns, chosen */
#define LENDERS_MAX   256
#define ANSWERS_KEPT  64
#define NAME_BYTES    80

static LOCK_OF_PROCESS struct lock starting = LOCK_INITIALIZER(LOCK_SHARE);
static struct {
    atomic_bool runs;
    const struct lend_books *books;
    struct ear ear;
    char name[NAME_BYTES];          /* without the 0 in front of it */
} server;

uint64_t wants_patience = WANT_PATIENCE;
static struct silent {
    char     name[NAME_BYTES];
    uint64_t until;                 /* by the clock: not asked before */
} silent[SILENT_MAX];               /* in a ring */

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

/* Several may ask at a time, and each asks again and again. */
static const struct answer *answer_to(const struct want *want)
{
    static struct answer answers[ANSWERS_KEPT];
    static uint32_t next;
    for (int i = 0; i < ANSWERS_KEPT; i++)
        if (answers[i].number == want->number) {
            answers[i].key = want->key_back;
            return &answers[i];
        }
    struct answer *answer = &answers[next++ % ANSWERS_KEPT];
    *answer = (struct answer){want->key_back, want->number, server.books->give(want->card, want->bytes)};
    return answer;
}

/* False: the asker has gone, or asks no more. */
static bool send_back(int with, const struct letter *to, const void *data, size_t bytes)
{
    return sendto(with, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&to->from, to->from_size) >= 0 ||
           errno != ECONNREFUSED;
}

/* A program that closes all descriptors closes ours: then the thread ends at the next letter, and nobody finds the name any more. */
static void *serve(void *unused)
{
    struct want want;
    while (letters_is_there(&server.ear)) {
        struct letter letter = letters_receive(server.ear.number, &want, sizeof want, 0);
        if (letter.length != (ssize_t)sizeof want || !letter.trusted || want.magic != WANT_MAGIC || want.version != WANT_VERSION)
            continue;
        int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), with = s < 0 && letters_is_there(&server.ear) ? server.ear.number : s;
        if (send_back(with, &letter, NULL, 0)) { /* the asker waits still: it did not while this process was stopped */
            const struct answer *answer = answer_to(&want);
            send_back(with, &letter, answer, sizeof *answer);
        }
        if (s >= 0)
            close(s);
    }
    return unused;
}

/* In the child of a fork, which lends nothing. */
static void leave_socket(void)
{
    letters_leave(&server.ear);
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
    socklen_t bytes = address_of(&address, server.name);
    server.runs = is_watching && letters_listen(&server.ear, 0) && !bind(server.ear.number, (struct sockaddr *)&address, bytes) &&
                  thread_start("cenote lend", serve);
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

static bool is_anothers(const struct sockaddr_un *address, socklen_t bytes)
{
    uid_t user;
    return share_owner(address->sun_path, bytes - offsetof(struct sockaddr_un, sun_path), &user) && user && !letters_is_our_user(user);
}

/* What one lender gave until then; 0: nothing, or it is gone. *is_over: it need not be asked again. */
static uint64_t ask(const char *name, struct want *want, uint64_t until, bool *is_over)
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
        if (went < 0 && errno == ECONNREFUSED) {
            ends = true;
            break;
        }
        struct letter letter = letters_receive(s, &answer, sizeof answer, 0);
        bool sound = letter.length == (ssize_t)sizeof answer && letter.trusted && answer.key == want->key_back;
        if ((ends = sound && answer.number == want->number))
            gave = answer.gave;
        else if (letter.length < 0 && is_anothers(&address, bytes))
            ends = true;
    }
    if (s >= 0)
        close(s);
    *is_over = ends;
    return gave;
}

static bool is_silent(const char *name)
{
    bool is_silent = false;
    lock_take(&starting);
    for (int i = 0; i < SILENT_MAX; i++)
        is_silent |= silent[i].until > clock_ns() && !strcmp(silent[i].name, name);
    lock_give(&starting);
    return is_silent;
}

static void note_silent(const char *name)
{
    static uint32_t next;
    lock_take(&starting);
    struct silent *one = &silent[next++ % SILENT_MAX];
    strcpy(one->name, name);
    one->until = clock_ns() + 10 * wants_patience;
    lock_give(&starting);
}

/*
 * Asks the other processes that lend, one after the other, until they gave so many bytes of the pool's card to the driver. The caller holds no lock
 * and no turn; no driver call is made here. *until: when the patience of the caller's call ends; 0: it begins now.
 */
uint64_t wants_ask(cenote_pool *pool, uint64_t bytes, uint64_t *until)
{
    char names[LENDERS_MAX][NAME_BYTES];
    struct want want = {.magic = WANT_MAGIC, .version = WANT_VERSION, .bytes = bytes};
    bool is_over[LENDERS_MAX] = {false};
    uint64_t gave = 0;
    uint32_t count = find_lenders(names);
    *until = *until ? *until : clock_ns() + wants_patience;
    if (!count || getrandom(&want.number, sizeof want.number, 0) != (ssize_t)sizeof want.number)
        return 0;
    memcpy(want.card, pool->config.device->uuid, sizeof want.card);
    for (uint32_t i = 0; i < 2 * count && gave < bytes; i++) {
        uint64_t now = clock_ns(), first = i < count ? now + WANT_FIRST : *until;
        want.bytes = bytes - gave;
        if (is_over[i % count] || is_silent(names[i % count]))
            continue;
        gave += ask(names[i % count], &want, first < *until ? first : *until, &is_over[i % count]);
        if (!is_over[i % count] && clock_ns() - now >= wants_patience / 2)
            note_silent(names[i % count]);
    }
    return gave;
}
