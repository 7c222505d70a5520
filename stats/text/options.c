/*
 * options.c: options.def made to work: defaults, CENOTE_CONF, ranges, help.
 *
 * Each row becomes one entry of a table that knows where its field lies, so that reading, checking and storing are written once. While
 * it is on its way every value is a double: counts are far below 2^53, where that is exact.
 *
 * A program may have the struct of an older or a newer header: base/sized.c. What it cannot say is what CENOTE_CONF says.
 *
 * LOCKING: none; the environment is read, nothing is kept.
 */
#include "stats/text/options.h"

#include "base/error.h"
#include "base/sized.h"
#include "stats/text/quantity.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ITEM_BYTES 128          /* longest "name:value" */
#define SMALLEST_LIMIT 512      /* bytes; the smallest block */
#define LARGEST_LIMIT 0x1p63

enum kind { KIND_COUNT, KIND_POWER, KIND_SHARE, KIND_MEMORY, KIND_PROVIDER, KIND_GRAPHS, KIND_HANDLES, KIND_ALIASES };

/* What a row's numbers are, by kind, and what messages and help say about them. */
#define VALUE_COUNT(x) x
#define VALUE_POWER(x) x
#define VALUE_SHARE(x) x
#define VALUE_MEMORY(x) x
#define VALUE_PROVIDER(x) PROVIDER_##x
#define VALUE_GRAPHS(x) GRAPHS_##x
#define VALUE_HANDLES(x) HANDLES_##x
#define VALUE_ALIASES(x) ALIASES_##x
#define PROVIDER_auto CENOTE_AUTO
#define PROVIDER_guard CENOTE_GUARD
#define GRAPHS_auto CENOTE_GRAPHS_AUTO
#define GRAPHS_plain CENOTE_GRAPHS_PLAIN
#define HANDLES_file CENOTE_HANDLES_FILE
#define HANDLES_fabric CENOTE_HANDLES_FABRIC
#define ALIASES_on CENOTE_ALIASES_ON
#define ALIASES_off CENOTE_ALIASES_OFF
#define ALLOWED_COUNT(least, most) "a whole number from " #least " to " #most
#define ALLOWED_POWER(least, most) "0 or a power of two up to " #most
#define ALLOWED_SHARE(least, most) "a part up to " #most " such as 0.01 or 1 %, or off"
#define ALLOWED_MEMORY(least, most) "bytes such as 20GiB (at least 512), a part of the device's memory such as 0.8 or 80 %, or 0"
#define ALLOWED_PROVIDER(least, most) "auto, vmm, async, plain or guard"
#define ALLOWED_GRAPHS(least, most) "auto, pages or plain"
#define ALLOWED_HANDLES(least, most) "file or fabric"
#define ALLOWED_ALIASES(least, most) "on or off"

static const struct option {
    const char *name;
    const char *allowed;
    enum kind   kind;
    size_t      offset, size; /* of the field */
    double      preset, least, most;
} table[] = {
#define CENOTE_OPTION(field, kind, preset, least, most, text)                                                           \
    {#field, ALLOWED_##kind(least, most), KIND_##kind, offsetof(cenote_options, field), sizeof(((cenote_options *)0)->field), \
     VALUE_##kind(preset), VALUE_##kind(least), VALUE_##kind(most)},
#include <cenote/options.def>
#undef CENOTE_OPTION
};
#define OPTIONS (sizeof(table) / sizeof(table[0]))

static const char help[] =
#define CENOTE_OPTION(field, kind, preset, least, most, text) #field " (" ALLOWED_##kind(least, most) "; default " #preset "): " text "\n"
#include <cenote/options.def>
#undef CENOTE_OPTION
    ;

static const char *const providers[] = {
    [CENOTE_AUTO] = "auto", [CENOTE_VMM] = "vmm", [CENOTE_ASYNC] = "async", [CENOTE_PLAIN] = "plain",
    [CENOTE_GUARD] = "guard",
};
#define PROVIDERS (int)(sizeof(providers) / sizeof(providers[0]))

static const char *const graphs[] = {
    [CENOTE_GRAPHS_AUTO] = "auto", [CENOTE_GRAPHS_PAGES] = "pages", [CENOTE_GRAPHS_PLAIN] = "plain",
};

static const char *const handles[] = {[CENOTE_HANDLES_FILE] = "file", [CENOTE_HANDLES_FABRIC] = "fabric"};
static const char *const aliases[] = {[CENOTE_ALIASES_ON] = "on", [CENOTE_ALIASES_OFF] = "off"};

const char *cenote_options_help(void)
{
    return help;
}

/* The number of the name; -1: it is none of them. */
static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcasecmp(name, names[i]))
            return i;
    return -1;
}

