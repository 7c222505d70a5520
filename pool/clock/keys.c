/*
 * keys.c: the key that identifies a stream. Not how the driver is asked for it, which calls/streams.c does.
 *
 * A driver gives the handle of a destroyed stream to the next one at once, so a handle does not identify a stream. Its
 * key does: the driver's id of it, which is unique for the life of the program.
 *
 *     key     00 | id of a created stream       01 | 0  the legacy default stream; 01 | id  the same of a green context
 *             10 | number of the thread        110 | handle, of a driver without ids    111 | handle of a captured one
 *
 * A default stream is that of the calling thread's current context. The one of a green context is *unnamed*: where the
 * primary context is current, its handle means another stream. So cenote never gives that handle to the driver, and
 * what covers the whole context covers it.
 *
 * Default streams of other devices than the pool's have the device in their key too: blocks may be used on those
 * (cenote_use_on_device).
 *
 * The handle of an immortal stream identifies it. So does its key the handle: that is alive.
 *
 * LOCKING: none, but for key_add_immortal.
 */
#include "pool/clock/keys.h"

#include "base/thread.h"

#define PROBES 16               /* of the table of immortal streams */

/* Of this thread's own default stream. Asks nothing. */
uint64_t key_of_thread(void)
{
    return KEY_THREAD | thread_number();
}

static uint64_t place_of(CUstream stream, uint32_t probe)
{
    uint64_t hash = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15ull >> 32;
    return (hash + probe) % IMMORTALS_MAX;
}

/*
 * The context of its device has ended, as the last call knows that asked, and the stream with it: the handle may be
 * that of another one.
 */
static bool is_over(const struct immortal *i)
{
    uint64_t generation = atomic_load_explicit(&i->generation, memory_order_acquire);
    const struct device *other = atomic_load_explicit(&i->other, memory_order_relaxed);
    return other && !device_is(other, generation);
}

/* NULL: it was not declared immortal. *key: of one that was. */
const struct immortal *key_find_immortal(const struct immortals *immortals, CUstream stream, uint64_t *key)
{
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        const struct immortal *i = &immortals->stream[place_of(stream, probe)];
        CUstream handle = atomic_load_explicit(&i->handle, memory_order_acquire);
        if (handle == stream && !is_over(i)) {
            *key = atomic_load_explicit(&i->key, memory_order_relaxed);
            return i;
        }
        if (!handle)
            return NULL;
    }
    return NULL;
}

/* A full table is no error: the driver is asked as before. LOCKING: the pool's lock. */
void key_add_immortal(struct immortals *immortals, CUstream stream, uint64_t key, struct device *other)
{
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        struct immortal *i = &immortals->stream[place_of(stream, probe)];
        CUstream there = atomic_load(&i->handle);
        if (there && there != stream)
            continue;
        if (!there || is_over(i)) { /* that of an ended context has this one's place */
            atomic_store_explicit(&i->key, key, memory_order_relaxed);
            atomic_store_explicit(&i->other, other, memory_order_relaxed);
            atomic_store_explicit(&i->generation, other ? atomic_load(&other->generation) : 0, memory_order_release);
            atomic_store_explicit(&i->handle, stream, memory_order_release);
        }
        return;
    }
}

/* Does the handle still name the stream of that key, for certain and without asking the driver? */
bool key_is_alive(const struct immortals *immortals, CUstream stream, uint64_t key)
{
    uint64_t now;
    if (key_is_default(key))
        return key & KEY_THREAD ? (key & ~KEY_DEVICE) == key_of_thread() : !key_is_unnamed(key);
    return key_find_immortal(immortals, stream, &now) && now == key;
}
