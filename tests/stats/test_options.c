/* test_options.c: options from CENOTE_CONF, from text and from structs of older and newer headers. */
#include <math.h>
#include <stddef.h>

#include "stats/text/options.h"
#include "tests/harness.h"
#include "tests/sizes.h"

/* A struct with known contents in every field; a failing call must leave it so. */
static cenote_options fresh(void)
{
    cenote_options options;
    unsetenv("CENOTE_CONF");
    REQUIRE_EQ(cenote_options_default(&options), CENOTE_OK);
    return options;
}

static bool message_has(const char *word)
{
    return strstr(cenote_message(), word) != NULL;
}

/* `conf` is refused, `word` is in the message, and nothing is changed. */
static void expect_refused(const char *conf, const char *word)
{
    cenote_options options = fresh(), before = options;
    int error = cenote_options_parse(&options, conf);
    bool fine = error == CENOTE_BAD_OPTION && message_has(word) && !memcmp(&options, &before, sizeof(options));
    if (!fine)
        fprintf(stderr, "\"%.60s\": %d, %s\n", conf, error, cenote_message());
    EXPECT(fine);
}

CASE(defaults_are_those_of_the_table)
{
    cenote_options options = fresh();
    EXPECT_EQ(options.graphs, CENOTE_GRAPHS_AUTO);
    EXPECT_EQ(options.handles, CENOTE_HANDLES_FILE);
    EXPECT_EQ(options.mappings, 400000);
    EXPECT_EQ(options.announced, 1);
    EXPECT_EQ(options.aliases, CENOTE_ALIASES_ON);
    EXPECT_EQ(options.order, 1);
    EXPECT_EQ(options.page_mib, 0);
    EXPECT_EQ(options.trim_every, 0);
    EXPECT_EQ(options.address_ratio, 64);
    EXPECT_EQ(options.provider, CENOTE_AUTO);
    EXPECT(options.limit == 0);
    EXPECT(options.harvest_budget == 0.01);
    EXPECT(options.trim_above == 0);
    EXPECT_EQ(options.record, 0);
    EXPECT(options.clock == NULL && options.clock_arg == NULL);
}

CASE(text_sets_what_it_names)
{
    cenote_options options = fresh();
    EXPECT_EQ(cenote_options_parse(&options, " page_mib : 8 ,limit:80%, harvest_budget:off,\tprovider:VMM,trim_every:64,,"), CENOTE_OK);
    EXPECT_EQ(options.page_mib, 8);
    EXPECT(options.limit == 0.8);
    EXPECT(options.harvest_budget == -1);
    EXPECT_EQ(options.provider, CENOTE_VMM);
    EXPECT_EQ(options.trim_every, 64);
    EXPECT_EQ(options.address_ratio, 64);
    EXPECT_EQ(cenote_options_parse(&options, "handles:Fabric"), CENOTE_OK);
    EXPECT_EQ(options.handles, CENOTE_HANDLES_FABRIC);
    EXPECT_EQ(cenote_options_parse(&options, "aliases:OFF"), CENOTE_OK);
    EXPECT_EQ(options.aliases, CENOTE_ALIASES_OFF);
    EXPECT_EQ(cenote_options_parse(&options, "trim_above:80%"), CENOTE_OK);
    EXPECT(options.trim_above == 0.8);
    EXPECT_EQ(cenote_options_parse(&options, "trim_above:off"), CENOTE_OK);
    EXPECT(options.trim_above == -1);
    EXPECT_EQ(cenote_options_parse(&options, "graphs:Plain"), CENOTE_OK);
    EXPECT_EQ(options.graphs, CENOTE_GRAPHS_PLAIN);
    EXPECT_EQ(cenote_options_parse(&options, ""), CENOTE_OK);
    EXPECT_EQ(cenote_options_parse(&options, "page_mib:2,page_mib:4"), CENOTE_OK);
    EXPECT_EQ(options.page_mib, 4);
}

CASE(limits_are_bytes_or_a_part)
{
    static const struct {
        const char *text;
        double      limit;
    } limits[] = {
        {"limit:0", 0}, {"limit:1", 1}, {"limit:0.5", 0.5}, {"limit:100%", 1}, {"limit:512", 512}, {"limit:20GiB", 0x1p30 * 20},
        {"limit:0.5GiB", 0x1p29}, {"limit:1.5TB", 1.5e12},
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        cenote_options options = fresh();
        EXPECT_EQ(cenote_options_parse(&options, limits[i].text), CENOTE_OK);
        EXPECT(options.limit == limits[i].limit);
    }
}

