/*
 * machine.c: how much memory this process may have: that of the machine or, in a container or a job of a scheduler, that of its control group.
 *
 * A process is in one group of cgroup v2, and in others of v1, one for each resource; a limit of any group above counts, too. The groups are
 * folders where the system mounts them, below /sys/fs/cgroup. In a container the process's own group often is the root of what it sees.
 *
 * It is asked once, when pinned memory is opened. It does not know how much of that memory others in the group use.
 *
 * LOCKING: none; no state.
 */
#include "host/machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX 4096

/* A whole small file, ended with 0. False: it cannot be read. */
static bool read_text(const char *path, char *text)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, TEXT_MAX - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* The limit that a file of a group says; UINT64_MAX: none ("max"), or no such file. */
static uint64_t limit_in(const char *path)
{
    char text[TEXT_MAX], *end;
    if (!read_text(path, text))
        return UINT64_MAX;
    unsigned long long bytes = strtoull(text, &end, 10);
    return end == text || !bytes ? UINT64_MAX : bytes;
}

/*
 * The least of a group and of all above it. In a container that sees the system's names, the group may be missing and the root stand for it.
 * `group` begins with a slash, and is cut.
 */
static uint64_t limit_of_group(const char *mount, char *group, const char *name)
{
    char path[3 * TEXT_MAX];
    uint64_t least = UINT64_MAX;
    for (char *end;; *end = 0) {
        snprintf(path, sizeof path, "%s%s/%s", mount, group, name);
        uint64_t limit = limit_in(path);
        least = limit < least ? limit : least;
        end = strrchr(group, '/');
        if (!end)
            return least;
    }
}

/* Whether a list of resources, with commas between, has memory. */
static bool has_memory(const char *list)
{
    for (const char *at = list; (at = strstr(at, "memory")); at += 6)
        if ((at == list || at[-1] == ',') && (!at[6] || at[6] == ','))
            return true;
    return false;
}

/* A line of /proc/self/cgroup: "0::/group" (v2), "7:cpu,memory:/group" (v1). */
static uint64_t limit_of_line(char *line, const char *root)
{
    char mount[TEXT_MAX], *resources = strchr(line, ':'), *group = resources ? strchr(resources + 1, ':') : NULL;
    if (!group || group[1] != '/')
        return UINT64_MAX;
    *group++ = 0;
    bool is_unified = !resources[1];
    if (!is_unified && !has_memory(resources + 1))
        return UINT64_MAX;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, is_unified ? "" : "/memory");
    return limit_of_group(mount, group, is_unified ? "memory.max" : "memory.limit_in_bytes");
}

/* Below `root`: "", or a folder of a test. UINT64_MAX: no limit is known. */
uint64_t machine_group_limit(const char *root)
{
    char path[TEXT_MAX], text[TEXT_MAX], *rest = NULL;
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text))
        return UINT64_MAX;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        uint64_t limit = limit_of_line(line, root);
        least = limit < least ? limit : least;
    }
    return least;
}

uint64_t machine_memory(void)
{
    uint64_t whole = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), limit = machine_group_limit("");
    return limit < whole ? limit : whole;
}
