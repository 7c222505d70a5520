/*
 * rename.c: rename, which keeps two entries.
 *
 * If what is renamed is of before, it gets a second name: a file by a hard link, a folder as a new folder with the same files. The entry is gone for
 * the program from then on. What it would replace stays, and the second name is that of a stand-in. `cenote dry-run` takes away second names at its
 * end.
 */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct move {
    struct spot from, to; /* `to`: where it is made */
    struct stat status;   /* of what is moved */
};

static bool move_entry(const char *name, void *with)
{
    const struct move *folder = with;
    char from[PATH_MAX], to[PATH_MAX];
    if ((size_t)snprintf(from, sizeof from, "%s/%s", folder->from.path, name) >= sizeof from
        || (size_t)snprintf(to, sizeof to, "%s/%s", folder->to.path, name) >= sizeof to) {
        errno = ENAMETOOLONG;
        return false;
    }
    return !entry_rename(folder->from.at, from, folder->to.at, to, 0);
}

static bool second_file(const struct move *m)
{
    for (int i = 0; i < 2; i++) {
        if (!syscall(SYS_linkat, m->from.at, m->from.path, m->to.at, m->to.path, 0)) {
            our_link(m->to.key, true);
            return true;
        }
        if (errno == EEXIST)
            syscall(SYS_unlinkat, m->to.at, m->to.path, 0);
    }
    return errno != EXDEV && errno != ENOENT && S_ISREG(m->status.st_mode) && copy_to(&m->from, &m->status, &m->to, false);
}

/* `m->to` is free, or has an empty folder of the program's. */
static bool second_folder(struct move *m)
{
    struct stat made_now;
    char above[PATH_MAX];
    memcpy(above, m->to.path, m->to.name);
    above[m->to.name] = 0;
    if (syscall(SYS_newfstatat, m->to.at, *above ? above : ".", &made_now, 0))
        return false;
    if (made_now.st_dev != m->status.st_dev) {
        errno = EXDEV;
        return false;
    }
    if (syscall(SYS_mkdirat, m->to.at, m->to.path, m->status.st_mode & 07777) && errno != EEXIST)
        return false;
    if (!spot_stat(&m->to, &made_now))
        return false;
    made(&made_now);
    return each_entry(&m->from, move_entry, m);
}

/* Whether what is there may be replaced, where the system must not decide it: it would see entries that are gone. */
static bool is_replaceable(const struct spot *s, const struct stat *status, const struct stat *by)
{
    errno = S_ISDIR(status->st_mode) ? EISDIR : ENOTDIR;
    if (S_ISDIR(status->st_mode) != S_ISDIR(by->st_mode))
        return false;
    errno = ENOTEMPTY;
    return !S_ISDIR(status->st_mode) || is_empty_folder(s);
}

static bool is_kept(const struct spot *s, const struct stat *status)
{
    return s->state == UNTOUCHED && !is_our_link(s->key) && is_of_before(s, status);
}

/* The second name of something of before, or the program's own thing by its other name. `replaced`: of the program's, or NULL. */
static bool put(struct move *m, bool is_before, const struct stat *replaced)
{
    bool is_link = is_our_link(m->from.key);
    if (is_before)
        return S_ISDIR(m->status.st_mode) ? second_folder(m) : second_file(m);
    if (syscall(SYS_renameat2, m->from.at, m->from.path, m->to.at, m->to.path, 0))
        return false;
    if (replaced)
        unlinked(&m->to, replaced);
    our_link(m->from.key, false);
    if (is_link)
        our_link(m->to.key, true);
    return true;
}

int entry_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    struct move m;
    struct stat there;
    if (!find(&m.from, from_at, from, false, true) || !find(&m.to, to_at, to, false, true))
        return -1;
    errno = ENOENT;
    if (m.from.state == GONE || !spot_stat(&m.from, &m.status))
        return -1;
    struct spot own = m.to;
    bool is_before = is_kept(&m.from, &m.status), is_there = m.to.state != GONE && spot_stat(&m.to, &there);
    bool stays = is_there && is_kept(&m.to, &there);
    if (!m.from.key || !m.to.key || (flags && !is_before && !stays && m.from.state == UNTOUCHED && m.to.state == UNTOUCHED))
        return (int)syscall(SYS_renameat2, m.from.at, m.from.path, m.to.at, m.to.path, flags);
    errno = flags & ~RENAME_NOREPLACE ? EINVAL : EEXIST;
    if (flags & ~RENAME_NOREPLACE || (flags && is_there))
        return -1;
    if (is_there && there.st_ino == m.status.st_ino && there.st_dev == m.status.st_dev)
        return 0;
    if ((stays && !is_replaceable(&m.to, &there, &m.status)) || ((is_before || stays) && !may_change_folder(&m.from)))
        return -1;
    if (stays || m.to.state == GONE)
        put_stand_in(&m.to);
    bool is_placed = stays || m.to.state == GONE;
    if (!put(&m, is_before, is_there && !stays ? &there : NULL))
        return -1;
    if ((stays && !S_ISREG(there.st_mode)) || (is_before && !S_ISREG(m.status.st_mode)))
        folder_is_kept();
    if (stays)
        tell(OVERWRITES, &own, S_ISDIR(there.st_mode));
    if (is_before)
        tell(RENAMES, &m.from, S_ISDIR(m.status.st_mode));
    if (is_before && !is_placed)
        tell_stand_in(&m.to);
    bool is_kept_now = (!is_placed || take_place(&own)) && ((!is_before && m.from.state != STAND_IN) || turn(&m.from, GONE));
    return is_kept_now ? 0 : -1;
}
