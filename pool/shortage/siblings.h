/*
 * siblings.h: what the other pools of a device, in whichever of its contexts, can give to an allocation that is
 * short of memory; see siblings.c. LOCKING: none held, and outside the turn: before turn_begin, or, for
 * siblings_poll and siblings_wait, between turn_pause and turn_go_on of a pool of that device. siblings_stir: the
 * pool's lock.
 */
#ifndef CENOTE_POOL_SHORTAGE_SIBLINGS_H
#define CENOTE_POOL_SHORTAGE_SIBLINGS_H

#include "pool/shortage/wait.h"

#define SIBLINGS_MAX 16             /* chosen: that many are waited for; what more there
                                       are give back what they have at once */
struct siblings {
    uint64_t live, cached;          /* bytes of their blocks, and what they hold beside */
    uint64_t stir;                  /* see siblings_stir */
    uint32_t pools;                 /* how many there are */
    bool     unmap;                 /* the driver takes no more mappings: theirs go, too */
    bool     keeps_sources;         /* what came from functions of the program stays */
    uint32_t count;
    struct sibling {
        const cenote_pool *pool;
        tick         limit;         /* what it freed later is not waited for */
        struct sight seen;
        enum awaited awaited;
    } each[SIBLINGS_MAX];
};

uint64_t siblings_stir(const cenote_pool *pool);
void siblings_look(struct siblings *s, const cenote_pool *pool);
enum awaited siblings_poll(struct siblings *s, const cenote_pool *pool, bool *came);
bool siblings_wait(const struct siblings *s, const cenote_pool *pool, enum awaited awaited);

#endif
