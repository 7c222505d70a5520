/*
 * keys.h: what identifies a stream; see keys.c.
 *
 * OWNER: keys.c. LOCKING: a key is a number. `immortals` are read without a lock, and added to under the pool's.
 */
#ifndef CENOTE_POOL_CLOCK_KEYS_H
#define CENOTE_POOL_CLOCK_KEYS_H

#include "driver/device.h"

#define IMMORTALS_MAX 1024

#define KEY_KIND_SHIFT 62           /* see keys.c */
#define KEY_KIND       (3ull << KEY_KIND_SHIFT)
#define KEY_LEGACY     (1ull << KEY_KIND_SHIFT)
#define KEY_THREAD     (2ull << KEY_KIND_SHIFT)
#define KEY_HANDLE     (3ull << KEY_KIND_SHIFT)
#define KEY_CAPTURED_SHIFT 61
#define KEY_CAPTURED   (7ull << KEY_CAPTURED_SHIFT)
#define KEY_DEVICE_SHIFT 48         /* in keys of default streams */
#define KEY_DEVICE     (0xffull << KEY_DEVICE_SHIFT)

/* A stream declared immortal: its handle identifies it. */
struct immortal {
    _Atomic(CUstream) handle;
    _Atomic(uint64_t) key;
    _Atomic(struct device *) other; /* the stream's device; NULL: the pool's own */
    _Atomic(uint64_t) generation;   /* of its context, written last of the three: with it the stream is over */
};

struct immortals {
    struct immortal stream[IMMORTALS_MAX];  /* open addressing by handle */
};

/* The default stream of a green context: no handle names it to the driver. */
static inline bool key_is_unnamed(uint64_t key)
{
    return (key & KEY_KIND) == KEY_LEGACY && key & ~(KEY_KIND | KEY_DEVICE);
}

/* Of a default stream, of whichever device. */
static inline bool key_is_default(uint64_t key)
{
    return (key & KEY_KIND) == KEY_LEGACY || (key & KEY_KIND) == KEY_THREAD;
}

/* The driver's id of a created stream. */
static inline bool key_is_id(uint64_t key)
{
    return (key & KEY_KIND) == 0;
}

static inline bool key_is_captured(uint64_t key)
{
    return (key & KEY_CAPTURED) == KEY_CAPTURED;
}

/* The handle may be given to the driver as long as the stream was not retired: a driver without ids. */
static inline bool key_is_handle(uint64_t key)
{
    return (key & KEY_KIND) == KEY_HANDLE && !key_is_captured(key);
}

/* Of a captured stream, unless the capture was announced for it. */
static inline uint64_t key_while_captured(CUstream stream)
{
    return KEY_CAPTURED | (uint64_t)(uintptr_t)stream;
}

uint64_t key_of_thread(void);
const struct immortal *key_find_immortal(const struct immortals *immortals, CUstream stream, uint64_t *key);
void key_add_immortal(struct immortals *immortals, CUstream stream, uint64_t key, struct device *other);
bool key_is_alive(const struct immortals *immortals, CUstream stream, uint64_t key);

#endif
