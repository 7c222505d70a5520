/*
 * calls.c: the functions of the C library that take a path, as a program calls them.
 *
 * Each finds out where the path leads (find.c), and makes the system call; those that a table below lists change nothing that is kept. Names with 64
 * are the same function on 64-bit Linux. __xstat and its brothers are what programs call that were linked to a C library before 2.33. What has no
 * system call of its own (fopen, opendir, readdir, mkstemp) goes on to the next library that has the function.
 */
#include "plugins/files/files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include <utime.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of functions that the C library keeps to itself */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wattribute-alias" /* struct stat64 is struct stat */
#endif
#define SHOWN __attribute__((visibility("default")))
#define SAME_AS_64(name) extern __typeof(name##64) name##64 __attribute__((visibility("default"), alias(#name)))

// --- what only looks

/* Puts the path that the system is given in the place of the program's. False, with errno: the call fails. */
static bool shown(struct spot *s, int *at, const char **path, bool follow)
{
    if (!files_on || !*path || !**path || !any_is_kept())
        return true;
    if (!look(s, *at, *path, follow))
        return false;
    *at = s->at;
    *path = s->path;
    return true;
}

/* An int function; `at` and `path` are where it looks. */
#define LOOKS(name, parameters, base, follow, ...)                                        \
    SHOWN int name parameters                                                             \
    {                                                                                     \
        struct spot s;                                                                    \
        int at = base;                                                                    \
        return shown(&s, &at, &path, follow) ? (int)syscall(__VA_ARGS__) : -1;            \
    }
#define FOLLOWS (!(flags & AT_SYMLINK_NOFOLLOW))

LOOKS(stat, (const char *path, struct stat *status), AT_FDCWD, true, SYS_newfstatat, at, path, status, 0)
LOOKS(lstat, (const char *path, struct stat *status), AT_FDCWD, false, SYS_newfstatat, at, path, status, AT_SYMLINK_NOFOLLOW)
LOOKS(fstatat, (int folder, const char *path, struct stat *status, int flags), folder, FOLLOWS, SYS_newfstatat, at, path, status, flags)
LOOKS(__xstat, (int version, const char *path, struct stat *status), ((void)version, AT_FDCWD), true, SYS_newfstatat, at, path, status, 0)
LOOKS(__lxstat, (int version, const char *path, struct stat *status), ((void)version, AT_FDCWD), false, SYS_newfstatat, at, path, status,
      AT_SYMLINK_NOFOLLOW)
LOOKS(__fxstatat, (int version, int folder, const char *path, struct stat *status, int flags), ((void)version, folder), FOLLOWS,
      SYS_newfstatat, at, path, status, flags)
LOOKS(statx, (int folder, const char *path, int flags, unsigned mask, struct statx *status), folder, FOLLOWS, SYS_statx, at, path, flags, mask,
      status)
LOOKS(access, (const char *path, int mode), AT_FDCWD, true, SYS_faccessat, at, path, mode)
LOOKS(chdir, (const char *path), AT_FDCWD, true, SYS_chdir, path)
LOOKS(chmod, (const char *path, mode_t mode), AT_FDCWD, true, SYS_fchmodat, at, path, mode)
LOOKS(chown, (const char *path, uid_t user, gid_t group), AT_FDCWD, true, SYS_fchownat, at, path, user, group, 0)
LOOKS(lchown, (const char *path, uid_t user, gid_t group), AT_FDCWD, false, SYS_fchownat, at, path, user, group, AT_SYMLINK_NOFOLLOW)
LOOKS(fchownat, (int folder, const char *path, uid_t user, gid_t group, int flags), folder, FOLLOWS, SYS_fchownat, at, path, user, group, flags)
LOOKS(utimensat, (int folder, const char *path, const struct timespec times[2], int flags), folder, FOLLOWS, SYS_utimensat, at, path, times, flags)
SAME_AS_64(stat);
SAME_AS_64(lstat);
SAME_AS_64(fstatat);
extern __typeof(__xstat) __xstat64 __attribute__((visibility("default"), alias("__xstat")));
extern __typeof(__lxstat) __lxstat64 __attribute__((visibility("default"), alias("__lxstat")));
extern __typeof(__fxstatat) __fxstatat64 __attribute__((visibility("default"), alias("__fxstatat")));

SHOWN int faccessat(int folder, const char *path, int mode, int flags)
{
    struct spot s;
    if (!shown(&s, &folder, &path, FOLLOWS))
        return -1;
    int result = (int)syscall(SYS_faccessat2, folder, path, mode, flags);
    bool is_unknown = result && (errno == ENOSYS || errno == EPERM); /* to Linux before 5.8, to old containers */
    return is_unknown ? (int)syscall(SYS_faccessat, folder, path, mode) : result;
}

