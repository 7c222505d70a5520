/*
 * fence.c: how far has the device got?
 *
 * A pool counts its frees: each one happens at a tick. A fence is an event that covers all work of a context up to the moment it is
 * recorded, and so all that was freed up to the tick at which it was begun. Fences retire in order, so that one number, `done`, says of
 * any slot or page whether the device is through with it: its last free must not be later.
 *
 * This is not a way to wait (wait.c waits) and it calls no driver: a thread that records or queries does so without the pool's lock and
 * tells us the result. That keeps rule 11 of docs/design.md visible in the signatures.
 *
 *     fences_begin            fences_end            fences_mark_done
 *   -------------> recording -----------> due  ----------------------> done; the event is handed back for reuse
 *
 * One fence is recorded at a time. Its tick is taken before recording, so what is freed meanwhile belongs to the next one.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/core/fence.h"

#include "base/check.h"

/* A free happens now. What it frees is stamped with the result. */
tick fences_stamp(struct fences *f)
{
    return ++f->now;
}

bool fence_is_done(const struct fences *f, tick freed)
{
    CHECK(freed <= f->now); /* invariant 14: nothing was freed in the future */
    return freed <= f->done;
}

/* False when one is being recorded, too many are due, or nothing was freed since the last one. */
bool fences_begin(struct fences *f)
{
    if (f->recording || f->count == FENCES_DUE_MAX || f->begun == f->now)
        return false;
    f->recording = true;
    f->begun = f->now;
    return true;
}

/* Takes over `event`, recorded since fences_begin. NULL if the driver refused: the next fence covers what this one would have. */
void fences_end(struct fences *f, CUevent event)
{
    CHECK(f->recording);
    f->recording = false;
    if (event) {
        struct fence *entry = &f->due[(f->first + f->count++) % FENCES_DUE_MAX];
        entry->event = event;
        entry->covers = f->begun;
    } else {
        f->begun = f->count ? f->due[(f->first + f->count - 1) % FENCES_DUE_MAX].covers : f->done;
    }
    CHECK_SLOW(fences_are_valid(f));
}

/* The oldest fence that is not known to be done: its event is the next one worth asking the driver about. False: none is due. */
bool fences_oldest(const struct fences *f, struct fence *oldest)
{
    if (f->count)
        *oldest = f->due[f->first];
    return f->count != 0;
}

/* The one that covers most of those due. */
bool fences_newest(const struct fences *f, struct fence *newest)
{
    if (f->count)
        *newest = f->due[(f->first + f->count - 1) % FENCES_DUE_MAX];
    return f->count != 0;
}

/*
 * The driver said that the fence that covers `covers`, the oldest when it was asked, is done. Another thread may have retired it
 * meanwhile, and its event may serve a later fence by now: then there is nothing to do, and no event is handed back.
 */
CUevent fences_mark_done(struct fences *f, tick covers)
{
    struct fence oldest;
    if (!fences_oldest(f, &oldest) || oldest.covers != covers)
        return NULL;

    if (f->done < covers)
        f->done = covers;
    f->first = (f->first + 1) % FENCES_DUE_MAX;
    f->count--;

    CHECK_SLOW(fences_are_valid(f));
    return oldest.event;
}

/* The whole context was waited for after the free at `covers`. Fences still due will find nothing left to say. */
void fences_all_done(struct fences *f, tick covers)
{
    CHECK(covers <= f->now);
    if (f->done < covers)
        f->done = covers;
    if (!f->recording && !f->count && f->begun < covers)
        f->begun = covers;
}

/* Invariant 15: fences due are in order (so there are no more than the ring holds), and none covers more than was begun; nothing is done or
   begun before it was freed. */
bool fences_are_valid(const struct fences *f)
{
    tick before = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        tick covers = f->due[(f->first + i) % FENCES_DUE_MAX].covers;
        if (covers <= before)
            return false;
        before = covers;
    }
    return before <= f->begun && f->begun <= f->now && f->done <= f->now;
}
