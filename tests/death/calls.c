/*
 * calls.c: every call of cenote.h that asks something of a pool, made with arguments that are right, where none of them may be served: in
 * a callback that must not call, in a fork. And the other way round: has each parameter of the headers been given wrongly?
 */
#include "tests/death/misuse.h"

#include <cenote/share.h>
#include <cenote/sleep.h>
#include <ctype.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------------------------------------------- every call */

static struct {
    int wanted, last;
    char made[8192];        /* the calls, one behind the other */
} tally;

static void answered(const char *call, int error)
{
    size_t length = strlen(tally.made);
    snprintf(tally.made + length, sizeof tally.made - length, "%s\n", call);
    if (error != tally.wanted)
        printf("\n    %s answers %d\n", call, tally.last = error);
}

#define ASK(call) answered(#call, call)

static void hear(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
}

static void call_pools(struct scenery *s, cenote_group *group)
{
    cenote_pool *pool = s->scene.pool, *other;
    cenote_stats stats;
    cenote_available left;
    size_t count;
    uint64_t bytes;
    cenote_loan *loan = NULL;
    ASK(cenote_pool_create(0, NULL, &other));
    ASK(cenote_pool_create_in(s->scene.context, NULL, &other));
    ASK(cenote_pool_default(0, &other));
    ASK(cenote_pool_destroy(pool));
    ASK(cenote_pool_set_limit(pool, 0));
    ASK(cenote_pool_set_trim_above(pool, 0.5));
    ASK(cenote_pool_grant(pool, 0));
    ASK(cenote_pool_available(pool, &left));
    ASK(cenote_pool_on_shortage(pool, NULL, NULL));
    ASK(cenote_pool_watch(pool, 0, hear, NULL));
    ASK(cenote_pool_stats(pool, &stats));
    ASK(cenote_pool_reset_peaks(pool));
    ASK(cenote_pool_reset_totals(pool));
    ASK(cenote_pool_rows(pool, CENOTE_BY_TAG, NULL, 0, &count));
    ASK(cenote_pool_steps(pool, NULL, 0, &count));
    ASK(cenote_pool_pieces(pool, group, NULL, 0, &count));
    ASK(cenote_pool_set_user(pool, "somebody"));
    ASK(cenote_pool_record(pool, 100));
    ASK(cenote_pool_record_save(pool, "/dev/null"));
    ASK(cenote_pool_snapshot(pool, "/dev/null"));
    ASK(cenote_pool_check(pool));
    ASK(cenote_pool_trim(pool, 0, 0));
    ASK(cenote_pool_reserve(pool, 512, s->scene.stream[A]));
    ASK(cenote_pool_step(pool));
    ASK(cenote_pool_pause(pool, NULL));
    ASK(cenote_pool_resume(pool, NULL));
    ASK(cenote_pool_lend(pool, NULL, &loan));
    ASK(cenote_loan_end(loan, NULL));
    ASK(cenote_pool_sync_begin(pool, &bytes));
    ASK(cenote_pool_sync_end(pool, 0));
    ASK(cenote_on_moment(NULL, NULL));
    ASK(cenote_group_reserved(group, &bytes));
}

static void call_blocks(struct scenery *s, cenote_group *group)
{
    cenote_pool *pool = s->scene.pool;
    CUstream stream = s->scene.stream[A];
    cenote_group *next;
    cenote_block found;
    cenote_share share = {{0}};
    size_t bytes;
    char *at = s->live[0].at;
    void *block;
    ASK(cenote_alloc(pool, 512, stream, &block));
    ASK(alloc_aligned(pool, 512, 512, stream, &block));
    ASK(cenote_alloc_with(pool, (&(cenote_request){.bytes = 512, .stream = stream}), &block));
    ASK(alloc_at(pool, NULL, at, 512, stream));
    ASK(cenote_free(at));
    ASK(cenote_free_sized(at, s->live[0].bytes));
    ASK(cenote_free_on(at, s->scene.stream[B]));
    ASK(cenote_extend(at, s->live[0].bytes + 1));
    ASK(cenote_use(at, s->scene.stream[B]));
    ASK(cenote_use_on_device(at, 0, s->scene.stream[B]));
    ASK(cenote_find(at, &found));
    ASK(cenote_block_set_kind(at, CENOTE_KIND_GRADIENTS));
    ASK(cenote_pin(at, 512));
    ASK(cenote_unpin(at, 512));
    ASK(cenote_export(at, &share));
    ASK(cenote_import(&share, sizeof share, 0, &block));
    ASK(cenote_pool_import(pool, &share, sizeof share, &block));
    ASK(cenote_import_range(at, &block, &bytes));
    ASK(cenote_import_close(at));
    ASK(cenote_stream_retire(pool, stream));
    ASK(cenote_stream_set_immortal(pool, stream));
    ASK(cenote_group_create(pool, "next", 0, NULL, &next));
    ASK(cenote_group_set_flags(group, 0));
    ASK(group_alloc(group, 512, 512, stream, &block));
    ASK(cenote_capture_begin(NULL, group, stream));
    ASK(cenote_capture_end(NULL, group, stream));
    ASK(cenote_capture_begin(pool, NULL, stream));
    ASK(cenote_capture_end(pool, NULL, stream));
    ASK(cenote_group_trim(group, 0));
    ASK(cenote_group_reset(group));
    ASK(cenote_group_destroy(group));
}

