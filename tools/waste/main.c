/*
 * main.c: cenote-fuzz: which program would waste most?
 *
 * Searches for patterns of allocations, judges each on the simulated GPU, and prints the worst pattern: its phases, and the figures of each
 * allocator; writes it as a trace that cenote replay and cenote view read. If files are named, it judges those and does not search.
 *
 * Exit status: 0 done, 1 a wrong argument, 2 a broken file or one that cannot be written, 3 an allocator failed: the trace that did it is
 * in --out.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/common.h"
#include "stats/text/quantity.h"
#include "tools/waste/climb.h"
#include "tools/waste/curve.h"

enum { EXIT_USAGE = 1, EXIT_FILE = 2, EXIT_ALLOCATOR = 3 };

#define LIVE_LEAST (64ull << 20)   /* less would be a few pages */
#define CAPACITY_LEAST (1ull << 30) /* a context takes half of it */
#define CAPACITY_MAX (1ull << 40)
#define STREAMS_ROOM 64

static const char usage[] =
    "usage: cenote-fuzz [OPTION...]          searches for the pattern of allocations that wastes most\n"
    "       cenote-fuzz [OPTION...] FILE...  says what traces (plain or gzip) waste\n"
    "Waste is the most reserved at one time over the most asked for at one time, on a simulated GPU. \"Enough\" is the least memory,\n"
    "beside the context, with which it gets through: there nothing is kept in case.\n"
    "  --allocator NAME    cenote (default), native, expandable, async; the last three are models\n"
    "  --seconds N         search so long (default 60)\n"
    "  --patterns N        or until so many were tried: then the same seed finds the same\n"
    "  --seed N            (default 1)\n"
    "  --live-limit SIZE   a pattern asks for at most so much at one time, and for half of it at least (default 4GiB)\n"
    "  --streams N         streams that it allocates on, 1 to 64 (default 2)\n"
    "  --capacity SIZE     memory of the simulated GPU (default 80GiB)\n"
    "  --gpu-lag PART      the GPU runs behind by that part of the pattern, as 0.05 or 5% (default 0)\n"
    "  --prices LIST       what driver calls cost: a100 (default), h100, h200, contended, or a file of cenote-qualify --prices\n"
    "  --options TEXT      options of cenote, as in CENOTE_CONF, which is read first: page_mib:2,harvest_budget:off\n"
    "  --out FILE          write the worst found there as a trace (gzip if it ends in .gz), minimised\n"
    "  --json              one JSON object for each pattern or file\n"
    "  --curve FILE        no figures: write there what --allocator holds after each record of one trace, and where it put the block\n"
    "  --recorded N        that trace is what a card held, and its first N records set up what it held before (tools/waste/torch.c)\n"
    "  --ties NAME         which of equal free blocks PyTorch takes: address (default, until 2.11), piece (2.12), segment (since 2.13)\n";

static const char *const ties_names[] = {[TIES_ADDRESS] = "address", [TIES_PIECE] = "piece", [TIES_SEGMENT] = "segment"};

struct request {
    struct search search;
    const char   *out, *curve;
    bool          json;
};

static int refuse(const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "cenote-fuzz: --%s cannot be \"%s\": %s\n", option, value, allowed);
    return EXIT_USAGE;
}

/* -------------------------------------------------------------------------------------------------------------------- arguments */

/* All of `value` is a whole number between the two. */
static bool read_number(const char *value, uint64_t least, uint64_t most, uint64_t *number)
{
    return quantity_read_count(value, number) && *number >= least && *number <= most;
}

static bool read_bytes(const char *value, uint64_t least, uint64_t most, uint64_t *bytes)
{
    return quantity_read_bytes(value, bytes) && *bytes >= least && *bytes <= most;
}

