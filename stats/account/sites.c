/*
 * sites.c: where blocks come from, as return addresses.
 *
 * A site is a list of return addresses, innermost first, and a number for good: the same list has the same number. Walking the stack takes
 * a microsecond or two, so that it is done only for pools whose option `sites` asks for it, and before any lock of a pool is taken. What an
 * address is called is found out when a caller wants to read it.
 *
 * LOCKING: the lock of labels guards the adding of sites; a thread that has a number may read the site without.
 */
#include "stats/account/sites.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "pool/pool.h"
#include "stats/account/label.h"

#define BUCKETS (1u << 16)
#define OURS_MAX 8     /* functions of cenote's between the walk and the caller */

struct site {
    uint32_t  unused;                   /* the table chains sites given back through it; none ever is */
    uint32_t  next;                     /* of the same bucket */
    uint64_t  hash;
    uint32_t  count;
    uintptr_t frames[SITE_FRAMES_MAX];
};

static LOCK_OF_PROCESS struct lock lock = LOCK_INITIALIZER(LOCK_LABELS);
static struct table sites;              /* opened by the first site */
static _Atomic(uint32_t) buckets[BUCKETS];

static struct site *site_of(uint32_t number)
{
    return TABLE_AT(struct site, &sites, number);
}

/* The addresses, as far as the stack can be walked; at least the caller. */
static void look(struct site *site, const void *caller, uint32_t frames)
{
    void *stack[OURS_MAX + SITE_FRAMES_MAX];
    uint32_t most = frames < SITE_FRAMES_MAX ? frames : SITE_FRAMES_MAX, first = 0;
    uint32_t count = (uint32_t)backtrace(stack, (int)(OURS_MAX + most));
    while (first < count && stack[first] != caller)
        first++;
    for (uint32_t i = first; i < count && site->count < most; i++)
        site->frames[site->count++] = (uintptr_t)stack[i];
    if (!site->count)
        site->frames[site->count++] = (uintptr_t)caller;
    for (uint32_t i = 0; i < site->count; i++)
        site->hash = (site->hash ^ site->frames[i]) * 0x9e3779b97f4a7c15u;
    site->hash ^= site->hash >> 32;
}

static uint32_t find(const struct site *wanted)
{
    uint32_t number = atomic_load_explicit(&buckets[wanted->hash % BUCKETS], memory_order_acquire);
    for (; number; number = site_of(number)->next) {
        const struct site *s = site_of(number);
        if (!memcmp(s->frames, wanted->frames, sizeof s->frames)) /* what is not used is 0 */
            break;
    }
    return number;
}

static uint32_t add(const struct site *site)
{
    _Atomic(uint32_t) *bucket = &buckets[site->hash % BUCKETS];
    lock_take(&lock);
    uint32_t number = find(site);
    if (!number && (sites.items || table_open(&sites, sizeof(struct site), MARK_SITES_MAX)) && (number = table_take(&sites))) {
        *site_of(number) = *site;
        site_of(number)->next = atomic_load_explicit(bucket, memory_order_relaxed);
        atomic_store_explicit(bucket, number, memory_order_release);
    }
    lock_give(&lock);
    return number;
}

uint64_t site_mark(const void *caller, uint32_t frames)
{
    struct site site = {0};
    look(&site, caller, frames);
    uint32_t number = find(&site);
    return (uint64_t)(number ? number : add(&site)) << MARK_SITE_AT;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "train+0x1c (a.out+0x12ab)"; the address is that of the call, not of what comes after it. */
static int describe(char *text, size_t room, uintptr_t address)
{
    Dl_info info;
    address--;
    if (!dladdr((void *)address, &info)) /* NOLINT: an address of code */
        return snprintf(text, room, "%#lx", (unsigned long)address);
    unsigned long inside = (unsigned long)(address - (uintptr_t)info.dli_fbase);
    if (!info.dli_sname)
        return snprintf(text, room, "%s+%#lx", file_name(info.dli_fname), inside);
    return snprintf(text, room, "%s+%#lx (%s+%#lx)", info.dli_sname, (unsigned long)(address - (uintptr_t)info.dli_saddr),
                    file_name(info.dli_fname), inside);
}

size_t cenote_site_text(uint32_t number, char *text, size_t room)
{
    size_t length = 0;
    room = text ? room : 0;
    if (room)
        text[0] = 0;
    if (driver_is_forked()) /* a thread that is not in this process may have the lock */
        return 0;
    lock_take(&lock);
    uint32_t known = sites.items ? sites.used : 0;
    lock_give(&lock);
    if (!number || number >= known)
        return 0;
    const struct site *s = site_of(number);
    for (uint32_t i = 0; i < s->count; i++) {
        char frame[256];
        int added = snprintf(frame, sizeof frame, i ? " < " : "");
        describe(frame + added, sizeof frame - (size_t)added, s->frames[i]);
        size_t bytes = strlen(frame);
        if (length + bytes < room)
            memcpy(text + length, frame, bytes + 1);
        length += bytes;
    }
    return length;
}
