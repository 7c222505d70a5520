/*
 * main.c: cenote-replay: what would cenote have reserved for this program?
 *
 * Replays traces on the simulated GPU and prints a line for each: a table, or JSON objects. If an option changed the harvest budget, every trace
 * is replayed twice, so that the line has its peak under the default budget, too.
 *
 * Exit status: 0 done, 1 a wrong argument, 2 a broken file, 3 a replay that failed.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "stats/text/options.h"
#include "stats/text/quantity.h"
#include "tools/replay/curve.h"
#include "tools/replay/models.h"
#include "tools/replay/replay.h"

enum { EXIT_USAGE = 1, EXIT_BROKEN_FILE = 2, EXIT_FAILED = 3 };

static const char usage[] =
    "usage: cenote-replay [OPTION...] FILE...\n"
    "Replays allocation traces (plain or gzip) on a simulated GPU and prints what cenote reserves.\n"
    "  --repeat N           so many times, one after the other, in one pool (default 1)\n"
    "  --capacity SIZE      memory of each simulated device (default 80GiB)\n"
    "  --gpu-lag PART       the GPU runs behind by that part of the trace's records, as 0.05 or 5%; or by a step (default 0)\n"
    "  --under NAME,...     cenote (default), native, expandable; the last two are models of PyTorch's allocator\n"
    "  --page-mib N         option page_mib of the pool; this and the next two may also be set by CENOTE_CONF\n"
    "  --provider NAME      option provider\n"
    "  --harvest-budget X   option harvest_budget\n"
    "  --prices LIST        what driver calls cost: a100 (default), h100, h200, contended, gh200, or a file of cenote-qualify --prices\n"
    "  --curve FILE         no figures: write there what one allocator holds after each record of one trace, and where it put the block\n"
    "  --recorded N         that trace is what a card held, and its first N records set up what it held before (tools/replay/torch.c)\n"
    "  --ties NAME          which of equal free blocks PyTorch takes: address (default, until 2.11), piece (2.12), segment (since 2.13)\n"
    "  --json               one JSON object a line\n";

static const struct allocator {
    const char *name;
    replay_fn   play;
} allocators[] = {{"cenote", NULL}, {"native", play_native}, {"expandable", play_expandable}};

#define ALLOCATORS (sizeof(allocators) / sizeof(allocators[0]))

struct request {
    struct replay_plan plan;
    const char        *lag;     /* as it was given */
    const char        *curve;
    bool               under[ALLOCATORS];
    bool               json;
};

/* One line of output. */
struct line {
    const struct request   *request;
    const struct allocator *allocator;
    const char             *path;
    const struct trace     *trace;
    uint64_t                default_peak, pending_peak;
};

static int refuse(const char *option, const char *value)
{
    fprintf(stderr, "cenote-replay: --%s cannot be \"%s\"\n%s", option, value, usage);
    return EXIT_USAGE;
}

/* An option of the pool, given on the command line: same names, same values, same messages. */
static int set_pool_option(struct request *request, const char *name, const char *value)
{
    char conf[128];
    if ((size_t)snprintf(conf, sizeof(conf), "%s:%s", name, value) >= sizeof(conf))
        return refuse(name, value);
    if (!cenote_options_parse(&request->plan.options, conf))
        return 0;
    fprintf(stderr, "cenote-replay: %s\n", cenote_message());
    return EXIT_USAGE;
}

static bool set_under(struct request *request, const char *value)
{
    char names[64], *rest;
    memset(request->under, 0, sizeof(request->under));
    if ((size_t)snprintf(names, sizeof(names), "%s", value) >= sizeof(names))
        return false;
    size_t found = 0;
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        for (found = 0; found < ALLOCATORS && strcmp(name, allocators[found].name); found++)
            ;
        if (found == ALLOCATORS)
            return false;
        request->under[found] = true;
    }
    return *names;
}

static bool set_lag(struct request *request, const char *value)
{
    struct replay_plan *plan = &request->plan;
    request->lag = value;
    plan->lag = 0;
    plan->step = !strcmp(value, "step");
    return plan->step || (quantity_read_share(value, &plan->lag) && plan->lag <= 1000);
}

static bool set_ties(struct replay_plan *plan, const char *value)
{
    static const char *const names[] = {[TIES_ADDRESS] = "address", [TIES_PIECE] = "piece", [TIES_SEGMENT] = "segment"};
    for (plan->ties = TIES_ADDRESS; plan->ties <= TIES_SEGMENT; plan->ties++)
        if (!strcmp(value, names[plan->ties]))
            return true;
    return false;
}