int options_provider(const char *name)
{
    return find_name(providers, PROVIDERS, name);
}

const char *options_provider_name(int provider)
{
    return provider >= 0 && provider < PROVIDERS ? providers[provider] : "unknown";
}

/* ------------------------------------------------------------------------------------------------------------------ one value */

static double option_get(const struct option *o, const cenote_options *options)
{
    const char *field = (const char *)options + o->offset;
    if (o->size == sizeof(double)) {
        double value;
        memcpy(&value, field, sizeof(value));
        return value;
    }
    uint32_t value;
    memcpy(&value, field, sizeof(value));
    return value;
}

static void option_put(const struct option *o, cenote_options *options, double value)
{
    char *field = (char *)options + o->offset;
    if (o->size == sizeof(double)) {
        memcpy(field, &value, sizeof(value));
    } else {
        uint32_t whole = (uint32_t)value;
        memcpy(field, &whole, sizeof(whole));
    }
}

/* Written so that NaN is not in range of anything. */
static bool option_in_range(const struct option *o, double value)
{
    switch (o->kind) {
    case KIND_SHARE:
        return value < 0 || (value >= 0 && value <= o->most);
    case KIND_MEMORY:
        return (value >= 0 && value <= 1) || (value >= SMALLEST_LIMIT && value <= LARGEST_LIMIT);
    case KIND_POWER:
        return value >= o->least && value <= o->most && ((uint32_t)value & ((uint32_t)value - 1)) == 0;
    case KIND_COUNT:
    case KIND_PROVIDER:
    case KIND_GRAPHS:
    case KIND_HANDLES:
    case KIND_ALIASES:
        break;
    }
    return value >= o->least && value <= o->most;
}

/* 512 and 20GiB are bytes, 0.8 and 80 % a part; "1" is all of the device's memory, not one byte. */
static bool read_memory(const char *text, double *value)
{
    double share;
    if (quantity_read_share(text, &share) && (share <= 1 || strchr(text, '%'))) {
        *value = share;
        return share <= 1;
    }
    uint64_t bytes;
    if (!quantity_read_bytes(text, &bytes) || bytes < SMALLEST_LIMIT)
        return false;
    *value = (double)bytes;
    return true;
}

static bool option_read(const struct option *o, const char *text, double *value)
{
    uint64_t count;
    switch (o->kind) {
    case KIND_SHARE:
        *value = -1;
        return !strcasecmp(text, "off") || quantity_read_share(text, value);
    case KIND_MEMORY:
        return read_memory(text, value);
    case KIND_PROVIDER:
        *value = options_provider(text);
        return *value >= 0;
    case KIND_GRAPHS:
        *value = find_name(graphs, (int)(sizeof(graphs) / sizeof(graphs[0])), text);
        return *value >= 0;
    case KIND_HANDLES:
        *value = find_name(handles, (int)(sizeof(handles) / sizeof(handles[0])), text);
        return *value >= 0;
    case KIND_ALIASES:
        *value = find_name(aliases, (int)(sizeof(aliases) / sizeof(aliases[0])), text);
        return *value >= 0;
    case KIND_COUNT:
    case KIND_POWER:
        break;
    }
    if (!quantity_read_count(text, &count))
        return false;
    *value = (double)count;
    return true;
}

static int option_refuse(const struct option *o, const char *value)
{
    return error_set(CENOTE_BAD_OPTION, 0, "option %s cannot be \"%s\"; allowed: %s", o->name, value, o->allowed);
}

/* --------------------------------------------------------------------------------------------------------------------- names */

