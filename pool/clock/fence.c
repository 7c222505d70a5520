/*
 * fence.c: how far has the device got?
 *
 * A pool counts its frees: each one happens at a tick. A fence is one event over all work of a context, or one event on
 * each stream that lives as long as the program. Once all of its events are done, so is what was freed up to the tick
 * at which it was begun: `done`. Fences retire in order, so that one number says of any slot or page whether the device
 * is through with it: its last free must not be later.
 *
 * Where fences are on streams, `done` does not say enough: a fence lacks events on streams that end, or are being
 * captured. So each arena points at its stream, which says how far it has got (`progress`): an event on that stream
 * moves it. The end of a whole fence or of a wait for the whole context moves `whole` instead. When a stream gets an
 * arena with which the device is done, that is `known` of the arena up to now (lane_join).
 *
 *     complete:  freed <= whole, or (freed <= done, and freed <= the horizon of the arena)
 *
 * Memory of a graph may have been written by a replay on any stream. So the horizon of an arena that a private group
 * has left stays behind the end of the group until `all` has come there. Only a fence moves `all` that had an event on
 * every stream that lives as long as the program, or that was over the whole context. While a lane has replays of its
 * own to come to the end of, `whole` is asked for instead of `all`.
 *
 * This is not a way to wait (wait.c waits) and it calls no driver: a thread that records or queries does so without the
 * pool's lock and tells us the result. That keeps rule 9 of docs/design.md visible in the signatures.
 *
 *     fences_begin            fences_end                           fences_step, of the last event
 *   -------------> recording -----------> due ---------------------------------------------------> done
 *             fences_add: an event of it          fences_step: an event of it is done and is handed back
 *
 * One fence is recorded at a time. Its tick is taken before recording,
 * so what is freed meanwhile belongs to the next one.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/clock/fence.h"

/* A tick for a fence that is to be recorded although nothing was freed since the last one. */
tick fences_stamp_nothing(struct fences *f)
{
    return ++f->now;
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

/* Takes over an event, recorded since fences_begin. False: too many are due. */
bool fences_add(struct fences *f, CUevent event, uint32_t lane)
{
    CHECK(f->recording);
    if (f->part_count == FENCE_PARTS_MAX)
        return false;
    f->part[(f->first_part + f->part_count++) % FENCE_PARTS_MAX] = (struct fence_part){event, lane};
    f->parts_of_next++;
    return true;
}

/* The fence has all its events. If it has none, the driver refused: the next fence covers what this one would have. */
void fences_end(struct fences *f, enum fence_kind kind)
{
    CHECK(f->recording);
    f->recording = false;
    if (f->parts_of_next) {
        f->fence[(f->first + f->count++) % FENCES_DUE_MAX] = (struct fence){f->begun, f->parts_of_next, kind};
        f->parts_of_next = 0;
    } else {
        f->begun = f->count ? f->fence[(f->first + f->count - 1) % FENCES_DUE_MAX].covers : f->done;
    }
    CHECK_SLOW(fences_are_valid(f));
}

static void raise(tick *number, tick covers)
{
    *number = *number < covers ? covers : *number;
}

/* `all`, `whole` or `replaying` has changed. */
void fences_look_at_replays(struct fences *f)
{
    tick unreplayed = f->replaying ? f->whole : f->all;
    f->moved += fences_await_replays(f) && f->unreplayed < unreplayed;
    raise(&f->unreplayed, unreplayed);
}

/* All events of a fence of that kind are done. */
static void advance(struct fences *f, tick covers, enum fence_kind kind)
{
    if (kind == FENCE_OF_SOME)
        return;
    f->moved += f->done < covers && f->done < f->freed;
    raise(&f->done, covers);
    if (kind == FENCE_OF_ALL || kind == FENCE_WHOLE)
        raise(&f->all, covers);
    if (kind == FENCE_WHOLE)
        raise(&f->whole, covers);
    fences_look_at_replays(f);
}

/*
 * As many fences are due as there can be. The newest is forgotten, if it is over the whole context: the next one covers
 * what it would have. Its event; NULL: it stays.
 */
CUevent fences_give_up_newest(struct fences *f)
{
    const struct fence *newest = &f->fence[(f->first + f->count - 1) % FENCES_DUE_MAX];
    CHECK(!f->recording && f->count == FENCES_DUE_MAX);
    if (newest->kind != FENCE_WHOLE)
        return NULL;
    f->count--;
    f->part_count--;
    f->begun = f->fence[(f->first + f->count - 1) % FENCES_DUE_MAX].covers;
    CHECK_SLOW(fences_are_valid(f));
    return f->part[(f->first_part + f->part_count) % FENCE_PARTS_MAX].event;
}

/* Has `all` come up to `freed`, or will it with a fence that is due? */
bool fences_have_all(const struct fences *f, tick freed)
{
    bool have = freed <= f->all;
    for (uint32_t i = f->count; i-- && !have;) {
        const struct fence *fence = &f->fence[(f->first + i) % FENCES_DUE_MAX];
        have = fence->kind <= FENCE_OF_ALL && freed <= fence->covers;
    }
    return have;
}

/* Is a fence due that may move `done`, or if that matters `all`, where it is behind `limit`? */
bool fences_bring(const struct fences *f, tick limit)
{
    bool brings = false, all = fences_await_replays(f);
    for (uint32_t i = 0; i < f->count && !brings; i++) {
        enum fence_kind kind = f->fence[(f->first + i) % FENCES_DUE_MAX].kind;
        brings = (kind < FENCE_OF_SOME && f->done < limit) || (all && kind < FENCE_OF_MOST && f->all < limit);
    }
    return brings;
}

/* False: no fence is due. */
bool fences_oldest(const struct fences *f, struct due *due)
{
    const struct fence *oldest = &f->fence[f->first];
    const struct fence_part *part = &f->part[f->first_part];
    if (f->count)
        *due = (struct due){part->event, part->lane, oldest->covers, oldest->parts == 1};
    return f->count != 0;
}

/*
 * The event of the oldest due fence over the whole context that covers
 * *freed; *freed becomes what it covers. NULL: no fence does.
 */
CUevent fences_covering(const struct fences *f, tick *freed)
{
    uint32_t part = f->first_part;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct fence *fence = &f->fence[(f->first + i) % FENCES_DUE_MAX];
        if (fence->kind == FENCE_WHOLE && fence->covers >= *freed) {
            *freed = fence->covers;
            return f->part[part % FENCE_PARTS_MAX].event;
        }
        part += fence->parts;
    }
    return NULL;
}

