/*
 * process.c: other processes, as /proc has them. Nothing is kept, and no memory is allocated.
 *
 * LOCKING: none; no state.
 */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The beginning of a file of /proc, ended with 0. Its length, -1: it cannot be read. */
static ssize_t read_file(int pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, room - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return length;
}

/*
 * Arguments follow each other with a 0 between. The program goes without its folder, so that the arguments fit. Whatever a terminal or a decoder
 * might stumble over is a question mark.
 */
static void read_command(int pid, struct process *p)
{
    char text[1024];
    ssize_t length = read_file(pid, "cmdline", text, sizeof text);
    const char *slash = length > 0 ? strrchr(text, '/') : NULL, *from = slash && slash[1] ? slash + 1 : text;
    size_t count = length > 0 ? (size_t)(text + length - from) : 0;
    bool whole = count < sizeof p->command;
    count = whole ? count : sizeof p->command - 1;
    for (size_t i = 0; i < count; i++)
        p->command[i] = !from[i] ? ' ' : from[i] < ' ' || from[i] > '~' ? '?' : from[i];
    if (!whole)
        memcpy(p->command + count - 3, "...", 3);
    for (; whole && count > 0 && p->command[count - 1] == ' '; count--)
        p->command[count - 1] = 0;
}

bool process_read(int pid, struct process *p)
{
    char text[512], path[32];
    struct stat owner;
    memset(p, 0, sizeof *p);
    if (read_file(pid, "stat", text, sizeof text) <= 0)
        return false;
    const char *name_ends = strrchr(text, ')'); /* the name may hold anything, a bracket too */
    if (!name_ends || sscanf(name_ends, ") %*c %d %d %d", &p->parent, &p->group, &p->session) != 3)
        return false;
    snprintf(path, sizeof path, "/proc/%d", pid);
    p->is_others = !stat(path, &owner) && owner.st_uid != geteuid();
    read_command(pid, p);
    return true;
}

bool process_is_gone(int pid)
{
    return kill(pid, 0) && errno == ESRCH;
}

/*
 * The run that started it has ended without it: its parent is not the one that started it, and the leader of its process group is gone, or
 * it is a worker of Python's multiprocessing. A service, or what nohup started, leads a group of its own: it is meant to be there.
 */
bool process_is_left(int pid, const struct process *p)
{
    struct process parent, leader;
    bool adopted = p->parent == 1 || (process_read(p->parent, &parent) && parent.session != p->session && p->session != pid);
    if (!adopted)
        return false;
    return (p->group != pid && !process_read(p->group, &leader)) || strstr(p->command, "multiprocessing");
}
