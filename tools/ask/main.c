/*
 * main.c: cenote-ask asks the driver what it answers when: each entry point of sim/entries/entries.def in each state of states.def, and what became
 * of the capture.
 *
 *     cenote-ask              prints the table: sim/entries/answers.txt is that of the simulated GPU
 *     cenote-ask TABLE        says where the driver's answers differ from a table; 1 if they do
 *
 * Both say where they differ from what a card was seen to answer (grounds.def), and return 1 then.
 *
 * The driver is the libcuda.so.1 that the loader finds. The parent never calls it: a child does, in one state, from a row on; a row that takes its
 * child along is followed by another child.
 */
#include "tools/ask/ask.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 60000          /* of one call, and of what all scenes of a child take: it ends a hang */

/* The answers of one child go to their places. Returns the row at which the next child begins. */
static size_t collect(struct answer *answers, enum state state, size_t row, int pipe, pid_t child)
{
    struct answer answer;
    struct pollfd wait = {.fd = pipe, .events = POLLIN};
    size_t first = row;
    int status = 0;
    while (row < row_count() && poll(&wait, 1, LIMIT_MS) > 0 && read(pipe, &answer, sizeof answer) == sizeof answer)
        answers[row++ * STATES + state] = answer;
    bool hangs = row < row_count() && !(wait.revents & POLLHUP);
    if (hangs)
        kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        fprintf(stderr, "cenote-ask: no libcuda.so.1\n");
        exit(2);
    }
    if (row < row_count() && (hangs || row == first)) /* it may be the last answer that a later call died of: the row is asked first by another */
        answers[row++ * STATES + state].kind = DIED;
    return row;
}

static void ask_in(struct answer *answers, enum state state)
{
    for (size_t row = 0; row < row_count();) {
        int ends[2];
        if (pipe(ends)) {
            perror("cenote-ask: pipe");
            exit(2);
        }
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) {
            perror("cenote-ask: fork");
            exit(2);
        }
        if (!child) {
            close(ends[0]);
            child_run(state, row, ends[1]);
            _exit(1);
        }
        close(ends[1]);
        row = collect(answers, state, row, ends[0], child);
        close(ends[0]);
    }
}

/* Every entry point has a line in calls.def. */
static unsigned count_missing(void)
{
    static const char *const entries[] = {
#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, ...) #symbol,
#define STREAM(...) PLAIN(__VA_ARGS__)
#define DEFAULT(...) PLAIN(__VA_ARGS__)
#define INSIDE(...) PLAIN(__VA_ARGS__)
#include "sim/entries/entries.def"
    };
    static const char *const left[] = {
#define CALL(part, symbol, which, arguments)
#define ON_STREAM(part, symbol, which, arguments)
#define LEFT(symbol) #symbol,
#include "tools/ask/calls.def"
    };
    unsigned missing = 0;
    for (size_t e = 0; e < sizeof entries / sizeof entries[0]; e++) {
        bool found = false;
        for (size_t r = 0; r < row_count() && !found; r++)
            found = !strcmp(rows[r].symbol, entries[e]);
        for (size_t l = 0; l < sizeof left / sizeof left[0] && !found; l++)
            found = !strcmp(left[l], entries[e]);
        if (!found)
            fprintf(stderr, "cenote-ask: %s has no line in calls.def\n", entries[e]);
        missing += !found;
    }
    return missing;
}

int main(int argc, char **argv)
{
    struct answer *answers = calloc(row_count() * STATES, sizeof *answers);
    if (argc > 2 || !answers) {
        fprintf(stderr, "cenote-ask [TABLE]\n");
        return 2;
    }
    if (count_missing())
        return 1;
    for (enum state state = 0; state < STATES; state++)
        ask_in(answers, state);
    size_t differ = table_contradictions(answers);
    if (argc == 1) {
        table_print(answers);
    } else {
        differ += table_compare(answers, argv[1]);
        printf("%zu rows in %d states, %zu differences from %s\n", row_count(), STATES, differ, argv[1]);
    }
    free(answers);
    return differ != 0;
}