static int set_option(struct request *request, const struct option *option, const char *value)
{
    struct replay_plan *plan = &request->plan;
    uint64_t count;
    switch (option->val) {
    case 'r':
        if (!quantity_read_count(value, &count) || count < 1 || count > UINT32_MAX)
            return refuse(option->name, value);
        plan->repeat = (uint32_t)count;
        return 0;
    case 'c':
        return quantity_read_bytes(value, &plan->capacity) ? 0 : refuse(option->name, value);
    case 'l':
        return set_lag(request, value) ? 0 : refuse(option->name, value);
    case 'u':
        return set_under(request, value) ? 0 : refuse(option->name, value);
    case 'm':
        return set_pool_option(request, "page_mib", value);
    case 'p':
        return set_pool_option(request, "provider", value);
    case 'b':
        return set_pool_option(request, "harvest_budget", value);
    case 'f':
        return replay_set_prices(plan, "cenote-replay", value) ? 0 : EXIT_USAGE;
    case 'd':
        plan->recorded = quantity_read_count(value, &count) && count <= TRACE_RECORDS_MAX;
        plan->laid = count;
        return plan->recorded ? 0 : refuse(option->name, value);
    case 't':
        return set_ties(plan, value) ? 0 : refuse(option->name, value);
    case 'w':
        request->curve = value;
        return 0;
    default:
        request->json = true;
        return 0;
    }
}

/* Leaves optind at the first file. -1: go on; else the exit status. */
static int read_arguments(int argc, char **argv, struct request *request)
{
    static const struct option options[] = {
        {"repeat", required_argument, NULL, 'r'},   {"capacity", required_argument, NULL, 'c'},
        {"gpu-lag", required_argument, NULL, 'l'},  {"page-mib", required_argument, NULL, 'm'},
        {"provider", required_argument, NULL, 'p'}, {"harvest-budget", required_argument, NULL, 'b'},
        {"prices", required_argument, NULL, 'f'},   {"json", no_argument, NULL, 'j'},
        {"under", required_argument, NULL, 'u'},    {"curve", required_argument, NULL, 'w'},
        {"recorded", required_argument, NULL, 'd'}, {"ties", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},
        {0},
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
        if (letter == '?') {
            fputs(usage, stderr);
            return EXIT_USAGE;
        }
        int status = set_option(request, &options[place], optarg);
        if (status)
            return status;
    }
    size_t under = 0;
    for (size_t i = 0; i < ALLOCATORS; i++)
        under += request->under[i];
    const char *wrong = optind == argc                                          ? "no trace was named"
                        : request->curve && (optind + 1 != argc || under != 1) ? "--curve is for one trace and one allocator"
                        : request->plan.recorded && !request->curve            ? "--recorded is for --curve"
                                                                               : NULL;
    if (!wrong)
        return -1;
    fprintf(stderr, "cenote-replay: %s\n%s", wrong, usage);
    return EXIT_USAGE;
}

/* ------------------------------------------------------------------------------------------------------------------- printing */

/* The name of a file without its folder and endings. */
static void name_of(const char *path, char name[64])
{
    const char *slash = strrchr(path, '/');
    snprintf(name, 64, "%s", slash ? slash + 1 : path);
    char *ending = strstr(name, ".csv");
    if (ending)
        *ending = 0;
}

static void print_split(const struct driver_split *s)
{
    printf(",\"driver_first_split\":{\"create_ns\":%" PRIu64 ",\"map_ns\":%" PRIu64 ",\"access_ns\":%" PRIu64 ",\"unmap_ns\":%" PRIu64
           ",\"release_ns\":%" PRIu64 ",\"pages_created\":%" PRIu64 ",\"pages_moved\":%" PRIu64 "}",
           s->create_ns, s->map_ns, s->access_ns, s->unmap_ns, s->release_ns, s->pages_created, s->pages_moved);
}

