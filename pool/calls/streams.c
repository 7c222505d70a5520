/*
 * streams.c: the stream that a call names: its key (clock/keys.c), and its device.
 *
 * The key is the driver's id of the stream, asked at each call unless the stream is a default one or was declared
 * immortal. For the legacy default stream the driver is asked which context is current, and for the id if that is a
 * green context. Per-thread default streams have a key for each thread. Where the driver is too old for ids the handle
 * has to do, and cenote_stream_retire is needed.
 *
 * The question ends a capture that the stream is in, in any mode. The stream that an announced capture began on has the
 * key that it had then. One that joined a capture, or began one without a word, has its handle as key while it is
 * captured: another key than before and after, which costs fences and no safety, and the same in the next capture,
 * where graphs may share memory.
 *
 * LOCKING: none. Keys are asked for without a lock; the table of immortal
 * streams is read without one, and added to under the pool's lock.
 */
#include "pool/calls/streams.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"

static int no_stream(const cenote_pool *pool, CUstream stream, CUresult result)
{
    return error_set(CENOTE_INVALID, result, "stream %p is no stream of device %d: %s", (void *)stream,
                     pool->config.device->ordinal, driver_result_name(result));
}

static bool is_default_handle(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/*
 * The stream is not of the context that the pool is in, of a device that cenote_pool_create_in has named by a context.
 */
static int of_another_context(CUstream stream, CUresult result)
{
    if (is_default_handle(stream))
        return error_set(CENOTE_INVALID, result,
                         "the default stream is that of the current context, and this pool is in another one: make the "
                         "context current that cenote_pool_create_in was given");
    return error_set(
        CENOTE_INVALID, result,
        "stream %p is not of the context that this pool is in: cenote_pool_create_in was given another one",
        (void *)stream);
}

/* Of a device's default streams. LOCKING: as stream_key. */
static int default_key(cenote_pool *pool, struct device *d, CUstream stream, uint64_t *key)
{
    unsigned long long id;
    if (stream == CU_STREAM_PER_THREAD) {
        *key = key_of_thread();
        return CENOTE_OK;
    }
    CHECK(lock_none_above(0));
    CUresult result = device_default_stream(d, &id);
    if (result == CUDA_ERROR_INVALID_CONTEXT && device_is_beside(d))
        return of_another_context(stream, result);
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        return error_set(
            CENOTE_INVALID, result,
            "the default stream is of a context of device %d beside its primary one: make the primary context "
            "current",
            d->ordinal);
    *key = KEY_LEGACY | (id & ~(KEY_DEVICE | KEY_KIND));
    return result ? pool_driver_error_of_any(pool, result, "asking for the default stream") : CENOTE_OK;
}

/*
 * Would the question for its id end a capture? Without a capture that was announced nothing is asked, as long as the
 * program announces all. A stream of a context that is not current cannot be asked about here, and one of a lost
 * context is in no capture unless an announced one is open.
 */
static CUresult ask_whether_captured(const struct driver *t, CUstream stream, bool *captured)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool open = device_captures_are_open(),
         may_be = t->cuStreamIsCapturing && (open || !touch_captures_are_announced());
    CUresult result = may_be ? t->cuStreamIsCapturing(stream, &status) : CUDA_SUCCESS;
    *captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return result == CUDA_ERROR_INVALID_CONTEXT || (driver_result_is_sticky(result) && !open) ? CUDA_SUCCESS : result;
}

static uint64_t key_of_captured(cenote_pool *pool, CUstream stream)
{
    uint64_t key = key_while_captured(stream);
    lock_take(&pool->lock);
    for (uint32_t i = 0; i < pool->groups.capture_count; i++)
        if (pool->groups.captures[i].handle == stream)
            key = pool->groups.captures[i].stream;
    lock_give(&pool->lock);
    return key;
}

/* The same, asked now: a pool outlives the contexts of other devices. LOCKING: none. */
static bool is_there(const struct immortal *i)
{
    uint64_t generation = atomic_load_explicit(&i->generation, memory_order_acquire);
    struct device *other = atomic_load_explicit(&i->other, memory_order_relaxed);
    return !other || device_lives(other, generation);
}

