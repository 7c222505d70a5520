/*
 * store.h: a store of pages over made-up addresses, with made-up handles: what heap, pages, pick and fill work on, and no device.
 * One store at a time. Regions get numbers from 1 in the order of their making, and lie far apart.
 */
#ifndef CENOTE_TESTS_POOL_STORE_H
#define CENOTE_TESTS_POOL_STORE_H

#include "pool/core/pick.h"
#include "tests/base/random.h"

#define STORE_SHIFT   16u                      /* 64 KiB pages: 128 blocks of 512 bytes, so that edges meet often */
#define STORE_PAGE    (1ull << STORE_SHIFT)
#define STORE_BASE    0x7f2000000000ull
#define STORE_STRIDE  (1ull << 32)             /* from one region's base to the next */
#define STORE_REGIONS 16

extern struct pages store;
extern struct fences fences;            /* of that store */

void store_open(void);
void store_close(void);

/* A region of `slots` empty slots of that arena, in no heap. */
struct region *store_region(uint32_t slots, uint32_t arena, bool fixed);

/* A region that is a segment of `bytes`, with its one page. */
struct region *store_segment(uint64_t bytes, uint32_t arena);

/* A new spare page. */
uint32_t store_spare(void);

/* The page is mapped at a slot that has none, as fill.c does it: nothing lies on it yet. */
void store_map(uint32_t page, struct region *r, uint32_t slot);

/* A new page, as large as the place, mapped there alone. */
uint32_t store_page_at(struct region *r, uint32_t slot);

/* Nothing is mapped in the slots, and no thread is at work on them: they may turn. */
bool store_is_idle(const struct region *r, uint32_t from, uint32_t to);

/* The unit around the slot is joined from now on, or is not, if it is idle. False: it was not. */
bool store_turn(struct region *r, uint32_t slot);

/* What was freed up to now is done. */
void store_finish(void);

/* A look at the slots [from, to): how many lack a page; *blocked_to is past the last one nothing can be done about now, 0: none. */
uint32_t store_missing(const struct requester *who, const struct region *r, uint32_t from, uint32_t to, uint32_t *blocked_to);

/* The arena of that region asks for memory, outside captures. */
struct requester store_requester(const struct region *r);

#endif
