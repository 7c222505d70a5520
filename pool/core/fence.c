/*
 * fence.c: how far has the device got?
 *
 * A pool counts its frees: each one happens at a tick. A fence is an event on each stream that may be touched, or one event that covers
 * all work of a context. Once all of its events are done, so is what was freed up to the tick at which it was begun. Fences retire in order,
 * so that one number, `done`, says of any slot or page whether the device is through with it: its last free must not be later.
 *
 * A stream on which no event could be recorded is not covered. What its arenas freed since is held: it is not done, however far the fences
 * come, until one has an event on that stream. cover.c decides that; here it is one number for each arena.
 *
 * This is not a way to wait (wait.c waits) and it calls no driver: a thread that records or queries does so without the pool's lock and
 * tells us the result. That keeps rule 11 of docs/design.md visible in the signatures.
 *
 *     fences_begin            fences_end            fences_mark_done
 *   -------------> recording -----------> due  ----------------------> done; the event is handed back for reuse
 *
 *                   fences_add: one event more, while it is recorded        fences_step: one event of several is done
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

/* Takes over an event of the fence being recorded, beside the one that fences_end gets. False: too many are due. */
bool fences_add(struct fences *f, CUevent event)
{
    CHECK(f->recording);
    if (f->more_count == FENCES_MORE_MAX)
        return false;
    f->more[(f->first_more + f->more_count++) % FENCES_MORE_MAX] = event;
    f->more_of_next++;
    return true;
}

/* The event that was added last is handed back: the fence is about to end without one. NULL: there is none left. */
CUevent fences_take_back(struct fences *f)
{
    if (!f->more_of_next)
        return NULL;
    f->more_of_next--;
    return f->more[(f->first_more + --f->more_count) % FENCES_MORE_MAX];
}

/* Takes over `event`, recorded since fences_begin. NULL if the driver refused: the next fence covers what this one would have. */
void fences_end(struct fences *f, CUevent event, bool whole)
{
    CHECK(f->recording && (event || !f->more_of_next));
    f->recording = false;
    if (event) {
        f->due[(f->first + f->count++) % FENCES_DUE_MAX] = (struct fence){event, f->begun, f->more_of_next, whole};
        f->more_of_next = 0;
    } else {
        f->begun = f->count ? f->due[(f->first + f->count - 1) % FENCES_DUE_MAX].covers : f->done;
    }
    CHECK_SLOW(fences_are_valid(f));
}

/* The fence being recorded ends without an event, because there is no stream to wait for: it is done with the one before it. */
void fences_pass(struct fences *f)
{
    CHECK(f->recording && !f->more_of_next);
    f->recording = false;
    if (f->count)
        f->due[(f->first + f->count - 1) % FENCES_DUE_MAX].covers = f->begun;
    else
        f->done = f->begun;
    CHECK_SLOW(fences_are_valid(f));
}

/*
 * An event of the fence that covers `covers`, the oldest when the driver was asked, is done, and is handed back if others of the fence are not
 * known to be: the next of those takes its place. NULL: it was the only one.
 */
CUevent fences_step(struct fences *f, tick covers)
{
    struct fence *oldest = &f->due[f->first];
    if (!f->count || oldest->covers != covers || !oldest->more)
        return NULL;
    CUevent event = oldest->event;
    oldest->event = f->more[f->first_more];
    oldest->more--;
    f->first_more = (f->first_more + 1) % FENCES_MORE_MAX;
    f->more_count--;
    CHECK_SLOW(fences_are_valid(f));
    return event;
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
    CHECK(!oldest.more);

    if (f->done < covers)
        f->done = covers;
    if (oldest.whole && f->whole < covers)
        f->whole = covers;
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
    if (f->whole < covers)
        f->whole = covers;
    if (!f->recording && !f->count && f->begun < covers)
        f->begun = covers;
}

/* Invariant 15: fences due are in order (so there are no more than the ring holds), and none covers more than was begun; nothing is done or
   begun before it was freed. */
bool fences_are_valid(const struct fences *f)
{
    tick before = 0;
    uint32_t more = f->more_of_next;
    for (uint32_t i = 0; i < f->count; i++) {
        more += f->due[(f->first + i) % FENCES_DUE_MAX].more;
        tick covers = f->due[(f->first + i) % FENCES_DUE_MAX].covers;
        if (covers <= before)
            return false;
        before = covers;
    }
    return before <= f->begun && f->begun <= f->now && f->done <= f->now && f->whole <= f->done && more == f->more_count;
}
