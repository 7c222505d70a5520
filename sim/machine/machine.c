/*
 * machine.c: processes on one machine (CENOTE_SIM=machine:NAME): the books of how much each holds of each device, in a file of /dev/shm.
 *
 * Memory itself is not here: each process keeps its own, and shared.c shares what is exported. This is only the sum, so that one process
 * runs out of memory when another took it, and each can tell how much the others hold.
 *
 * A process is on the machine from its first context on: one that only counts devices, or asks what others hold, takes no row and makes no file. A
 * process that cannot be on it (another shape, no more rows, no /dev/shm) is told so on stderr and gets CUDA_ERROR_SYSTEM_NOT_READY.
 *
 * The first process makes the file, the last one removes it; where the last one was killed, the first of another machine does. Byte 0 of the file is
 * locked (fcntl) while a process changes the books; byte 1 + n for as long as the process of row n lives. The kernel drops these locks when a process
 * dies, however it dies: so no process waits for the dead, and a row whose byte is free belongs to none and is forgotten when a process looks. A fork
 * does not inherit the locks; to close any descriptor of the file drops them, so it is opened once.
 *
 * Memory that was exported has a record with a bit for each process that holds it. It is charged to one of them, its owner; when the owner
 * lets go or dies first, it is an orphan, still charged to the device, until the last bit is gone.
 *
 * What the file says is believed only within bounds: a damaged file gives wrong sums, not a crash. A file that another user has put in its place,
 * or could write to, is refused before it is locked.
 */
#include "sim/machine/machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/machine/files.h"

#define MACHINE_MAGIC 0x63656e6f7465206dull
#define MACHINE_VERSION 1
#define FILE_FOLDER "/dev/shm/"
#define FILE_PREFIX "cenote-sim-%u-"    /* of the user */
#define RECORDS_MAX (1u << 16)

struct row {                    /* a process */
    int32_t  process;           /* 0: the row is free */
    int32_t  reserved;
    uint64_t used[DEVICES_MOST];
    uint64_t contexts[DEVICES_MOST];
};

struct record {                 /* memory that was exported */
    uint64_t id;
    uint64_t bytes;
    uint64_t holders;           /* rows, as bits; 0: free */
    int32_t  device;
    int32_t  owner;             /* row it is charged to; -1: an orphan */
};

struct books {
    uint64_t      magic;
    uint32_t      version;
    int32_t       devices;
    uint64_t      capacity;
    uint64_t      granularity;
    uint64_t      id;
    uint64_t      orphans[DEVICES_MOST];
    struct row    rows[MACHINE_PROCESSES_MAX];
    uint32_t      records_used; /* no record from here on was ever taken; 0 never is */
    uint32_t      reserved;
    struct record records[RECORDS_MAX];
};

bool machine_joined;

static struct {
    struct books *books;
    int           file;
    int           row;          /* ours */
    pid_t         process;      /* that joined: a child of a fork has not */
    uint32_t      next;         /* where a free record is looked for */
    char          path[128];
} here = {.file = -1};

static bool lock_byte(int byte, int type, bool wait)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(here.file, wait ? F_SETLKW : F_SETLK, &lock);
    while (result && errno == EINTR);
    return !result;
}

static bool is_dead(int row)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + row, .l_len = 1};
    return !fcntl(here.file, F_GETLK, &lock) && lock.l_type == F_UNLCK;
}

static void open_books(void)
{
    lock_byte(0, F_WRLCK, true);
}

static void close_books(void)
{
    lock_byte(0, F_UNLCK, false);
}

