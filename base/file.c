/*
 * file.c: a text file on its way to the disk.
 *
 * It is written beside its place, under a random name that ends in .part and that is new, and takes the place when all of it has reached the
 * disk's books: a full disk or an end of the process leaves what was there before. What is no plain file, a device or a pipe, is written as it
 * is, and so is what a symbolic link of this user's or of root's leads to. A link of another user is refused: the folder may be /tmp, and the
 * name one that can be guessed. python/cenote/base/outputs.py does the same.
 *
 * The buffer is memory of our own. zlib is not: it is looked for when the first path ends in .gz, so that the library needs none.
 *
 * LOCKING: none; a file belongs to one thread.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/zlib.h"

#define BUFFER_BYTES (1u << 16)
#define NO_ZLIB ENOPKG
#define LINK_REFUSED ELOOP /* what open says, too, if a link came after the look */
#define LINK_BYTES_MAX (PATH_MAX - 1)
#define TRIES 16 /* of random names */

struct file {
    struct zlib zlib;
    void  *zipped;                      /* NULL: plain */
    int    fd;
    int    error;                       /* the first errno, 0: none */
    bool   beside;                      /* it is written at `part` */
    size_t used;
    char   path[PATH_MAX], part[PATH_MAX + 32];
    char   buffer[BUFFER_BYTES];
};

/* A new file beside the place. */
static int open_beside(struct file *f)
{
    f->beside = true;
    for (int tries = 0; tries < TRIES; tries++) {
        unsigned char random[6];
        if (getrandom(random, sizeof random, 0) != sizeof random)
            return errno;
        snprintf(f->part, sizeof f->part, "%s.%02x%02x%02x%02x%02x%02x.part", f->path, random[0], random[1], random[2], random[3], random[4],
                 random[5]);
        f->fd = open(f->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (f->fd >= 0 || errno != EEXIST)
            break;
    }
    return f->fd < 0 ? errno : 0;
}

/* What is there, as it is. */
static int open_place(struct file *f, const char *path, int flags)
{
    f->fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | flags, 0666);
    return f->fd < 0 ? errno : 0;
}

/* Where the link leads that is open as `link`: its own text counts, not what has its name by then. */
static int open_linked(struct file *f, int link)
{
    struct statfs system;
    if (!fstatfs(link, &system) && system.f_type == PROC_SUPER_MAGIC)
        return open_place(f, f->path, 0); /* its text is no path, as "pipe:[4711]" is none */
    char *text = f->part; /* unused so far */
    const char *slash = strrchr(f->path, '/');
    ssize_t length = readlinkat(link, "", text, LINK_BYTES_MAX);
    if (length <= 0)
        return length ? errno : ENOENT;
    text[length] = 0;
    size_t before = *text == '/' || !slash ? 0 : (size_t)(slash + 1 - f->path);
    if (before + (size_t)length >= sizeof f->part)
        return ENAMETOOLONG;
    memmove(text + before, text, (size_t)length + 1);
    memcpy(text, f->path, before);
    return open_place(f, text, O_CREAT);
}

static int open_file(struct file *f)
{
    struct stat found;
    int seen = open(f->path, O_PATH | O_NOFOLLOW | O_CLOEXEC), error;
    if (seen < 0 || fstat(seen, &found) || S_ISREG(found.st_mode))
        error = open_beside(f);
    else if (!S_ISLNK(found.st_mode))
        error = open_place(f, f->path, O_NOFOLLOW);
    else
        error = found.st_uid && found.st_uid != geteuid() ? LINK_REFUSED : open_linked(f, seen);
    if (seen >= 0)
        close(seen);
    return error;
}

static int begin(struct file *f, const char *path)
{
    size_t length = strlen(path);
    bool zips = length >= 3 && !strcmp(path + length - 3, ".gz");
    if (length >= sizeof f->path)
        return ENAMETOOLONG;
    memcpy(f->path, path, length + 1);
    f->fd = -1;
    if (zips && !zlib_find(&f->zlib))
        return NO_ZLIB;
    int error = open_file(f);
    if (!error && zips && !(f->zipped = f->zlib.open_fd(f->fd, "wb6")))
        return ENOMEM;
    return error;
}

struct file *file_create(const char *path)
{
    struct file *f = memory_map(sizeof *f);
    if (!f) {
        errno = ENOMEM;
        return NULL;
    }
    f->error = begin(f, path);
    if (!f->error)
        return f;
    int error = f->error;
    file_abandon(f);
    errno = error;
    return NULL;
}

static void flush(struct file *f)
{
    size_t done = 0;
    while (!f->error && done < f->used) {
        errno = 0;
        ssize_t written = f->zipped ? f->zlib.write(f->zipped, f->buffer + done, (unsigned)(f->used - done))
                                    : write(f->fd, f->buffer + done, f->used - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            f->error = errno ? errno : EIO;
    }
    f->used = 0;
}

void file_write(struct file *f, const char *text, size_t bytes)
{
    while (bytes) {
        size_t room = sizeof f->buffer - f->used, part = bytes < room ? bytes : room;
        memcpy(f->buffer + f->used, text, part);
        f->used += part;
        text += part;
        bytes -= part;
        if (f->used == sizeof f->buffer)
            flush(f);
    }
}

void file_print(struct file *f, const char *format, ...)
{
    if (sizeof f->buffer - f->used < FILE_PRINT_MAX)
        flush(f);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(f->buffer + f->used, FILE_PRINT_MAX, format, arguments);
    va_end(arguments);
    CHECK(length >= 0 && length < FILE_PRINT_MAX);
    f->used += (size_t)length;
}

/* The owner of the descriptor closes it, whatever is said. */
static void close_file(struct file *f)
{
    errno = 0;
    int refused = f->zipped ? f->zlib.close(f->zipped) : f->fd >= 0 ? close(f->fd) : 0;
    if (refused && !f->error)
        f->error = errno ? errno : EIO;
}

bool file_finish(struct file *f)
{
    flush(f);
    close_file(f);
    if (!f->error && f->beside && rename(f->part, f->path))
        f->error = errno;
    if (f->error && f->beside)
        unlink(f->part);
    int error = f->error;
    memory_unmap(f, sizeof *f);
    errno = error;
    return !error;
}

void file_abandon(struct file *f)
{
    close_file(f);
    if (f->beside && f->fd >= 0)
        unlink(f->part);
    memory_unmap(f, sizeof *f);
}

int file_error(const char *path)
{
    const char *words = errno == NO_ZLIB        ? ZLIB_LIBRARY " was not found: give a name that does not end in .gz"
                        : errno == LINK_REFUSED ? "a symbolic link of another user is not followed"
                                                : strerror(errno);
    return error_set(errno == ENOMEM ? CENOTE_OUT_OF_HOST_MEMORY : CENOTE_FILE, 0, "%.256s: %s", path, words);
}
