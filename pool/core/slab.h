/*
 * slab.h: equal small blocks, cut out of a heap block. See slab.c.
 */
#ifndef CENOTE_POOL_CORE_SLAB_H
#define CENOTE_POOL_CORE_SLAB_H

#include "base/memory.h"
#include "pool/core/region.h"
#include "pool/core/sizeclass.h"

#define SLAB_ITEMS_MAX 128u
#define SLAB_ITEMS_MIN 8u
#define SLABS_MAX     (1u << 24)
#define SLABS_EMPTY_KEPT 32u            /* of one arena, 2 MiB: on hta_v100_train they
                                           end the remapping in the last repetition */

struct slab {
    uint64_t at;                        /* multiple of 64 KiB */
    uint32_t block;                     /* the heap block it is cut from */
    uint32_t region;
    uint32_t item_bytes;
    uint16_t items;
    uint16_t free_items;
    uint32_t class;
    uint32_t before, after;             /* in its bin, while an item is free and no page sleeps */
    uint32_t asleep;                    /* pages under it that do, or are about to */
    uint64_t free[SLAB_ITEMS_MAX / 64]; /* a bit for each free item */
    uint64_t pending[SLAB_ITEMS_MAX / 64];     /* freed, waits for other streams */
    uint16_t requested[SLAB_ITEMS_MAX]; /* bytes asked for, of live items */
    uint32_t uses[SLAB_ITEMS_MAX];      /* streams an item is used on, see pending.c */
    uint64_t mark[SLAB_ITEMS_MAX];      /* see label.h */
};

struct slabs {                          /* of one arena; guarded by the pool's lock */
    struct table *table;                /* shared by all arenas of a pool */
    uint32_t      bins[CLASS_COUNT];    /* first slab with a free item, 0: none */
    uint32_t      empty;                /* slabs without a live item */
};

static inline struct slab *slab_of(const struct table *slabs, uint32_t slab)
{
    return TABLE_AT(struct slab, slabs, slab);
}

/* Bytes and alignment of the heap block a slab of this class wants. */
#define SLAB_ALIGNMENT (1u << SLAB_GRANULE_SHIFT)
uint64_t slab_bytes(uint32_t class);

uint32_t slab_at_address(const struct region *r, uint64_t at);
void     slab_open(struct slabs *s, uint32_t class, struct region *r, uint64_t at, uint32_t block);
uint64_t slab_take(struct slabs *s, uint32_t class, uint64_t requested, uint64_t mark);
uint64_t slab_take_at(struct slabs *s, uint32_t number, uint32_t class, uint64_t at, uint64_t requested, uint64_t mark);
bool     slab_sleeps_at(const struct slabs *s, uint32_t number, uint32_t class, uint64_t at);
bool     slab_give(struct slabs *s, uint32_t slab, uint32_t item);
uint32_t slab_close(struct slabs *s, uint32_t slab, struct region *r);
void     slab_doze(struct slabs *s, uint32_t slab);
void     slab_wake(struct slabs *s, uint32_t slab);

/* How far a check has come. If anything changed since, it begins again. */
struct slabs_walk {
    uint32_t class, before, empty;
};
bool        slabs_check(const struct slabs *s, struct slabs_walk *w, uint32_t most, const char **broken);
const char *slabs_broken_rule(const struct slabs *s);

#endif
