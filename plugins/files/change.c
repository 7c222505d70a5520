/*
 * change.c: what becomes of an entry that a program opens to write, removes or renames.
 *
 * An entry that the command has made changes as usual. So do those of caches (find.c), what is no file, folder or link, and an empty file that is
 * written to: programs lock such files together with others. Whatever is only appended to loses nothing, and is not kept either.
 */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COPY_MAX (1ll << 30) /* chosen: a larger file that is changed in place is copied only where that takes no space */
#define ROOM (1 << 16)

const char *const OVERWRITES = "overwrites", *const REMOVES = "removes", *const RENAMES = "renames", *const CHANGES = "changes",
                  *const LOSES = "changes in place";

static size_t name_length(const struct spot *s)
{
    return strcspn(s->path + s->name, "/");
}

bool is_of_before(const struct spot *s, const struct stat *status)
{
    return (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode) || S_ISLNK(status->st_mode)) && s->key && !is_made(status) && !is_left_alone(s);
}

/* Call it while the path still has the entry's own name. */
bool turn(const struct spot *s, enum state state)
{
    return entry_set(s->key, s->path + s->name, name_length(s), state);
}

/* Something of the program's is where the path of a stand-in leads now. `own`: the same spot, with the entry's own name. */
bool take_place(const struct spot *own)
{
    struct spot there = *own;
    put_stand_in(&there);
    tell_stand_in(&there);
    return turn(own, STAND_IN);
}

/* For a call that makes a folder or a link: where it is to be made. False, with errno: the path leads nowhere. */
bool place(struct spot *s, struct spot *own, int at, const char *path)
{
    if (!find(s, at, path, false, true))
        return false;
    *own = *s;
    if (s->state == GONE)
        put_stand_in(s);
    return true;
}

/* After that call: `result` is its. */
int placed(const struct spot *s, const struct spot *own, int result)
{
    struct stat status;
    if (!result && spot_stat(s, &status)) {
        made(&status);
        if (own->state == GONE)
            take_place(own);
    }
    return result;
}

/* A second name. What the program writes by it to a file of before goes to a stand-in; the name may go. */
int entry_link(int from_at, const char *from, int to_at, const char *to, int flags)
{
    struct spot s, own;
    if (!place(&s, &own, to_at, to))
        return -1;
    int result = (int)syscall(SYS_linkat, from_at, from, s.at, s.path, flags);
    if (!result && own.state == GONE)
        take_place(&own);
    if (!result && own.state == UNTOUCHED)
        our_link(own.key, true);
    return result;
}

// --- open

static int raw_open(const struct spot *s, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, s->at, s->path, flags, mode);
}

void made_by(int file)
{
    struct stat status;
    if (file >= 0 && !syscall(SYS_fstat, file, &status))
        made(&status);
}

static bool copied(int from, int to, long long size)
{
    if (!ioctl(to, FICLONE, from))
        return true;
    if (size > COPY_MAX) {
        errno = EFBIG;
        return false;
    }
    while (true) {
        char room[ROOM];
        ssize_t count = read(from, room, sizeof room);
        for (ssize_t done = 0; done < count;) {
            ssize_t more = write(to, room + done, (size_t)(count - done));
            if (more < 0)
                return false;
            done += more;
        }
        if (count <= 0)
            return !count;
    }
}

/* A copy of the file there, whole from its first moment on: another process may open it at once. What is there already stays, unless the copy
 * `replaces` it. */
