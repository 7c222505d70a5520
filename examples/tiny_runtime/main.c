/*
 * main.c: serves the same requests with memory from three providers, with a limit and without one, and prints two tables.
 *
 * The provider is an option of the pool, and nothing else of the program changes: pages that move; segments of a driver's pool, as
 * cudaMallocAsync has them; segments of cuMemAlloc, as most allocators keep them.
 */
#include "runtime.h"

#include <cenote/report.h>

#include <stdio.h>
#include <string.h>

#define LIMIT "128MiB"

static const struct { const char *option, *text; } providers[] = {
    {"vmm", "pages"},
    {"async", "a driver's pool"},
    {"plain", "cuMemAlloc"},
};
enum { PROVIDERS = sizeof providers / sizeof *providers };

struct result {
    struct outcome outcome;
    cenote_stats   stats;
    uint64_t       most_allocated[FAMILIES], most_reserved[FAMILIES];
};

static void note_groups(struct result *result, const struct runtime *r)
{
    cenote_row rows[FAMILIES];
    size_t count;
    DONE(cenote_pool_rows(r->pool, CENOTE_BY_GROUP, rows, FAMILIES, &count));
    must(count == FAMILIES, "each group has held something");
    for (size_t row = 0; row < count; row++)
        for (int i = 0; i < FAMILIES; i++)
            if (rows[row].group == r->group[i])
                result->most_allocated[i] = rows[row].allocated.peak;
    memcpy(result->most_reserved, r->most_reserved, sizeof r->most_reserved);
}

/* A server has less memory than it wants: pages are small, and free ones always move before others are created. */
static struct result run(const char *provider, const char *limit)
{
    struct result result;
    struct runtime runtime;
    cenote_options options;
    char conf[128];

    snprintf(conf, sizeof conf, "provider:%s,limit:%s,page_mib:2,harvest_budget:off", provider, limit);
    DONE(cenote_options_default(&options));
    DONE(cenote_options_parse(&options, conf));
    runtime_open(&runtime, &options);
    result.outcome = serve(&runtime);
    DONE(cenote_pool_stats(runtime.pool, &result.stats));
    note_groups(&result, &runtime);
    runtime_close(&runtime);
    return result;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_line(const char *name, uint64_t allocated, uint64_t reserved)
{
    printf("%-15s  %10.1f MiB   %10.1f MiB\n", name, mib(allocated), mib(reserved));
}

static void print_groups(const struct result *r)
{
    printf("Pages, at most " LIMIT "\ngroup            most allocated    most reserved\n");
    for (int i = 0; i < FAMILIES; i++)
        print_line(family_name(i), r->most_allocated[i], r->most_reserved[i]);
    print_line("all", r->stats.allocated.peak, r->stats.reserved.peak);
}

static void print_providers(const struct result *unlimited, const struct result *limited)
{
    printf("\nNo limit\nmemory from      most allocated    most reserved\n");
    for (int i = 0; i < PROVIDERS; i++)
        print_line(providers[i].text, unlimited[i].stats.allocated.peak, unlimited[i].stats.reserved.peak);
    printf("\nAt most " LIMIT "\nmemory from      served   cancelled   refused   evicted   tokens prefilled again   steps\n");
    for (int i = 0; i < PROVIDERS; i++) {
        const struct outcome *o = &limited[i].outcome;
        printf("%-15s  %6d   %9d   %7d   %7d   %22d   %5d\n", providers[i].text, o->served, o->cancelled, o->refused, o->evictions, o->recomputed,
               o->steps);
    }
}

int main(void)
{
    struct result unlimited[PROVIDERS], limited[PROVIDERS];
    for (int i = 0; i < PROVIDERS; i++) {
        limited[i] = run(providers[i].option, LIMIT);
        unlimited[i] = run(providers[i].option, "0");
    }
    print_groups(&limited[0]);
    print_providers(unlimited, limited);
    return 0;
}
