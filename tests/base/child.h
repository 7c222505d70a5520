/*
 * child.h: runs a function in a child process, for what ends a process or can be done only once in one.
 *
 * The child inherits what the test has set up, and reports by what it writes to stderr, by its end, and through memory of child_shared().
 */
#ifndef CENOTE_TESTS_BASE_CHILD_H
#define CENOTE_TESTS_BASE_CHILD_H

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

struct child_end {
    int  signal;      /* that ended it, or 0 */
    int  status;      /* of its exit */
    char words[2048]; /* the beginning of what it wrote to stderr */
};

/* Zeroed memory that parent and children see alike. It stays until the program ends. */
static inline void *child_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

static inline void child_read(int from, struct child_end *end)
{
    size_t length = 0;
    char chunk[256];
    for (ssize_t got; (got = read(from, chunk, sizeof(chunk))) > 0;) {
        size_t room = sizeof(end->words) - 1 - length;
        size_t kept = (size_t)got < room ? (size_t)got : room;
        memcpy(end->words + length, chunk, kept);
        length += kept;
    }
}

/* The child ends with _exit(0) when `run` returns: no handler of the parent's exit runs in it, unless `run` calls exit itself. */
static inline struct child_end child_run(void (*run)(void *), void *arg)
{
    struct child_end end = {0};
    int ends[2];
    REQUIRE_EQ(pipe(ends), 0);

    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        run(arg);
        _exit(0);
    }
    close(ends[1]);
    REQUIRE(child > 0);
    child_read(ends[0], &end);
    close(ends[0]);

    int status = 0;
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return end;
}

#endif
