/*
 * memory.c: pages from the system, counted, and tables that grow inside a reservation.
 *
 * This is not an allocator: a file that needs a structure of its own size maps it or keeps it in a table. A table's reservation is
 * PROT_NONE and costs nothing but addresses; committing makes its next pages writable, so that items never move and a number is
 * as good as a pointer. Committed memory is not given back before table_close.
 *
 * LOCKING: none. The books are single words changed atomically; tables belong to their owners.
 */
#include "base/memory.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

#define COMMIT_STEP 16384u  /* chosen: 4 pages of the usual 4 KiB; small pools keep small books */
#define COMMIT_SHARE 4      /* chosen: a table grows by a quarter, so that n items cost O(log n) system calls */

static _Atomic size_t in_use;

static struct {
    _Atomic uint64_t nth;   /* 0: no failure ordered */
    _Atomic uint64_t asked; /* since memory_fail */
    _Atomic uint64_t failed; /* of these */
    atomic_bool      persistent;
} failure;

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

static size_t system_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool memory_fails_on_order(void)
{
    uint64_t nth = atomic_load(&failure.nth);
    if (!nth)
        return false;
    uint64_t asked = atomic_fetch_add(&failure.asked, 1) + 1;
    bool fails = asked == nth || (asked > nth && atomic_load(&failure.persistent));
    atomic_fetch_add(&failure.failed, fails);
    return fails;
}

void memory_fail(uint64_t nth, bool persistent)
{
    atomic_store(&failure.nth, 0);
    atomic_store(&failure.asked, 0);
    atomic_store(&failure.failed, 0);
    atomic_store(&failure.persistent, persistent);
    atomic_store(&failure.nth, nth);
}

uint64_t memory_failed(void)
{
    return atomic_load(&failure.failed);
}

static void *map(size_t bytes, int protection)
{
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *memory_map(size_t bytes)
{
    if (!bytes || bytes > SIZE_MAX / 2 || memory_fails_on_order())
        return NULL;
    bytes = round_up(bytes, system_page());
    void *memory = map(bytes, PROT_READ | PROT_WRITE);
    if (memory)
        atomic_fetch_add(&in_use, bytes);
    return memory;
}

void memory_unmap(void *memory, size_t bytes)
{
    if (!memory)
        return;
    bytes = round_up(bytes, system_page());
    munmap(memory, bytes);
    atomic_fetch_sub(&in_use, bytes);
}

bool memory_make_room(void **memory, size_t *bytes, size_t needed)
{
    if (*memory && needed <= *bytes)
        return true;
    memory_unmap(*memory, *bytes);
    *bytes = round_up(needed + needed / 4 + 1, system_page());
    *memory = memory_map(*bytes);
    for (size_t at = 0; *memory && at < *bytes; at += system_page())
        ((volatile char *)*memory)[at] = 0;
    *bytes = *memory ? *bytes : 0;
    return *memory != NULL;
}

size_t memory_in_use(void)
{
    return atomic_load(&in_use);
}

/* Bytes of address space behind a table; also the most it can commit. */
static size_t table_span(const struct table *t)
{
    return round_up(t->most * t->item_size, COMMIT_STEP);
}

bool table_open(struct table *t, size_t item_size, uint32_t most)
{
    CHECK(item_size >= sizeof(uint32_t)); /* a free item holds the number of the next */
    CHECK(item_size % _Alignof(uint32_t) == 0);
    if (!most || most == UINT32_MAX || item_size > SIZE_MAX / 4 / most || memory_fails_on_order())
        return false;

    struct table opened = {.item_size = item_size, .most = most + 1, .used = 1}; /* item 0 takes room, too */
    opened.items = map(table_span(&opened), PROT_NONE);
    if (!opened.items)
        return false;
    *t = opened;
    return true;
}

void table_close(struct table *t)
{
    if (!t->items)
        return;
    atomic_fetch_sub(&in_use, table_bytes(t));
    munmap(t->items, table_span(t));
    *t = (struct table){0};
}

/* Memory is committed in whole steps and `committed` counts the whole items on them, so the one gives the other back exactly. */
size_t table_bytes(const struct table *t)
{
    return round_up(t->committed * t->item_size, COMMIT_STEP);
}

/* Puts memory behind at least `items` items. */
bool table_commit(struct table *t, uint64_t items)
{
    if (items > t->most)
        return false;
    if (memory_fails_on_order())
        return false;

    uint64_t generous = (uint64_t)t->committed + t->committed / COMMIT_SHARE;
    if (generous > t->most)
        generous = t->most;
    size_t before = table_bytes(t);
    size_t after = round_up((items > generous ? items : generous) * t->item_size, COMMIT_STEP);
    if (mprotect(t->items + before, after - before, PROT_READ | PROT_WRITE))
        return false;

    atomic_fetch_add(&in_use, after - before);
    size_t whole = after / t->item_size;
    t->committed = whole < t->most ? (uint32_t)whole : t->most;
    CHECK(table_bytes(t) == after);
    return true;
}

uint32_t table_take(struct table *t)
{
    uint32_t item = t->first_free;
    if (item) {
        memcpy(&t->first_free, table_at(t, item), sizeof(t->first_free));
        t->free_count--;
        memset(table_at(t, item), 0, t->item_size);
        return item;
    }
    if (t->used >= t->committed && !table_commit(t, (uint64_t)t->used + 1))
        return 0;
    return t->used++; /* never used before: the system zeroed it */
}

void table_give(struct table *t, uint32_t item)
{
    CHECK(item && item < t->used);
    memcpy(table_at(t, item), &t->first_free, sizeof(t->first_free));
    t->first_free = item;
    t->free_count++;
}
