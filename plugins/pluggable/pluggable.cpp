/*
 * pluggable.cpp: libcenote behind torch.cuda.memory.CUDAPluggableAllocator, for machines where the adapter cannot be compiled. It knows
 * nothing of torch; docs/pytorch.md says what it cannot do. The function that PyTorch calls to free must not throw.
 *
 * LOCKING: none of its own.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <cstdio>
#include <stdexcept>

#define ENTRY extern "C" __attribute__((visibility("default")))

static cenote_pool *pool_of(int device)
{
    cenote_pool *pool = nullptr;
    if (cenote_pool_default(device, &pool))
        throw std::runtime_error(cenote_message());
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
