/* test_print.c: the counters as text and JSON, in buffers of any size. */
#include <stddef.h>

#include <cenote/cenote.h>
#include <cenote/report.h>

#include "tests/harness.h"

/* Every counter has another value, so that none can stand for its neighbour. */
static cenote_stats numbered(void)
{
    cenote_stats stats = {.page_bytes = 2 << 20, .capacity = 80ull << 30};
    uint64_t n = 1000;
#define CENOTE_LEVEL(name, unit, text) stats.name = (cenote_level){n + 1, n + 2, n + 3, n + 4}; n += 10;
#define CENOTE_COUNT(name, unit, text) stats.name = n += 10;
#define CENOTE_GAUGE(name, unit, text) stats.name = n += 10;
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    return stats;
}

CASE(json_has_every_counter_with_its_value)
{
    cenote_stats stats = numbered();
    char text[8192], expected[256];
    size_t length = cenote_stats_json(&stats, text, sizeof(text));
    REQUIRE(length > 0 && length < sizeof(text));
    EXPECT_EQ(strlen(text), length);
    EXPECT(!strncmp(text, "{\"page_bytes\":2097152,\"capacity\":85899345920,\"limit\":0,", 55));
#define CENOTE_LEVEL(name, unit, t)                                                                                              \
    snprintf(expected, sizeof(expected), ",\"%s\":{\"current\":%llu,\"peak\":%llu,\"total_in\":%llu,\"total_out\":%llu}", #name,  \
             (unsigned long long)stats.name.current, (unsigned long long)stats.name.peak, (unsigned long long)stats.name.total_in, \
             (unsigned long long)stats.name.total_out);                                                                          \
    EXPECT(strstr(text, expected) != NULL);
#define NUMBER(name)                                                                                \
    snprintf(expected, sizeof(expected), ",\"%s\":%llu", #name, (unsigned long long)stats.name);    \
    EXPECT(strstr(text, expected) != NULL);
#define CENOTE_COUNT(name, unit, t) NUMBER(name)
#define CENOTE_GAUGE(name, unit, t) NUMBER(name)
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    EXPECT_EQ(text[length - 1], '}');
}

CASE(text_has_a_line_for_every_counter)
{
    cenote_stats stats = numbered();
    stats.reserved = (cenote_level){20ull << 30, 21ull << 30, UINT64_MAX, 0};
    stats.limit = 40ull << 30;
    stats.driver_ns = 1500000000;
    char text[16384];
    size_t length = cenote_stats_text(&stats, text, sizeof(text));
    REQUIRE(length > 0 && length < sizeof(text));
    EXPECT_EQ(strlen(text), length);
#define CENOTE_LEVEL(name, unit, t) EXPECT(strstr(text, "\n" #name " ") && strstr(text, t "\n"));
#define CENOTE_COUNT CENOTE_LEVEL
#define CENOTE_GAUGE CENOTE_LEVEL
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    EXPECT(strstr(text, "pages of 2.00 MiB, device of 80.0 GiB, limit 40.0 GiB"));
    EXPECT(strstr(text, "20.0 GiB     21.0 GiB     16.0 EiB          0 B"));
    EXPECT(strstr(text, "1.500 s"));
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        EXPECT(strcspn(line, "\n") <= 140);
}

static void expect_cut(size_t (*print)(const cenote_stats *, char *, size_t, size_t))
{
    cenote_stats stats = numbered();
    char whole[16384], cut[16384];
    size_t length = print(&stats, whole, sizeof(whole), sizeof(stats));
    EXPECT_EQ(print(&stats, NULL, 0, sizeof(stats)), length);
    for (size_t size = 1; size <= length + 2; size++) {
        size_t kept = size - 1 < length ? size - 1 : length;
        memset(cut, 'X', sizeof(cut));
        bool fine = print(&stats, cut, size, sizeof(stats)) == length && !memcmp(cut, whole, kept) && cut[kept] == 0 && cut[kept + 1] == 'X';
        if (!fine) {
            EXPECT_EQ(size, 0); /* says which */
            return;
        }
    }
}

CASE(any_buffer_is_filled_and_not_overrun)
{
    expect_cut(cenote_stats_text);
    expect_cut(cenote_stats_json);
}

CASE(an_older_struct_is_printed_as_far_as_it_reaches)
{
    cenote_stats stats = numbered();
    char text[16384];
    const size_t size = offsetof(cenote_stats, trims);
    EXPECT((cenote_stats_json)(&stats, text, sizeof(text), size) > 0);
    EXPECT(strstr(text, "\"ooms\":") != NULL);
    EXPECT(strstr(text, "\"trims\":") == NULL);
    EXPECT_EQ(text[strlen(text) - 1], '}');
    EXPECT((cenote_stats_text)(&stats, text, sizeof(text), size) > 0);
    EXPECT(strstr(text, "\nooms ") != NULL);
    EXPECT(strstr(text, "\ntrims ") == NULL);
}

CASE(what_is_no_statistics_prints_nothing)
{
    cenote_stats stats = numbered();
    char text[64] = "as it was";
    EXPECT_EQ((cenote_stats_text)(&stats, text, sizeof(text), 0), 0);
    EXPECT_EQ((cenote_stats_json)(&stats, text, sizeof(text), SIZE_MAX), 0);
    EXPECT_EQ(cenote_stats_json(NULL, text, sizeof(text)), 0);
    EXPECT_TEXT_EQ(text, "as it was");
}

SUITE_MAIN("print")
