/*
 * shape.c: the shape of the simulated machine: defaults and the text of CENOTE_SIM, both from shape.def; quirks from quirks.def.
 *
 * "capacity:80GiB,devices:2,quirks:wsl-rdma+fabric". A mistake is said on stderr and ends the start of the machine: a test that runs on another
 * machine than it asked for proves nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/machine/model.h"

enum shape_kind { SIZE, COUNT, FLAG };

void sim_shape_default(struct sim_shape *shape)
{
    memset(shape, 0, sizeof *shape);
#define SHAPE(field, kind, preset, least, most) shape->field = preset;
#define NAME(field)
#define PATH(field)
#include "sim/machine/shape.def"
#undef SHAPE
#undef NAME
#undef PATH
}

static bool read_unit(const char *text, uint64_t *unit)
{
    static const struct { const char *name; uint64_t bytes; } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40},
        {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}, {"TB", 1000000000000},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text, units[i].name) == 0) {
            *unit = units[i].bytes;
            return true;
        }
    }
    return false;
}

static bool read_value(const char *text, enum shape_kind kind, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;
    uint64_t unit = 1;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || errno)
        return false;
    if (kind == SIZE ? !read_unit(end, &unit) : *end)
        return false;
    if (__builtin_mul_overflow(number, unit, value))
        return false;
    return *value >= least && (!most || *value <= most);
}

/* It becomes part of the name of a file. */
static bool read_name(const char *text, char *name, size_t room)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t length = strlen(text);
    if (!length || length >= room || strspn(text, allowed) != length)
        return false;
    memcpy(name, text, length + 1);
    return true;
}

const char *sim_quirk_name(int number)
{
    static const char *const names[SIM_QUIRKS] = {
#define QUIRK(NAME, name, does) name,
#include "sim/quirks.def"
#undef QUIRK
    };
    return number >= 0 && number < SIM_QUIRKS ? names[number] : NULL;
}

static bool read_quirk(const char *text, uint64_t *quirks)
{
    for (int i = 0; i < SIM_QUIRKS; i++) {
        if (strcmp(text, sim_quirk_name(i)) == 0) {
            *quirks |= 1ull << i;
            return true;
        }
    }
    fprintf(stderr, "simulated GPU: \"%s\" is no quirk; there are", text);
    for (int i = 0; i < SIM_QUIRKS; i++)
        fprintf(stderr, "%s %s", i ? "," : "", sim_quirk_name(i));
    fprintf(stderr, "\n");
    return false;
}

/* Names with '+' between. */
static bool read_quirks(char *text, uint64_t *quirks)
{
    char *rest;
    *quirks = 0;
    for (char *name = strtok_r(text, "+", &rest); name; name = strtok_r(NULL, "+", &rest))
        if (!read_quirk(name, quirks))
            return false;
    return true;
}

static bool read_field(struct sim_shape *shape, bool *quiet, const char *name, char *text)
{
    uint64_t value;
    if (strcmp(name, "quirks") == 0)
        return read_quirks(text, &shape->quirks);
    if (strcmp(name, "quiet") == 0 && read_value(text, FLAG, 0, 1, &value)) {
        *quiet = value;
        return true;
    }
#define SHAPE(field, kind, preset, least, most)                                                   \
    if (strcmp(name, #field) == 0 && read_value(text, kind, (least), (most), &value)) {            \
        shape->field = (__typeof__(shape->field))value;                                            \
        return true;                                                                               \
    }
#define NAME(field)                                                                               \
    if (strcmp(name, #field) == 0 && read_name(text, shape->field, sizeof shape->field))           \
        return true;
#define PATH(field)                                                                               \
    if (strcmp(name, #field) == 0 && strlen(text) < sizeof shape->field) {                         \
        strcpy(shape->field, text);                                                                \
        return true;                                                                               \
    }
#include "sim/machine/shape.def"
#undef SHAPE
#undef NAME
#undef PATH
    return false;
}

bool shape_parse(struct sim_shape *shape, bool *quiet, const char *text)
{
    char copy[2048];
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return false;
    char *rest;
    for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(item, ':');
        if (colon)
            *colon = 0;
        if (!colon || !read_field(shape, quiet, item, colon + 1)) {
            fprintf(stderr, "simulated GPU: CENOTE_SIM: \"%s\": no such name, or the value is not one it can have\n", item);
            return false;
        }
    }
    return true;
}
