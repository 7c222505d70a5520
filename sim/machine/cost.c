/*
 * cost.c: adds up what calls would cost on a real driver, and lets the clock go on by it where the shape says so.
 *
 * cost.def has lists of prices. A file, which `cenote qualify --prices` writes, replaces the prices of a100 that it names: a line is the name of
 * a call and ns, as "cuMemCreate 61000"; what follows '#' is a remark. All of a file is read before any of it counts.
 */
#include "sim/machine/cost.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MOST  (64u << 10)      /* bytes; chosen: twenty times what all calls need */
#define PRICE_MOST 10000000000ull   /* ns; chosen: no driver takes ten seconds */

enum cost_per { CALL, HANDLE, MIB };

enum {
#define PRICES(name, text) PRICES_##name,
#define COST(call, unit, ...)
#include "sim/machine/cost.def"
#undef PRICES
#undef COST
    PRICE_LISTS
};

static const char *const lists[PRICE_LISTS] = {
#define PRICES(name, text) #name,
#define COST(call, unit, ...)
#include "sim/machine/cost.def"
#undef PRICES
#undef COST
};

static const struct {
    const char   *name;
    enum cost_per per;
    uint64_t      ns[PRICE_LISTS];
} costs[COST_CALLS] = {
#define PRICES(name, text)
#define COST(call, unit, ...) [COST_##call] = {#call, unit, {__VA_ARGS__}},
#include "sim/machine/cost.def"
#undef PRICES
#undef COST
};

static uint64_t prices[COST_CALLS];     /* in use */

/* cuda.h may have made cuMemAlloc_v2 of cuMemAlloc by the time the name gets here. */
enum cost_call cost_find(const char *name)
{
    for (int i = 1; i < COST_CALLS; i++) {
        size_t length = strlen(costs[i].name);
        if (!strncmp(costs[i].name, name, length) && (!name[length] || !strncmp(name + length, "_v", 2)))
            return i;
    }
    return COST_NOTHING;
}

/* -------------------------------------------------------------------------------------------------------------------- a file of prices */

struct price_file {
    uint64_t *ns;               /* by call */
    bool      named[COST_CALLS];
    unsigned  line;             /* from 1 */
    char     *why;              /* what is wrong with it */
    size_t    room;
};

static bool refuse(const struct price_file *file, const char *line, const char *what)
{
    snprintf(file->why, file->room, "line %u, \"%.60s\": %s", file->line, line, what);
    return false;
}

static bool read_ns(const char *text, uint64_t *ns)
{
    char *end;
    errno = 0;
    *ns = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *ns <= PRICE_MOST;
}

static bool read_line(struct price_file *file, const char *line)
{
    char words[256], *rest;
    if (snprintf(words, sizeof words, "%s", line) >= (int)sizeof words)
        return refuse(file, line, "the line is too long");
    words[strcspn(words, "#")] = 0;
    char *name = strtok_r(words, " \t\r", &rest), *text = strtok_r(NULL, " \t\r", &rest);
    uint64_t ns;
    if (!name)
        return true;
    enum cost_call call = cost_find(name);
    if (!call)
        return refuse(file, line, "no call of that name has a price");
    if (!text || strtok_r(NULL, " \t\r", &rest) || !read_ns(text, &ns))
        return refuse(file, line, "a price is a whole number of ns, at most ten seconds, behind the name of the call");
    if (file->named[call])
        return refuse(file, line, "the call was named before");
    file->named[call] = true;
    file->ns[call] = ns;
    return true;
}

static bool read_text(struct price_file *file, char *text, size_t length)
{
    if (memchr(text, 0, length)) {
        snprintf(file->why, file->room, "it is no text");
        return false;
    }
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        file->line++;
        if (!read_line(file, line))
            return false;
        line = end ? end + 1 : NULL;
    }
    for (int i = 1; i < COST_CALLS; i++)
        if (file->named[i])
            return true;
    snprintf(file->why, file->room, "it names no price");
    return false;
}

/* Nothing but a plain file of some size: a pipe may never end. */
static bool read_file(struct price_file *file, const char *path)
{
    char text[FILE_MOST + 1];
    struct stat about;
    int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (from < 0) {
        snprintf(file->why, file->room, "%s", strerror(errno));
        return false;
    }
    bool plain = !fstat(from, &about) && S_ISREG(about.st_mode);
    ssize_t length = plain ? read(from, text, sizeof text) : -1;
    close(from);
    if (length < 0 || length > (ssize_t)FILE_MOST) {
        snprintf(file->why, file->room, plain && length > 0 ? "it has more than %u bytes" : "it is no plain file that can be read", FILE_MOST);
        return false;
    }
    text[length] = 0;
    return read_text(file, text, (size_t)length);
}

static bool read_prices(const char *name, uint64_t ns[COST_CALLS], char *why, size_t room)
{
    struct price_file file = {.ns = ns, .why = why, .room = room};
    int list = 0;
    while (list < PRICE_LISTS && strcmp(name, lists[list]))
        list++;
    for (int i = 0; i < COST_CALLS; i++)
        ns[i] = costs[i].ns[list < PRICE_LISTS ? list : PRICES_a100];
    return list < PRICE_LISTS || !*name || read_file(&file, name);
}

const char *sim_price_list(int number)
{
    return number >= 0 && number < PRICE_LISTS ? lists[number] : NULL;
}

bool sim_prices_are_fine(const char *name, char *why, size_t room)
{
    uint64_t ns[COST_CALLS];
    return read_prices(name, ns, why, room);
}

uint64_t sim_price(const char *name, const char *call)
{
    uint64_t ns[COST_CALLS];
    char why[256];
    return read_prices(name, ns, why, sizeof why) ? ns[cost_find(call)] : 0;
}

bool cost_reset(const char *name)
{
    char why[256];
    bool fine = read_prices(name, prices, why, sizeof why);
    if (!fine)
        fprintf(stderr, "simulated GPU: prices: %s: %s\n", name, why);
    return fine;
}

/* -------------------------------------------------------------------------------------------------------------------------- charging */

static _Thread_local uint64_t unspent, of_thread;

static uint64_t host_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What the thread's calls were charged since, as a driver would: it computes all the while. LOCKING: none. */
void cost_spend(void)
{
    uint64_t until = unspent ? host_now() + unspent : 0;
    unspent = 0;
    while (until && host_now() < until)
        ;
}

static void charge(uint64_t ns)
{
    model.books.cost_ns += ns;
    of_thread += ns;
    unspent += model.shape.spend_cost ? ns : 0;
    if (model.shape.charge_cost)
        model.cost_owed += ns;
}

uint64_t sim_cost_of_thread(void)
{
    return of_thread;
}

void cost_charge_call(enum cost_call call)
{
    if (costs[call].per == CALL)
        charge(prices[call]);
}

void cost_charge(enum cost_call call, uint64_t handles)
{
    charge(prices[call] * handles);
}

uint64_t cost_of_copy(bool to_host, bool pinned, uint64_t bytes)
{
    static const enum cost_call rows[2][2] = {{COST_pageable_to_device, COST_pinned_to_device}, {COST_pageable_to_host, COST_pinned_to_host}};
    return model.shape.charge_cost ? (uint64_t)((double)bytes / (1 << 20) * (double)prices[rows[to_host][pinned]]) : 0;
}
