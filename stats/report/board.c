/*
 * board.c: a pool on the board of the process, where other processes see its counters, and what they wish of it.
 *
 * The head of the board says where everything lies, a line for each thing: what it is, its name, where it begins in a slot. So a reader
 * needs no header of this version, and what it does not know it passes by.
 *
 * A thread of the program takes a wish at its next call. What that costs is then as much as the same call of the program's own, and
 * no more than one thread is at it. What cannot be done is said on the board, and to the program nothing.
 *
 * LOCKING: as each function says. What `figures` and rows say belongs to the thread that has `answering`.
 */
#include "stats/report/board.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/board.h"
#include "pool/life/pool.h"
#include "stats/account/label.h"
#include "stats/text/options.h"
#include "stats/text/out.h"

/* ----------------------------------------------------------------------------------------------------------------------------- the head */

#define BEGIN offsetof(cenote_pool, board)
#define AT(member) (offsetof(cenote_pool, member) - BEGIN)
#define COUNTED(name) (offsetof(cenote_pool, account.stats) + offsetof(cenote_stats, name) - BEGIN)
#define FIGURE(name) (offsetof(cenote_pool, board.figures) + offsetof(cenote_stats, name) - BEGIN)

/* Texts and no pointers to them: a pointer would be written anew in each process that loads the library. */
static const struct field {
    char     what[8], name[24];
    uint32_t at, size;
} fields[] = {
    {"u32", "wished", AT(board.wished), 4}, {"u32", "answers", AT(board.answers), 4}, {"u32", "serial", AT(board.serial), 4},
    {"u64", "peak_allocated", AT(board.peak_allocated), 8}, {"u64", "peak_reserved", AT(board.peak_reserved), 8},
    {"i32", "device", AT(board.device), 4}, {"i32", "error", AT(board.error), 4}, {"u64", "opened", AT(board.opened), 8},
#define TEXT(name) {"text", #name, AT(board.name), sizeof(((struct board *)0)->name)}
    TEXT(bus), TEXT(card), TEXT(provider), TEXT(rank), TEXT(user), TEXT(said), TEXT(path),
    {"u64", "page_bytes", COUNTED(page_bytes), 8}, {"u64", "capacity", COUNTED(capacity), 8}, {"u64", "limit", COUNTED(limit), 8},
#define CENOTE_LEVEL(name, unit, text) {"level", #name, COUNTED(name), 32},
#define CENOTE_COUNT(name, unit, text) {"count", #name, COUNTED(name), 8},
#define CENOTE_GAUGE(name, unit, text) {"figure", #name, FIGURE(name), 8},
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    {"u64", "asleep", COUNTED(asleep), 8},
#define CENOTE_KIND(name, text) {"kind", text, AT(account.by_kind[CENOTE_KIND_##name]), sizeof(struct row)},
#include <cenote/kinds.def>
#undef CENOTE_KIND
#define CENOTE_PHASE(name, kind, text) {"phase", text, AT(account.by_phase[CENOTE_PHASE_##name]), sizeof(struct row)},
#include <cenote/phases.def>
#undef CENOTE_PHASE
    {"u8", "is_labelled", AT(account.is_labelled), 1},
    {"u64", "steps", AT(steps.count), 8}, {"notes", "steps", AT(steps.notes), sizeof(cenote_step_note)},
    {"u32", "tags", AT(board.tags), 4}, {"rows", "tags", AT(board.by_tag), sizeof(struct board_row)},
    {"u32", "groups", AT(board.groups), 4}, {"rows", "groups", AT(board.by_group), sizeof(struct board_row)},
};

const char *board_head(void)
{
    static char text[BOARD_HEAD_MAX];
    struct out out = {text, sizeof text, 0};
    if (*text)
        return text;
    out_print(&out, "version %d\nkept_rows %u\nkept_steps %u\nwishes refresh=%d trim=%d snapshot=%d\n", CENOTE_VERSION, BOARD_ROWS, CENOTE_STEPS_KEPT,
              BOARD_REFRESH, BOARD_TRIM, BOARD_SNAPSHOT);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        out_print(&out, "%s %s %u %u\n", fields[i].what, fields[i].name, fields[i].at, fields[i].size);
    return text;
}

/* --------------------------------------------------------------------------------------------------------------------- opened and closed */

/* Launchers say it in the environment; a program may say so itself before its first pool. */
static const char *rank(void)
{
    static const char *const names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    const char *value = NULL;
    for (size_t i = 0; !value && i < sizeof names / sizeof *names; i++)
        value = secure_getenv(names[i]);
    return value ? value : "";
}

static void write_text(char *to, size_t room, const char *text)
{
    size_t length = strnlen(text, room - 1);
    memcpy(to, text, length);
    memset(to + length, 0, room - length);
}

#define WRITE(to, text) write_text((to), sizeof(to), (text))

