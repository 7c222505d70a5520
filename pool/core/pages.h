/*
 * pages.h: the store of physical pages of a pool, and which arena uses each of them. See pages.c.
 */
#ifndef CENOTE_POOL_CORE_PAGES_H
#define CENOTE_POOL_CORE_PAGES_H

#include "base/memory.h"
#include "pool/clock/fence.h"
#include "pool/core/region.h"

/* What lay on a page that sleeps, in host memory; see pool/sleep/copy.c. */
struct sleep_copy {
    struct sleep_copy *next;        /* of those that no page needs any more */
    uint64_t mapped;                /* bytes of it all */
    uint64_t at;                    /* address of its slot, under its blocks */
    uint64_t kept, discarded;       /* bytes of contents; of those that are not there */
    uint32_t runs;
    uint32_t arena;                 /* whose blocks they are */
    uint64_t taken;                 /* what that arena had counted then */
    bool     is_constant;           /* it outlives the sleep, for the next */
};

#define PAGES_MAX   (1u << 24)     /* 32 TiB of 2 MiB pages */
#define REGIONS_MAX (1u << 20)

/* Pages have one of these sizes, see units.c. */
enum grade { GRADE_SMALL, GRADE_LARGE, GRADES };

/*
 * A page that sleeps is of no use to any arena, and the driver has its memory, unless it refused that. All else
 * of the page stays: its slots, its owner, the blocks there.
 */
enum wakefulness {
    AWAKE,
    DOZING,                         /* a thread lets it sleep: its slots map it still */
    ASLEEP,                         /* once no block lies on it, it is gone */
    STIRRING                        /* a thread with the turn brings it memory */
};

struct page {
    CUmemGenericAllocationHandle handle;  /* 0 for a segment */
    uint64_t    bytes;
    tick        freed;              /* last free on it, kept here unless it is sole; then regions keep it by slot */
    struct slot_ref owner;              /* slot under live bytes or being filled, region
                                           0: none; kept unless it is sole */
    struct slot_ref home;               /* first slot of the chain that maps it; region 0: a spare, mapped nowhere */
    uint32_t    maps;               /* slots that map it */
    uint32_t    arena;              /* the arena that used it last */
    uint32_t    met;                /* epoch of the last look that met it: tells twice from once */
    uint32_t    pins;               /* cenote_pin calls on slots that map it */
    uint32_t    before_spare, next_spare;
    bool        fixed;              /* a private arena uses it, and it never leaves that, until the group is released */
    bool        leaving;            /* a thread with the turn gives it to the driver, or brings it back; or it sleeps */
    enum wakefulness wakefulness;
    struct sleep_copy *copy;        /* of its contents while it sleeps, and of constant ones longer; NULL: none */
    uint64_t    serial;             /* of the process, given at its first export; 0: never exported since it came */
};

struct region_entry {
    uint32_t       unused;          /* the table chains entries given back through it */
    struct region *region;          /* NULL: none of that number */
};

/* The arena that asks for memory, and what may be done to serve it. */
struct requester {
    uint32_t arena;
    bool     may_unmap;             /* no capture is open on the device */
    bool     anywhere;              /* what lacks no page is as good beyond the line of a heap as below it */
    bool     splits;                /* small pages come where a place takes a part of a large one, see units.c */
    tick     ordered;               /* its stream waits on the device for all that was
                                       freed up to here, whichever arena freed it */
    tick     orderable;             /* it can be made to wait for this much; 0: no more than `ordered` */
};

struct pages {                      /* guarded by the pool's lock */
    const struct fences *fences;   /* time: the core reads it and changes nothing of it */
    struct table  table;            /* of struct page */
    struct table  regions;          /* of struct region_entry */
    uint32_t      shifts[GRADES];   /* log2 of the page size of each grade, the smaller first; they may be equal */
    uint32_t      epoch;            /* of the current look */
    uint32_t      spare;            /* chain of pages mapped nowhere */
    uint32_t      spares;           /* in it */
    uint64_t      spare_bytes;
    uint64_t      reserved;         /* bytes of all pages and segments that have memory */
    uint64_t      held[GRADES];     /* of these, of the pages of each grade */
    uint64_t      asleep;           /* bytes of pages that have none */
    uint32_t      sleepers;         /* pages that sleep, or are about to */
    struct sleep_copy *copies;      /* of pages that are gone: a thread that has given the lock back unmaps them */
    uint64_t      addresses;        /* bytes of address space */
    bool          mapped_once;      /* aliases:off: a page that moves leaves its old slot first */
    uint32_t      listed[2];        /* first of the regions in which a page may be free; [1] segments */
};

static inline bool pages_have_sizes(const struct pages *s) { return s->shifts[GRADE_SMALL] != s->shifts[GRADE_LARGE]; }

/* Bytes of the largest pages that there are. */
static inline uint64_t pages_largest(const struct pages *s)
{
    return 1ull << s->shifts[s->held[GRADE_LARGE] ? GRADE_LARGE : GRADE_SMALL];
}

