/*
 * file.c: a text file on its way to the disk.
 *
 * It is written beside its place, under a random name that ends in .part and that is new, and takes the place when all of it has reached the
 * disk's books: a full disk or an end of the process leaves what was there before. What is no plain file, a device or a pipe, is written as it
 * is. A symbolic link is followed, and so are links behind it: the place is where they lead. The folder of the place stays open meanwhile, so that
 * neither a chdir of the program nor a folder that gets another name leaves the .part file behind.
 *
 * The folder may be /tmp, and the name one that can be guessed. So a link, a pipe or a device of another user is refused, root's excepted, and so is
 * a plain file that the kernel will not let us replace: all of it before the first byte. An open file of this process, in /proc, is what the process
 * was given, whichever user owns it. python/cenote/base/outputs.py does the same.
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
#define LINK_REFUSED ELOOP /* what the kernel says where a link leads to itself, too */
#define OWNER_REFUSED EUSERS /* no call on a file says it */
#define LINKS_MAX 40 /* one behind the other, as in Linux */
#define TRIES 16 /* of random names */

struct file {
    struct zlib zlib;
    void  *zipped;                      /* NULL: plain */
    int    fd;
    int    error;                       /* the first errno, 0: none */
    int    folder;                      /* of the place */
    bool   beside;                      /* it is written at `part` */
    size_t used;
    char   path[PATH_MAX];              /* ends in the name in `folder` */
    char   part[NAME_MAX + 1];          /* a name there */
    char   buffer[BUFFER_BYTES];
};

static const char *name_of(const struct file *f)
{
    const char *slash = strrchr(f->path, '/');
    return slash ? slash + 1 : f->path;
}

/* A new file beside the place. */
static int open_beside(struct file *f)
{
    f->beside = true;
    for (int tries = 0; tries < TRIES; tries++) {
        unsigned char random[6];
        if (getrandom(random, sizeof random, 0) != sizeof random)
            return errno;
        int length = snprintf(f->part, sizeof f->part, "%s.%02x%02x%02x%02x%02x%02x.part", name_of(f), random[0], random[1], random[2], random[3],
                              random[4], random[5]);
        if (length >= (int)sizeof f->part)
            return ENAMETOOLONG;
        f->fd = openat(f->folder, f->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (f->fd >= 0 || errno != EEXIST)
            break;
    }
    return f->fd < 0 ? errno : 0;
}

/* Opens the folder of f->path, which is relative to the folder that is open. */
static int enter(struct file *f)
{
    char head[PATH_MAX];
    size_t length = (size_t)(name_of(f) - f->path);
    memcpy(head, f->path, length);
    memcpy(head + length, ".", 2); /* there is room: a name follows */
    if (!*name_of(f))
        return EISDIR;
    int folder = openat(f->folder, head, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return errno;
    if (f->folder >= 0)
        close(f->folder);
    f->folder = folder;
    return 0;
}

static bool is_anothers(const struct stat *found)
{
    return found->st_uid && found->st_uid != geteuid();
}

/* The kernel will not let us take the place of this plain file. */
static bool is_kept(const struct file *f, const struct stat *found)
{
    struct stat folder;
    return found->st_uid != geteuid() && !fstat(f->folder, &folder) && folder.st_mode & S_ISVTX && folder.st_uid != geteuid();
}

/* An open file of a process: the link's text may be no path, as "pipe:[4711]" is none. */
static bool is_open_file(int link)
{
    struct statfs system;
    return !fstatfs(link, &system) && system.f_type == PROC_SUPER_MAGIC;
}

static int open_seen(struct file *f, int seen, const struct stat *found)
{
    char place[32];
    if (S_ISREG(found->st_mode))
        return is_kept(f, found) ? OWNER_REFUSED : open_beside(f);
    if (S_ISLNK(found->st_mode)) {
        f->fd = openat(f->folder, name_of(f), O_WRONLY | O_TRUNC | O_CLOEXEC);
        return f->fd < 0 ? errno : 0;
    }
    if (is_anothers(found))
        return OWNER_REFUSED;
    snprintf(place, sizeof place, "/proc/self/fd/%d", seen); /* what was looked at, and not what has its name by then */
    f->fd = open(place, O_WRONLY | O_CLOEXEC);
    return f->fd < 0 ? errno : 0;
}

/* Where the link leads that is open as `link`: its own text counts, not what has its name by then. */
static int follow(struct file *f, int link)
{
    ssize_t length = readlinkat(link, "", f->path, sizeof f->path - 1);
    if (length <= 0)
        return length ? errno : ENOENT;
    f->path[length] = 0;
    return 0;
}

static int open_file(struct file *f)
{
    for (int links = 0; links <= LINKS_MAX; links++) {
        struct stat found;
        int error = enter(f), seen = error ? -1 : openat(f->folder, name_of(f), O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (error || seen < 0)
            return error ? error : errno == ENOENT ? open_beside(f) : errno;
        bool fails = fstat(seen, &found), ends = fails || !S_ISLNK(found.st_mode);
        error = fails ? errno : !ends && is_anothers(&found) ? LINK_REFUSED : 0;
        ends = ends || error || is_open_file(seen);
        if (!error)
            error = ends ? open_seen(f, seen, &found) : follow(f, seen);
        close(seen);
        if (ends || error)
            return error;
    }
    return LINK_REFUSED;
}

static int begin(struct file *f, const char *path)
{
    size_t length = strlen(path);
    bool zips = length >= 3 && !strcmp(path + length - 3, ".gz");
    if (length >= sizeof f->path)
        return ENAMETOOLONG;
    memcpy(f->path, path, length + 1);
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
    f->fd = -1;
    f->folder = AT_FDCWD;
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

/* A file that has not taken its place goes. */
static void put_away(struct file *f, bool keeps)
{
    if (f->beside && f->fd >= 0 && !keeps)
        unlinkat(f->folder, f->part, 0);
    if (f->folder >= 0)
        close(f->folder);
    memory_unmap(f, sizeof *f);
}

bool file_finish(struct file *f)
{
    flush(f);
    close_file(f);
    if (!f->error && f->beside && renameat(f->folder, f->part, f->folder, name_of(f)))
        f->error = errno;
    int error = f->error;
    put_away(f, !error);
    errno = error;
    return !error;
}

void file_abandon(struct file *f)
{
    close_file(f);
    put_away(f, false);
}

int file_error(const char *path)
{
    const char *words = errno == NO_ZLIB         ? ZLIB_LIBRARY " was not found: give a name that does not end in .gz"
                        : errno == LINK_REFUSED  ? "a symbolic link of another user is not followed"
                        : errno == OWNER_REFUSED ? "it belongs to another user: remove it, or name another file"
                                                 : strerror(errno);
    return error_set(errno == ENOMEM ? CENOTE_OUT_OF_HOST_MEMORY : CENOTE_FILE, 0, "%.256s: %s", path, words);
}
