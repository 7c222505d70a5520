/*
 * attempt.h: one allocation on its way up the shortage ladder, as
 * attempt.c and shortage.c see it. On the stack of its thread.
 *
 * OWNERS: shortage.c climbs; attempt.c serves, and asks the driver how much is free. LOCKING: none, one thread has it.
 */
#ifndef CENOTE_POOL_SHORTAGE_ATTEMPT_H
#define CENOTE_POOL_SHORTAGE_ATTEMPT_H

#include "pool/shortage/ask.h"
#include "pool/shortage/siblings.h"

#define ROUNDS_MAX      256        /* for one allocation: other threads may take for
                                      ever what comes back. A quarter of a second */

enum rung { RUNG_BUDGET, RUNG_HARVEST, RUNG_CALLBACK, RUNG_ORDER, RUNG_WAIT, RUNG_SPLIT, RUNG_LENDERS };

/* One allocation on its way up. */
struct climb {
    cenote_pool          *pool;
    struct arena         *arena;
    const struct request *request;
    enum rung             rung;     /* never goes down */
    bool                  repeats;  /* the work of the rung is to be done once more before the next one */
    struct asks           asks;
    tick                  limit;    /* RUNG_WAIT: what is freed later is waited for in another round */
    CUresult              no_order; /* what the driver said when the stream was to
                                       wait for others; then the host waits */
    int                   lenders;  /* how often they were asked */
    uint64_t              patience; /* until when they are */
    int                   rounds;   /* of RUNG_WAIT, and waits for addresses */
    struct siblings       siblings;
    uint64_t              stir;     /* that of this pool and of its siblings when the last round began */
    uint64_t              outside;  /* bytes that the driver has left, UINT64_MAX: not asked, or it does not say; */
    int64_t               misjudged;/* so many more than it says, or fewer, as it turned out when it was last tried */
    bool                  overstates;/* it refused pages that it said it has */
    bool                  no_loosening; /* aliases of units did not go when they were to: they stay */
    CUresult              no_mapping; /* what the driver said when the pages of the last fill were mapped */
    uint64_t              now;      /* when the attempt began, for the harvest budget */
    uint64_t              at;       /* the result */
    int                   error;
    CUresult              driver;   /* what the driver said last; an error that is left here ends the climb */
};

enum attempt {
    ATTEMPT_DONE,          /* served, or failed for good: `error` or `driver` says */
    ATTEMPT_AGAIN,         /* something changed: look again on the same rung */
    ATTEMPT_ORDER,         /* not without memory in flight, for which the stream can be made to wait */
    ATTEMPT_SHORT          /* no physical memory on this rung */
};

enum attempt attempt_serve(struct climb *c);
void attempt_replace_segments(struct climb *c);
uint64_t attempt_ask_outside(struct climb *c);
bool attempt_has_more(struct climb *c, uint64_t bytes);

#endif
