/*
 * memory.h: host memory for our own bookkeeping. It comes from mmap and never from the host program's malloc, which may be running
 * above us. What is mapped here is never under device memory. Thread-safe; see memory.c.
 */
#ifndef CENOTE_BASE_MEMORY_H
#define CENOTE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, a multiple of the system's page. NULL when the system has none. */
void *memory_map(size_t bytes);
void  memory_unmap(void *memory, size_t bytes);

/*
 * For copies whose size is not known beforehand: memory for what was `needed` and a quarter more, with the system's pages behind it. What
 * was there before is forgotten. False: there is none, *memory is NULL and *bytes 0.
 */
bool memory_make_room(void **memory, size_t *bytes, size_t needed);

/* Bytes in use by all of us: what memory_map gave and tables have committed. */
size_t memory_in_use(void);

/* For fault tests: the n-th memory_map, table_open or table growth from now fails, and if `persistent` all after it. 0: none. */
void memory_fail(uint64_t nth, bool persistent);
uint64_t memory_failed(void); /* how many did since */
bool     memory_fails_on_order(void); /* for memory that is taken for us, as the stack of a thread: is it to fail? */

/*
 * A table: items of one size that never move, named by the numbers 1 to `most` (0 is "none"). So an array by such a number has `most` + 1 elements.
 * Free items are chained and reused. Address space for `most` items is set aside once; memory is committed as the table grows.
 * LOCKING: that of the table's owner.
 */
struct table {
    char    *items;       /* item 0 is never handed out */
    size_t   item_size;
    uint32_t most;        /* items that fit the address space, with item 0 */
    uint32_t used;        /* items ever handed out, with item 0 */
    uint32_t committed;   /* items with memory behind them */
    uint32_t first_free;  /* chain of items given back, through their first four bytes */
    uint32_t free_count;
};

bool     table_open(struct table *t, size_t item_size, uint32_t most);
void     table_close(struct table *t);
bool     table_commit(struct table *t, uint64_t items);   /* puts memory behind that many; see table_reserve */
uint32_t table_take(struct table *t);                     /* a zeroed item; 0 when there is no memory */
void     table_give(struct table *t, uint32_t item);      /* never fails, never allocates */
size_t   table_bytes(const struct table *t);              /* committed memory */

static inline void *table_at(const struct table *t, uint32_t item)
{
    return t->items + (size_t)item * t->item_size;
}

/* The same in a table of `type`: where the size is known, no multiplication is on the way to an item. */
#define TABLE_AT(type, table, item) ((type *)(void *)(table)->items + (item))

/* The next `count` table_take succeed; false: no memory. */
static inline bool table_reserve(struct table *t, uint32_t count)
{
    uint64_t items = (uint64_t)t->used + count;
    return items <= (uint64_t)t->committed + t->free_count || table_commit(t, items - t->free_count);
}

#endif