static int set_option(struct request *request, const char *name, int letter, const char *value)
{
    struct search *s = &request->search;
    uint64_t number;
    switch (letter) {
    case 'a':
        s->allocator = allocator_named(value);
        return s->allocator ? 0 : refuse(name, value, "cenote, native, expandable or async");
    case 's':
        if (!read_number(value, 1, 1000000, &number))
            return refuse(name, value, "1 to 1000000");
        s->seconds = (double)number;
        return 0;
    case 'p':
        return read_number(value, 1, UINT32_MAX, &s->patterns_most) ? 0 : refuse(name, value, "1 or more");
    case 'e':
        return read_number(value, 0, UINT32_MAX, &s->seed) ? 0 : refuse(name, value, "a whole number");
    case 'l':
        return read_bytes(value, LIVE_LEAST, CAPACITY_MAX, &s->bounds.live) ? 0 : refuse(name, value, "64MiB to 1TiB");
    case 'n':
        if (!read_number(value, 1, STREAMS_ROOM, &number))
            return refuse(name, value, "1 to 64");
        s->bounds.streams = (uint32_t)number;
        return 0;
    case 'c':
        return read_bytes(value, CAPACITY_LEAST, CAPACITY_MAX, &s->plan.capacity) ? 0 : refuse(name, value, "1GiB to 1TiB");
    case 'g':
        return quantity_read_share(value, &s->plan.lag) && s->plan.lag <= 1000 ? 0 : refuse(name, value, "a part, as 0.05 or 5%");
    case 'r':
        return replay_set_prices(&s->plan, "cenote-fuzz", value) ? 0 : EXIT_USAGE;
    case 'o':
        if (!cenote_options_parse(&s->plan.options, value))
            return 0;
        fprintf(stderr, "cenote-fuzz: %s\n", cenote_message());
        return EXIT_USAGE;
    case 'w':
        request->out = value;
        return 0;
    case 'u':
        request->curve = value;
        return 0;
    case 'd':
        s->plan.recorded = read_number(value, 0, TRACE_RECORDS_MAX, &number);
        s->plan.laid = s->plan.recorded ? number : 0;
        return s->plan.recorded ? 0 : refuse(name, value, "a number of records");
    case 't':
        for (s->plan.ties = TIES_ADDRESS; s->plan.ties <= TIES_SEGMENT; s->plan.ties++)
            if (!strcmp(value, ties_names[s->plan.ties]))
                return 0;
        return refuse(name, value, "address, piece or segment");
    default:
        request->json = true;
        return 0;
    }
}

