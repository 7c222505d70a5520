/*
 * other.h: another process with a pool of its own, for tests of shared memory. It is this program, started anew (fork and exec): it does
 * what it is told, one order at a time, and answers with the same struct.
 *
 *     struct other other;
 *     other_start(&other, "capacity:1GiB,machine:x", CENOTE_VMM);
 *     DONE(other_take(&other, MIB, 7, &share));
 *     other_end(&other);
 */
#ifndef CENOTE_TESTS_API_OTHER_H
#define CENOTE_TESTS_API_OTHER_H

#include "tests/api/scene.h"
#include "tests/patience.h"

#include <cenote/share.h>
#include <cenote/sleep.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHER_WORD "--other"
#define OTHER_SOCKET 3
#define OTHER_PATIENCE 30   /* s */
#define OTHER_BLOCKS 5000

enum other_op {
    TAKE, GIVE, GIVE_ALL, FILL, DIFFER, IMPORT, CLOSE, OPEN_LEGACY, CLOSE_LEGACY, TRIM, LIMIT_FILES, FILES, BECOME, UNKNOW, FORK, BOOKS, OWN, LEND,
    LOAN_END, SLEEPING, END
};

struct order {
    uint32_t op;
    int32_t  error;
    uint64_t at, bytes, pattern;    /* FILES, BOOKS: the answer in `bytes` and `pattern` */
    cenote_share share;
};

struct other {
    pid_t process;
    int   socket;
};

/* ------------------------------------------------------------------------------------------------------------------ over there */

static inline uint64_t files_open(void)
{
    uint64_t count = 0;
    for (int file = 0; file < 4096; file++)
        count += fcntl(file, F_GETFD) >= 0;
    return count;
}

static inline int differ_here(uint64_t at, uint64_t pattern, size_t bytes, uint64_t *words)
{
    uint64_t before = sim_mismatches();
    int result = (int)sim_launch_expect(NULL, at, pattern, bytes & ~(size_t)7);
    if (!result)
        result = (int)cuCtxSynchronize();
    *words = sim_mismatches() - before;
    return result;
}

static inline int fill_here(uint64_t at, uint64_t pattern, size_t bytes)
{
    int result = (int)sim_launch_fill(NULL, at, pattern, bytes & ~(size_t)7);
    return result ? result : (int)cuCtxSynchronize();
}

static inline int own_here(cenote_pool *pool, struct order *o)
{
    void *block = NULL;
    int error = cenote_alloc(pool, o->bytes, NULL, &block);
    if (!error)
        error = fill_here((uint64_t)(uintptr_t)block, o->pattern, o->bytes);
    o->at = (uint64_t)(uintptr_t)block;
    return error;
}

static inline int take_here(cenote_pool *pool, struct order *o)
{
    int error = own_here(pool, o);
    return error ? error : cenote_export((void *)(uintptr_t)o->at, &o->share);
}

/* A child that lives on with what it inherited, and can do nothing with it. */
static inline int fork_here(struct order *o)
{
    int  ends[2];
    char word = 0;
    if (pipe(ends))
        return -1;
    pid_t child = fork();
    if (child == 0) {
        cenote_share share;
        if (cenote_export((void *)(uintptr_t)o->at, &share) != CENOTE_FORKED)
            _exit(1);
        close(OTHER_SOCKET);
        prctl(PR_SET_PDEATHSIG, 0);
        if (write(ends[1], &word, 1) == 1)
            sleep(patience(60)); /* until it is killed */
        _exit(0);
    }
    close(ends[1]);
    o->pattern = (uint64_t)child;
    bool came = child > 0 && read(ends[0], &word, 1) == 1;
    close(ends[0]);
    return !came;
}

static inline int lend_order(cenote_pool *pool, struct order *o)
{
    static cenote_loan *loan;
    const void *block = (const void *)(uintptr_t)o->at;
    cenote_sleep sleep = {.blocks = o->at ? &block : NULL, .count = o->at != 0}; /* one block, or the whole pool */
    cenote_stats stats;
    switch (o->op) {
    case OWN: /* a block that is not exported: it may sleep */
        return own_here(pool, o);
    case LEND:
        return cenote_pool_lend(pool, &sleep, &loan);
    case LOAN_END:
        o->error = cenote_loan_end(loan, &sleep);
        o->bytes = sleep.pages;
        return o->error;
    case SLEEPING:
        o->error = cenote_pool_stats(pool, &stats);
        o->bytes = stats.asleep;
        return o->error;
    default:
        return -1;
    }
}

static inline int do_order(cenote_pool *pool, struct order *o)
{
    struct rlimit files = {o->bytes, o->bytes};
    struct sim_books books;
    CUipcMemHandle legacy;
    void *at = NULL;
    int error;
    switch (o->op) {
    case TAKE:
        return take_here(pool, o);
    case GIVE:
        return cenote_free((void *)(uintptr_t)o->at);
    case FILL:
        return fill_here(o->at, o->pattern, o->bytes);
    case DIFFER:
        return differ_here(o->at, o->pattern, o->bytes, &o->bytes);
    case IMPORT:
        error = cenote_import(&o->share, sizeof o->share, 0, &at);
        o->at = (uint64_t)(uintptr_t)at;
        return error;
    case CLOSE:
        return cenote_import_close((void *)(uintptr_t)o->at);
    case OPEN_LEGACY: /* `share` has the bytes of a CUipcMemHandle */
        memcpy(&legacy, &o->share, sizeof legacy);
        return (int)cuIpcOpenMemHandle((CUdeviceptr *)&o->at, legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case CLOSE_LEGACY:
        return (int)cuIpcCloseMemHandle(o->at);
    case TRIM:
        return cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT);
    case LIMIT_FILES:
        return setrlimit(RLIMIT_NOFILE, &files);
    case FILES:
        o->bytes = files_open();
        return 0;
    case BECOME:
        return setuid((uid_t)o->bytes);
    case UNKNOW:
        return unshare(CLONE_NEWUSER);
    case FORK:
        return fork_here(o);
    case BOOKS:
        sim_books(&books);
        o->bytes = books.reserved;
        o->pattern = books.mappings;
        return (int)books.violations;
    default:
        return lend_order(pool, o);
    }
}

