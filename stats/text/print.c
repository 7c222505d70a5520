/*
 * print.c: the counters of counters.def as a table for people and as JSON for programs.
 *
 * Both are made from the struct alone and call no other file: they work on a pool that is lost, and in a report of out of memory. A struct of
 * an older header is shorter than ours: what it has no room for is not printed.
 *
 * LOCKING: none; no state.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include "base/sized.h"
#include "stats/text/out.h"
#include "stats/text/quantity.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

enum counter_kind { LEVEL, COUNT, GAUGE };

static const struct counter {
    const char       *name, *unit, *text;
    enum counter_kind kind;
    size_t            offset, size;
} counters[] = {
#define ROW(kind, name, unit, text) {#name, #unit, text, kind, offsetof(cenote_stats, name), sizeof(((cenote_stats *)0)->name)},
#define CENOTE_LEVEL(name, unit, text) ROW(LEVEL, name, unit, text)
#define CENOTE_COUNT(name, unit, text) ROW(COUNT, name, unit, text)
#define CENOTE_GAUGE(name, unit, text) ROW(GAUGE, name, unit, text)
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
#undef ROW
};
#define COUNTERS (sizeof(counters) / sizeof(counters[0]))

#define COLUMN 12 /* width of a number; the widest are "1023 MiB" and counts below 10^12 */

static bool is_reached(const struct counter *c, size_t size)
{
    return c->offset + c->size <= size;
}

static const uint64_t *values_of(const struct counter *c, const cenote_stats *stats)
{
    return (const uint64_t *)(const void *)((const char *)stats + c->offset);
}

/* Bytes and times in the largest unit that keeps a digit in front of the point; anything else as it is. */
static void print_value(struct out *out, const char *unit, uint64_t value)
{
    char text[QUANTITY_TEXT];
    if (!strcmp(unit, "bytes"))
        out_print(out, " %*s", COLUMN, quantity_write_bytes(text, value));
    else if (!strcmp(unit, "ns"))
        out_print(out, " %*.3f s", COLUMN - 2, (double)value / 1e9);
    else
        out_print(out, " %*" PRIu64, COLUMN, value);
}

static void print_head(struct out *out, const cenote_stats *stats)
{
    char page[QUANTITY_TEXT], capacity[QUANTITY_TEXT], limit[QUANTITY_TEXT];
    out_print(out, "cenote: pages of %s, device of %s, limit %s\n\n", quantity_write_bytes(page, stats->page_bytes),
              quantity_write_bytes(capacity, stats->capacity), stats->limit ? quantity_write_bytes(limit, stats->limit) : "none");
    out_print(out, "%-16s %*s %*s %*s %*s\n", "", COLUMN, "current", COLUMN, "peak", COLUMN, "total in", COLUMN, "total out");
}

size_t(cenote_stats_text)(const cenote_stats *given, char *text, size_t room, size_t size)
{
    cenote_stats stats = {0};
    if (sized_in(&stats, sizeof stats, given, size, "cenote_stats"))
        return 0;
    struct out out = {text, room, 0};
    bool was_level = true;
    print_head(&out, &stats);
    for (size_t i = 0; i < COUNTERS && is_reached(&counters[i], size); i++) {
        const struct counter *c = &counters[i];
        const uint64_t *values = values_of(c, &stats);
        bool is_level = c->kind == LEVEL;
        if (was_level && !is_level)
            out_print(&out, "\n");
        was_level = is_level;
        out_print(&out, "%-16s", c->name);
        for (size_t column = 0; column < c->size / sizeof(uint64_t); column++)
            print_value(&out, c->unit, values[column]);
        out_print(&out, "  %s\n", c->text);
    }
    return out.length;
}

size_t(cenote_stats_json)(const cenote_stats *given, char *text, size_t room, size_t size)
{
    cenote_stats stats = {0};
    if (sized_in(&stats, sizeof stats, given, size, "cenote_stats"))
        return 0;
    struct out out = {text, room, 0};
    out_print(&out, "{\"page_bytes\":%" PRIu64 ",\"capacity\":%" PRIu64 ",\"limit\":%" PRIu64, stats.page_bytes, stats.capacity,
              stats.limit);
    for (size_t i = 0; i < COUNTERS && is_reached(&counters[i], size); i++) {
        const uint64_t *values = values_of(&counters[i], &stats);
        out_print(&out, ",\"%s\":", counters[i].name);
        if (counters[i].kind == LEVEL)
            out_print(&out, "{\"current\":%" PRIu64 ",\"peak\":%" PRIu64 ",\"total_in\":%" PRIu64 ",\"total_out\":%" PRIu64 "}", values[0],
                      values[1], values[2], values[3]);
        else
            out_print(&out, "%" PRIu64, values[0]);
    }
    out_print(&out, "}");
    return out.length;
}
