/*
 * streams.h: which stream has which arena. See arenas.c, and idle.c for arenas without a block.
 *
 *     an arena: known by its stream and group ---> idle (no block) ---> in use again, or another stream takes it over
 *               +---> retired (its stream or group is gone)
 *                      +---> over, once it has no block ---> another takes it over, or it is forgotten
 *                      +---> an orphan ---> forgotten, once its source has its memory back
 *
 * OWNERS: arenas.c, idle.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_STREAMS_H
#define CENOTE_POOL_ARENAS_STREAMS_H

#include <cenote/cenote.h>

#include "base/index.h"
#include "pool/core/arena.h"

struct streams {
    struct index   by_key;          /* arena key -> arena */
    struct arena  *last_arena;      /* found last: most programs use one stream at a time */
    struct idle_queue idle;         /* arenas of no group without a block, see idle.c */
    struct idle_queue over[4];      /* those of streams and groups that are gone, by kind of memory (kind_of) */
    struct idle_queue orphans;      /* those of destroyed groups whose source has to take back what they hold */
};

#endif