static void subtract(uint64_t *from, uint64_t bytes)
{
    *from -= bytes < *from ? bytes : *from;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint32_t records_end(void)
{
    return here.books->records_used < RECORDS_MAX ? here.books->records_used : RECORDS_MAX;
}

static bool device_is_sane(int device)
{
    return device >= 0 && device < DEVICES_MOST;
}

/* A process lets go of a record, or died. The charge leaves with its row's. */
static void drop_holder(struct record *r, int row)
{
    bool owned = r->owner == row;
    r->holders &= ~(1ull << row);
    if (!device_is_sane(r->device))
        return;
    if (owned && r->holders) {
        r->owner = -1;
        here.books->orphans[r->device] = add(here.books->orphans[r->device], r->bytes);
    } else if (!owned && !r->holders) {
        subtract(&here.books->orphans[r->device], r->bytes);
    }
}

static void drop_row(int row)
{
    for (uint32_t i = 1; i < records_end(); i++)
        if (here.books->records[i].holders >> row & 1)
            drop_holder(&here.books->records[i], row);
    here.books->rows[row] = (struct row){0};
}

/* How many others there are, once the dead are forgotten. */
static int forget_the_dead(void)
{
    int alive = 0;
    for (int i = 0; i < MACHINE_PROCESSES_MAX; i++) {
        if (!here.books->rows[i].process || i == here.row)
            continue;
        if (is_dead(i))
            drop_row(i);
        else
            alive++;
    }
    return alive;
}

static uint64_t others(int device)
{
    uint64_t sum = here.books->orphans[device];
    for (int i = 0; i < MACHINE_PROCESSES_MAX; i++)
        if (i != here.row && here.books->rows[i].process)
            sum = add(sum, add(here.books->rows[i].used[device], here.books->rows[i].contexts[device]));
    return sum;
}

bool machine_take(int device, uint64_t bytes, bool for_context, uint64_t capacity)
{
    struct row *mine = &here.books->rows[here.row];
    uint64_t *share = for_context ? &mine->contexts[device] : &mine->used[device];
    open_books();
    uint64_t wanted = add(add(mine->used[device], mine->contexts[device]), bytes);
    bool fits = add(others(device), wanted) <= capacity;
    if (!fits && forget_the_dead() >= 0)
        fits = add(others(device), wanted) <= capacity;
    if (fits)
        *share += bytes;
    close_books();
    return fits;
}

void machine_give(int device, uint64_t bytes, bool for_context)
{
    struct row *mine = &here.books->rows[here.row];
    open_books();
    subtract(for_context ? &mine->contexts[device] : &mine->used[device], bytes);
    close_books();
}

uint64_t machine_others(int device)
{
    open_books();
    forget_the_dead();
    uint64_t sum = others(device);
    close_books();
    return sum;
}

uint64_t machine_id(void)
{
    return machine_enter() && machine_joined ? here.books->id : 0;
}

static uint32_t free_record(void)
{
    uint32_t end = records_end();
    if (end < RECORDS_MAX) {
        here.books->records_used = end + 1 + !end;
        return end + !end;
    }
    for (uint32_t i = 0; i < RECORDS_MAX; i++) {
        here.next = here.next + 1 < RECORDS_MAX ? here.next + 1 : 1;
        if (!here.books->records[here.next].holders)
            return here.next;
    }
    return 0;
}

uint32_t machine_record(uint64_t id, int device, uint64_t bytes)
{
    open_books();
    uint32_t number = free_record();
    if (number)
        here.books->records[number] =
            (struct record){.id = id, .bytes = bytes, .holders = 1ull << here.row, .device = device, .owner = here.row};
    close_books();
    return number;
}

static bool is_record_of(uint32_t record, uint64_t id, int device, uint64_t bytes)
{
    const struct record *r = &here.books->records[record];
    return r->holders && r->id == id && r->device == device && r->bytes == bytes;
}

/* `record` is where it was when it was exported: memory that no process held for a while has another one. */
uint32_t machine_hold(uint32_t record, uint64_t id, int device, uint64_t bytes)
{
    open_books();
    forget_the_dead();
    uint32_t end = records_end();
    uint32_t found = record && record < end && is_record_of(record, id, device, bytes) ? record : 0;
    for (uint32_t i = 1; !found && i < end; i++)
        if (is_record_of(i, id, device, bytes))
            found = i;
    if (found)
        here.books->records[found].holders |= 1ull << here.row;
    close_books();
    return found;
}

void machine_let_go(uint32_t record, bool charged)
{
    open_books();
    struct record *r = record && record < records_end() ? &here.books->records[record] : NULL;
    if (r && r->holders >> here.row & 1) {
        drop_holder(r, here.row);
        if (charged && device_is_sane(r->device))
            subtract(&here.books->rows[here.row].used[r->device], r->bytes);
    }
    close_books();
}

/* Orphans count for the first process that holds them. */
static uint64_t orphans_of(int row, int device)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; here.books->orphans[device] && i < records_end(); i++) {
        const struct record *r = &here.books->records[i];
        if (r->holders && r->owner < 0 && r->device == device && __builtin_ctzll(r->holders) == row)
            bytes = add(bytes, r->bytes);
    }
    return bytes;
}

