/*
 * test_misuse.c: what a program can do wrong, and what becomes of it. See misuse.h for the form of a case.
 *
 * The parent never touches the library: each case is a child of its own, so that a crash or a call that hangs is one failed case with a
 * name. The child is judged by itself: error and message, the other blocks' contents, the pool's invariants, the simulated driver's books,
 * and that the pool still serves and can be given back.
 *
 *     test-death-misuse [WORD]     only the cases with WORD in their names
 */
#include "tests/death/misuse.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/patience.h"

#define CARD (64 * MIB)
#define MISUSES_MAX 512
#define SECONDS_MAX 30 /* for one case: it hangs */

static struct misuse list[MISUSES_MAX];
static int           count;
static const struct misuse *current; /* of a child */

void misuse_add(struct misuse m)
{
    if (count == MISUSES_MAX)
        abort();
    list[count++] = m;
}

/* --------------------------------------------------------------------------------------------------------------------- in the child */

static void judge_message(const struct scenery *s)
{
    char address[32];
    const char *words = s->words[0] ? s->words : cenote_message();
    snprintf(address, sizeof address, "%p", s->named);
    bool says = !current->words || strstr(words, current->words), names = !s->named || strstr(words, address);
    if (!says || !names)
        printf("\n    the message is: %s\n", words);
    EXPECT(says);
    EXPECT(names);
}

/* As scene_judge and scene_close, but for what the driver thinks of the program's handles. */
static void judge_unless_violated(struct scenery *s)
{
    if (!s->violations)
        scene_judge(&s->scene);
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    DONE(cenote_pool_check(s->scene.pool));
}

static void close_after_violations(struct scenery *s)
{
    struct sim_books books;
    scene_destroy_pool(&s->scene);
    sim_books(&books);
    EXPECT_EQ(books.used + books.reserved + books.handles + books.mappings + books.reservations + books.allocations + books.events, 0);
    EXPECT_EQ(books.streams, SCENE_STREAMS);
    scene_is_open = false;
}

/* The process is alive and its memory unharmed; what the pool is for goes on. */
static void judge_pool(struct scenery *s)
{
    struct held next;
    judge_unless_violated(s);
    EXPECT_EQ(scene_stats(s->scene.pool).blocks.current, 2);
    EXPECT(held_take(&next, s->scene.pool, 5 * MIB, s->scene.stream[B]));
    held_give(&next);
    for (int i = 0; i < 2; i++)
        held_give(&s->live[i]);
}

CASE(the_misuse)
{
    static struct scenery s;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    scene_open_with(&s.scene, &shape, &options);
    sim_set_quiet(true);
    EXPECT(held_take(&s.live[0], s.scene.pool, 3 * MIB, s.scene.stream[A]));
    EXPECT(held_take(&s.live[1], s.scene.pool, 600, s.scene.stream[A]));
    int error = current->make(&s);
    EXPECT_EQ(error, current->error);
    if (current->error)
        judge_message(&s);
    if (s.scene.pool)
        judge_pool(&s);
    if (s.violations)
        close_after_violations(&s);
    else
        scene_close(&s.scene);
}

static void be_child(const struct misuse *m, bool aborts, int out)
{
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(patience(SECONDS_MAX));
    if (aborts)
        setenv("CENOTE_CONF", "abort:1", 1);
    else
        unsetenv("CENOTE_CONF");
    current = m;
    _exit(test_run("death", "the_misuse", NULL, scene_after));
}

/* -------------------------------------------------------------------------------------------------------------------- in the parent */

struct ended {
    int  status;
    char text[8192]; /* the beginning of what it wrote */
};

static struct ended run(const struct misuse *m, bool aborts)
{
    struct ended e = {0};
    int ends[2];
    size_t length = 0;
    fflush(NULL);
    if (pipe(ends))
        abort();
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        be_child(m, aborts, ends[1]);
    }
    close(ends[1]);
    char chunk[512];
    for (ssize_t got; (got = read(ends[0], chunk, sizeof chunk)) > 0;) {
        size_t kept = sizeof e.text - 1 - length < (size_t)got ? sizeof e.text - 1 - length : (size_t)got;
        memcpy(e.text + length, chunk, kept);
        length += kept;
    }
    close(ends[0]);
    waitpid(child, &e.status, 0);
    return e;
}

/* It went on, or it ended as the option asks: by SIGABRT, with the words as a line of their own. */
static bool is_right(const struct misuse *m, bool aborts, const struct ended *e)
{
    if (!aborts || !m->aborts)
        return WIFEXITED(e->status) && !WEXITSTATUS(e->status);
    const char *line = strstr(e->text, "cenote: ");
    return WIFSIGNALED(e->status) && WTERMSIG(e->status) == SIGABRT && line && (!m->words || strstr(line, m->words)) && strchr(line, '\n');
}

static void tell(const struct misuse *m, bool aborts, const struct ended *e)
{
    printf("FAILED %s%s: ", m->name, aborts ? " with abort:1" : "");
    if (WIFSIGNALED(e->status))
        printf("%s\n%s\n", WTERMSIG(e->status) == SIGALRM ? "hangs" : strsignal(WTERMSIG(e->status)), e->text);
    else
        printf("went on, result %d\n%s\n", WEXITSTATUS(e->status), e->text);
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    int misuses = 0, answers = 0, ends = 0, failed = arguments_missing(list, count);
    for (int i = 0; i < count; i++) {
        const struct misuse *m = &list[i];
        if (!strstr(m->name, word))
            continue;
        for (int aborts = 0; aborts < 2; aborts++) {
            struct ended e = run(m, aborts);
            bool right = is_right(m, aborts, &e);
            failed += !right;
            ends += right && aborts && m->aborts;
            if (!right)
                tell(m, aborts, &e);
        }
        misuses += m->aborts;
        answers += !m->aborts;
    }
    printf("%d misuses: the process went on, and %d of them ended it with abort:1; %d answers that are no misuse; %d failed\n", misuses, ends,
           answers, failed);
    return failed || !(misuses + answers);
}
