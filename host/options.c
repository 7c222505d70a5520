/*
 * options.c: host_options.def made to work: defaults, CENOTE_HOST_CONF, ranges, help. The same ways as CENOTE_CONF has (stats/text/options.c),
 * for a struct of its own.
 *
 * LOCKING: none; the environment is read, nothing is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/sized.h"
#include "host/host.h"
#include "stats/text/quantity.h"

#define ITEM_BYTES 128      /* longest "name:value" */
#define LEAST_LIMIT 2097152 /* bytes: one chunk */

enum kind { KIND_COUNT, KIND_NODE, KIND_LIMIT };

static const struct option {
    const char *name;
    enum kind   kind;
    size_t      offset;
    double      preset, least, most;
} table[] = {
#define CENOTE_OPTION(field, kind, preset, least, most, text) {#field, KIND_##kind, offsetof(cenote_host_options, field), preset, least, most},
#include <cenote/host_options.def>
#undef CENOTE_OPTION
};
#define OPTIONS (sizeof(table) / sizeof(table[0]))

static const char help[] =
#define CENOTE_OPTION(field, kind, preset, least, most, text) #field " (default " #preset "): " text "\n"
#include <cenote/host_options.def>
#undef CENOTE_OPTION
    ;

const char *cenote_host_options_help(void)
{
    return help;
}

uint64_t host_memlock(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

static double get(const struct option *o, const cenote_host_options *options)
{
    const void *field = (const char *)options + o->offset;
    switch (o->kind) {
    case KIND_COUNT:
        return *(const uint32_t *)field;
    case KIND_NODE:
        return *(const int32_t *)field;
    case KIND_LIMIT:
        break;
    }
    return *(const double *)field;
}

static void put(const struct option *o, cenote_host_options *options, double value)
{
    void *field = (char *)options + o->offset;
    switch (o->kind) {
    case KIND_COUNT:
        *(uint32_t *)field = (uint32_t)value;
        break;
    case KIND_NODE:
        *(int32_t *)field = (int32_t)value;
        break;
    case KIND_LIMIT:
        *(double *)field = value;
        break;
    }
}

/* Written so that NaN is not in range of anything. */
static bool in_range(const struct option *o, double value)
{
    if (o->kind == KIND_LIMIT)
        return value == -1 || (value >= 0 && value <= 1) || (value >= LEAST_LIMIT && value <= 0x1p63);
    return value >= o->least && value <= o->most;
}

static bool read(const struct option *o, const char *text, double *value)
{
    uint64_t count;
    bool word = (o->kind == KIND_NODE && !strcasecmp(text, "nearest")) || (o->kind == KIND_LIMIT && !strcasecmp(text, "memlock"));
    *value = -1;
    if (word)
        return true;
    if (o->kind == KIND_LIMIT && quantity_read_share(text, value) && (*value <= 1 || strchr(text, '%')))
        return *value <= 1;
    bool is_read = o->kind == KIND_LIMIT ? quantity_read_bytes(text, &count) : quantity_read_count(text, &count);
    *value = is_read ? (double)count : -1;
    return is_read;
}

static const struct option *find(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (!strcmp(name, table[i].name))
            return &table[i];
    return NULL;
}

static int parse_item(cenote_host_options *options, const char *text, size_t length)
{
    char copy[ITEM_BYTES], name[ITEM_BYTES], value[ITEM_BYTES];
    snprintf(copy, sizeof(copy), "%.*s", (int)length, text);
    if (!copy[strspn(copy, " ")])
        return CENOTE_OK;
    if (length >= sizeof(copy) || sscanf(copy, " %127[^: ] : %127[^\n]", name, value) != 2)
        return error_set(CENOTE_BAD_OPTION, 0, "CENOTE_HOST_CONF: write name:value, such as limit:50%%, not \"%.40s\"", copy);
    const struct option *o = find(name);
    if (!o)
        return error_set(CENOTE_BAD_OPTION, 0, "CENOTE_HOST_CONF: there is no option \"%.40s\"; there are:\n%s", name, help);
    for (size_t end = strlen(value); end && value[end - 1] == ' ';)
        value[--end] = 0;
    double number;
    if (!read(o, value, &number) || !in_range(o, number))
        return error_set(CENOTE_BAD_OPTION, 0, "CENOTE_HOST_CONF: %s cannot be \"%.40s\"", o->name, value);
    put(o, options, number);
    return CENOTE_OK;
}

static void presets(cenote_host_options *options)
{
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < OPTIONS; i++)
        put(&table[i], options, table[i].preset);
}

/* The program promises once for both libraries. A mistake in CENOTE_CONF is the other one's to name. */
static bool conf_says_unannounced(void)
{
    const char *conf = secure_getenv("CENOTE_CONF");
    bool says = false;
    while (conf && *conf) {
        char name[ITEM_BYTES];
        double value;
        if (sscanf(conf, " %127[^:, ] : %lf", name, &value) == 2 && !strcmp(name, "announced"))
            says = value == 0;
        conf += strcspn(conf, ",");
        conf += *conf == ',';
    }
    return says;
}

/* Defaults, then CENOTE_HOST_CONF; the defaults alone if that has a mistake. */
static int set_defaults(cenote_host_options *options)
{
    presets(options);
    options->announced = !conf_says_unannounced();
    const char *conf = secure_getenv("CENOTE_HOST_CONF");
    cenote_host_options tried = *options;
    while (conf && *conf) {
        size_t length = strcspn(conf, ",");
        int error = parse_item(&tried, conf, length);
        if (error)
            return error;
        conf += length + (conf[length] == ',');
    }
    *options = tried;
    return CENOTE_OK;
}

int(cenote_host_options_default)(cenote_host_options *options, size_t size)
{
    cenote_host_options full;
    int error = sized_check(size, "cenote_host_options");
    if (error || !options)
        return error ? error : error_set(CENOTE_INVALID, 0, "options is NULL");
    error = set_defaults(&full);
    sized_out(options, size, &full, sizeof(full));
    return error;
}

/* What was given, in range; for what the program's header does not have, and for NULL, the defaults. */
int host_options_check(const cenote_host_options *given, size_t size, cenote_host_options *full)
{
    presets(full);
    int error = !given || size < sizeof(*full) ? set_defaults(full) : CENOTE_OK;
    if (error || (given && (error = sized_in(full, sizeof(*full), given, size, "cenote_host_options"))))
        return error;
    if (full->unused || full->unused2)
        return error_set(CENOTE_INVALID, 0, "options.unused is not 0; start from cenote_host_options_default()");
    for (size_t i = 0; i < OPTIONS; i++)
        if (!in_range(&table[i], get(&table[i], full)))
            return error_set(CENOTE_BAD_OPTION, 0, "option %s cannot be %g", table[i].name, get(&table[i], full));
    return CENOTE_OK;
}
