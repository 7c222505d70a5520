/*
 * main.c: cenote-fuzz: which program would waste most?
 *
 * Searches for patterns of allocations, judges each on the simulated GPU, and prints a JSON object with the figures of the worst; writes it as a
 * trace that cenote replay and cenote view read.
 *
 * Exit status: 0 done, 1 a wrong argument, 2 a file that cannot be written or nothing found, 3 an allocator failed: the trace that did it is
 * in --out.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stats/text/quantity.h"
#include "tools/replay/models.h"
#include "tools/waste/climb.h"

enum { EXIT_USAGE = 1, EXIT_FILE = 2, EXIT_ALLOCATOR = 3 };

static const char usage[] =
    "usage: cenote-fuzz [OPTION...]\n"
    "Searches for the pattern of allocations that makes an allocator waste most: hold most beside what the pattern asks for, at one time, on a\n"
    "simulated GPU. Smallest is the least memory, beside the context, with which it gets through: there nothing is kept in case. CENOTE_CONF\n"
    "has options of cenote.\n"
    "  --allocator NAME    cenote (default), native, expandable; the last two are models\n"
    "  --patterns N        to try (default 6000); the same seed finds the same\n"
    "  --seed N            (default 1)\n"
    "  --live-limit SIZE   a pattern asks for at most so much at one time, and for half of it at least (default 1GiB)\n"
    "  --streams N         streams that it allocates on, 1 to 64 (default 2)\n"
    "  --capacity SIZE     memory of the simulated GPU (default 80GiB)\n"
    "  --out FILE          write the worst found there as a trace (gzip if it ends in .gz)\n";

static const struct choice {
    const char *name;
    replay_fn   play;
} allocators[] = {{"cenote", NULL}, {"native", play_native}, {"expandable", play_expandable}};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct request {
    struct search search;
    const char   *allocator, *out;
};

/* -------------------------------------------------------------------------------------------------------------------- arguments */

static const struct bound {
    const char *name;
    bool        is_bytes;
    uint64_t    least, most;
    size_t      at;             /* in struct request */
    const char *allowed;
} numbers[] = {
    {"patterns", false, 1, UINT32_MAX, offsetof(struct request, search.patterns_most), "1 or more"},
    {"seed", false, 0, UINT32_MAX, offsetof(struct request, search.seed), "a whole number"},
    {"streams", false, 1, 64, offsetof(struct request, search.bounds.streams), "1 to 64"},
    {"live-limit", true, 64ull << 20, 1ull << 40, offsetof(struct request, search.bounds.live), "64MiB to 1TiB"},
    {"capacity", true, 1ull << 30, 1ull << 40, offsetof(struct request, search.plan.capacity), "1GiB to 1TiB"},
};

static int refuse(const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "cenote-fuzz: --%s cannot be \"%s\": %s\n", option, value, allowed);
    return EXIT_USAGE;
}

static int set_number(struct request *request, const char *name, const char *value)
{
    const struct bound *n = numbers;
    while (strcmp(n->name, name))
        n++;
    uint64_t read, *into = (uint64_t *)((char *)request + n->at);
    if (!(n->is_bytes ? quantity_read_bytes : quantity_read_count)(value, &read) || read < n->least || read > n->most)
        return refuse(name, value, n->allowed);
    *into = read;
    return 0;
}

static int set_option(struct request *request, const char *name, int letter, const char *value)
{
    struct replay_plan *plan = &request->search.plan;
    switch (letter) {
    case 'a':
        for (size_t i = 0; i < COUNT(allocators); i++)
            if (!strcmp(value, allocators[i].name)) {
                request->allocator = allocators[i].name;
                plan->play = allocators[i].play;
                return 0;
            }
        return refuse(name, value, "cenote, native or expandable");
    case 'o':
        request->out = value;
        return 0;
    default:
        return set_number(request, name, value);
    }
}

