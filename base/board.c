/*
 * board.c: memory of this process that others read while it changes.
 *
 * The owner writes into its own memory, as before: that memory is mapped from the file, so that a counter costs no more than a private one, and
 * no call and no lock is on the way to a reader. A reader opens /proc/PID/fd/N, which the system lets the user of the process do, and root.
 *
 *     no board ---first slot---> a board ---the program closes its number---> no board: the next slot begins another one
 *
 * The child of a fork has the same memory. It must write nothing there, and a reader sees from the head that the board is its parent's.
 * This file takes the pages from the system at once (fallocate), because a store that finds none later is SIGBUS. For the same reason it seals the
 * length: a shell that writes to /proc/PID/fd/N would make the file shorter.
 *
 * LOCKING: the caller's global lock.
 */
#include "base/board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    int    number;              /* of the file, in this process */
    dev_t  device;              /* with `inode` what the number stands for: the program may close it, and give it to another file */
    ino_t  inode;               /* 0: there is no board */
    off_t  end;                 /* of the last slot */
} board;

static off_t head_bytes(void)
{
    off_t page = (off_t)sysconf(_SC_PAGESIZE);
    return (BOARD_HEAD_MAX + page - 1) / page * page;
}

/* Is the number still that of the board? */
static bool is_there(void)
{
    struct stat now;
    return board.inode && !fstat(board.number, &now) && now.st_dev == board.device && now.st_ino == board.inode;
}

/* A file that may not be as long as this would end the process (SIGXFSZ). */
static bool may_be_long(off_t bytes)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_FSIZE, &limit) && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)bytes);
}

static bool write_head(int number, size_t slot, const char *head)
{
    char text[BOARD_HEAD_MAX] = {0};
    int length = snprintf(text, sizeof text, BOARD_NAME " 1\npid %ld\nslots %lld %zu\n%s", (long)getpid(), (long long)head_bytes(), slot, head);
    return length > 0 && (size_t)length < sizeof text && may_be_long(head_bytes()) && pwrite(number, text, sizeof text, 0) == (ssize_t)sizeof text;
}

/* Another one, if this is gone. */
static bool begin(size_t slot, const char *head)
{
    struct stat made;
    board.inode = 0;
    int number = memfd_create(BOARD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (number < 0)
        return false;
    fcntl(number, F_ADD_SEALS, F_SEAL_SHRINK);
    if (fchmod(number, 0600) || fstat(number, &made) || !write_head(number, slot, head)) {
        close(number);
        return false;
    }
    board.number = number;
    board.device = made.st_dev;
    board.inode = made.st_ino;
    board.end = head_bytes();
    return true;
}

/* The system takes the old pages away before it puts the new ones there, and may fail between. */
static bool put_back(void *memory, size_t bytes)
{
    return mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool board_place(void *memory, size_t bytes, const char *head)
{
    int before = errno;
    bool usable = true;
    if ((is_there() || begin(bytes, head)) && may_be_long(board.end + (off_t)bytes) && !fallocate(board.number, 0, board.end, (off_t)bytes)) {
        if (mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, board.number, board.end) == MAP_FAILED)
            usable = put_back(memory, bytes);
        else
            board.end += (off_t)bytes;
    }
    errno = before;
    return usable;
}
