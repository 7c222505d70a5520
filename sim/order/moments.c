/*
 * moments.c: moments that are not known yet. Where a stream waits for a word (cuStreamWaitValue32) no number says when it goes on: that depends on
 * what the program or another stream writes. All other moments are numbers of nanoseconds (work.c).
 *
 * A moment that is not known is a number beyond all others, so a comparison with the present finds it later. It names an entry here:
 *
 *     a wait       is known once its word has let it pass: queue.c looks
 *     a sum        the later of two moments, and a length; known as soon as both of them are
 *
 * An entry comes after those that it names, so one pass over them, from the oldest, tells what has become known. Entries stay until a reset: of a
 * moment that was kept, moment_by_now tells what it is by now. Without waits there are no entries, and a sum is a comparison.
 *
 * LOCKING: the model's lock.
 */
#include <stdlib.h>

#include "sim/order/work.h"

#define NOT_KNOWN (1ull << 63)

struct entry {
    uint64_t known;         /* 0: not yet */
    uint64_t after[2];      /* moments */
    uint64_t least;         /* it is no earlier */
    uint64_t length;
    bool     waits;         /* for a word */
};

static struct {
    struct entry *entries;
    uint64_t      count, room;
    uint64_t      first;    /* all entries before it are known */
} moments;

void moments_reset(void)
{
    moments.count = moments.first = 0;
}

bool moment_is_known(uint64_t moment)
{
    return moment < NOT_KNOWN;
}

static struct entry *entry_of(uint64_t moment)
{
    return &moments.entries[moment - NOT_KNOWN];
}

uint64_t moment_by_now(uint64_t moment)
{
    if (moment < NOT_KNOWN)
        return moment;
    const struct entry *e = entry_of(moment);
    return e->known ? e->known : moment;
}

static uint64_t add(struct entry e)
{
    if (moments.count == moments.room) {
        uint64_t room = moments.room ? 2 * moments.room : 64;
        struct entry *entries = realloc(moments.entries, room * sizeof *entries);
        if (!entries)
            model_cannot_start("no host memory for streams that wait");
        moments.entries = entries;
        moments.room = room;
    }
    moments.entries[moments.count] = e;
    return NOT_KNOWN + moments.count++;
}

static uint64_t least_of(uint64_t moment)
{
    return moment < NOT_KNOWN ? moment : entry_of(moment)->least;
}

static uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t moment_wait(uint64_t start, uint64_t now)
{
    return add((struct entry){.after = {start}, .least = max(now, least_of(start)), .waits = true});
}

uint64_t moment_sum(uint64_t a, uint64_t b, uint64_t length)
{
    a = moment_by_now(a);
    b = moment_by_now(b);
    if (moment_is_known(a) && moment_is_known(b))
        return max(a, b) + length;
    if (!length && (a == b || (moment_is_known(b) && b <= least_of(a))))
        return a;
    if (!length && moment_is_known(a) && a <= least_of(b))
        return b;
    return add((struct entry){.after = {a, b}, .least = max(least_of(a), least_of(b)) + length, .length = length});
}

uint64_t moment_later(uint64_t a, uint64_t b)
{
    return moment_sum(a, b, 0);
}

/* What has become known by that. */
static void settle(void)
{
    for (uint64_t i = moments.first; i < moments.count; i++) {
        struct entry *e = &moments.entries[i];
        uint64_t a = moment_by_now(e->after[0]), b = moment_by_now(e->after[1]);
        if (!e->known && !e->waits && moment_is_known(a) && moment_is_known(b))
            e->known = max(max(a, b) + e->length, 1);
        moments.first += e->known && i == moments.first;
    }
}

void moment_pass(uint64_t wait, uint64_t when)
{
    entry_of(wait)->known = max(when, 1);
    settle();
}
