/*
 * streams.cpp: the streams of PyTorch's pools. See streams.h.
 */
#include "streams.h"

#include <unordered_set>

namespace cenote_torch {

std::vector<cudaStream_t> streams_of_pools(c10::DeviceIndex device)
{
    std::unordered_set<cudaStream_t> streams;
    for (int priority = 0; priority < c10::cuda::max_compile_time_stream_priorities; priority++)
        add_pool(streams, [=] { return c10::cuda::getStreamFromPool(-priority, device).stream(); });
    return {streams.begin(), streams.end()};
}

} // namespace cenote_torch
