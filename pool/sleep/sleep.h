/*
 * sleep.h: which pages go to sleep, and wake; see pause.c and resume.c.
 */
#ifndef CENOTE_POOL_SLEEP_SLEEP_H
#define CENOTE_POOL_SLEEP_SLEEP_H

#include <cenote/sleep.h>

#include "pool/pool.h"

/* A page in the hands of the thread. */
struct sleeper {
    uint32_t           page;
    uint32_t           mapped;      /* resume: so many of its slots, from its home on */
    bool               is_created;  /* resume: its memory came in this call */
    bool               is_copied;   /* pause: its copy is one of an earlier sleep */
    struct slot_ref    at;          /* where its blocks are */
    struct sleep_copy *copy;        /* NULL: none, or none yet */
};

/* One call of pause.c or resume.c. */
struct sleepers {
    cenote_pool    *pool;
    cenote_sleep    what;           /* what it names, and what was done so far */
    struct index    names;          /* its blocks, if `what` has a list */
    uint32_t        region, slot;   /* where the walk over all slots of the pool is */
    uint32_t        seen;           /* blocks and items that it looked at under a slot */
    struct sleeper *list;
    uint32_t        count, most;
    uint64_t        began_ns;
    bool            has_courier;    /* no function of the program that may call cenote runs as long as it has */
};

typedef bool sleepers_takes(struct sleepers *s, const struct region *r, uint32_t slot);

int  sleepers_begin(struct sleepers *s, cenote_pool *pool, const cenote_sleep *sleep, size_t size);
int  sleepers_gather(struct sleepers *s, sleepers_takes *takes);
void sleepers_slabs(cenote_pool *pool, uint32_t page, void (*each)(struct slabs *s, uint32_t slab));
void sleepers_give_courier(struct sleepers *s);
int  sleepers_end(struct sleepers *s, int error, cenote_sleep *sleep, size_t size);
void sleepers_pool_ends(cenote_pool *pool);
int  pause_alone(cenote_pool *pool, cenote_sleep *sleep);

/* --- lies.c: what lies on a page. LOCKING: the pool's lock */
struct slot_ref slot_of_sleep(const struct pages *s, const struct page *p);
struct under {
    uint64_t at, end;               /* the page */
    uint32_t piece;                 /* the next that lies there; 0: there is none */
};
struct under        under_of(cenote_pool *pool, uint32_t page, struct slot_ref slot);
const struct block *under_next(cenote_pool *pool, struct under *u);
uint64_t            under_bytes(const struct under *u, const struct block *b, uint64_t *from);

enum lies { LIES_NOTHING, LIES_NAMED, LIES_MIXED /* named blocks, and what bars sleep */, LIES_OTHER };
enum lies lies_there(struct sleepers *s, uint32_t page, struct slot_ref at);

#endif
