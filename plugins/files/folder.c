/* folder.c: what a program sees in a folder: no stand-ins under their own names, and nothing that it has removed. */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOM (1 << 14)

struct entry { /* linux_dirent64 of the system call */
    uint64_t       number;
    int64_t        next;
    unsigned short length;
    unsigned char  type;
    char           name[];
};

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* `folder`: open. What the program does not see is gone. */
enum state seen_in(int folder, const char *name)
{
    struct stat status;
    size_t length = strlen(name);
    if (!strncmp(name, STAND_IN_PREFIX, strlen(STAND_IN_PREFIX)))
        return GONE;
    return name_may_be_kept(name, length) && !syscall(SYS_fstat, folder, &status) ? entry_state(entry_key(&status, name, length)) : UNTOUCHED;
}

/* Each that the program sees, until `act` says false. */
bool each_entry(const struct spot *s, bool (*act)(const char *name, void *with), void *with)
{
    _Alignas(struct entry) char room[ROOM];
    int folder = (int)syscall(SYS_openat, s->at, s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (folder < 0)
        return false;
    long count;
    bool goes_on = true;
    while (goes_on && (count = syscall(SYS_getdents64, folder, room, sizeof room)) > 0) {
        for (long at = 0; goes_on && at < count;) {
            const struct entry *entry = (const struct entry *)(room + at);
            at += entry->length;
            if (!is_dots(entry->name) && seen_in(folder, entry->name) != GONE)
                goes_on = act(entry->name, with);
        }
    }
    int error = errno;
    syscall(SYS_close, folder);
    errno = error;
    return goes_on;
}

static bool stop(const char *name, void *with)
{
    (void)name, (void)with;
    return false;
}

bool is_empty_folder(const struct spot *s)
{
    return each_entry(s, stop, NULL);
}
