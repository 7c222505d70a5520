/*
 * main.c: cenote-qualify: does cenote work on this card? Experiments, random programs and the prices of the driver's calls, in about half a minute.
 *
 * The program changes nothing on the machine, and what it takes from the card goes back when it ends. This process never calls the driver. It runs
 * the steps in a child process. If a step fails, kills the child or hangs, another child goes on with the next step.
 *
 * Exit status: 0 fit, 3 fit without something, 4 use provider:plain; 1 nothing could be tried, or a file could not be written; 2 a wrong argument.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/text/quantity.h"
#include "tools/qualify/qualify.h"

#define STEP_LIMIT 60u      /* seconds without a message, beside the time of random programs: then the child hangs */
#define FIRST_LIMIT 10u     /* the same at the first use of a card, for which a program waits */
#define SECONDS_MAX 3600u

enum { EXIT_NOT_TRIED = 1, EXIT_USAGE = 2, EXIT_FIT_WITHOUT = 3, EXIT_USE_PLAIN = 4 };

static const char usage[] =
    "usage: cenote qualify [OPTION...]\n"
    "Tries what cenote relies on, on this machine's GPU, and says: fit, fit without something, or use provider:plain.\n"
    "  --device N      which GPU (default 0)\n"
    "  --seconds N     how long random programs run (default 20); 0: one program\n"
    "  --first-use     runs only the experiments without which cenote cannot start on a card\n"
    "  --seed N        seed of the first random program (default 1)\n"
    "  --json FILE     writes all results to FILE\n"
    "  --prices FILE   writes what the driver's calls cost to FILE, for the simulated GPU (cenote run --sim 80GiB --prices FILE)\n"
    "Exit status: 0 fit, 3 fit without something, 4 use provider:plain, 1 nothing could be tried or a file not written, 2 a wrong argument.\n";

struct request {
    struct plan plan;
    const char *json;
    const char *prices;
};

static bool read_number(const char *name, const char *text, uint64_t most, uint64_t *number)
{
    if (quantity_read_count(text, number) && *number <= most)
        return true;
    fprintf(stderr, "cenote qualify: --%s cannot be \"%.40s\"\n", name, text);
    return false;
}

static bool set_option(struct request *request, const struct option *option, const char *value)
{
    uint64_t number;
    switch (option->val) {
    case 'j':
        request->json = value;
        return true;
    case 'p':
        request->prices = value;
        return true;
    case 'f':
        request->plan.first_use = true;
        return true;
    case 'd':
        if (!read_number(option->name, value, INT32_MAX, &number))
            return false;
        request->plan.ordinal = (int)number;
        return true;
    case 's':
        if (!read_number(option->name, value, SECONDS_MAX, &number))
            return false;
        request->plan.seconds = (unsigned)number;
        return true;
    default:
        return read_number(option->name, value, UINT64_MAX, &request->plan.seed);
    }
}

/* Returns the exit status, or -1 to go on. */
static int read_arguments(int argc, char **argv, struct request *request)
{
    static const struct option options[] = {
        {"device", required_argument, NULL, 'd'}, {"seconds", required_argument, NULL, 's'}, {"seed", required_argument, NULL, 'r'},
        {"json", required_argument, NULL, 'j'},   {"prices", required_argument, NULL, 'p'},  {"first-use", no_argument, NULL, 'f'},
        {"help", no_argument, NULL, 'h'},     {0},
    };
    static char name[] = "cenote qualify";
    argv[0] = name; /* for the messages of getopt_long */
    for (;;) {
        int place = 0;
        int letter = getopt_long(argc, argv, "", options, &place);
        if (letter == -1)
            break;
        if (letter == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (letter == '?' || !set_option(request, &options[place], optarg))
            return EXIT_USAGE;
    }
    if (optind == argc)
        return -1;
    fprintf(stderr, "cenote qualify: \"%.40s\" is not an option\n", argv[optind]);
    return EXIT_USAGE;
}

/* ------------------------------------------------------------------------------------------------------------------- children */

struct child {
    pid_t     process;
    int       pipe;
    enum step begun;        /* the last step that the child began */
    bool      is_inside;    /* the child has not ended that step */
    bool      was_opened;   /* the child could use the card */
    bool      hangs;        /* no message came in time */
    char      refusal[QUALIFY_NOTE];    /* why the child could not use the card */
};

static bool child_start(struct child *child, const struct plan *plan, enum step first)
{
    int ends[2];
    *child = (struct child){.begun = first};
    if (pipe(ends))
        return false;
    child->process = fork();
    if (!child->process) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        steps_run(plan, first, ends[1]);
        _exit(EXIT_SUCCESS);
    }
    close(ends[1]);
    child->pipe = ends[0];
    return child->process > 0;
}

