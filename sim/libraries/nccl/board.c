/*
 * board.c: a file in memory where the ranks of one communicator, threads or processes of one machine, find each other and exchange short
 * letters. It is named by the unique id, and its name is gone as soon as all ranks are there: nothing stays behind, whichever rank dies later.
 * Not a transport for large messages, and not for ranks on other machines.
 *
 *     header:  how many ranks, how many have come
 *     members: one for each rank.   ABSENT -> COMING -> HERE -> LEFT
 *     lanes:   one for each ordered pair: letter N lies in slot N % SLOTS from posted > N until taken > N
 *     pages:   the contents of each slot of each lane. They are read and written by calls, never mapped: where memory is short, a letter
 *              says `lost`, and no process is killed by a page that cannot be had
 *
 * The file belongs to one user (0600) and its name is 128 random bits. What others write into it is checked where it is used.
 *
 * LOCKING: none: each lane has one writer and one reader, which hand letters over by `posted` and `taken`.
 */
#include "sim/libraries/nccl/board.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS 8                     /* sends that are not received yet, before the sender waits */
#define GIVE_BACK_FROM (64u << 10)  /* pages of letters this large go back to the system once read */
#define FIELD_STATE 3               /* of /proc/PID/stat, from 1 */
#define FIELD_STARTED 22

enum member_state { ABSENT, COMING, HERE, LEFT };

struct member {
    _Atomic uint32_t state;
    int32_t  process;
    uint64_t started;               /* by the system's clock: a process id may come again */
};

struct lane {
    _Atomic uint64_t posted;
    _Atomic uint64_t taken;
    struct letter letters[SLOTS];
};

struct header {
    _Atomic uint32_t ranks;         /* 0: no rank has come yet */
    _Atomic uint32_t arrived;
};

struct board {
    int      file;
    int      rank, ranks;
    bool     named;                 /* the file still has its name */
    bool     here;                  /* we have arrived */
    size_t   bytes;                 /* of what is mapped: all but the pages */
    struct header *header;
    struct member *members;
    struct lane   *lanes;
    char     path[64];
};

/* When `process` began; 0: it has ended. The name of the program may hold anything: the fields are counted from its last bracket. */
static uint64_t process_started(int process)
{
    char path[32], text[1024], state;
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (got <= 0)
        return 0;
    text[got] = 0;
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", &state) != 1 || state == 'Z' || state == 'X')
        return 0;
    for (int field = FIELD_STATE - 1; at && field < FIELD_STARTED; field++)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, "%llu", &started) == 1 ? started : 0;
}

static uint64_t mix(const char *name, uint64_t sum)
{
    for (int i = 0; i < BOARD_NAME_BYTES; i++)
        sum = (sum ^ (unsigned char)name[i]) * 0x100000001b3ull;
    return sum ^ sum >> 31;
}

static struct lane *lane_of(const struct board *b, int from, int to)
{
    return &b->lanes[(size_t)from * (size_t)b->ranks + (size_t)to];
}

static off_t page_of(const struct board *b, int from, int to, uint64_t number)
{
    uint64_t slot = ((uint64_t)from * (uint64_t)b->ranks + (uint64_t)to) * SLOTS + number % SLOTS;
    return (off_t)((b->bytes + 4095) / 4096 * 4096 + slot * BOARD_LETTER_MAX);
}