/* LOCKING: none, and not inside: this may ask the driver, and make the device's context. */
int stream_key(cenote_pool *pool, CUstream stream, uint64_t *key)
{
    const struct driver *t = pool->config.device->driver;
    unsigned long long id;
    bool captured;
    if (is_default_handle(stream))
        return default_key(pool, pool->config.device, stream, key);
    const struct immortal *immortal = key_find_immortal(&pool->clock.immortals, stream, key);
    if (immortal && is_there(immortal))
        return CENOTE_OK;
    if (!t->cuStreamGetId) {
        *key = KEY_HANDLE | (uint64_t)(uintptr_t)stream;
        return CENOTE_OK;
    }
    CHECK(lock_none_above(0));
    CUresult result = ask_whether_captured(t, stream, &captured);
    if (!result && captured) {
        *key = key_of_captured(pool, stream);
    } else {
        result = result ? result : t->cuStreamGetId(stream, &id);
        if (result && result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_INVALID_VALUE)
            return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ?
                       error_set(CENOTE_CAPTURE, result,
                                 "a capture that was not announced is open, and the driver does not say which stream "
                                 "this is: announce captures (cenote_capture_begin), or declare the stream immortal") :
                       pool_driver_error_of_any(pool, result, "asking which stream it is");
        if (result)
            return no_stream(pool, stream, result);
        *key = id & (KEY_LEGACY - 1);
    }
    return CENOTE_OK;
}

/*
 * CENOTE_INVALID for another device's stream, whose work the fences of the pool know nothing of. Asked before an arena
 * gets the key, when a capture is announced, and also while one is open: CUDA allows the question then. A driver that
 * cannot say it of this stream is believed; one that fails to answer is asked by the next call. LOCKING: as stream_key.
 */
int stream_check_own(cenote_pool *pool, CUstream stream, uint64_t key)
{
    CUcontext context;
    CUdevice ordinal;
    struct device *d = pool->config.device;
    CHECK(lock_none_above(0));
    if (key_is_default(key))
        return CENOTE_OK;
    CUresult result = device_of_stream(d, stream, &context, &ordinal);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE)
        return no_stream(pool, stream, result);
    if (result && result != CUDA_ERROR_NOT_SUPPORTED)
        return pool_driver_error_of_any(pool, result, "cuStreamGetCtx");
    if (result || context == device_context(d))
        return CENOTE_OK;
    if (device_is_beside(d) && ordinal == d->ordinal)
        return of_another_context(stream, 0);
    if (ordinal == d->ordinal)
        return error_set(
            CENOTE_INVALID, 0,
            "stream %p belongs to another context than the pool, which is in the primary one of device %d: make "
            "streams there (cuDevicePrimaryCtxRetain), or the pool in your context (cenote_pool_create_in)",
            (void *)stream, ordinal);
    return error_set(
        CENOTE_INVALID, 0,
        "stream %p is of device %d, and the pool of device %d: blocks are taken on streams of their own device, and "
        "cenote_use names others",
        (void *)stream, ordinal, d->ordinal);
}

/* Asks the driver for the stream's device; NULL: the pool's own device. */
static int ask_device(cenote_pool *pool, CUstream stream, struct device **other)
{
    CUcontext context;
    CUdevice ordinal;
    CUresult result = device_of_stream(pool->config.device, stream, &context, &ordinal);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE)
        return error_set(CENOTE_INVALID, result, "%p is no stream: %s", (void *)stream, driver_result_name(result));
    if (result && result != CUDA_ERROR_NOT_SUPPORTED)
        return pool_driver_error_of_any(pool, result, "cuStreamGetCtx");
    if (result)
        return error_set(CENOTE_NOT_SUPPORTED, result,
                         "the driver does not say whose stream %p is (%s): cenote_use_on_device names its device",
                         (void *)stream, driver_result_name(result));
    int error = pool_other_device(pool, ordinal, other);
    if (!error && (result = device_prepare(*other)))
        return pool_driver_error_of_any(pool, result, "entering the other device's context");
    if (!error && device_context(*other) != context && device_is_beside(*other))
        return of_another_context(stream, 0);
    if (!error && device_context(*other) != context)
        return error_set(CENOTE_INVALID, 0, "stream %p is not of the primary context of device %d", (void *)stream,
                         ordinal);
    if (*other == pool->config.device)
        *other = NULL;
    return error;
}

