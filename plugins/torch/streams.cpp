/*
 * streams.cpp: the streams of PyTorch's pools. See streams.h.
 */
#include "streams.h"

#include <cenote/cenote.h>

#include <unordered_set>

namespace cenote_torch {

bool captures_are_announced()
{
    cenote_options options;
    return cenote_options_default(&options) || options.announced;
}

/*
 * A pool hands out its streams in turn, so that whole rounds change nothing for the program. Another thread that takes a stream meanwhile is the only
 * one that gets it in this round, so the rounds go on until one brings nothing new.
 */
static void add_pool(std::unordered_set<cudaStream_t> &streams, int priority, c10::DeviceIndex device)
{
    const cudaStream_t first = c10::cuda::getStreamFromPool(priority, device).stream();
    streams.insert(first);
    for (bool is_new = true; is_new;) {
        is_new = false;
        for (cudaStream_t next; (next = c10::cuda::getStreamFromPool(priority, device).stream()) != first;)
            is_new |= streams.insert(next).second;
    }
}

std::vector<cudaStream_t> streams_of_pools(c10::DeviceIndex device)
{
    std::unordered_set<cudaStream_t> streams;
    for (int priority = 0; priority < c10::cuda::max_compile_time_stream_priorities; priority++)
        add_pool(streams, -priority, device);
    return {streams.begin(), streams.end()};
}

} // namespace cenote_torch