/* How many letters have to be changed, added or left out to turn one name into the other. */
static size_t edit_distance(const char *from, const char *to)
{
    size_t row[ITEM_BYTES + 1];
    size_t columns = strlen(to);
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; from[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = diagonal + (strncasecmp(&from[i - 1], &to[j - 1], 1) != 0);
            if (best > row[j] + 1)
                best = row[j] + 1;
            if (best > row[j - 1] + 1)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[columns];
}

/* A name that only ends too early is nearer than any misspelt one. */
static size_t option_distance(const struct option *o, const char *name)
{
    size_t length = strlen(name);
    return length && !strncasecmp(o->name, name, length) ? 0 : edit_distance(o->name, name);
}

/* The option of that name; if there is none, NULL and the nearest one there is. */
static const struct option *option_find(const char *name, const char **nearest)
{
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < OPTIONS; i++) {
        if (!strcmp(name, table[i].name))
            return &table[i];
        size_t distance = option_distance(&table[i], name);
        if (distance < least) {
            least = distance;
            *nearest = table[i].name;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------- parsing */

/* Cuts the spaces off both ends, in place. */
static char *trimmed(char *text)
{
    while (*text == ' ')
        text++;
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ')
        text[--length] = 0;
    return text;
}

/* One "name:value" of `length` characters; an empty one says nothing, so that "$CENOTE_CONF,limit:1GiB" works when CENOTE_CONF is unset. */
static int parse_item(cenote_options *options, size_t size, const char *text, size_t length)
{
    char copy[ITEM_BYTES];
    if (length >= sizeof(copy))
        return error_set(CENOTE_BAD_OPTION, 0, "\"%.40s...\" is too long for an option", text);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        copy[i] = c == '\t' || c == '\n' || c == '\r' ? ' ' : c < ' ' || c == 0x7f ? '?' : (char)c;
    }
    copy[length] = 0;

    char *name = trimmed(copy);
    if (!*name)
        return CENOTE_OK;
    char *value = strchr(name, ':');
    if (!value)
        return error_set(CENOTE_BAD_OPTION, 0, "option \"%s\" has no value; write name:value, such as page_mib:8", name);
    *value++ = 0;
    name = trimmed(name);
    value = trimmed(value);

    const char *nearest = "";
    const struct option *o = option_find(name, &nearest);
    if (!o)
        return error_set(CENOTE_BAD_OPTION, 0, "there is no option \"%s\"; the nearest is \"%s\"", name, nearest);
    if (o->offset + o->size > size)
        return error_set(CENOTE_BAD_OPTION, 0, "option %s is newer than the header this program was compiled with", o->name);
    double number;
    if (!option_read(o, value, &number) || !option_in_range(o, number))
        return option_refuse(o, value);
    option_put(o, options, number);
    return CENOTE_OK;
}

/* Sets what `conf` says of the first `size` bytes; the last one wins where an option is named twice. On an error some may be set: callers work
 * on a copy. */
static int parse(cenote_options *options, size_t size, const char *conf)
{
    for (;;) {
        size_t length = strcspn(conf, ",");
        int error = parse_item(options, size, conf, length);
        if (error || !conf[length])
            return error;
        conf += length + 1;
    }
}

/* -------------------------------------------------------------------------------------------------------------- whole structs */

void options_presets(cenote_options *options)
{
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < OPTIONS; i++)
        option_put(&table[i], options, table[i].preset);
}

/* Defaults, then CENOTE_CONF; the defaults alone if that has a mistake. */
static int set_defaults(cenote_options *options)
{
    options_presets(options);
    const char *conf = secure_getenv("CENOTE_CONF");
    if (!conf)
        return CENOTE_OK;
    cenote_options tried = *options;
    int error = parse(&tried, sizeof(tried), conf);
    if (error)
        return error_set(error, 0, "CENOTE_CONF: %s", cenote_message());
    *options = tried;
    return CENOTE_OK;
}

int(cenote_options_default)(cenote_options *options, size_t size)
{
    cenote_options full;
    int error = sized_check(size, "cenote_options");
    if (error || !options)
        return error ? error : error_set(CENOTE_INVALID, 0, "options is NULL");
    error = set_defaults(&full);
    sized_out(options, size, &full, sizeof(full));
    return error;
}

int(cenote_options_parse)(cenote_options *options, const char *conf, size_t size)
{
    cenote_options tried;
    options_presets(&tried);
    int error = sized_in(&tried, sizeof(tried), options, size, "cenote_options");
    if (error || !conf)
        return error ? error : error_set(CENOTE_INVALID, 0, "conf is NULL");
    error = parse(&tried, size, conf);
    if (!error)
        sized_out(options, size, &tried, sizeof(tried));
    return error;
}

int options_check(const cenote_options *given, size_t size, cenote_options *full)
{
    cenote_options checked;
    options_presets(&checked);
    int error = !given || size < sizeof(checked) ? set_defaults(&checked) : CENOTE_OK;
    if (error || (given && (error = sized_in(&checked, sizeof(checked), given, size, "cenote_options"))))
        return error;
    if (checked.abort)
        error_abort_on_misuse();
    for (size_t i = 0; i < OPTIONS; i++) {
        double value = option_get(&table[i], &checked);
        char shown[32];
        snprintf(shown, sizeof(shown), "%g", value);
        if (!option_in_range(&table[i], value))
            return option_refuse(&table[i], shown);
    }
    *full = checked;
    return CENOTE_OK;
}
