/*
 * cost.c: adds up what calls would cost on a real driver, and lets the clock go on by it where the shape says so.
 *
 * cost.def has the prices. A file, which `cenote qualify --prices` writes, replaces those that it names: a line is the name of a call and ns, as
 * "cuMemCreate 61000"; what follows '#' is a remark.
 */
#include "sim/machine/cost.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum cost_per { CALL, HANDLE };

static const struct {
    const char   *name;
    enum cost_per per;
    uint64_t      ns;
} costs[COST_CALLS] = {
#define COST(call, unit, time) [COST_##call] = {#call, unit, time},
#include "sim/machine/cost.def"
#undef COST
};

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

static uint64_t prices[COST_CALLS];     /* in use */

static bool read_price(const char *line)
{
    char name[64];
    unsigned long long ns;
    int end = 0;
    if (sscanf(line, " %63s %llu %n", name, &ns, &end) < 2 || (line[end] && line[end] != '#'))
        return line[strspn(line, " \t\n")] == 0 || line[strspn(line, " \t")] == '#';
    enum cost_call call = cost_find(name);
    if (call)
        prices[call] = ns;
    return call;
}

bool cost_reset(const char *path)
{
    char line[256];
    bool fine = true;
    for (int i = 0; i < COST_CALLS; i++)
        prices[i] = costs[i].ns;
    FILE *file = *path ? fopen(path, "r") : NULL;
    if (*path && !file)
        fprintf(stderr, "simulated GPU: prices: %s cannot be read\n", path);
    while (file && fine && fgets(line, sizeof line, file))
        if (!(fine = read_price(line)))
            fprintf(stderr, "simulated GPU: prices: \"%.60s\" is no call with a price and its ns\n", line);
    if (file)
        fclose(file);
    return fine && (file || !*path);
}

static _Thread_local uint64_t unspent;

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
    unspent += model.shape.spend_cost ? ns : 0;
    if (model.shape.charge_cost)
        model.cost_owed += ns;
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
