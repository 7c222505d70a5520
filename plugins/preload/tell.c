/*
 * tell.c: the figures at the end of the run, in the words of `cenote run` (python/cenote/inside/run_summary.py): one line for the process, if
 * CENOTE_SUMMARY=on and memory was asked for that is served otherwise. A handler of a signal may exit in the middle of a call that is served: then
 * there are no figures, because its thread may have the locks of the books.
 *
 * LOCKING: none; it runs when the process exits.
 */
#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

struct figures {
    int      devices;
    uint64_t requested, reserved, calls, trims;
};

static const char *const words[PASSES] = {
#define PASS(name, text) text,
#include "plugins/preload/passes.def"
#undef PASS
};

static struct figures add_up(void)
{
    struct figures sum = {0};
    struct place_past past;
    uint64_t devices = 0;
    for (int i = 0; i < PLACES_MAX; i++) {
        if (!place_past(i, &past))
            continue;
        sum.devices += !(devices >> past.device & 1);
        devices |= 1ull << past.device;
        sum.requested += past.requested;
        sum.reserved += past.reserved;
        sum.trims += past.trims;
        sum.calls = past.calls > sum.calls ? past.calls : sum.calls;
    }
    return sum;
}

/* Appends to a line as printf prints; what does not fit is cut. */
__attribute__((format(printf, 3, 4))) static void put(char *line, size_t room, const char *format, ...)
{
    size_t length = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, room - length, format, arguments);
    va_end(arguments);
}

static void put_size(char *line, size_t room, uint64_t bytes)
{
    if (bytes >= GIB)
        put(line, room, "%.2f GiB", (double)bytes / (double)GIB);
    else
        put(line, room, "%.2f MiB", (double)bytes / (double)MIB);
}

/* 5,026 */
static void put_number(char *line, size_t room, uint64_t number)
{
    if (number >= 1000) {
        put_number(line, room, number / 1000);
        put(line, room, ",%03u", (unsigned)(number % 1000));
    } else {
        put(line, room, "%u", (unsigned)number);
    }
}

/* In per cent, or in bytes where that would be a number of many digits. */
static void put_waste(char *line, size_t room, const struct figures *f)
{
    double share = 100 * ((double)f->reserved / (double)f->requested - 1);
    put(line, room, ", waste ");
    if (share < 1000)
        put(line, room, "%.1f %%", share);
    else
        put_size(line, room, f->reserved - f->requested);
}

static void put_passes(char *line, size_t room)
{
    const char *before = "; left to the driver: ";
    for (int why = 0; why < PASSES; why++) {
        if (!place_passes(why))
            continue;
        put(line, room, "%s", before);
        put_number(line, room, place_passes(why));
        put(line, room, " %s", words[why]);
        before = ", ";
    }
}

/* A program whose every request was left to the driver has no figures. One that has made none, as a shell, may have no driver either. */
static void tell_of_passes_alone(void)
{
    char line[1024] = "cenote: nothing was served (cenote ", passes[512] = "";
    put_passes(passes, sizeof passes);
    if (!*passes)
        return;
    put(line, sizeof line, "by preload%s)%s", real()->is_simulated ? " on a simulated GPU" : "", passes);
    fprintf(stderr, "%s\n", line);
}

__attribute__((destructor)) static void tell(void)
{
    char line[1024] = "cenote: peak requested ";
    const char *wanted = secure_getenv("CENOTE_SUMMARY"), *rank = getenv("RANK");
    if (!wanted || strcmp(wanted, "on") || real_is_left()) /* in a child of a fork a lock may be held by a thread that it does not have */
        return;
    if (hooks_are_under_way()) {
        fprintf(stderr, "cenote: no figures: the program ended inside a call for memory (cenote by preload)\n");
        return;
    }
    struct figures f = add_up();
    if (!f.requested) {
        tell_of_passes_alone();
        return;
    }
    put_size(line, sizeof line, f.requested);
    put(line, sizeof line, ", peak reserved ");
    put_size(line, sizeof line, f.reserved);
    put_waste(line, sizeof line, &f);
    put(line, sizeof line, ", ");
    put_number(line, sizeof line, f.calls);
    put(line, sizeof line, " driver call%s, ", f.calls == 1 ? "" : "s");
    put_number(line, sizeof line, f.trims);
    put(line, sizeof line, " trim%s (cenote by preload%s", f.trims == 1 ? "" : "s", real()->is_simulated ? " on a simulated GPU" : "");
    if (f.devices > 1)
        put(line, sizeof line, ", %d GPUs together", f.devices);
    if (rank && *rank)
        put(line, sizeof line, ", rank %s", rank);
    put(line, sizeof line, ")");
    put_passes(line, sizeof line);
    fprintf(stderr, "%s\n", line);
}