/* Leaves optind at the first file. -1: go on; else the exit status. */
static int read_arguments(int argc, char **argv, struct request *request)
{
    static const struct option options[] = {
        {"allocator", required_argument, NULL, 'a'},  {"seconds", required_argument, NULL, 's'}, {"patterns", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 'e'},       {"streams", required_argument, NULL, 'n'}, {"live-limit", required_argument, NULL, 'l'},
        {"capacity", required_argument, NULL, 'c'},   {"gpu-lag", required_argument, NULL, 'g'}, {"options", required_argument, NULL, 'o'},
        {"out", required_argument, NULL, 'w'},        {"prices", required_argument, NULL, 'r'},  {"curve", required_argument, NULL, 'u'},
        {"recorded", required_argument, NULL, 'd'},   {"ties", required_argument, NULL, 't'},    {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},             {0},
    };
    for (;;) {
        int place = 0;
        int letter = getopt_long(argc, argv, "", options, &place);
        if (letter == -1)
            break;
        if (letter == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (letter == '?') /* getopt has printed an error */
            return EXIT_USAGE;
        int status = set_option(request, options[place].name, letter, optarg);
        if (status)
            return status;
    }
    const struct search *s = &request->search;
    if (s->bounds.live > s->plan.capacity / 2) {
        fprintf(stderr, "cenote-fuzz: --live-limit has to be at most half of --capacity, so that there is room for waste\n");
        return EXIT_USAGE;
    }
    if (optind < argc && request->out) {
        fprintf(stderr, "cenote-fuzz: --out is for a search, not for files\n");
        return EXIT_USAGE;
    }
    if (request->curve ? optind + 1 != argc : s->plan.recorded) {
        fprintf(stderr, "cenote-fuzz: --curve is for one file, and --recorded for --curve\n");
        return EXIT_USAGE;
    }
    return -1;
}

/* --------------------------------------------------------------------------------------------------------------------- printing */

static double excess(const struct trace *trace, const struct replay_result *result)
{
    return trace->live_peak ? 100 * ((double)result->reserved_peak / (double)trace->live_peak - 1) : 0;
}

static void print_row(const struct allocator *allocator, const struct trace *trace, const struct replay_result *r, uint64_t smallest)
{
    char reserved[QUANTITY_TEXT], then[QUANTITY_TEXT], card[QUANTITY_TEXT];
    printf("  %-10s reserved %9s  %+8.1f %%   asked for then %9s   enough would be %9s  %+8.1f %%\n", allocator->name,
           quantity_write_bytes(reserved, r->reserved_peak), excess(trace, r), quantity_write_bytes(then, r->live_at_peak),
           quantity_write_bytes(card, smallest), 100 * ((double)smallest / (double)trace->live_peak - 1));
}

static void print_json(const char *name, const struct trace *t, const struct request *request)
{
    const struct search *s = &request->search;
    printf("{\"trace\":\"");
    for (const char *c = name; *c; c++)
        putchar(*c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '?' : *c);
    printf("\",\"allocator\":\"%s\",\"seed\":%" PRIu64 ",\"patterns\":%" PRIu64 ",\"seconds\":%.0f,\"streams\":%" PRIu32
           ",\"capacity_bytes\":%" PRIu64 ",\"lag\":%g,\"records\":%zu,\"live_peak_bytes\":%" PRIu64, s->allocator->name, s->seed, s->patterns,
           s->took, s->bounds.streams, s->plan.capacity, s->plan.lag, t->in_file, t->live_peak);
}

/* Prints the figures of each allocator for a trace. EXIT_ALLOCATOR if one fails. */
static int print_all(const struct request *request, const char *name, const struct trace *trace)
{
    char live[QUANTITY_TEXT];
    if (request->json)
        print_json(name, trace, request);
    else
        printf("%s: %zu records, at most %s asked for at one time\n", name, trace->in_file, quantity_write_bytes(live, trace->live_peak));
    for (size_t i = 0; i < allocators_count; i++) {
        const struct allocator *a = &allocators[i];
        struct replay_result result;
        judge(a, trace, &request->search.plan, &result);
        if (result.failed) {
            fprintf(stderr, "%scenote-fuzz: %s: %s\n", request->json ? "\n" : "", a->name, result.message);
            return EXIT_ALLOCATOR;
        }
        uint64_t smallest = trace->live_peak ? judge_smallest(a, trace, &request->search.plan) : 0;
        if (request->json)
            printf(",\"%s_reserved_bytes\":%" PRIu64 ",\"%s_live_then_bytes\":%" PRIu64 ",\"%s_smallest_bytes\":%" PRIu64
                   ",\"%s_waste_percent\":%.1f", a->name, result.reserved_peak, a->name, result.live_at_peak, a->name, smallest, a->name,
                   excess(trace, &result));
        else
            print_row(a, trace, &result, smallest);
    }
    if (request->json)
        printf("}\n");
    return 0;
}

static bool write_trace(const char *path, const struct trace *trace)
{
    struct records_writer *writer = records_create(path);
    for (size_t i = 0; writer && i < trace->in_file; i++)
        records_write(writer, &trace->records[i]);
    if (writer && records_finish(writer))
        return true;
    perror(path);
    return false;
}

/* Errors that should end the program now, not after the search. */
static bool can_write(const char *path)
{
    bool was_there = !access(path, F_OK);
    FILE *file = fopen(path, "ab");
    if (!file)
        perror(path);
    if (file && !fclose(file) && !was_there)
        unlink(path);
    return file != NULL;
}

/* ----------------------------------------------------------------------------------------------------------------------- working */

static int write_curve(const struct request *request, const struct trace *trace)
{
    struct replay_result result;
    if (!curve_write(request->curve, request->search.allocator, trace, &request->search.plan, &result)) {
        perror(request->curve);
        return EXIT_FILE;
    }
    if (result.failed) {
        fprintf(stderr, "cenote-fuzz: %s: %s\n", request->search.allocator->name, result.message);
        return EXIT_ALLOCATOR;
    }
    if (result.ooms)
        fprintf(stderr, "cenote-fuzz: %s ran out of memory; --capacity is too small for this trace\n", request->search.allocator->name);
    return result.ooms ? EXIT_ALLOCATOR : 0;
}

static int judge_files(struct request *request, int argc, char **argv)
{
    int status = 0;
    for (; optind < argc && !status; optind++) {
        struct trace trace;
        if (!trace_load(&trace, argv[optind]))
            return EXIT_FILE;
        if (trace.devices > 1) {
            fprintf(stderr, "%s: a trace of %" PRIu32 " devices; the models know one\n", argv[optind], trace.devices);
            status = EXIT_FILE;
        } else if (request->curve) {
            status = write_curve(request, &trace);
        } else {
            status = print_all(request, argv[optind], &trace);
        }
        trace_close(&trace);
    }
    return status;
}

/* A trace that shows a defect of an allocator is kept whole. */
static int report_failure(const struct request *request)
{
    const struct search *s = &request->search;
    const char *path = request->out ? request->out : "cenote-fuzz-failure.csv";
    fprintf(stderr, "cenote-fuzz: %s failed: %s\n", s->allocator->name, s->result.message);
    if (write_trace(path, &s->trace))
        fprintf(stderr, "cenote-fuzz: the trace that did it is %s\n", path);
    return EXIT_ALLOCATOR;
}

static int search(struct request *request)
{
    struct search *s = &request->search;
    if (request->out && !can_write(request->out))
        return EXIT_FILE;
    s->shows = isatty(STDERR_FILENO);
    if (!climb(s))
        return report_failure(request);
    if (s->waste == 0) {
        fprintf(stderr, "cenote-fuzz: no pattern of %" PRIu64 " asked for half of --live-limit; search longer\n", s->patterns);
        return EXIT_FILE;
    }
    if (!request->json) {
        printf("The worst for %s of %" PRIu64 " patterns in %.0f s (seed %" PRIu64 ", simulated GPU):\n", s->allocator->name, s->patterns,
               s->took, s->seed);
        pattern_print(stdout, &s->worst, &s->bounds);
    }
    int status = print_all(request, "as found", &s->trace);
    if (status || !request->out)
        return status;
    fflush(stdout);
    if (!write_trace(request->out, &s->trace)) /* the whole trace first: the user may end the program while it shrinks */
        return EXIT_FILE;
    if (!shrink(s))
        return report_failure(request);
    if (!write_trace(request->out, &s->trace))
        return EXIT_FILE;
    return print_all(request, request->out, &s->trace);
}

int main(int argc, char **argv)
{
    struct request request = {
        .search = {.allocator = &allocators[0], .plan = {.capacity = 80ull << 30, .prices = "a100", .repeat = 1},
                   .bounds = {.live = 4ull << 30, .streams = 2}, .seed = 1, .seconds = 60}};
    if (cenote_options_default(&request.search.plan.options)) {
        fprintf(stderr, "cenote-fuzz: %s\n", cenote_message());
        return EXIT_USAGE;
    }
    int status = read_arguments(argc, argv, &request);
    if (status < 0)
        status = optind < argc ? judge_files(&request, argc, argv) : search(&request);
    if (request.search.trace.records)
        trace_close(&request.search.trace);
    return status;
}