static bool map_file(struct board *b, const char *name)
{
    const char *folder = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(b->path, sizeof b->path, "%s/cenote-nccl-%016llx%016llx", folder, (unsigned long long)mix(name, 0xcbf29ce484222325ull),
             (unsigned long long)mix(name, 0x9e3779b97f4a7c15ull));
    b->bytes = sizeof(struct header) + (size_t)b->ranks * sizeof(struct member) + (size_t)b->ranks * (size_t)b->ranks * sizeof(struct lane);
    b->file = open(b->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat status;
    if (b->file < 0 || fstat(b->file, &status) || !S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return false; /* another user's, who could cut it off under our eyes */
    b->named = true;
    if (posix_fallocate(b->file, 0, (off_t)b->bytes))
        return false;
    void *at = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, 0);
    if (at == MAP_FAILED)
        return false;
    b->header = at;
    b->members = (struct member *)(b->header + 1);
    b->lanes = (struct lane *)(b->members + b->ranks);
    return true;
}

static enum board_trouble arrive(struct board *b)
{
    uint32_t ranks = 0;
    if (!atomic_compare_exchange_strong(&b->header->ranks, &ranks, (uint32_t)b->ranks) && ranks != (uint32_t)b->ranks)
        return BOARD_OTHER_SIZE;
    struct member *own = &b->members[b->rank];
    uint32_t state = ABSENT;
    if (!atomic_compare_exchange_strong(&own->state, &state, COMING))
        return BOARD_RANK_TAKEN;
    own->process = getpid();
    own->started = process_started(getpid());
    atomic_store(&own->state, HERE);
    b->here = true;
    atomic_fetch_add(&b->header->arrived, 1);
    return BOARD_FINE;
}

static void drop_name(struct board *b)
{
    if (b->named)
        unlink(b->path);
    b->named = false;
}

enum board_trouble board_open(struct board **board, const char name[BOARD_NAME_BYTES], int ranks, int rank)
{
    struct board *b = calloc(1, sizeof *b);
    if (!b)
        return BOARD_NO_ROOM;
    b->ranks = ranks;
    b->rank = rank;
    enum board_trouble trouble = map_file(b, name) ? arrive(b) : BOARD_NO_ROOM;
    if (trouble == BOARD_FINE) {
        *board = b;
        return BOARD_FINE;
    }
    if (trouble == BOARD_NO_ROOM)
        drop_name(b);
    board_close(b);
    return trouble;
}

void board_leave(struct board *b)
{
    atomic_store(&b->members[b->rank].state, LEFT);
}

/* Before all have come, that is the end of the meeting: ranks that wait see that we have left, and the name goes. */
void board_close(struct board *b)
{
    if (b->here)
        drop_name(b);
    if (b->header)
        munmap(b->header, b->bytes);
    if (b->file >= 0)
        close(b->file);
    free(b);
}

bool board_is_complete(struct board *b)
{
    if (atomic_load(&b->header->arrived) < (uint32_t)b->ranks)
        return false;
    drop_name(b);
    return true;
}

bool board_has_lost(const struct board *b, int rank)
{
    const struct member *m = &b->members[rank];
    uint32_t state = atomic_load(&m->state);
    if (state == LEFT)
        return true;
    return state == HERE && m->process != getpid() && process_started(m->process) != m->started;
}

bool board_post(struct board *b, int to, uint64_t number, struct letter letter, const void *data)
{
    struct lane *lane = lane_of(b, b->rank, to);
    if (atomic_load(&lane->posted) != number || number - atomic_load(&lane->taken) >= SLOTS)
        return false;
    if (letter.bytes > BOARD_LETTER_MAX)
        letter.lost = true;
    else if (letter.bytes)
        letter.lost = pwrite(b->file, data, letter.bytes, page_of(b, b->rank, to, number)) != (ssize_t)letter.bytes;
    lane->letters[number % SLOTS] = letter;
    atomic_store(&lane->posted, number + 1);
    return true;
}

bool board_take(struct board *b, int from, uint64_t number, struct letter *letter, void *data, size_t room)
{
    struct lane *lane = lane_of(b, from, b->rank);
    if (atomic_load(&lane->posted) <= number || atomic_load(&lane->taken) != number)
        return false;
    *letter = lane->letters[number % SLOTS];
    off_t page = page_of(b, from, b->rank, number);
    if (letter->bytes && letter->bytes <= room && !letter->lost)
        letter->lost = pread(b->file, data, letter->bytes, page) != (ssize_t)letter->bytes;
    if (letter->bytes >= GIVE_BACK_FROM)
        (void)!fallocate(b->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, BOARD_LETTER_MAX);
    atomic_store(&lane->taken, number + 1);
    return true;
}