static void take_message(struct report *report, struct child *child, const struct message *m)
{
    switch (m->kind) {
    case CARD:
        report->card = m->u.card;
        child->was_opened = true;
        break;
    case REFUSED:
        memcpy(child->refusal, m->u.text, sizeof child->refusal);
        break;
    case BEGUN:
        child->begun = m->step;
        child->is_inside = true;
        break;
    case DONE:
        child->is_inside = false;
        report->steps[m->step].outcome = m->outcome;
        report->steps[m->step].cause = m->cause;
        memcpy(report->steps[m->step].note, m->u.text, sizeof report->steps[m->step].note);
        break;
    case PRICE_MEASURED:
        if (report->price_count < PRICE_ROWS)
            report->prices[report->price_count++] = m->u.price;
        break;
    case LAUNCHES_ALONE:
        report->launch_alone_ns = m->u.ns;
        break;
    case PROGRAMS:
        report->programs = m->u.programs;
    }
}

/* Waits for a message. False if the child has ended, or has sent nothing for too long. */
static bool child_receive(struct child *child, unsigned seconds, struct message *m)
{
    struct pollfd wait = {.fd = child->pipe, .events = POLLIN};
    int ready;
    do
        ready = poll(&wait, 1, (int)(seconds * 1000));
    while (ready < 0 && errno == EINTR);
    child->hangs = ready == 0;
    return ready > 0 && read(child->pipe, m, sizeof *m) == sizeof *m; /* no longer than PIPE_BUF, so whole or not at all */
}

/* Ends the child. If the child was inside a step, the step has failed. */
static void child_end(struct report *report, const struct child *child)
{
    int status = 0;
    kill(child->process, SIGKILL);
    while (waitpid(child->process, &status, 0) < 0 && errno == EINTR)
        ;
    close(child->pipe);
    if (!child->is_inside)
        return;
    report->steps[child->begun].outcome = FAILS;
    report->steps[child->begun].cause = DEATH;
    char *note = report->steps[child->begun].note;
    if (!child->hangs && WIFSIGNALED(status))
        snprintf(note, QUALIFY_NOTE, "signal %d ended the process", WTERMSIG(status));
    else
        snprintf(note, QUALIFY_NOTE, "%s", child->hangs ? "no answer" : "the process ended");
}

/* The next one that is tried, from `step` on. */
static enum step next_step(const struct report *report, enum step step)
{
    while (step < STEPS && !row_is_tried(report, step))
        step++;
    return step;
}

/* Runs the steps from `first` on in a child, which may end after any of them. False, with a message on stderr, if it cannot be started. */
static bool run_child(const struct plan *plan, struct report *report, enum step first, struct child *child)
{
    struct message m;
    struct plan child_plan = *plan;
    child_plan.aliases_off = !verdict_on_aliases(report);
    if (!child_start(child, &child_plan, first)) {
        fprintf(stderr, "cenote qualify: no process can be started: %s\n", strerror(errno));
        return false;
    }
    while (child_receive(child, plan->first_use ? FIRST_LIMIT : STEP_LIMIT + plan->seconds, &m))
        take_message(report, child, &m);
    child_end(report, child);
    if (!child->was_opened) {
        report->steps[first].outcome = FAILS;
        report->steps[first].cause = DEATH;
        memcpy(report->steps[first].note, child->refusal, sizeof child->refusal);
    }
    return true;
}

/* False, with a message on stderr, if no child could use the card. If the card is lost in a later step, that is a result. */
static bool run_steps(const struct plan *plan, struct report *report)
{
    for (enum step next = next_step(report, 0); next < STEPS;) {
        struct child child;
        struct crowd crowd = {0};
        bool is_ready = next != STEP_crowd || crowd_start(&crowd, plan, STEP_LIMIT * 1000);
        bool was_started = is_ready && run_child(plan, report, next, &child);
        crowd_end(&crowd);
        if (!is_ready) {
            report->steps[next].outcome = ABSENT;
            strcpy(report->steps[next].note, "other processes cannot use the card meanwhile");
        } else if (!was_started) {
            return false;
        } else if (!child.was_opened && !next) {
            fprintf(stderr, "cenote qualify: nothing can be tried: %s\n", *child.refusal ? child.refusal : "the driver did not start");
            return false;
        }
        if (plan->first_use && report->steps[child.begun].outcome == FAILS && report->steps[child.begun].cause != CONTENTS)
            break; /* what comes after it would say no more */
        next = next_step(report, is_ready ? child.begun + 1 : next + 1);
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct report report;
    struct request request = {.plan = {.seconds = 20, .seed = 1}};
    int status = read_arguments(argc, argv, &request);
    if (status >= 0)
        return status;
    report.is_first_use = request.plan.first_use;
    if (!run_steps(&request.plan, &report))
        return EXIT_NOT_TRIED;
    if (verdict_is_open(&report))
        return EXIT_NOT_TRIED;
    screen_print(&report);
    if ((request.json && !screen_write_json(&report, request.json)) || (request.prices && !screen_write_prices(&report, request.prices)))
        return EXIT_NOT_TRIED;
    static const int statuses[] = {[FIT] = EXIT_SUCCESS, [FIT_WITHOUT] = EXIT_FIT_WITHOUT, [USE_PLAIN] = EXIT_USE_PLAIN};
    return statuses[verdict_of(&report)];
}