/* The tick that the newest due fence over the whole context covers. 0: no such fence is due. */
tick fences_newest_whole(const struct fences *f)
{
    for (uint32_t i = f->count; i--;) {
        const struct fence *fence = &f->fence[(f->first + i) % FENCES_DUE_MAX];
        if (fence->kind == FENCE_WHOLE)
            return fence->covers;
    }
    return 0;
}

/*
 * The driver said that the event is done, the oldest when the driver was asked; it is handed back, and with the last of
 * its fence the fence is done. Another thread may have been told the same meanwhile, and the event may serve a later
 * fence by now: then there is nothing to do. NULL.
 */
CUevent fences_step(struct fences *f, const struct due *asked)
{
    struct due due;
    struct fence *oldest = &f->fence[f->first];
    if (!fences_oldest(f, &due) || due.covers != asked->covers || due.event != asked->event)
        return NULL;
    f->first_part = (f->first_part + 1) % FENCE_PARTS_MAX;
    f->part_count--;
    if (--oldest->parts == 0) {
        advance(f, oldest->covers, oldest->kind);
        f->first = (f->first + 1) % FENCES_DUE_MAX;
        f->count--;
    }
    CHECK_SLOW(fences_are_valid(f));
    return due.event;
}

/* The driver will never say of that event whether it is done: as fences_step, for a fence that had none. */
CUevent fences_skip(struct fences *f, const struct due *asked)
{
    struct due due;
    if (fences_oldest(f, &due) && due.covers == asked->covers && due.event == asked->event)
        f->fence[f->first].kind = FENCE_OF_SOME;
    return fences_step(f, asked);
}

/* The whole context was waited for after the free at `covers`. Fences still due will find nothing left to say. */
void fences_all_done(struct fences *f, tick covers)
{
    CHECK(covers <= f->now);
    advance(f, covers, FENCE_WHOLE);
    if (!f->recording && !f->count && f->begun < covers)
        f->begun = covers;
}

/*
 * Invariant 15: fences due are in order (so there are no more than the ring holds), and none covers more than was
 * begun; nothing is done or begun before it was freed.
 */
bool fences_are_valid(const struct fences *f)
{
    tick before = 0;
    uint32_t parts = f->parts_of_next;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct fence *fence = &f->fence[(f->first + i) % FENCES_DUE_MAX];
        parts += fence->parts;
        if (fence->covers <= before || !fence->parts)
            return false;
        before = fence->covers;
    }
    return before <= f->begun && f->begun <= f->now && f->freed <= f->now && f->done <= f->now && f->all <= f->done &&
           f->whole <= f->all && f->unreplayed <= f->all && parts == f->part_count;
}