static int list_processes(int device, struct sim_process *list, int room)
{
    int count = 0;
    forget_the_dead();
    for (int i = 0; i < MACHINE_PROCESSES_MAX; i++) {
        const struct row *row = &here.books->rows[i];
        uint64_t bytes = row->process ? add(add(row->used[device], row->contexts[device]), orphans_of(i, device)) : 0;
        if (!bytes)
            continue;
        if (count < room)
            list[count] = (struct sim_process){.process = row->process, .bytes = bytes};
        count++;
    }
    return count;
}

/* --- coming and going */

static bool refuse(char *trouble, size_t room, const char *why)
{
    snprintf(trouble, room, "machine %s: %s (%s)", model.shape.machine, why, here.path);
    return false;
}

static void put_away(void)
{
    if (here.books)
        munmap(here.books, sizeof *here.books);
    if (here.file >= 0)
        close(here.file);
    here.books = NULL;
    here.file = here.row = -1;
}

/* A file that another user can change is none: that user could hold its locks for ever, cut it off under our eyes, or fill the devices. */
static bool is_ours(const struct stat *status)
{
    return S_ISREG(status->st_mode) && status->st_uid == geteuid() && !(status->st_mode & (S_IRWXG | S_IRWXO));
}

/* The file of that name, with byte 0 locked. A file that its last process removed meanwhile is not it any more. */
static bool open_file(struct stat *status, int how)
{
    snprintf(here.path, sizeof here.path, FILE_FOLDER FILE_PREFIX "%s", (unsigned)geteuid(), model.shape.machine);
    here.row = -1;
    for (;;) {
        here.file = open(here.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0600);
        if (here.file < 0 || fstat(here.file, status) || !is_ours(status) || !lock_byte(0, F_WRLCK, true) || fstat(here.file, status))
            return false;
        if (status->st_nlink)
            return true;
        close(here.file);
    }
}

/* Of machines whose last process was killed. A process that is about to enter one finds the file gone, and makes another. */
static void sweep(void)
{
    char prefix[64], path[sizeof here.path + 256];
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 + MACHINE_PROCESSES_MAX};
    size_t length = (size_t)snprintf(prefix, sizeof prefix, FILE_PREFIX, (unsigned)geteuid());
    DIR *folder = opendir(FILE_FOLDER);
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        snprintf(path, sizeof path, FILE_FOLDER "%s", e->d_name);
        if (strncmp(e->d_name, prefix, length) || strcmp(path, here.path) == 0)
            continue;
        int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        struct stat status;
        bool ours = file >= 0 && !fstat(file, &status) && is_ours(&status) && status.st_size == (off_t)sizeof(struct books);
        if (ours && !fcntl(file, F_SETLK, &all))
            unlink(path);
        if (file >= 0)
            close(file);
    }
    if (folder)
        closedir(folder);
}

static bool start_books(void)
{
    struct books *b = here.books;
    memset(b, 0, offsetof(struct books, records));
    b->magic = MACHINE_MAGIC;
    b->version = MACHINE_VERSION;
    b->devices = model.shape.devices;
    b->capacity = model.shape.capacity;
    b->granularity = model.shape.granularity;
    b->id = file_new_id();
    return b->id;
}