static void print_json(const struct line *line, const struct replay_result *r)
{
    const struct trace *t = line->trace;
    char name[64];
    name_of(line->path, name);
    for (char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = '?';
    printf("{\"trace\":\"%s\",\"records\":%zu,\"live_peak_bytes\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64
           ",\"reserved_peak_default_budget_bytes\":%" PRIu64 ",\"address_peak_bytes\":%" PRIu64 ",\"driver_calls_first\":%" PRIu64
           ",\"driver_calls_last\":%" PRIu64 ",\"driver_calls_other\":%" PRIu64 ",\"waits\":%" PRIu64 ",\"ooms\":%" PRIu64
           ",\"metadata_bytes\":%" PRIu64 ",\"driver_ns\":%" PRIu64 ",\"seconds\":%.6f,\"under\":\"%s\",\"lag\":\"%s\""
           ",\"pending_peak_bytes\":%" PRIu64
           ",\"driver_first_ns\":%" PRIu64 ",\"driver_last_ns\":%" PRIu64 ",\"pace\":\"%s\""
           ",\"orders_first\":%" PRIu64 ",\"orders_last\":%" PRIu64,
           name, t->in_file, t->live_peak, r->reserved_peak, line->default_peak, r->address_peak, r->calls_first, r->calls_last,
           r->calls_other, r->waits, r->ooms, r->metadata, r->driver_ns, r->seconds, line->allocator->name, line->request->lag,
           line->pending_peak, r->driver_first_ns, r->driver_last_ns, t->has_times ? "trace" : "assumed",
           r->orders_first, r->orders_last);
    print_split(&r->first);
    printf("}\n");
}

static void print_head(void)
{
    printf("Simulated GPU. Reserved is the peak of physical memory, and how far it lies above the peak of live bytes.\n");
    printf("%-24s %8s %9s %9s %8s %16s %9s %9s %9s %9s %6s %5s %9s %8s\n", "trace", "records", "live", "reserved", "", "default budget",
           "addresses", "calls 1st", "last", "other", "waits", "ooms", "driver s", "cpu s");
}

static double excess(uint64_t reserved, uint64_t live)
{
    return live ? 100.0 * ((double)reserved / (double)live - 1) : 0;
}

static void print_row(const struct line *line, const struct replay_result *r)
{
    const struct trace *t = line->trace;
    char name[64], live[QUANTITY_TEXT], reserved[QUANTITY_TEXT], addresses[QUANTITY_TEXT];
    name_of(line->path, name);
    if (line->allocator->play)
        snprintf(name + strlen(name), sizeof(name) - strlen(name), ", %s", line->allocator->name);
    printf("%-24s %8zu %9s %9s %+7.2f%% %+15.2f%% %9s %9" PRIu64 " %9" PRIu64 " %9" PRIu64 " %9" PRIu64 " %6" PRIu64 " %5.3f %8.3f\n",
           name, t->in_file, quantity_write_bytes(live, t->live_peak), quantity_write_bytes(reserved, r->reserved_peak),
           excess(r->reserved_peak, t->live_peak), excess(line->default_peak, t->live_peak), quantity_write_bytes(addresses, r->address_peak),
           r->calls_first, r->calls_last, r->calls_other, r->waits, r->ooms, (double)r->driver_ns / 1e9, r->seconds);
}

/* The peak under the default harvest budget. */
static int replay_both(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result, uint64_t *default_peak)
{
    cenote_options presets;
    struct replay_plan other = *plan;
    struct replay_result beside;
    options_presets(&presets);
    replay_run(trace, plan, result);
    *default_peak = result->reserved_peak;
    other.options.harvest_budget = presets.harvest_budget;
    if (result->failed || plan->options.harvest_budget == other.options.harvest_budget)
        return result->failed;
    replay_run(trace, &other, &beside);
    *default_peak = beside.reserved_peak;
    if (beside.failed)
        *result = beside;
    return result->failed;
}

/* The exit status. */
static int replay_under(const struct request *request, struct line *line)
{
    struct replay_plan plan = request->plan;
    struct replay_result result;
    plan.play = line->allocator->play;
    if (plan.play && line->trace->devices > 1) {
        fprintf(stderr, "%s: a trace of %" PRIu32 " devices; the models know one\n", line->path, line->trace->devices);
        return EXIT_BROKEN_FILE;
    }
    if (request->curve) {
        if (!curve_write(request->curve, line->trace, &plan, &result)) {
            perror(request->curve);
            return EXIT_BROKEN_FILE;
        }
        if (!result.failed && !result.ooms)
            return 0;
        fprintf(stderr, "%s: %s\n", line->path, result.failed ? result.message : "memory ran out; --capacity is too small for this trace");
        return EXIT_FAILED;
    }
    if (plan.play) {
        replay_run(line->trace, &plan, &result);
        line->default_peak = result.reserved_peak;
    } else {
        replay_both(line->trace, &plan, &result, &line->default_peak);
    }
    if (result.failed) {
        fprintf(stderr, "%s: %s\n", line->path, result.message);
        return EXIT_FAILED;
    }
    (request->json ? print_json : print_row)(line, &result);
    fflush(stdout);
    return 0;
}

static int replay_file(const struct request *request, const char *path)
{
    struct trace trace;
    if (!trace_load(&trace, path))
        return EXIT_BROKEN_FILE;
    struct line line = {.request = request, .path = path, .trace = &trace};
    line.pending_peak = trace_pending_peak(&trace, replay_lag(&request->plan, &trace), request->plan.repeat);
    int status = 0;
    for (size_t i = 0; i < ALLOCATORS && !status; i++) {
        line.allocator = &allocators[i];
        status = request->under[i] ? replay_under(request, &line) : 0;
    }
    trace_close(&trace);
    return status;
}

int main(int argc, char **argv)
{
    struct request request = {.plan = {.capacity = 80ull << 30, .prices = "a100", .repeat = 1}, .lag = "0", .under = {true}};
    if (cenote_options_default(&request.plan.options)) {
        fprintf(stderr, "cenote-replay: %s\n", cenote_message());
        return EXIT_USAGE;
    }
    int status = read_arguments(argc, argv, &request);
    if (status >= 0)
        return status;
    if (!request.json && !request.curve)
        print_head();
    for (status = 0; optind < argc && !status; optind++)
        status = replay_file(&request, argv[optind]);
    return status;
}