/* Of pages that a place of the region can have there. */
static inline enum grade pages_grade_at(const struct region *r, uint32_t slot)
{
    return region_span_shift(r, slot) ? GRADE_LARGE : GRADE_SMALL;
}

static inline struct page *page_of(const struct pages *s, uint32_t page)
{
    return TABLE_AT(struct page, &s->table, page);
}
static inline struct region *region_of(const struct pages *s, uint32_t region)
{
    return TABLE_AT(struct region_entry, &s->regions, region)->region;
}

/* Does the stream of the requester come after the last use of a page, which that arena freed at that tick? */
static inline bool requester_comes_after(const struct pages *s, const struct requester *who, tick freed, uint32_t arena)
{
    return arena == who->arena || freed <= who->ordered || fence_has_passed(s->fences, freed, arena);
}

bool pages_open(struct pages *s, uint32_t shift); /* pages of one size; the caller may have other grades */
void pages_close(struct pages *s);

/* A look at a range: anew, then slot by slot. */
void pages_look_anew(struct pages *s);
bool pages_lack(struct pages *s, const struct requester *who, const struct region *r, uint32_t slot, bool *blocked);
bool pages_are_of_another(const struct pages *s, const struct region *r, uint32_t slot);
bool pages_may_stay(struct pages *s, const struct requester *who, const struct region *r, uint32_t slot);

/* Live bytes come to, or leave, the slots [from, to). */
void pages_own(struct pages *s, struct region *r, uint32_t from, uint32_t to);
void pages_fix(struct pages *s, struct region *r, uint32_t from, uint32_t to);
void pages_join(struct region *r, uint32_t from, uint32_t seam, uint32_t behind, uint32_t to);
void pages_disown(struct pages *s, struct region *r, uint32_t from, uint32_t to, tick freed);

/* The chain of slots that map a page. */
void pages_link(struct pages *s, uint32_t page, struct region *r, uint32_t slot);
void pages_unlink(struct pages *s, struct region *r, uint32_t slot);

/* A page without live bytes, taken for a move, and then settled there or put back as it was. */
struct page_past {
    uint32_t arena;
    bool     fixed;
    tick     freed;
};
struct page_past pages_lift(struct pages *s, uint32_t page, struct slot_ref target);
void pages_settle(struct pages *s, uint32_t page);
void pages_drop(struct pages *s, uint32_t page, struct page_past past);

uint32_t pages_add(struct pages *s, CUmemGenericAllocationHandle handle, uint64_t bytes);
void     pages_remove(struct pages *s, uint32_t page);
void     pages_add_spare(struct pages *s, uint32_t page);
void     pages_leave(struct pages *s, uint32_t page);
void     pages_stay(struct pages *s, uint32_t page);

/* A page goes to sleep under its blocks, see pool/sleep: no arena may use it meanwhile, but its blocks may be freed. */
void     pages_doze(struct pages *s, uint32_t page);
void     pages_rouse(struct pages *s, uint32_t page);
void     pages_hold(struct pages *s, uint32_t page, CUmemGenericAllocationHandle handle);
void     pages_sleep(struct pages *s, uint32_t page, struct sleep_copy *copy);
void     pages_stir(struct pages *s, uint32_t page);
void     pages_wake(struct pages *s, uint32_t page, bool wakes);
void     pages_forget_asleep(struct pages *s, uint32_t page);
void     pages_forget_constant(struct pages *s, uint32_t page);

/* Copies of pages that are gone, for pages_unmap_copies, once the pool's lock is given back. NULL: there are none. */
static inline struct sleep_copy *pages_take_copies(struct pages *s)
{
    struct sleep_copy *gone = s->copies;
    if (__builtin_expect(gone != NULL, 0))
        s->copies = NULL;
    return gone;
}
void     pages_unmap_copies(struct sleep_copy *copy);

bool     pages_add_region(struct pages *s, struct region *r);
void     pages_remove_region(struct pages *s, struct region *r);

void pages_unlist(struct pages *s, struct region *r);

/* Pages that may be free, by the word. */
static inline uint64_t pages_maybe_free(const struct region *r, uint32_t word)
{
    return r->home[word] & ~(r->sole[word] & r->busy[word]);
}

/* --- pages_check.c: sums for the statistics, and what must hold */
struct pages_sums {
    uint64_t owned, free, aliased, frozen;  /* pages */
    uint64_t harvestable, in_flight;        /* bytes of free pages: complete; in flight */
    uint64_t pinned;                        /* and of those that may not move though of no private arena */
};
uint64_t pages_free(const struct pages *s, const struct region *r, uint64_t *stays, uint64_t *done);
void pages_sum_slots(struct pages *s, const struct region *r, uint32_t from, uint32_t to, struct pages_sums *sums);
void pages_sum_spares(const struct pages *s, struct pages_sums *sums);

const char *pages_broken_slots(struct pages *s, struct region *r, uint32_t from, uint32_t to, uint64_t *bytes);
const char *pages_broken_sum(const struct pages *s, uint64_t bytes);
const char *pages_broken_rule(struct pages *s);  /* NULL, or the invariant that does not hold */

#endif