/*
 * Whose the stream of that key is; NULL: the pool's own device's. A default
 * stream is the pool's own; for a created one the driver is asked.
 * LOCKING: as stream_key.
 */
int stream_device(cenote_pool *pool, CUstream stream, uint64_t key, struct device **other)
{
    uint64_t known;
    *other = NULL;
    if (key_is_default(key))
        return CENOTE_OK;
    const struct immortal *immortal = key_find_immortal(&pool->clock.immortals, stream, &known);
    if (!immortal)
        return ask_device(pool, stream, other);
    *other = atomic_load_explicit(&immortal->other, memory_order_relaxed);
    return CENOTE_OK;
}

/* The key of a stream of this device, which the program names. *other: as of stream_device. LOCKING: as stream_key. */
int stream_key_on(cenote_pool *pool, int ordinal, CUstream stream, uint64_t *key, struct device **other)
{
    bool is_own = ordinal == pool->config.device->ordinal, is_far_default = !is_own && is_default_handle(stream);
    uint64_t known;
    *other = NULL;
    int error = is_far_default ? CENOTE_OK : stream_key(pool, stream, key);
    bool is_created = !error && !is_far_default && !key_is_default(*key);
    const struct immortal *immortal = is_created ? key_find_immortal(&pool->clock.immortals, stream, &known) : NULL;
    if (immortal)
        *other = atomic_load_explicit(&immortal->other, memory_order_relaxed);
    else if (!error && !is_own)
        error = pool_other_device(pool, ordinal, other);
    if (!error && is_far_default && !(error = default_key(pool, *other, stream, key)))
        *key |= (uint64_t)(ordinal + 1) << KEY_DEVICE_SHIFT;
    return error;
}

/*
 * The program has said that the stream is of `named`; NULL: of the pool's own device. An event of another device would
 * cover nothing there. The driver is asked; if it cannot say it, the program is believed. LOCKING: as stream_key.
 */
int stream_check_named(cenote_pool *pool, CUstream stream, uint64_t key, const struct device *named)
{
    uint64_t known;
    struct device *other;
    if (key_is_default(key) || key_find_immortal(&pool->clock.immortals, stream, &known))
        return CENOTE_OK;
    int error = ask_device(pool, stream, &other);
    if (error)
        return error == CENOTE_NOT_SUPPORTED ? CENOTE_OK : error;
    /* It is set, for error_set, of another file, returns no 0. */
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
    if (other == named)
        return CENOTE_OK;
    return error_set(CENOTE_INVALID, 0, "stream %p is of device %d, not of the one that was named with it",
                     (void *)stream, (other ? other : pool->config.device)->ordinal);
}

/*
 * Does it end with the program? So does the default stream of a device,
 * by whatever name, but for that of a green context. LOCKING: none.
 */
bool stream_is_immortal(const cenote_pool *pool, CUstream stream, uint64_t key)
{
    uint64_t known;
    return key == KEY_LEGACY || (!key_is_default(key) && key_find_immortal(&pool->clock.immortals, stream, &known));
}

/* ---------------------------------------------------------------------------------------------------------- the API */

int cenote_stream_set_immortal(cenote_pool *pool, cenote_stream stream)
{
    uint64_t key;
    struct device *other;
    int error = pool_usable(pool);
    /* So is the key: NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
    if (error || (error = stream_key(pool, stream, &key)) || (error = stream_device(pool, stream, key, &other)))
        return error;
    if (key_is_default(key))
        return CENOTE_OK; /* known without asking */
    touch_add(other ? other : pool->config.device, stream, key);
    if ((error = pool_take_lock(pool)))
        return error;
    key_add_immortal(&pool->clock.immortals, stream, key, other);
    lock_give(&pool->lock);
    return CENOTE_OK;
}
