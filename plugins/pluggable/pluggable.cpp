/*
 * pluggable.cpp: libcenote behind torch.cuda.memory.CUDAPluggableAllocator, for machines where the adapter cannot be compiled. It knows
 * nothing of torch; docs/pytorch.md says what it cannot do. The function that PyTorch calls to free must not throw.
 *
 * LOCKING: none of its own.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>

#define ENTRY extern "C" __attribute__((visibility("default")))

#define DEVICES_MAX 64

static std::atomic<cenote_pool *> used[DEVICES_MAX]; /* pools that PyTorch has asked for: default ones stay */

static cenote_pool *pool_of(int device)
{
    cenote_pool *pool = nullptr;
    if (cenote_pool_default(device, &pool))
        throw std::runtime_error(cenote_message());
    used[device].store(pool, std::memory_order_relaxed);
    return pool;
}

/* Throws if there is no memory: PyTorch would take NULL for a block. */
ENTRY void *cenote_pluggable_alloc(size_t bytes, int device, cenote_stream stream)
{
    void *block = nullptr;
    if (cenote_alloc(pool_of(device), bytes, stream, &block))
        throw std::runtime_error(cenote_message());
    return block;
}

ENTRY void cenote_pluggable_free(void *block, size_t, int, cenote_stream)
{
    if (cenote_free(block))
        fprintf(stderr, "cenote: a block could not be freed: %s\n", cenote_message());
}

ENTRY void cenote_pluggable_use(void *block, cenote_stream stream)
{
    int error = block ? cenote_use(block, stream) : CENOTE_OK;
    if (error && error != CENOTE_NOT_OURS) /* not ours: a tensor that wraps memory of another library */
        throw std::runtime_error(cenote_message());
}

/* torch.cuda.empty_cache, on every device. A device that was not used gets a pool by this, but no memory. */
ENTRY void cenote_pluggable_reset(void)
{
    cenote_pool *pool = nullptr;
    for (int device = 0; cenote_pool_default(device, &pool) == CENOTE_OK; device++)
        if (cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT))
            throw std::runtime_error(cenote_message());
}

ENTRY void cenote_pluggable_fraction(double fraction, int device)
{
    cenote_stats stats;
    cenote_pool *pool = pool_of(device);
    if (cenote_pool_stats(pool, &stats))
        throw std::runtime_error(cenote_message());
    auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(stats.capacity));
    if (cenote_pool_set_limit(pool, fraction < 1 ? bytes + !bytes : 0))
        throw std::runtime_error(cenote_message());
}

/* --- what the program does itself that cenote must not do with announced:0, by the names that the adapter has, too (plugins/torch/synced.cpp) */

static thread_local uint64_t begun[DEVICES_MAX];
static thread_local bool has_begun[DEVICES_MAX];

/* If captures are announced, a fence covers all that this wait does. */
ENTRY void cenote_torch_sync_begin(void)
{
    cenote_options options;
    bool announced = cenote_options_default(&options) || options.announced;
    for (int device = 0; device < DEVICES_MAX; device++) {
        cenote_pool *pool = used[device].load(std::memory_order_relaxed);
        has_begun[device] = !announced && pool && !cenote_pool_sync_begin(pool, &begun[device]);
    }
}

ENTRY void cenote_torch_sync_end(void)
{
    for (int device = 0; device < DEVICES_MAX; device++)
        if (has_begun[device])
            cenote_pool_sync_end(used[device].load(std::memory_order_relaxed), begun[device]);
}

/* Blocks of any device may have been used on it. */
ENTRY int cenote_torch_retire(unsigned long long stream, char *why, size_t room)
{
    int error = CENOTE_OK;
    for (int device = 0; device < DEVICES_MAX && !error; device++) {
        cenote_pool *pool = used[device].load(std::memory_order_relaxed);
        error = pool ? cenote_stream_retire(pool, reinterpret_cast<cenote_stream>(stream)) : CENOTE_OK;
    }
    if (error)
        snprintf(why, room, "%s", cenote_message());
    return error;
}
