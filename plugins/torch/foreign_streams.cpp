/*
 * foreign_streams.cpp: record_stream with a stream of another device than the block's. cenote knows the streams of a block's own device;
 * one of those that waits for the other stream stands in for it.
 *
 * LOCKING: `foreign_lock_` guards the list of blocks; no call is made under it. Without such blocks a free reads one flag.
 */
#include "adapter.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace cenote_torch
{

void Adapter::use_on_foreign(void *block, c10::cuda::CUDAStream stream)
{
    std::lock_guard<std::mutex> hold(foreign_lock_);
    auto [first, last] = foreign_.equal_range(block);
    for (; first != last; ++first)
        if (first->second == stream)
            return;
    foreign_.emplace(block, stream);
    has_foreign_ = true;
}

std::vector<c10::cuda::CUDAStream> Adapter::forget_foreign(void *block)
{
    std::vector<c10::cuda::CUDAStream> streams;
    std::lock_guard<std::mutex> hold(foreign_lock_);
    auto [first, last] = foreign_.equal_range(block);
    for (auto entry = first; entry != last; ++entry)
        streams.push_back(entry->second);
    foreign_.erase(first, last);
    has_foreign_ = !foreign_.empty();
    return streams;
}

/* The block is about to be freed: what is on those streams by now is what it has to wait for. */
void Adapter::follow_foreign(void *block)
{
    for (const auto &stream : forget_foreign(block)) {
        cenote_block known;
        if (cenote_find(block, &known))
            return;
        auto device = static_cast<DeviceIndex>(cenote_pool_device(known.pool));
        auto stand_in = c10::cuda::getStreamFromPool(false, device);
        cudaEvent_t event;
        c10::cuda::CUDAGuard there(stream.device_index());
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        C10_CUDA_CHECK(cudaEventRecord(event, stream.stream()));
        there.set_index(device);
        C10_CUDA_CHECK(cudaStreamWaitEvent(stand_in.stream(), event, 0));
        C10_CUDA_CHECK(cudaEventDestroy(event));
        cenote_stream_immortal(known.pool, stand_in.stream());
        TORCH_CHECK(!cenote_use(block, stand_in.stream()), "record_stream: ", cenote_message());
    }
}

} // namespace cenote_torch
