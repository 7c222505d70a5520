/*
 * stats.cpp: cenote's counters in PyTorch's DeviceStats.
 */
#include "adapter.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace cenote_torch
{

static c10::CachingAllocator::Stat stat(const cenote_level &level)
{
    c10::CachingAllocator::Stat s;
    s.current = static_cast<int64_t>(level.current);
    s.peak = static_cast<int64_t>(level.peak);
    s.allocated = static_cast<int64_t>(level.total_in);
    s.freed = static_cast<int64_t>(level.total_out);
    return s;
}

/* cenote has no pool for small blocks: it counts all blocks in PyTorch's large pool. */
static void put(c10::CachingAllocator::StatArray &array, const cenote_level &level)
{
    for (auto type : {c10::CachingAllocator::StatType::AGGREGATE, c10::CachingAllocator::StatType::LARGE_POOL})
        array[static_cast<size_t>(type)] = stat(level);
}

/* Some versions of torch have counters for each private pool. */
template <class Stats> static auto put_by_pool(Stats &stats, MempoolId_t id, const cenote_level &level, int)
    -> decltype(stats.reserved_bytes_by_private_pools, void())
{
    put(stats.reserved_bytes_by_private_pools[id], level);
}

template <class Stats> static void put_by_pool(Stats &, MempoolId_t, const cenote_level &, long) {}

/* PyTorch lists a pool from its first memory on. */
void put_pool_level(DeviceStats &stats, MempoolId_t id, const cenote_level &level)
{
    if (level.peak || level.total_in || level.total_out)
        put_by_pool(stats, id, level, 0);
}

cenote_stats read_stats(cenote_pool *pool)
{
    cenote_stats stats;
    check(cenote_pool_stats(pool, &stats));
    return stats;
}

DeviceStats device_stats(cenote_pool *pool)
{
    cenote_stats stats = read_stats(pool);
    if (stats.pending_blocks) { /* a block whose streams are done must not count as active */
        cenote_pool_trim(pool, UINT64_MAX, 0);
        stats = read_stats(pool);
    }
    cenote_level active = stats.blocks; /* of pending blocks cenote counts bytes, and only their present number */
    active.current += stats.pending_blocks;
    active.peak = std::max(active.peak, active.current);
    DeviceStats out;
    put(out.allocation, stats.blocks);
    put(out.active, active);
    put(out.allocated_bytes, stats.allocated);
    put(out.reserved_bytes, stats.reserved);
    put(out.active_bytes, stats.active);
    put(out.requested_bytes, stats.requested);
    out.num_alloc_retries = static_cast<int64_t>(stats.retries);
    out.num_ooms = static_cast<int64_t>(stats.ooms);
    out.num_sync_all_streams = static_cast<int64_t>(stats.waits);
    out.num_device_alloc = static_cast<int64_t>(stats.pages_created);
    out.num_device_free = static_cast<int64_t>(stats.pages_released);
    out.max_split_size = -1;
    return out;
}

DeviceStats Adapter::getDeviceStats(DeviceIndex device)
{
    empty_deferred(device);
    DeviceStats out = device_stats(pool(device));
    add_pool_stats(device, out);
    return out;
}

} // namespace cenote_torch