void board_open(cenote_pool *pool)
{
    static const char *const providers[] = {"auto", "vmm", "async", "plain", "guard"};
    const struct device *d = pool->config.device;
    struct board *b = &pool->board;
    cenote_stats *s = &pool->account.stats;
    if (!d->driver->cuDeviceGetPCIBusId || d->driver->cuDeviceGetPCIBusId(b->bus, sizeof b->bus, d->handle))
        *b->bus = 0;
    if (!d->driver->cuDeviceGetName || d->driver->cuDeviceGetName(b->card, sizeof b->card, d->handle))
        *b->card = 0;
    WRITE(b->rank, rank());
    WRITE(b->provider, providers[pool->config.provider]);
    b->device = d->ordinal;
    b->opened = (uint64_t)time(NULL);
    s->page_bytes = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    s->capacity = d->capacity;
    s->limit = pool->limits.bytes;
    b->serial = (uint32_t)pool->config.serial;
}

void board_close(cenote_pool *pool)
{
    pool->board.serial = 0;
}

/* ------------------------------------------------------------------------------------------------------------------------------- answers */

/* The largest come first; `rows` is in any order and is used up. */
static void keep_largest(struct board_row *kept, cenote_row *rows, size_t count)
{
    for (size_t i = 0; i < BOARD_ROWS && i < count; i++) {
        size_t largest = i;
        for (size_t j = i + 1; j < count; j++)
            if (rows[j].allocated.current > rows[largest].allocated.current)
                largest = j;
        const cenote_row row = rows[largest];
        rows[largest] = rows[i];
        kept[i] = (struct board_row){.current = row.allocated.current, .peak = row.allocated.peak, .reserved = row.reserved, .blocks = row.blocks};
        write_text(kept[i].name, sizeof kept[i].name, row.name);
    }
}

/* More rows may come meanwhile: those are seen the next time. */
static int read_rows(cenote_pool *pool, int division, struct board_row *kept, uint32_t *number)
{
    size_t room = 0, count = 0;
    int error = cenote_pool_rows(pool, division, NULL, 0, &room);
    size_t bytes = (room + 1) * sizeof(cenote_row);
    cenote_row *rows = error ? NULL : memory_map(bytes);
    if (!rows)
        return error ? error : error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for %zu rows", room);
    if (!(error = cenote_pool_rows(pool, division, rows, room, &count))) {
        memset(kept, 0, BOARD_ROWS * sizeof *kept);
        keep_largest(kept, rows, count < room ? count : room);
        *number = (uint32_t)count;
    }
    memory_unmap(rows, bytes);
    return error;
}

static int refresh(cenote_pool *pool)
{
    struct board *b = &pool->board;
    cenote_stats stats;
    int error = cenote_pool_stats(pool, &stats);
    if (error)
        return error;
    b->figures = stats;
    if ((error = pool_take_lock(pool)))
        return error;
    memcpy(b->user, pool->report.user, sizeof b->user);
    lock_give(&pool->lock);
    error = read_rows(pool, CENOTE_BY_TAG, b->by_tag, &b->tags);
    return error ? error : read_rows(pool, CENOTE_BY_GROUP, b->by_group, &b->groups);
}

/* A pipe would hold the program up until somebody reads. */
static int check_place(const char *path)
{
    struct stat found;
    bool is_plain = *path == '/' && (stat(path, &found) ? errno == ENOENT : S_ISREG(found.st_mode));
    return is_plain ? CENOTE_OK : error_set(CENOTE_FILE, 0, "%.256s: not the full name of a plain file, or of one that is to be made", path);
}

/* Where no file may be as long as the snapshot, the system would end the program. */
static int write_snapshot(cenote_pool *pool, const char *path)
{
    const struct timespec now = {0, 0};
    sigset_t too_long, before, pending;
    int error = check_place(path);
    if (error)
        return error;
    sigemptyset(&too_long);
    sigaddset(&too_long, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &too_long, &before);
    error = cenote_pool_snapshot(pool, path);
    if (!sigismember(&pending, SIGXFSZ))
        sigtimedwait(&too_long, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int grant(cenote_pool *pool, uint32_t wished)
{
    char path[sizeof pool->board.path];
    memcpy(path, pool->board.path, sizeof path); /* it may change meanwhile */
    path[sizeof path - 1] = 0;
    int error = wished & BOARD_TRIM ? cenote_pool_trim(pool, 0, 0) : CENOTE_OK;
    if (!error && wished & BOARD_SNAPSHOT)
        error = write_snapshot(pool, path);
    int other = refresh(pool);
    return error ? error : other;
}

/* Another thread that is at it leaves the wish to the next call. LOCKING: none. */
void board_answer(cenote_pool *pool)
{
    struct board *b = &pool->board;
    struct error_aside aside;
    int number = errno; /* of the program's call, which has succeeded */
    if (atomic_flag_test_and_set(&b->answering))
        return;
    uint32_t wished = atomic_exchange(&b->wished, 0);
    if (wished) {
        atomic_fetch_add(&b->answers, 1);
        error_lay_aside(&aside);
        b->error = grant(pool, wished);
        WRITE(b->said, b->error ? cenote_message() : "");
        error_take_back(&aside);
        atomic_fetch_add(&b->answers, 1);
    }
    atomic_flag_clear(&b->answering);
    errno = number;
}
