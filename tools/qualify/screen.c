/* screen.c: what the parent writes: the screen, the JSON file, the file of prices. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "stats/text/quantity.h"
#include "tools/qualify/qualify.h"

/* The file of prices has those of runs of so many pages of this size, the default of an 80 GB card; chosen. */
#define PRICES_OF_RUN 8u
#define PRICES_OF_PAGE (8ull << 20)

static const char *const verdicts[] = {[FIT] = "fit", [FIT_WITHOUT] = "fit without", [USE_PLAIN] = "use provider:plain"};
static const char *const outcomes[] = {[NOT_RUN] = "not run", [HOLDS] = "holds", [FAILS] = "fails", [ABSENT] = "absent"};

/* --- the screen */

static void print_step(const struct report *report, enum step step)
{
    static const char *const texts[] = {[NOT_RUN] = "?", [HOLDS] = "ok", [FAILS] = "FAILS", [ABSENT] = "none"};
    const char *note = report->steps[step].note;
    char rule[16] = "";
    if (rows[step].rule)
        snprintf(rule, sizeof rule, "rule %d", rows[step].rule);
    bool is_fact = rows[step].weight == TOLD && report->steps[step].outcome == HOLDS;
    printf("  %-5s  %-6s  %s%s%s\n", is_fact ? "" : texts[report->steps[step].outcome], rule, rows[step].sentence, *note ? ": " : "", note);
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void print_prices(const struct report *report)
{
    if (!report->price_count)
        return;
    printf("\n  us a page       create    map  access  unmap  release\n");
    for (unsigned i = 0; i < report->price_count; i++) {
        const struct price_row *p = &report->prices[i];
        char beside[40] = "";
        if (p->beside == LAUNCHES)
            snprintf(beside, sizeof beside, "   while launching; longest launch %.1f", us(p->launch_ns));
        else if (p->beside == PROCESSES)
            snprintf(beside, sizeof beside, "   beside %d other processes", CROWD);
        printf("  %3" PRIu64 " MiB x %-6u %8.1f %6.1f %7.1f %6.1f %8.1f%s\n", p->page >> 20, p->run, us(p->ns[PRICE_cuMemCreate]),
               us(p->ns[PRICE_cuMemMap]), us(p->ns[PRICE_cuMemSetAccess]), us(p->ns[PRICE_cuMemUnmap]), us(p->ns[PRICE_cuMemRelease]), beside);
    }
    printf("  longest launch while nothing else calls the driver: %.1f us\n", us(report->launch_alone_ns));
}

static void print_verdict(const struct report *report)
{
    printf("verdict: %s", verdicts[verdict_of(report)]);
    const char *before = verdict_of(report) == USE_PLAIN ? " (CENOTE_CONF=provider:plain); not possible: " : " ";
    for (enum step step = 0; step < STEPS; step++) {
        if (!row_is_first_without(report, step))
            continue;
        printf("%s%s", before, rows[step].without);
        before = "; ";
    }
    printf("\n\n");
}

/* The verdict comes first: it is what a user asks for. */
void screen_print(const struct report *report)
{
    char bytes[QUANTITY_TEXT];
    const struct card_facts *card = &report->card;
    print_verdict(report);
    printf("%s, %s, compute capability %d.%d, driver of CUDA %d.%d\n\n", card->name, quantity_write_bytes(bytes, card->bytes), card->major,
           card->minor, card->driver_version / 1000, card->driver_version % 1000 / 10);
    for (enum step step = 0; step < STEPS; step++)
        if (row_is_tried(report, step))
            print_step(report, step);
    print_prices(report);
    const struct programs_result *done = &report->programs;
    if (done->programs)
        printf("\n  %" PRIu64 " random program%s, %" PRIu64 " blocks, %s written and read back\n", done->programs, done->programs == 1 ? "" : "s",
           done->blocks, quantity_write_bytes(bytes, done->bytes));
}

/* --- the files */

static FILE *open_file(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        fprintf(stderr, "cenote qualify: %s cannot be written: %s\n", path, strerror(errno));
    return file;
}

static bool close_file(FILE *file, const char *path)
{
    bool failed = ferror(file);
    if (fclose(file) || failed)
        fprintf(stderr, "cenote qualify: %s cannot be written\n", path);
    else
        return true;
    return false;
}

static void write_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
    fputc('"', file);
}

