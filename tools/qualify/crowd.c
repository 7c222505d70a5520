/* crowd.c: processes that make and unmake memory on the card all the time, so that prices can be measured beside them: drivers have locks that span
 * processes. They end with the parent. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/qualify/qualify.h"

static void work(const struct plan *plan, int pipe)
{
    struct card card = {0};
    struct card_facts facts;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (card_open(&card, plan->ordinal, &facts))
        prices_keep_busy(&card, pipe);
    _exit(EXIT_FAILURE);
}

/* A byte from it says that it is at work; the end of the pipe, that it has ended. */
static bool is_at_work(int pipe, int limit_ms)
{
    struct pollfd wait = {.fd = pipe, .events = POLLIN};
    char byte;
    return poll(&wait, 1, limit_ms) > 0 && read(pipe, &byte, 1) == 1;
}

bool crowd_start(struct crowd *crowd, const struct plan *plan, int limit_ms)
{
    bool all = true;
    *crowd = (struct crowd){0};
    for (int i = 0; i < CROWD && all; i++) {
        int ends[2];
        if (pipe(ends))
            return false;
        pid_t process = fork();
        if (!process) {
            close(ends[0]);
            work(plan, ends[1]);
        }
        close(ends[1]);
        crowd->processes[i] = process > 0 ? process : 0;
        all = process > 0 && is_at_work(ends[0], limit_ms);
        close(ends[0]);
    }
    return all;
}

void crowd_end(struct crowd *crowd)
{
    for (int i = 0; i < CROWD; i++) {
        if (!crowd->processes[i])
            continue;
        kill(crowd->processes[i], SIGKILL);
        waitpid(crowd->processes[i], NULL, 0);
    }
    *crowd = (struct crowd){0};
}
