/*
 * tell.c: rows for the verdict, and the list of stand-ins.
 *
 * In the folder of the command: `rows` has for each entry that was kept what the program does to it, the process's name, its path, and the stack of
 * the thread that asked for it, each with a 0 after it. The stack is faulthandler's: launch/kept.py registers the signal for it, whose handler writes
 * to the same file. `stand-ins` has paths, each with a 0 after it.
 *
 * LOCKING: a row is written under `lock` (threads) and a lock of the file (processes).
 */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char rows[PATH_MAX], stand_ins[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool has_stacks;

void tell_stacks(void)
{
    has_stacks = true;
}

static void at_fork(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
}

void tell_folder(const char *folder)
{
    snprintf(rows, sizeof rows, "%s/rows", folder);
    snprintf(stand_ins, sizeof stand_ins, "%s/stand-ins", folder);
    pthread_atfork(NULL, NULL, at_fork);
}

static void add(const char *file, const char *const *texts)
{
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    fcntl(descriptor, F_SETLKW, &whole);
    for (; *texts; texts++)
        if (write(descriptor, *texts, strlen(*texts) + 1) < 0)
            break;
    if (file == rows) {
        sigset_t blocked;
        int number = SIGRTMAX - 5; /* environment.DRY_KEPT */
        if (has_stacks && !pthread_sigmask(SIG_SETMASK, NULL, &blocked) && !sigismember(&blocked, number))
            pthread_kill(pthread_self(), number); /* its handler has run when this returns */
        (void)!write(descriptor, "", 1);
    }
    syscall(SYS_close, descriptor);
}

static void add_alone(const char *file, const char *const *texts)
{
    int error = errno;
    pthread_mutex_lock(&lock);
    add(file, texts);
    pthread_mutex_unlock(&lock);
    errno = error;
}

/* `how`: one of the texts of change.c. */
void tell(const char *how, const struct spot *s, bool is_folder)
{
    char path[PATH_MAX];
    if (may_tell(is_folder) && whole_path(s, path))
        add_alone(rows, (const char *const[]){how, program_invocation_short_name, path, NULL});
}

void tell_stand_in(const struct spot *s)
{
    char path[PATH_MAX];
    if (whole_path(s, path))
        add_alone(stand_ins, (const char *const[]){path, NULL});
}