/* Those that say how it went by the length of a text: 0, but for an explanation, which says why there is none. */
static void call_texts(struct scenery *s)
{
    cenote_marked marked = {.name = ""};
    char text[512];
    int nothing = tally.wanted;
    ASK(cenote_pool_growth(s->scene.pool, 2, text, sizeof text) ? -1 : nothing);
    ASK(cenote_pool_mark(s->scene.pool, "here", &marked, text, sizeof text) ? -1 : nothing);
    ASK(cenote_pool_explain(s->scene.pool, 0, text, sizeof text) < 120 && strstr(text, ".") ? nothing : -1);
}

/* ------------------------------------------------------------------------------------------------------------------ every argument */

#define ARGUMENTS_MAX 8

/* Of these parameters no value is wrong, or none that a call could tell. */
static const struct {
    const char *call, *parameter, *why;
} any[] = {
    {"cenote_error_name", "int error", "unknown codes have one too"},
    {"cenote_error_text", "int error", "unknown codes have one too"},
    {"cenote_pool_set_limit", "uint64_t bytes", "what is held above it is given back as far as it is free"},
    {"cenote_pool_reserve", "uint64_t bytes", "what cannot be had is CENOTE_OUT_OF_MEMORY"},
    {"cenote_alloc", "size_t bytes", "what cannot be served is CENOTE_OUT_OF_MEMORY"},
    {"cenote_pool_trim", "uint64_t keep_bytes", "more than is held: nothing is given back"},
    {"cenote_stats_text", "size_t room", "how much the caller has, only the caller knows"},
    {"cenote_stats_json", "size_t room", "the same"},
    {"cenote_pool_rows", "size_t room", "the same"},
    {"cenote_pool_steps", "size_t room", "the same"},
    {"cenote_pool_pieces", "size_t room", "the same"},
    {"cenote_pool_mark", "size_t room", "the same"},
    {"cenote_pool_explain", "size_t room", "the same"},
    {"cenote_site_text", "size_t room", "the same"},
    {"cenote_pool_growth", "size_t room", "the same"},
    {"cenote_pool_explain", "uint64_t bytes", "0 to more than the device has"},
    {"cenote_tag_share", "int on", "0, or not"},
};

/* The arguments between the brackets after `open`, with spaces at their ends cut off. */
static int split(const char *open, char out[ARGUMENTS_MAX][128])
{
    int count = 0, depth = 0;
    size_t length = 0;
    for (const char *c = open + 1; *c && count < ARGUMENTS_MAX; c++) {
        bool ends = depth == 0 && (*c == ',' || *c == ')');
        if (!ends && length < 127 && (length || !isspace((unsigned char)*c)))
            out[count][length++] = *c;
        depth += (*c == '(' || *c == '{') - (*c == ')' || *c == '}');
        if (!ends)
            continue;
        out[count++][length] = 0;
        length = 0;
        if (*c == ')')
            break;
    }
    return count;
}

static bool is_pointer(const char *parameter)
{
    return strchr(parameter, '*') || strstr(parameter, "_fn ");
}