/* The pool has pages of 2 MiB. argument: enum cenote_provider */
static inline int other_main(const char *argument)
{
    struct order o = {0};
    CUcontext context;
    cenote_pool *pool = NULL;
    cenote_options options;
    cenote_options_default(&options);
    options.page_mib = 2;
    options.provider = (uint32_t)atoi(argument);
    o.error = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cenote_pool_create(0, &options, &pool);
    while (send(OTHER_SOCKET, &o, sizeof o, MSG_NOSIGNAL) == (ssize_t)sizeof o &&
           recv(OTHER_SOCKET, &o, sizeof o, 0) == (ssize_t)sizeof o && o.op != END) {
        o.error = do_order(pool, &o);
        if (o.error)
            fprintf(stderr, "    the other process: %s\n", cenote_message());
    }
    return o.op == END ? 0 : 1;
}

/* ----------------------------------------------------------------------------------------------------------------- over here */

static inline int other_order(struct other *other, struct order *o)
{
    REQUIRE(send(other->socket, o, sizeof *o, MSG_NOSIGNAL) == (ssize_t)sizeof *o);
    REQUIRE(recv(other->socket, o, sizeof *o, 0) == (ssize_t)sizeof *o);
    return o->error;
}

static inline void become_other(int socket, const char *shape, unsigned provider)
{
    char text[512], number[16];
    char *arguments[] = {"other", OTHER_WORD, number, NULL};
    snprintf(number, sizeof number, "%u", provider);
    snprintf(text, sizeof text, "quiet:1,%s", shape);
    setenv("CENOTE_SIM", text, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (socket != OTHER_SOCKET && dup2(socket, OTHER_SOCKET) < 0)
        _exit(126);
    fcntl(OTHER_SOCKET, F_SETFD, 0);
    execv("/proc/self/exe", arguments);
    _exit(127);
}

static inline void other_start(struct other *other, const char *shape, unsigned provider)
{
    int ends[2];
    struct order o;
    struct timeval most = {.tv_sec = patience(OTHER_PATIENCE)};
    fflush(NULL);
    REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    other->process = fork();
    REQUIRE(other->process >= 0);
    if (!other->process)
        become_other(ends[1], shape, provider);
    close(ends[1]);
    other->socket = ends[0];
    setsockopt(other->socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    REQUIRE(recv(other->socket, &o, sizeof o, 0) == (ssize_t)sizeof o);
    REQUIRE_EQ(o.error, 0);
}

static inline void other_kill(struct other *other)
{
    kill(other->process, SIGKILL);
    EXPECT(waitpid(other->process, NULL, 0) == other->process);
    close(other->socket);
}

static inline void other_end(struct other *other)
{
    int status = -1;
    struct order o = {.op = END};
    EXPECT(send(other->socket, &o, sizeof o, MSG_NOSIGNAL) == (ssize_t)sizeof o);
    EXPECT(waitpid(other->process, &status, 0) == other->process);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(other->socket);
}

/* A block over there, filled and exported. */
static inline int other_take(struct other *other, size_t bytes, uint64_t pattern, cenote_share *share, uint64_t *at)
{
    struct order o = {.op = TAKE, .bytes = bytes, .pattern = pattern};
    int error = other_order(other, &o);
    *share = o.share;
    *at = o.at;
    return error;
}

static inline int other_give(struct other *other, uint64_t at)
{
    return other_order(other, &(struct order){.op = GIVE, .at = at});
}

static inline int other_fill(struct other *other, uint64_t at, uint64_t pattern, size_t bytes)
{
    return other_order(other, &(struct order){.op = FILL, .at = at, .pattern = pattern, .bytes = bytes});
}

static inline uint64_t other_differ(struct other *other, uint64_t at, uint64_t pattern, size_t bytes)
{
    struct order o = {.op = DIFFER, .at = at, .pattern = pattern, .bytes = bytes};
    return other_order(other, &o) ? UINT64_MAX : o.bytes;
}

static inline int other_import(struct other *other, const cenote_share *share, uint64_t *at)
{
    struct order o = {.op = IMPORT, .share = *share};
    int error = other_order(other, &o);
    *at = o.at;
    return error;
}

static inline int other_close(struct other *other, uint64_t at)
{
    return other_order(other, &(struct order){.op = CLOSE, .at = at});
}

/* One number over there: its open files, or the books of its card. */
static inline struct order other_ask(struct other *other, enum other_op op, uint64_t value)
{
    struct order o = {.op = op, .bytes = value};
    other_order(other, &o);
    return o;
}

#endif