static bool same_shape(void)
{
    const struct books *b = here.books;
    return b->devices == model.shape.devices && b->capacity == model.shape.capacity && b->granularity == model.shape.granularity;
}

static bool take_row(void)
{
    for (int i = 0; i < MACHINE_PROCESSES_MAX; i++) {
        if (here.books->rows[i].process || !lock_byte(1 + i, F_WRLCK, false))
            continue;
        here.books->rows[i] = (struct row){.process = getpid()};
        here.row = i;
        return true;
    }
    return false;
}

static bool map_books(void)
{
    void *books = mmap(NULL, sizeof *here.books, PROT_READ | PROT_WRITE, MAP_SHARED, here.file, 0);
    here.books = books == MAP_FAILED ? NULL : books;
    return here.books;
}

static bool is_whole(const struct stat *status)
{
    return status->st_size == (off_t)sizeof *here.books;
}

static bool is_known(void)
{
    return here.books->magic == MACHINE_MAGIC && here.books->version == MACHINE_VERSION;
}

static bool enter(const struct stat *status, char *trouble, size_t room)
{
    bool fresh = !status->st_size;
    if (fresh && ftruncate(here.file, sizeof *here.books))
        return refuse(trouble, room, "no room for its file");
    if (!fresh && !is_whole(status))
        return refuse(trouble, room, "its file is none of this version: remove it");
    if (!map_books())
        return refuse(trouble, room, "its file cannot be mapped");
    if (!fresh && !is_known())
        return refuse(trouble, room, "its file is none of this version: remove it");
    if ((fresh || !forget_the_dead()) && !start_books())
        return refuse(trouble, room, "no random number");
    if (fresh)
        sweep();
    if (!same_shape())
        return refuse(trouble, room, "a process that is on it has other devices, capacity or granularity");
    return take_row() || refuse(trouble, room, "it has as many processes as it can have");
}

static bool join(char *trouble, size_t room)
{
    struct stat status;
    here.next = 0;
    static const char closed[] = "its file cannot be opened, or other users can change it: remove it, or give the machine another name";
    bool entered = open_file(&status, O_CREAT) ? enter(&status, trouble, room) : refuse(trouble, room, closed);
    if (!entered) {
        put_away();
        return false;
    }
    here.process = getpid();
    machine_joined = true;
    close_books();
    return true;
}

static char said[384];      /* why it could not be entered; once */

bool machine_enter(void)
{
    char trouble[sizeof said];
    if (machine_joined || !model.shape.machine[0] || join(trouble, sizeof trouble)) {
        said[0] = 0;
        return true;
    }
    if (strcmp(said, trouble))
        fprintf(stderr, "simulated GPU: %s\n", trouble);
    memcpy(said, trouble, sizeof said);
    return false;
}

/* Of a process that is not on the machine, nor makes it. Its parent may be: then it has the parent's file, but none of the locks. */
static int look(int device, struct sim_process *list, int room)
{
    struct stat status;
    int count = 0;
    __typeof__(here) before = here;
    here.books = NULL;
    if (open_file(&status, 0) && is_whole(&status) && map_books() && is_known())
        count = list_processes(device, list, room);
    put_away(); /* drops the lock too */
    here = before;
    return count;
}

int machine_processes(int device, struct sim_process *list, int room)
{
    if (!machine_joined || here.process != getpid())
        return look(device, list, room);
    open_books();
    int count = list_processes(device, list, room);
    close_books();
    return count;
}

static void go(void)
{
    open_books();
    drop_row(here.row);
    if (!forget_the_dead())
        unlink(here.path);
    close_books();
}

void machine_leave(void)
{
    said[0] = 0;
    if (!machine_joined)
        return;
    machine_joined = false;
    if (here.process == getpid())
        go();
    put_away();
}

/* At the end of the process. What is mapped stays: another thread may be looking still. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    bool joined = machine_joined;
    machine_joined = false;
    if (joined && here.process == getpid())
        go();
}