/* -1: go on; else the exit status. */
static int read_arguments(int argc, char **argv, struct request *request)
{
    static const struct option options[] = {
        {"allocator", required_argument, NULL, 'a'}, {"out", required_argument, NULL, 'o'},     {"patterns", required_argument, NULL, 'n'},
        {"seed", required_argument, NULL, 'n'},      {"streams", required_argument, NULL, 'n'}, {"live-limit", required_argument, NULL, 'n'},
        {"capacity", required_argument, NULL, 'n'},  {"help", no_argument, NULL, 'h'},          {0},
    };
    int place = 0, letter, status;
    while ((letter = getopt_long(argc, argv, "", options, &place)) != -1) {
        if (letter == 'h')
            fputs(usage, stdout);
        if (letter == 'h' || letter == '?') /* getopt has printed an error */
            return letter == 'h' ? 0 : EXIT_USAGE;
        if ((status = set_option(request, options[place].name, letter, optarg)))
            return status;
    }
    const char *wrong = optind < argc ? "a trace is for cenote-replay"
                        : request->search.bounds.live > request->search.plan.capacity / 2
                            ? "--live-limit has to be at most half of --capacity, so that there is room for waste"
                            : NULL;
    if (wrong)
        fprintf(stderr, "cenote-fuzz: %s\n", wrong);
    return wrong ? EXIT_USAGE : -1;
}

/* ----------------------------------------------------------------------------------------------------------------------- figures */

/* The least memory without the context, to 1 %, with which the whole trace can be played; pages are as large as they were in `first`. */
static uint64_t smallest(const struct trace *trace, const struct replay_plan *plan, const struct replay_result *first)
{
    struct replay_plan tried = *plan;
    struct replay_result result;
    uint64_t context = replay_context_bytes(), bad = trace->live_peak - 1, good = first->reserved_peak;
    tried.options.page_mib = first->page_bytes >> 20;
    for (;; good += good / 8) {
        tried.capacity = good + context;
        if (tried.capacity >= plan->capacity)
            break;
        replay_run(trace, &tried, &result); /* the peak that was held is nearly always enough */
        if (!result.failed && !result.ooms)
            break;
    }
    while (good > bad && good - bad > good / 100) {
        tried.capacity = bad + (good - bad) / 2 + context;
        replay_run(trace, &tried, &result);
        *(!result.failed && !result.ooms ? &good : &bad) = tried.capacity - context;
    }
    return good;
}

static int print(const struct request *request)
{
    const struct search *s = &request->search;
    const struct trace *t = &s->trace;
    struct replay_result r;
    replay_run(t, &s->plan, &r);
    printf("{\"allocator\":\"%s\",\"seed\":%" PRIu64 ",\"patterns\":%" PRIu64 ",\"streams\":%" PRIu64 ",\"capacity_bytes\":%" PRIu64
           ",\"records\":%zu,\"live_peak_bytes\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64 ",\"live_then_bytes\":%" PRIu64
           ",\"smallest_bytes\":%" PRIu64 ",\"waste_percent\":%.1f}\n", request->allocator, s->seed, s->patterns, s->bounds.streams,
           s->plan.capacity, t->in_file, t->live_peak, r.reserved_peak, r.live_at_peak, smallest(t, &s->plan, &r), 100 * (s->waste - 1));
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------------------- working */

static int broken(const char *path)
{
    perror(path);
    return EXIT_FILE;
}

static bool write_trace(const char *path, const struct trace *trace)
{
    struct records_writer *writer = records_create(path);
    for (size_t i = 0; writer && i < trace->in_file; i++)
        records_write(writer, &trace->records[i]);
    return (writer && records_finish(writer)) || !broken(path);
}

static int search(struct request *request)
{
    struct search *s = &request->search;
    FILE *file = request->out ? fopen(request->out, "a") : NULL; /* an error should end the program now, not after the search */
    if (request->out && (!file || fclose(file)))
        return broken(request->out);
    bool is_well = climb(s);
    if (!is_well) {
        fprintf(stderr, "cenote-fuzz: %s failed: %s\n", request->allocator, s->result.message);
    } else if (s->waste == 0) {
        fprintf(stderr, "cenote-fuzz: no pattern of %" PRIu64 " asked for half of --live-limit; search longer\n", s->patterns);
        return EXIT_FILE;
    }
    if (request->out && !write_trace(request->out, &s->trace))
        return EXIT_FILE;
    return is_well ? print(request) : EXIT_ALLOCATOR;
}

int main(int argc, char **argv)
{
    struct request request = {
        .search = {.plan = {.capacity = 80ull << 30, .prices = "a100", .repeat = 1}, .bounds = {.live = 1ull << 30, .streams = 2}, .seed = 1,
                   .patterns_most = 6000}, .allocator = allocators[0].name};
    if (cenote_options_default(&request.search.plan.options)) {
        fprintf(stderr, "cenote-fuzz: %s\n", cenote_message());
        return EXIT_USAGE;
    }
    int status = read_arguments(argc, argv, &request);
    if (status < 0)
        status = search(&request);
    free(request.search.trace.records);
    return status;
}