static void write_experiments(FILE *file, const struct report *report)
{
    for (enum step step = 0; step < STEPS; step++) {
        fprintf(file, "%s\n  {\"name\": \"%s\", \"rule\": %d, \"outcome\": \"%s\", \"sentence\": ", step ? "," : "", rows[step].name, rows[step].rule,
                outcomes[report->steps[step].outcome]);
        write_string(file, rows[step].sentence);
        fprintf(file, ", \"note\": ");
        write_string(file, report->steps[step].note);
        fprintf(file, "}");
    }
}

static const char *const besides[] = {[ALONE] = "nothing", [LAUNCHES] = "launches", [PROCESSES] = "processes"};

static void write_prices(FILE *file, const struct report *report)
{
    for (unsigned i = 0; i < report->price_count; i++) {
        const struct price_row *p = &report->prices[i];
        fprintf(file, "%s\n  {\"page_bytes\": %" PRIu64 ", \"run\": %u, \"beside\": \"%s\"", i ? "," : "", p->page, p->run, besides[p->beside]);
        if (p->beside != PROCESSES)
            fprintf(file, ", \"longest_launch_ns\": %" PRIu64, p->beside ? p->launch_ns : report->launch_alone_ns);
        for (enum price price = 0; price < PRICES; price++)
            fprintf(file, ", \"%s\": %" PRIu64, price_name(price), p->ns[price]);
        fprintf(file, "}");
    }
}

bool screen_write_json(const struct report *report, const char *path)
{
    FILE *file = open_file(path);
    const char *between = "";
    if (!file)
        return false;
    const struct card_facts *card = &report->card;
    fprintf(file, "{\"card\": ");
    write_string(file, card->name);
    fprintf(file, ", \"bytes\": %" PRIu64 ", \"compute_capability\": \"%d.%d\", \"driver\": %d,\n \"verdict\": \"%s\", \"without\": [", card->bytes,
            card->major, card->minor, card->driver_version, verdicts[verdict_of(report)]);
    for (enum step step = 0; step < STEPS; step++) {
        if (!row_is_first_without(report, step))
            continue;
        fprintf(file, "%s", between);
        write_string(file, rows[step].without);
        between = ", ";
    }
    fprintf(file, "], \"conf\": \"%s\",\n \"experiments\": [", conf_of(report));
    write_experiments(file, report);
    fprintf(file, "],\n \"programs\": {\"programs\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"bytes\": %" PRIu64 "},\n \"prices\": [",
            report->programs.programs, report->programs.blocks, report->programs.bytes);
    write_prices(file, report);
    fprintf(file, "]}\n");
    return close_file(file, path);
}

/* Writes the prices without launches for the page and the run that come nearest to the chosen ones; rows go from small to large. */
bool screen_write_prices(const struct report *report, const char *path)
{
    const struct price_row *found = NULL;
    for (unsigned i = 0; i < report->price_count; i++)
        if (!report->prices[i].beside && report->prices[i].page <= PRICES_OF_PAGE && report->prices[i].run <= PRICES_OF_RUN)
            found = &report->prices[i];
    FILE *file = open_file(path);
    if (!file)
        return false;
    fprintf(file, "# %s, driver of CUDA %d: ns a call, of cuMemSetAccess and cuMemUnmap ns a page\n", report->card.name, report->card.driver_version);
    for (enum price price = 0; price < PRICES; price++)
        if (found && found->ns[price])
            fprintf(file, "%s %" PRIu64 "\n", price_name(price), found->ns[price]);
    return close_file(file, path);
}