CASE(unknown_names_are_told_the_nearest)
{
    expect_refused("page_mb:8", "page_mib");
    expect_refused("pagemib:8", "\"page_mib\"");
    expect_refused("harvest:off", "harvest_budget");
    expect_refused("PAGE_MIB:8", "page_mib");
    expect_refused("limits:1", "\"limit\"");
    expect_refused("trim_evry:1", "trim_every");
    expect_refused("graphs:vmm", "auto, pages or plain");
    expect_refused("clock:0", "there is no option");
    expect_refused(":8", "there is no option");
}

CASE(malformed_values_are_told_what_is_allowed)
{
    expect_refused("page_mib:3", "power of two");
    expect_refused("page_mib:64", "up to 32");
    expect_refused("page_mib:-2", "\"-2\"");
    expect_refused("page_mib:4294967298", "4294967298"); /* 2 in 32 bits */
    expect_refused("page_mib:99999999999999999999", "page_mib");
    expect_refused("page_mib:8MiB", "page_mib");
    expect_refused("page_mib:", "page_mib");
    expect_refused("page_mib", "name:value");
    expect_refused("page_mib=8", "name:value");
    expect_refused("page_mib:8:9", "8:9");
    expect_refused("address_ratio:0", "from 1 to 64");
    expect_refused("trim_every:1000001", "1000000");
    expect_refused("provider:cuda", "auto, vmm, async, plain or guard");
    expect_refused("handles:socket", "file or fabric");
    expect_refused("aliases:1", "on or off");
    expect_refused("harvest_budget:1.5", "harvest_budget");
    expect_refused("harvest_budget:-1", "off");
    expect_refused("harvest_budget:nan", "nan");
    expect_refused("harvest_budget:inf", "inf");
    expect_refused("harvest_budget:on", "off");
    expect_refused("limit:120%", "120%");
    expect_refused("limit:-1", "limit");
    expect_refused("limit:1.5", "limit");
    expect_refused("limit:100", "at least 512");
    expect_refused("limit:1B", "at least 512");
    expect_refused("limit:9999999TiB", "limit");
    expect_refused("page_mib:8;limit:1", "page_mib");
}

CASE(a_mistake_late_in_the_text_undoes_all_of_it)
{
    expect_refused("page_mib:8,trim_every:4,adress_ratio:8", "address_ratio");
}

