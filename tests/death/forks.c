/* forks.c: a child of the process calls cenote. It is told, and the parent goes on as if nothing had been. */
#include "tests/death/misuse.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Makes all calls in a fork. Its words come back, and so does the signal that ends it. */
static int in_fork(struct scenery *s, int (*call)(struct scenery *, cenote_group *), cenote_group *group)
{
    struct told {
        int  error;
        char words[512];
    } *told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(told != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        told->error = call(s, group);
        snprintf(told->words, sizeof told->words, "%s", cenote_message());
        _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        raise(WTERMSIG(status));
    snprintf(s->words, sizeof s->words, "%s", told->words);
    return told->error;
}

static int call_all(struct scenery *s, cenote_group *group)
{
    return call_everything(s, group, CENOTE_FORKED);
}

MISUSE(every_call_in_a_fork, CENOTE_FORKED, "start workers with spawn")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_use(s->live[0].at, s->scene.stream[B]));
    return close_group(group, in_fork(s, call_all, group));
}

static int free_one(struct scenery *s, cenote_group *group)
{
    (void)group;
    return cenote_free(s->live[0].at);
}

MISUSE(a_free_in_a_fork, CENOTE_FORKED, "start workers with spawn")
{
    return in_fork(s, free_one, NULL);
}

/* A capture is open, and its thread is not in the child. */
MISUSE(a_fork_during_a_capture, CENOTE_FORKED, "start workers with spawn")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    int error = in_fork(s, call_all, group);
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    return close_group(group, error);
}

/* What asks no pool anything is served in a child as well. */
static int call_words(struct scenery *s, cenote_group *group)
{
    cenote_options options;
    (void)s, (void)group;
    if (cenote_free(NULL) || cenote_options_default(&options) || cenote_tag_push("child") || cenote_tag_pop() || cenote_phase_set(0))
        return -1;
    return cenote_message() && cenote_version() >= CENOTE_VERSION ? CENOTE_OK : -1;
}

ANSWER(words_in_a_fork, CENOTE_OK, NULL)
{
    return in_fork(s, call_words, NULL);
}
