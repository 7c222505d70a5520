/*
 * fill.h: puts pages under slots that lack them, all or nothing. See fill.c.
 */
#ifndef CENOTE_POOL_CORE_FILL_H
#define CENOTE_POOL_CORE_FILL_H

#include "pool/core/pick.h"

struct fill_entry {
    uint32_t slot;
    uint32_t page;                        /* harvested or spare; 0: to be created */
    uint32_t old;                         /* page mapped here that cannot be used here now, 0: none */
    struct page_past past;                /* of a harvested page */
    CUmemGenericAllocationHandle handle;  /* of `page`, once there is one */
    struct region *home;                  /* aliases:off: where a harvested page lies, which
                                             it leaves first; NULL: it need not */
    uint32_t home_slot;
    uint32_t grade;                       /* of the page */
    bool     stays;                       /* `page` is mapped here already, and the device
                                             is not done with it elsewhere */
    bool     created, unmapped, left, mapped; /* done so far */
};

/* One for each pool; in use by the holder of the turn from fill_plan to fill_publish. */
struct fill {
    struct fill_entry *entries;
    struct pick       *picks;
    uint32_t           most;              /* room in both */
    uint32_t           count;
    uint32_t           creates, harvests, unmaps, leaves, stays;
    uint32_t           lack[GRADES];      /* entries whose page does not stay, by its grade */
    bool               is_held;           /* the place is taken before the plan is made,
                                             and the pool's lock may be let go of; */
    uint32_t           block;             /* this is its block then; 0: it is not taken yet, or was given back */
    struct picker      pickers[GRADES];   /* of the pages that move */
    uint32_t           lifted, picked[GRADES]; /* entries that have been given a page, if they
                                                  get one now; picks that are used up */
    uint64_t           growth;            /* bytes of new pages that come although free pages could move */
    uint32_t           published;         /* entries; what the others say is not in the books yet */
    uint32_t           top;               /* the largest grade of which pages are created */
    uint64_t           create_bytes;      /* bytes of the pages that are created */
    tick               behind;            /* the stream has to wait for what was freed up
                                             to here, see order.c; 0: for nothing */
    struct region     *region;
};

enum plan {
    PLAN_READY,
    PLAN_OVER_LIMIT,                      /* more pages would have to be created than `allowance` */
    PLAN_NO_MEMORY,                       /* host memory */
    /* Of the plan around it alone, in shortage/attempt.c. */
    PLAN_LOOSENED,                        /* mappings have gone: look for a place anew */
    PLAN_ORDER                            /* not without memory in flight, for which the stream can be made to wait */
};

enum plan fill_plan(struct fill *f, struct pages *s, const struct requester *who, struct region *r, uint32_t from,
                    uint32_t to, uint64_t growth, uint64_t allowance);
bool      fill_make_room(struct fill *f, uint32_t entries);
bool      fill_hold(struct fill *f, struct pages *s, const struct requester *who, struct region *r, uint32_t from,
                    uint32_t to, uint64_t growth);
void      fill_pick(struct fill *f, struct pages *s, const struct requester *who, uint32_t grade);
void      fill_picked(struct fill *f, const struct pages *s, uint32_t grade);
bool      fill_lift(struct fill *f, struct pages *s, const struct requester *who, uint32_t most);
CUresult  fill_create(struct fill *f, const struct device *d, const CUmemAllocationProp *prop);
CUresult  fill_unmap(struct fill *f, struct device *d);
CUresult  fill_map(struct fill *f, struct device *d, const CUmemAccessDesc *who, uint32_t count);
bool      fill_publish(struct fill *f, struct pages *s, CUresult result, uint32_t most);
void      fill_close(struct fill *f);

#endif
