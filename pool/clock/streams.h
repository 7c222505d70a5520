/*
 * streams.h: which stream has which arena. See streams.c for keys of streams, arenas.c, and idle.c for arenas without a block.
 *
 *     an arena: known by its stream and group ---> idle (no block) ---> in use again, or another stream takes it over
 *                      +---> retired (its stream or group is gone) ---> over, once it has no block ---> another takes it over, or it is forgotten
 *                                                                 +---> an orphan ---> forgotten, once its source has its memory back
 *
 * OWNERS: streams.c, arenas.c, idle.c. LOCKING: the pool's lock; `immortals` is read without, and added to under it.
 */
#ifndef CENOTE_POOL_CLOCK_STREAMS_H
#define CENOTE_POOL_CLOCK_STREAMS_H

#include <cenote/cenote.h>

#include "base/index.h"
#include "driver/device.h"
#include "pool/core/arena.h"

#define IMMORTALS_MAX 1024

/* A stream declared immortal: its handle identifies it. Read without a lock. */
struct immortal {
    _Atomic(CUstream) handle;
    _Atomic(uint64_t) key;
    _Atomic(struct device *) other; /* the stream's device; NULL: the pool's own */
    _Atomic(uint64_t) generation;   /* of the context of that one, written last of the three: with it the stream is over */
};

struct streams {
    struct index   by_key;          /* arena key -> arena */
    struct arena  *last_arena;      /* found last: most programs use one stream at a time */
    struct idle_queue idle;         /* arenas of no group without a block, see idle.c */
    struct idle_queue over[4];      /* those of streams and groups that are gone, by kind of memory (kind_of) */
    struct idle_queue orphans;      /* those of destroyed groups whose source has to take back what they hold */
    struct immortal immortals[IMMORTALS_MAX];  /* open addressing by handle */
};

#define STREAM_KIND_SHIFT  62       /* see streams.c */
#define STREAM_KIND_HANDLE 3
#define STREAM_KEY_LEGACY (1ull << STREAM_KIND_SHIFT)
#define STREAM_KEY_KIND   (3ull << STREAM_KIND_SHIFT)
#define STREAM_DEVICE_SHIFT 48      /* in keys of default streams */
#define STREAM_KEY_DEVICE (0xffull << STREAM_DEVICE_SHIFT)

/* The default stream of a green context: no handle names it to the driver. */
static inline bool stream_is_unnamed(uint64_t key)
{
    return (key & STREAM_KEY_KIND) == STREAM_KEY_LEGACY && key & ~(STREAM_KEY_KIND | STREAM_KEY_DEVICE);
}


bool stream_key_is_handle(uint64_t key);
bool stream_key_is_captured(uint64_t key);
bool stream_key_is_id(uint64_t key);
uint64_t stream_key_while_captured(CUstream stream);    /* unless the capture was announced for this stream */
uint64_t stream_key_of_thread(void);
int stream_key(cenote_pool *pool, CUstream stream, uint64_t *key);
int stream_device(cenote_pool *pool, CUstream stream, uint64_t key, struct device **other);
int stream_key_on(cenote_pool *pool, int ordinal, CUstream stream, uint64_t *key, struct device **other);
int stream_check_named(cenote_pool *pool, CUstream stream, uint64_t key, const struct device *named);
int stream_check_own(cenote_pool *pool, CUstream stream, uint64_t key);
bool stream_is_immortal(cenote_pool *pool, CUstream stream, uint64_t key);
bool stream_is_alive(cenote_pool *pool, CUstream stream, uint64_t key);

#endif