SHOWN int eaccess(const char *path, int mode)
{
    return faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}

SHOWN int euidaccess(const char *path, int mode)
{
    return faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}

SHOWN int fchmodat(int folder, const char *path, mode_t mode, int flags)
{
    struct spot s;
    if (flags) { /* the mode of a link, which Linux has not */
        errno = EOPNOTSUPP;
        return -1;
    }
    return shown(&s, &folder, &path, true) ? (int)syscall(SYS_fchmodat, folder, path, mode) : -1;
}

static int set_times(int folder, const char *path, const struct timeval times[2], int flags)
{
    struct timespec at[2];
    for (int i = 0; times && i < 2; i++)
        at[i] = (struct timespec){.tv_sec = times[i].tv_sec, .tv_nsec = times[i].tv_usec * 1000};
    return utimensat(folder, path, times ? at : NULL, flags);
}

SHOWN int utimes(const char *path, const struct timeval times[2])
{
    return set_times(AT_FDCWD, path, times, 0);
}

SHOWN int lutimes(const char *path, const struct timeval times[2])
{
    return set_times(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

SHOWN int futimesat(int folder, const char *path, const struct timeval times[2])
{
    return set_times(folder, path, times, 0);
}

SHOWN int utime(const char *path, const struct utimbuf *times)
{
    struct timeval both[2] = {{.tv_sec = times ? times->actime : 0}, {.tv_sec = times ? times->modtime : 0}};
    return set_times(AT_FDCWD, path, times ? both : NULL, 0);
}

SHOWN ssize_t readlinkat(int folder, const char *path, char *text, size_t size)
{
    struct spot s;
    return shown(&s, &folder, &path, false) ? syscall(SYS_readlinkat, folder, path, text, size) : -1;
}

SHOWN ssize_t readlink(const char *path, char *text, size_t size)
{
    return readlinkat(AT_FDCWD, path, text, size);
}

/* For a function that calls the system by itself: where a new file of this path is to be, in PATH_MAX bytes. */
SHOWN bool cenote_files_where(const char *path, char *where)
{
    struct spot s;
    return files_on && find(&s, AT_FDCWD, path, false, true) && s.state != GONE && whole_path(&s, where);
}

// --- what opens

SHOWN int openat(int folder, const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return files_on && *path ? file_open(folder, path, flags, mode) : (int)syscall(SYS_openat, folder, path, flags, mode);
}

SHOWN int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return openat(AT_FDCWD, path, flags, mode);
}

SHOWN int creat(const char *path, mode_t mode)
{
    return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

SHOWN int __open_2(const char *path, int flags)
{
    return openat(AT_FDCWD, path, flags);
}

SHOWN int __openat_2(int folder, const char *path, int flags)
{
    return openat(folder, path, flags);
}

SAME_AS_64(open);
SAME_AS_64(openat);
SAME_AS_64(creat);
extern __typeof(__open_2) __open64_2 __attribute__((visibility("default"), alias("__open_2")));
extern __typeof(__openat_2) __openat64_2 __attribute__((visibility("default"), alias("__openat_2")));

/* The function of the next library that has one. */
static void *next(void **found, const char *name)
{
    if (!*found)
        *found = dlsym(RTLD_NEXT, name);
    return *found;
}
#define NEXT(name) ((__typeof(&name))next(&found, #name))

static int flags_of(const char *mode)
{
    int flags = *mode == 'r' ? 0 : O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
    return flags | (strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY) | (strchr(mode, 'x') ? O_EXCL : 0)
           | (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

/* A stream on what our open has opened. One that converts characters (",ccs=") is left to the C library. */
SHOWN FILE *fopen(const char *path, const char *mode)
{
    static void *found;
    if (!files_on || strchr(mode, ',') || !strchr("rwa", *mode))
        return NEXT(fopen)(path, mode);
    int file = openat(AT_FDCWD, path, flags_of(mode), 0666);
    FILE *stream = file < 0 ? NULL : fdopen(file, mode);
    if (file >= 0 && !stream)
        close(file);
    return stream;
}

/* The C library opens the file of our descriptor once more, by its number. */
SHOWN FILE *freopen(const char *path, const char *mode, FILE *stream)
{
    static void *found;
    if (!files_on || !path || strchr(mode, ',') || !strchr("rwa", *mode))
        return NEXT(freopen)(path, mode, stream);
    char link[64];
    int file = openat(AT_FDCWD, path, flags_of(mode), 0666);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    FILE *again = NEXT(freopen)(file < 0 ? path : link, file < 0 ? "re" : mode, stream);
    if (file >= 0)
        close(file);
    return again;
}

SAME_AS_64(fopen);
SAME_AS_64(freopen);

SHOWN DIR *opendir(const char *path)
{
    int folder = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    DIR *stream = folder < 0 ? NULL : fdopendir(folder);
    if (folder >= 0 && !stream)
        close(folder);
    return stream;
}

SHOWN struct dirent *readdir(DIR *stream)
{
    static void *found;
    while (true) {
        struct dirent *entry = NEXT(readdir)(stream);
        enum state state = entry && files_on && any_is_kept() ? seen_in(dirfd(stream), entry->d_name) : UNTOUCHED;
        if (state == STAND_IN)
            entry->d_type = DT_UNKNOWN; /* that of the entry; the stand-in may be a folder where a link was */
        if (state != GONE)
            return entry;
    }
}

SAME_AS_64(readdir);

SHOWN int truncate(const char *path, off_t length)
{
    if (!files_on)
        return (int)syscall(SYS_truncate, path, length);
    int file = openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC), result = file < 0 ? -1 : (int)syscall(SYS_ftruncate, file, length), error = errno;
    if (file >= 0)
        syscall(SYS_close, file);
    errno = error;
    return result;
}

SHOWN int ftruncate(int file, off_t length)
{
    return files_on ? file_truncate(file, length) : (int)syscall(SYS_ftruncate, file, length);
}

SAME_AS_64(truncate);
SAME_AS_64(ftruncate);

// --- what removes, renames and makes

SHOWN int unlinkat(int folder, const char *path, int flags)
{
    if (!files_on || !*path || flags & ~AT_REMOVEDIR)
        return (int)syscall(SYS_unlinkat, folder, path, flags);
    return flags ? folder_remove(folder, path) : file_remove(folder, path);
}

SHOWN int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

SHOWN int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

SHOWN int remove(const char *path)
{
    int result = unlink(path);
    return result && errno == EISDIR ? rmdir(path) : result;
}

SHOWN int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    return files_on ? entry_rename(from_at, from, to_at, to, flags) : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

SHOWN int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return renameat2(from_at, from, to_at, to, 0);
}

SHOWN int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

#define MAKES(name, parameters, base, ...)                                              \
    SHOWN int name parameters                                                           \
    {                                                                                   \
        struct spot s, own;                                                             \
        int at = base;                                                                  \
        if (!files_on || !*path)                                                        \
            return (int)syscall(__VA_ARGS__);                                           \
        if (!place(&s, &own, at, path))                                                 \
            return -1;                                                                  \
        at = s.at, path = s.path;                                                       \
        return placed(&s, &own, (int)syscall(__VA_ARGS__));                             \
    }

MAKES(mkdirat, (int folder, const char *path, mode_t mode), folder, SYS_mkdirat, at, path, mode)
MAKES(symlinkat, (const char *target, int folder, const char *path), folder, SYS_symlinkat, target, at, path)

SHOWN int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

SHOWN int symlink(const char *target, const char *path)
{
    return symlinkat(target, AT_FDCWD, path);
}

SHOWN int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    struct spot s;
    if (!shown(&s, &from_at, &from, flags & AT_SYMLINK_FOLLOW))
        return -1;
    return files_on ? entry_link(from_at, from, to_at, to, flags) : (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
}

SHOWN int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* Files of a new name: the C library makes up the name. */
#define NAMES_NEW(name, parameters, ...)                     \
    SHOWN int name parameters                                \
    {                                                        \
        static void *found;                                  \
        int file = NEXT(name)(__VA_ARGS__);                  \
        if (files_on && file >= 0)                           \
            made_by(file);                                   \
        return file;                                         \
    }

NAMES_NEW(mkstemp, (char *path), path)
NAMES_NEW(mkostemp, (char *path, int flags), path, flags)
NAMES_NEW(mkstemps, (char *path, int length), path, length)
NAMES_NEW(mkostemps, (char *path, int length, int flags), path, length, flags)
SAME_AS_64(mkstemp);
SAME_AS_64(mkostemp);
SAME_AS_64(mkstemps);
SAME_AS_64(mkostemps);

SHOWN char *mkdtemp(char *path)
{
    static void *found;
    struct stat status;
    char *folder = NEXT(mkdtemp)(path);
    if (files_on && folder && !syscall(SYS_newfstatat, AT_FDCWD, folder, &status, 0))
        made(&status);
    return folder;
}
