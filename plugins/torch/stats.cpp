/*
 * stats.cpp: cenote's counters as PyTorch's dictionary has them, and errors as PyTorch's users know them.
 */
#include "adapter.h"

#include <c10/util/Exception.h>

namespace cenote_torch {

static c10::CachingAllocator::Stat stat(const cenote_level &level)
{
  c10::CachingAllocator::Stat s;
  s.current = static_cast<int64_t>(level.current);
  s.peak = static_cast<int64_t>(level.peak);
  s.allocated = static_cast<int64_t>(level.total_in);
  s.freed = static_cast<int64_t>(level.total_out);
  return s;
}

/* There is no small and no large pool here: all is "aggregate". */
static void put(c10::CachingAllocator::StatArray &array, const cenote_level &level)
{
  array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = stat(level);
}

DeviceStats device_stats(cenote_pool *pool)
{
  cenote_stats stats;
  stats.struct_size = sizeof stats;
  TORCH_CHECK(!cenote_pool_stats(pool, &stats), cenote_message());
  DeviceStats out;
  put(out.allocation, stats.blocks);
  put(out.active, stats.blocks);
  put(out.allocated_bytes, stats.allocated);
  put(out.reserved_bytes, stats.reserved);
  put(out.active_bytes, stats.active);
  put(out.requested_bytes, stats.requested);
  out.num_alloc_retries = static_cast<int64_t>(stats.retries);
  out.num_ooms = static_cast<int64_t>(stats.ooms);
  out.num_device_alloc = static_cast<int64_t>(stats.pages_created);
  out.num_device_free = static_cast<int64_t>(stats.pages_released);
  out.max_split_size = -1;
  return out;
}

void throw_error(int error)
{
  std::string words = cenote_message();
  TORCH_CHECK_WITH(OutOfMemoryError, error != CENOTE_OUT_OF_MEMORY && error != CENOTE_OUT_OF_ADDRESSES, words);
  TORCH_CHECK(false, "cenote: ", words);
}

} // namespace cenote_torch
