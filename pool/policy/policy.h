/*
 * policy.h: when memory goes back that no thread asked to give back. See decay.c, churn.c, request.c and background.c.
 *
 * OWNERS: decay.c has `decay`, churn.c and request.c have `churn` and `last_trim`.
 * LOCKING: the turn; `due` and `deferred` are read without it, and `last_trim` has the pool's lock.
 */
#ifndef CENOTE_POOL_POLICY_POLICY_H
#define CENOTE_POOL_POLICY_POLICY_H

#include <cenote/cenote.h>

#include "pool/clock/fence.h"

#define DECAY_EPOCHS 8              /* of one decay_ms */

/* See decay.c. Guarded by the turn. */
struct decay {
    _Atomic(uint64_t) due;          /* when there is something to do again; a hint without the turn */
    struct {
        uint64_t ns;
        tick     freed;             /* of the last free before */
    } epochs[DECAY_EPOCHS + 1];     /* the last that began: a ring */
    uint32_t newest;
    tick     ripe;                  /* what was freed by then has been free for decay_ms */
};

#define OFTEN_LEAST 8               /* chosen: such trims in a row before one is a habit */

/* Pages given back and taken again, see churn.c. Guarded by the turn. */
struct churn {
    uint64_t given;                 /* pages that may still be taken again */
    uint64_t ns;                    /* what it cost so far */
    uint64_t create_ns, give_ns;    /* what a page cost lately */
    uint64_t asked_ns;              /* when CENOTE_TRIM_PERIODIC came last */
    uint32_t often;                 /* how many in a row */
    uint32_t trims_seen;            /* how many in all */
    tick     trims[OFTEN_LEAST];    /* the tick of each of the last */
    _Atomic tick deferred;          /* what was freed up to here should be gone; 0: nothing. Read without the turn */
};

struct policy {
    struct decay   decay;
    struct churn   churn;
    tick           last_trim;       /* tick of the last periodic trim */
};

/* --- decay.c: with the most pages that may go; true: there are more */
#define DECAY_BATCH      32u    /* where no thread waits for memory: a few milliseconds */
#define DECAY_IN_PASSING 4u     /* at an allocation that called the driver anyway: less than creating one page costs */
bool     decay_go(cenote_pool *pool, uint64_t most);
bool     decay_tend(cenote_pool *pool, uint64_t most);
uint64_t decay_epoch(const cenote_pool *pool);

/* --- churn.c. LOCKING: the turn */
void     churn_given(cenote_pool *pool, uint64_t released, uint64_t ns);
void     churn_created(cenote_pool *pool, uint64_t creating_ns, uint64_t mapping_ns);
uint64_t churn_allowance(const cenote_pool *pool);
tick     churn_trim_came(cenote_pool *pool);
bool     churn_forbids(cenote_pool *pool);

/* --- background.c */
void background_join(cenote_pool *pool);
bool background_leave(cenote_pool *pool);

#endif