bool copy_to(const struct spot *s, const struct stat *status, const struct spot *there, bool replaces)
{
    struct spot part = *there;
    put_stand_in(&part);
    size_t length = strlen(part.path);
    snprintf(part.path + length, sizeof part.path - length, "-%ld", syscall(SYS_gettid));
    int from = raw_open(s, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0), to = from < 0 ? -1 : raw_open(&part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool done = to >= 0 && copied(from, to, status->st_size) && !fchmod(to, status->st_mode & 07777);
    int error = errno;
    if (from >= 0)
        syscall(SYS_close, from);
    if (to >= 0)
        syscall(SYS_close, to);
    done = done && ((!replaces && (!syscall(SYS_linkat, part.at, part.path, there->at, there->path, 0) || errno == EEXIST))
                    || !syscall(SYS_renameat2, part.at, part.path, there->at, there->path, 0)); /* a file system without links */
    if (to >= 0)
        syscall(SYS_unlinkat, part.at, part.path, 0);
    errno = error;
    return done;
}

/* A file of before, which the program opens to overwrite it or to change it in place. */
static int open_of_before(struct spot *s, const struct stat *status, int flags)
{
    struct spot own = *s;
    bool is_emptied = flags & O_TRUNC;
    if (syscall(SYS_faccessat, s->at, s->path, W_OK))
        return -1;
    put_stand_in(s);
    if (!is_emptied && !copy_to(&own, status, s, false)) {
        if (errno != EFBIG)
            return -1;
        tell(LOSES, &own, false);
        return raw_open(&own, flags, 0);
    }
    int file = raw_open(s, flags | (is_emptied ? O_CREAT : 0), status->st_mode & 07777);
    if (file < 0)
        return -1;
    made_by(file);
    tell(is_emptied ? OVERWRITES : CHANGES, &own, false);
    if (!take_place(&own)) {
        syscall(SYS_close, file);
        errno = ENOSPC;
        return -1;
    }
    return file;
}

/* The stand-in is a second name of another file of before (rename.c), which must not change either. */
static int open_second(struct spot *s, const struct stat *status, int flags)
{
    if (flags & O_TRUNC ? syscall(SYS_unlinkat, s->at, s->path, 0) : !copy_to(s, status, s, true))
        return -1;
    int file = raw_open(s, flags | O_CREAT, status->st_mode & 07777);
    made_by(file);
    return file;
}

static int open_anew(struct spot *s, int flags, mode_t mode)
{
    struct spot own = *s;
    if (!(flags & O_CREAT)) {
        errno = ENOENT;
        return -1;
    }
    put_stand_in(s);
    int file = raw_open(s, flags, mode);
    made_by(file);
    if (file >= 0)
        take_place(&own);
    return file;
}

int file_open(int at, const char *path, int flags, mode_t mode)
{
    struct spot s;
    struct stat status;
    bool is_exclusive = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
    bool writes = ((flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC)) && !(flags & O_PATH) && (flags & O_TMPFILE) != O_TMPFILE;
    if (!writes)
        return look(&s, at, path, !(flags & O_NOFOLLOW)) ? raw_open(&s, flags, mode) : -1;
    int error = errno;
    if (!find(&s, at, path, !(flags & O_NOFOLLOW) && !is_exclusive, true))
        return -1;
    errno = error;
    if (s.state == GONE)
        return open_anew(&s, flags, mode);
    if (is_exclusive || !s.key || !spot_stat(&s, &status)) {
        bool is_new = is_exclusive || (s.key && errno == ENOENT && flags & O_CREAT);
        errno = error;
        int file = raw_open(&s, flags, mode);
        if (is_new)
            made_by(file);
        return file;
    }
    bool is_second = s.state == STAND_IN || is_our_link(s.key), reads = (flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;
    bool appends = (flags & (O_APPEND | O_TRUNC)) == O_APPEND && !is_second;
    if (!S_ISREG(status.st_mode) || !status.st_size || appends || reads || is_made(&status) || (!is_second && !is_of_before(&s, &status)))
        return raw_open(&s, flags, mode);
    return s.state == STAND_IN ? open_second(&s, &status, flags) : open_of_before(&s, &status, flags);
}

/* The descriptor of a file of before becomes that of its stand-in. False: the program has removed the file, and there is none. */
static bool leave_to_stand_in(int file, const struct stat *status, int flags)
{
    char link[64], path[PATH_MAX];
    struct stat there;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    long count = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[count > 0 ? count : 0] = 0;
    int other = count > 0 ? file_open(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
    if (other < 0)
        return false;
    if (!syscall(SYS_fstat, other, &there) && there.st_ino != status->st_ino) {
        long position = syscall(SYS_lseek, file, 0, SEEK_CUR);
        fcntl(other, F_SETFL, flags);
        syscall(SYS_lseek, other, position, SEEK_SET);
        syscall(SYS_dup3, other, file, fcntl(file, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0);
    }
    syscall(SYS_close, other);
    return true;
}

/* Of a file that is open. One of before is open to be changed only if it is appended to, or empty. */
int file_truncate(int file, long length)
{
    struct stat status;
    int flags = fcntl(file, F_GETFL), error = errno;
    bool is_shorter = !syscall(SYS_fstat, file, &status) && S_ISREG(status.st_mode) && length < status.st_size;
    if (is_shorter && flags & O_APPEND && !is_made(&status) && status.st_nlink && !leave_to_stand_in(file, &status, flags)) {
        errno = error;
        return 0;
    }
    return (int)syscall(SYS_ftruncate, file, length);
}

// --- remove

bool may_change_folder(const struct spot *s)
{
    char folder[PATH_MAX];
    memcpy(folder, s->path, s->name);
    folder[s->name] = 0;
    return !syscall(SYS_faccessat, s->at, *folder ? folder : ".", W_OK);
}

/* The entry has lost this file. */
void unlinked(const struct spot *s, const struct stat *status)
{
    if (status->st_nlink <= 1 || S_ISDIR(status->st_mode))
        unmade(status);
    our_link(s->key, false);
}

static int remove_at(struct spot *s, const struct stat *status, int flags)
{
    int result = (int)syscall(SYS_unlinkat, s->at, s->path, flags);
    if (!result) {
        unlinked(s, status);
        if (s->state == STAND_IN)
            turn(s, GONE);
    }
    return result;
}

static int leave_out(struct spot *s, const struct stat *status)
{
    bool is_folder = S_ISDIR(status->st_mode);
    if (!may_change_folder(s))
        return -1;
    tell(REMOVES, s, is_folder);
    if (!S_ISREG(status->st_mode))
        folder_is_kept();
    return turn(s, GONE) ? 0 : -1;
}

/* What is to go. False, with errno: the program finds nothing there. */
static bool find_there(struct spot *s, struct stat *status, int at, const char *path)
{
    if (!find(s, at, path, false, true))
        return false;
    if (s->state != GONE)
        return spot_stat(s, status);
    errno = ENOENT;
    return false;
}

int file_remove(int at, const char *path)
{
    struct spot s;
    struct stat status;
    int error = errno;
    if (!find_there(&s, &status, at, path))
        return -1;
    errno = error;
    if (s.state == STAND_IN || S_ISDIR(status.st_mode) || is_our_link(s.key) || !is_of_before(&s, &status))
        return remove_at(&s, &status, 0);
    return leave_out(&s, &status);
}

/* A folder that the program has made may have entries of before: those of a folder that it renamed to this one. It is left to the end of the
 * command, then. */
int folder_remove(int at, const char *path)
{
    struct spot s;
    struct stat status;
    int error = errno;
    if (!find_there(&s, &status, at, path))
        return -1;
    bool is_before = s.state == UNTOUCHED && is_of_before(&s, &status);
    errno = error;
    if (!S_ISDIR(status.st_mode) || !s.key || (!is_before && !any_is_kept()))
        return remove_at(&s, &status, AT_REMOVEDIR);
    if (!is_empty_folder(&s)) {
        errno = ENOTEMPTY;
        return -1;
    }
    if (is_before)
        return leave_out(&s, &status);
    if (!remove_at(&s, &status, AT_REMOVEDIR) || errno != ENOTEMPTY || s.state != UNTOUCHED)
        return errno == ENOTEMPTY ? -1 : 0;
    errno = error;
    tell_stand_in(&s);
    return turn(&s, GONE) ? 0 : -1;
}