CASE(garbage_is_refused_and_shown_clean)
{
    char longer[4000];
    memset(longer, 'p', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    expect_refused(longer, "too long");
    expect_refused("\x1b[31mred:1", "?[31mred");
    expect_refused("page_mib:\x7f", "page_mib");
    expect_refused("\xff\xfe:1", "there is no option");
}

CASE(null_is_no_options)
{
    cenote_options options = fresh();
    EXPECT_EQ(cenote_options_default(NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_options_parse(NULL, "page_mib:8"), CENOTE_INVALID);
    EXPECT_EQ(cenote_options_parse(&options, NULL), CENOTE_INVALID);
}

CASE(the_environment_is_read)
{
    cenote_options options, presets;
    setenv("CENOTE_CONF", "page_mib:16,limit:50%", 1);
    EXPECT_EQ(cenote_options_default(&options), CENOTE_OK);
    EXPECT_EQ(options.page_mib, 16);
    EXPECT(options.limit == 0.5);

    setenv("CENOTE_CONF", "page_mib:16,limt:50%", 1);
    memset(&options, 0x55, sizeof(options));
    EXPECT_EQ(cenote_options_default(&options), CENOTE_BAD_OPTION);
    EXPECT(message_has("CENOTE_CONF") && message_has("limt") && message_has("\"limit\""));
    unsetenv("CENOTE_CONF");
    cenote_options_default(&presets);
    EXPECT(!memcmp(&options, &presets, sizeof(options)));
}

/* ------------------------------------------------------------------------------------------------------------------- versions */

CASE(null_means_the_defaults_and_the_environment)
{
    cenote_options full;
    setenv("CENOTE_CONF", "address_ratio:7", 1);
    EXPECT_EQ(options_check(NULL, 0, &full), CENOTE_OK);
    EXPECT_EQ(full.address_ratio, 7);
    setenv("CENOTE_CONF", "address_ratio:x", 1);
    EXPECT_EQ(options_check(NULL, 0, &full), CENOTE_BAD_OPTION);
    unsetenv("CENOTE_CONF");
}

CASE(an_older_struct_is_taken_as_far_as_it_reaches)
{
    cenote_options given = fresh(), full;
    given.page_mib = 4;
    given.trim_every = 9;
    given.limit = 0.6; /* beyond the end that we give */
    setenv("CENOTE_CONF", "page_mib:8,limit:0.7", 1);
    EXPECT_EQ(options_check(&given, offsetof(cenote_options, limit), &full), CENOTE_OK);
    EXPECT_EQ(full.page_mib, 4);
    EXPECT_EQ(full.trim_every, 9);
    EXPECT(full.limit > 0.69 && full.limit < 0.71); /* the program cannot say it, the user can */
    EXPECT(full.clock == NULL);
    unsetenv("CENOTE_CONF");
}

/* Each option that the program's header lacks is what the user says. */
CASE(an_older_struct_lacks_each_member_in_turn)
{
    const size_t sizes[] = {
#define MEMBER(type, member, offset, bytes) !strcmp(#type, "cenote_options") ? (offset) + (bytes) : 0,
#define VALUE(name, number)
#include "tools/check/abi.def"
#undef MEMBER
#undef VALUE
    };
    cenote_options given = fresh(), user, full;
    given.page_mib = 4, given.trim_every = 9, given.address_ratio = 5, given.provider = CENOTE_PLAIN, given.limit = 0.5;
    given.harvest_budget = 0.5, given.clock_arg = &given, given.trim_above = 0.5, given.record = 9, given.decay_ms = 9, given.sites = 9;
    setenv("CENOTE_CONF", "page_mib:8,trim_every:7,address_ratio:7,provider:vmm,limit:0.7,harvest_budget:0.7,trim_above:0.7,record:7,decay_ms:7,"
           "background:1,sites:7", 1);
    EXPECT_EQ(cenote_options_default(&user), CENOTE_OK);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (!sizes_can_be(sizes[i]))
            continue;
        EXPECT_EQ(options_check(&given, sizes[i], &full), CENOTE_OK);
        EXPECT(!memcmp(&full, &given, sizes[i]));
        EXPECT(!memcmp((char *)&full + sizes[i], (char *)&user + sizes[i], sizeof(full) - sizes[i]));
    }
    unsetenv("CENOTE_CONF");
}

CASE(text_fills_an_older_struct_no_further_than_it_reaches)
{
    const size_t size = offsetof(cenote_options, limit);
    cenote_options given = fresh(), before = given;
    EXPECT_EQ((cenote_options_parse)(&given, "page_mib:8", size), CENOTE_OK);
    EXPECT_EQ(given.page_mib, 8);
    given.page_mib = before.page_mib;
    EXPECT(!memcmp(&given, &before, sizeof(given)));
    EXPECT_EQ((cenote_options_parse)(&given, "limit:1GiB", size), CENOTE_BAD_OPTION);
    EXPECT(message_has("newer"));
    EXPECT(!memcmp(&given, &before, sizeof(given)));
}

CASE(a_newer_struct_is_taken_while_what_we_do_not_know_is_zero)
{
    struct {
        cenote_options known;
        char           tail[32];
    } newer = {.known = fresh()};
    cenote_options full;
    newer.known.page_mib = 2;
    EXPECT_EQ(options_check(&newer.known, sizeof(newer), &full), CENOTE_OK);
    EXPECT_EQ(full.page_mib, 2);
    EXPECT_EQ((cenote_options_parse)(&newer.known, "page_mib:4", sizeof(newer)), CENOTE_OK);
    newer.tail[31] = 1;
    EXPECT_EQ(options_check(&newer.known, sizeof(newer), &full), CENOTE_INVALID);
    EXPECT_EQ((cenote_options_parse)(&newer.known, "page_mib:8", sizeof(newer)), CENOTE_INVALID);
    EXPECT_EQ(newer.known.page_mib, 4);
}

CASE(a_size_that_cannot_be_is_refused)
{
    static const size_t sizes[] = {0, 3, sizeof(void *), 4097, 1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        cenote_options given = fresh(), full;
        EXPECT_EQ(options_check(&given, sizes[i], &full), CENOTE_INVALID);
        EXPECT(message_has("sizeof(cenote_options)"));
        EXPECT_EQ((cenote_options_default)(&given, sizes[i]), CENOTE_INVALID);
        EXPECT_EQ((cenote_options_parse)(&given, "", sizes[i]), CENOTE_INVALID);
    }
}

/* What a program writes into the struct itself is judged as text is. */
CASE(fields_out_of_range_are_refused)
{
    cenote_options full, sentinel;
    memset(&sentinel, 0x55, sizeof(sentinel));
#define EXPECT_FIELD(field, value, result)                                                   \
    do {                                                                                     \
        cenote_options given = fresh();                                                      \
        given.field = value;                                                                 \
        full = sentinel;                                                                     \
        EXPECT_EQ(options_check(&given, sizeof(given), &full), result);                                     \
        EXPECT((result) ? message_has(#field) && !memcmp(&full, &sentinel, sizeof(full)) : full.field == given.field); \
    } while (0)
    EXPECT_FIELD(page_mib, 32, CENOTE_OK);
    EXPECT_FIELD(page_mib, 12, CENOTE_BAD_OPTION);
    EXPECT_FIELD(page_mib, UINT32_MAX, CENOTE_BAD_OPTION);
    EXPECT_FIELD(provider, 4, CENOTE_OK);
    EXPECT_FIELD(provider, 5, CENOTE_BAD_OPTION);
    EXPECT_FIELD(graphs, 2, CENOTE_OK);
    EXPECT_FIELD(graphs, 3, CENOTE_BAD_OPTION);
    EXPECT_FIELD(address_ratio, 0, CENOTE_BAD_OPTION);
    EXPECT_FIELD(harvest_budget, -0.5, CENOTE_OK);
    EXPECT_FIELD(harvest_budget, 1.01, CENOTE_BAD_OPTION);
    EXPECT_FIELD(harvest_budget, (double)NAN, CENOTE_BAD_OPTION);
    EXPECT_FIELD(trim_above, 1.0, CENOTE_OK);
    EXPECT_FIELD(trim_above, 1.01, CENOTE_BAD_OPTION);
    EXPECT_FIELD(limit, (double)NAN, CENOTE_BAD_OPTION);
    EXPECT_FIELD(limit, (double)INFINITY, CENOTE_BAD_OPTION);
    EXPECT_FIELD(limit, -1.0, CENOTE_BAD_OPTION);
    EXPECT_FIELD(limit, 1.5, CENOTE_BAD_OPTION);
    EXPECT_FIELD(limit, 0x1p62, CENOTE_OK);
    EXPECT_FIELD(sanitize, 2, CENOTE_BAD_OPTION);
    EXPECT_FIELD(sanitize, 1, CENOTE_OK);
#define CENOTE_OPTION(field, kind, preset, least, most, text) \
    if (strcmp(#kind, "MEMORY") && strcmp(#field, "abort"))   \
        EXPECT_FIELD(field, UINT32_MAX, CENOTE_BAD_OPTION);
#include <cenote/options.def>
#undef CENOTE_OPTION
#undef EXPECT_FIELD
}

/* ----------------------------------------------------------------------------------------------------------------------- help */

CASE(help_has_a_line_for_each_option)
{
    const char *help = cenote_options_help();
    unsigned lines = 0, options = 0;
    for (const char *c = help; *c; c++)
        lines += *c == '\n';
#define CENOTE_OPTION(field, kind, preset, least, most, text) \
    EXPECT(strstr(help, #field " (") && strstr(help, text)); \
    options++;
#include <cenote/options.def>
#undef CENOTE_OPTION
    EXPECT_EQ(lines, options);
    EXPECT(strstr(help, "default auto"));
}

/* docs/options.md shows the help as it is. */
CASE(documentation_shows_the_help)
{
    static char page[1 << 16];
    FILE *file = fopen("docs/options.md", "r");
    REQUIRE(file != NULL);
    page[fread(page, 1, sizeof(page) - 1, file)] = 0;
    fclose(file);
    EXPECT(strstr(page, cenote_options_help()) != NULL);
}

CASE(providers_have_names)
{
    EXPECT_EQ(options_provider("async"), CENOTE_ASYNC);
    EXPECT_EQ(options_provider("none"), -1);
    EXPECT_TEXT_EQ(options_provider_name(CENOTE_PLAIN), "plain");
    EXPECT_TEXT_EQ(options_provider_name(17), "unknown");
}

SUITE_MAIN("options")
