/*
 * find.c: from a path to an entry, and to where it really is.
 *
 * As long as nothing is kept, a path that is only looked at is passed on as it is. Otherwise its names are compared with the bits of table.c; only if
 * one may be kept, its folder is asked for its number. The last symbolic link is resolved here, because what it leads to may be kept; those on the
 * way are left to the system as long as no folder and no link is kept.
 */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HOPS_MAX 40 /* as the system's */

/* Folders of caches: what is in them can be had again, and programs lock it, replace it and share it between processes. Beside them what is no file
 * on a disk, and the folders of the dry run itself. */
static const char *const CACHES[] = {"XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
                                     "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
                                     "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX"};
static const char *const NAMES[] = {"/__pycache__/", "/.cache/", "/.triton/", "/.nv/", "/torchinductor_", "/cenote-dry-"}; /* anywhere in a path */
static const char *const SYSTEM[] = {"/dev/", "/proc/", "/sys/"};
#define COUNT(array) (sizeof(array) / sizeof *(array))
static char caches[COUNT(CACHES)][PATH_MAX];

void read_caches(void)
{
    for (size_t i = 0; i < COUNT(CACHES); i++) {
        const char *value = getenv(CACHES[i]);
        if (!value || *value != '/' || strlen(value) + 2 > PATH_MAX || !realpath(value, caches[i]))
            caches[i][0] = 0;
        else if (caches[i][1])
            strcat(caches[i], "/");
    }
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

bool is_left_alone(const struct spot *s)
{
    char path[PATH_MAX];
    if (!whole_path(s, path))
        return false;
    bool found = false;
    for (size_t i = 0; i < COUNT(NAMES); i++)
        found |= strstr(path, NAMES[i]) != NULL;
    for (size_t i = 0; i < COUNT(SYSTEM); i++)
        found |= begins(path, SYSTEM[i]);
    for (size_t i = 0; i < COUNT(caches); i++)
        found |= caches[i][0] && begins(path, caches[i]);
    return found;
}

static bool folder_stat(int at, const char *path, struct stat *status)
{
    return !syscall(SYS_newfstatat, at, *path ? path : ".", status, 0);
}

static void put_name(struct spot *s, size_t at)
{
    snprintf(s->path + at, sizeof s->path - at, STAND_IN_PREFIX "%016llx", (unsigned long long)s->key);
}

/* The path leads to the stand-in of the entry from now on. */
void put_stand_in(struct spot *s)
{
    put_name(s, s->name);
}

/* The folder without links, and the name. */
bool whole_path(const struct spot *s, char *path)
{
    char folder[PATH_MAX], link[64];
    memcpy(folder, s->path, s->name);
    folder[s->name] = 0;
    int file = (int)syscall(SYS_openat, s->at, *folder ? folder : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (file < 0)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    syscall(SYS_close, file);
    size_t name = strcspn(s->path + s->name, "/");
    if (length <= 0 || (size_t)length + 1 + name >= PATH_MAX)
        return false;
    if (path[length - 1] != '/')
        path[length++] = '/';
    memcpy(path + length, s->path + s->name, name);
    path[(size_t)length + name] = 0;
    return true;
}

bool spot_stat(const struct spot *s, struct stat *status)
{
    return !syscall(SYS_newfstatat, s->at, s->path, status, AT_SYMLINK_NOFOLLOW);
}

static bool is_dots(const char *name, size_t length)
{
    return (length == 1 && *name == '.') || (length == 2 && name[0] == '.' && name[1] == '.');
}

enum walked { NOWHERE, THERE, BY_LINK };

/* The path to go on with if what the spot has so far is a link; `rest` comes after it. */
static bool by_link(const struct spot *s, const char *rest, char *next)
{
    char text[PATH_MAX];
    long length = syscall(SYS_readlinkat, s->at, s->path, text, sizeof text - 1);
    if (length <= 0 || begins(s->path, "/proc/")) /* whose links lead to files that may have no name any more */
        return false;
    text[length] = 0;
    size_t before = *text == '/' ? 0 : s->name;
    if (before + (size_t)length + strlen(rest) >= PATH_MAX)
        return false;
    memcpy(next, s->path, before);
    strcpy(stpcpy(next + before, text), rest);
    return true;
}

/* One name more, of the last part of the path or of one before it. False, with errno: it is gone, and the path leads through it. */
static bool step(struct spot *s, size_t n, const char *name, size_t length, bool is_asked, bool is_last)
{
    struct stat folder;
    s->name = n;
    s->key = 0;
    s->state = UNTOUCHED;
    if (!is_dots(name, length) && (is_asked || name_may_be_kept(name, length)) && folder_stat(s->at, s->path, &folder)) {
        s->key = entry_key(&folder, name, length);
        s->state = entry_state(s->key);
    }
    memcpy(s->path + n, name, length);
    s->path[n + length] = 0;
    if (s->state == STAND_IN)
        put_name(s, n);
    errno = ENOENT;
    return s->state != GONE || is_last;
}

/* Copies the path, with stand-ins for names that have one. `changes`: the key of its last name is needed in any case. `next`: where to go on if a
 * link comes on the way, and folders are kept. With errno if it leads nowhere. */
static enum walked walk(struct spot *s, int at, const char *path, bool changes, char *next)
{
    size_t n = 0;
    *s = (struct spot){.at = *path == '/' ? AT_FDCWD : at};
    while (*path) {
        size_t slashes = strspn(path, "/"), length = strcspn(path + slashes, "/");
        if (n + slashes + length + sizeof STAND_IN_PREFIX + 16 >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return NOWHERE;
        }
        memcpy(s->path + n, path, slashes + length);
        s->path[n += slashes] = 0;
        path += slashes;
        if (!length)
            break;
        const char *rest = path + length;
        bool is_last = !rest[strspn(rest, "/")];
        if (!step(s, n, path, length, is_last && changes, is_last))
            return NOWHERE;
        if (*rest && folders_are_kept() && by_link(s, rest, next))
            return BY_LINK;
        n += strlen(s->path + n);
        path = rest;
    }
    return THERE;
}

bool find(struct spot *s, int at, const char *path, bool follow, bool changes)
{
    char next[2][PATH_MAX];
    for (int hop = 0; hop <= HOPS_MAX; hop++) {
        enum walked walked = walk(s, at, path, changes, next[hop % 2]);
        if (walked == NOWHERE)
            return false;
        if (walked == THERE && (!follow || s->state == GONE || !by_link(s, "", next[hop % 2])))
            return true;
        at = s->at;
        path = next[hop % 2];
    }
    errno = ELOOP;
    return false;
}

/* For a call that changes nothing. False, with errno, where the program is to find nothing. */
bool look(struct spot *s, int at, const char *path, bool follow)
{
    int error = errno;
    if (!find(s, at, path, follow, false))
        return false;
    errno = s->state == GONE ? ENOENT : error;
    return s->state != GONE;
}