/* Does the text of a case call `function` with NULL, or BAD(...), as its argument `at`? The name may be in brackets, past the macro. */
static bool is_given(const struct misuse *list, int count, const char *function, int at, bool as_null)
{
    char arguments[ARGUMENTS_MAX][128];
    size_t length = strlen(function);
    for (int i = 0; i < count; i++) {
        const char *found = strstr(list[i].name, function), *open = found ? found + length + (found[length] == ')') : NULL;
        if (open && *open == '(' && split(open, arguments) > at &&
            (as_null ? !strcmp(arguments[at], "NULL") : !strncmp(arguments[at], "BAD(", 4)))
            return true;
    }
    return false;
}

static bool takes_any(const char *function, const char *parameter)
{
    bool does = !strcmp(parameter, "void");
    for (size_t i = 0; i < sizeof any / sizeof any[0]; i++)
        does = does || (!strcmp(any[i].call, function) && !strcmp(any[i].parameter, parameter));
    return does;
}

/* The text of the headers. NULL: not found. */
static const char *read_headers(void)
{
    static const char *const headers[] = {"include/cenote/cenote.h", "include/cenote/report.h", "include/cenote/share.h",
                                          "include/cenote/sleep.h"};
    static char header[128 << 10];
    size_t length = 0;
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(headers[i], "r");
        if (!file) {
            printf("FAILED %s was not found\n", headers[i]);
            return NULL;
        }
        length += fread(header + length, 1, sizeof header - 1 - length, file);
        fclose(file);
    }
    header[length] = 0;
    return header;
}

/* ---------------------------------------------------------------------------------------------------------------- everything */

/* What asks nothing of a pool, a group, a block or an import. */
static const char *const anywhere[] = {
    "cenote_error_name", "cenote_error_text", "cenote_message", "cenote_driver_result", "cenote_version", "cenote_options_default",
    "cenote_options_parse", "cenote_options_help", "cenote_pool_device", "cenote_pool_provider", "cenote_stats_text", "cenote_stats_json",
    "cenote_tag_push", "cenote_tag_pop", "cenote_tag_share", "cenote_phase_set", "cenote_phase_now", "cenote_site_text",
};

/* The function whose declaration begins there. Returns the bracket behind its name. */
static const char *read_name(const char *declaration, char function[64])
{
    const char *name = strstr(declaration, "cenote_"), *open = strchr(declaration + 1, '(');
    while (name && name + strcspn(name, "( *;\n") != open)
        name = strstr(name + 1, "cenote_");
    snprintf(function, 64, "%.*s", (int)(open - name), name);
    return open;
}

static bool was_made(const char *function)
{
    char call[72];
    bool was = false;
    snprintf(call, sizeof call, "%s(", function);
    for (size_t i = 0; i < sizeof anywhere / sizeof *anywhere; i++)
        was = was || !strcmp(function, anywhere[i]);
    return was || strstr(tally.made, call);
}

int call_everything(struct scenery *s, cenote_group *group, int error)
{
    char function[64];
    tally.wanted = tally.last = error;
    call_texts(s);
    call_pools(s, group);
    call_blocks(s, group);
    for (const char *at = read_headers(); at && (at = strstr(at, "\nCENOTE_API ")); at++) {
        read_name(at, function);
        if (!was_made(function))
            printf("\n    %s was not called\n", function);
        EXPECT(was_made(function));
    }
    return tally.last;
}

int arguments_missing(const struct misuse *list, int count)
{
    char parameters[ARGUMENTS_MAX][128], function[64];
    const char *header = read_headers();
    int missing = 0, pointers = 0, values = 0;
    for (const char *at = header; at && (at = strstr(at, "\nCENOTE_API ")); at++) {
        int most = split(read_name(at, function), parameters);
        for (int i = 0; i < most; i++) {
            bool by_null = is_pointer(parameters[i]);
            bool given = is_given(list, count, function, i, by_null) || (!by_null && takes_any(function, parameters[i]));
            pointers += by_null;
            values += !by_null;
            missing += !given;
            if (!given)
                printf("FAILED no case gives %s as `%s` to %s\n", by_null ? "NULL" : "BAD(...)", parameters[i], function);
        }
    }
    if (pointers < 50 || values < 50)
        printf("FAILED the headers of include/cenote/ were not understood: %d pointers, %d other parameters\n", pointers, values);
    else
        printf("each of the %d pointers and %d other parameters of the headers was given wrongly, or takes any value\n", pointers, values);
    return missing + (pointers < 50 || values < 50);
}
