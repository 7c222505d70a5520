/*
 * synced.cpp: what the program does itself that cenote must not do with announced:0: it waits for a device as a whole, and it ends streams.
 *
 * torch.cuda.synchronize() is cudaDeviceSynchronize, which ends every capture of the device, so cenote never calls it then. If the program does, all
 * pools are told (rule 5 of docs/design.md): what streams left behind that ended without a word comes back. A program that is about to end a stream
 * may say so (cenote.retire).
 */
#include "adapter.h"
#include "install.h"
#include "outward.h"
#include "streams.h"

namespace cenote_torch {

/* For Adapter::end_sync, by the same thread. No error: a pool that cannot say how far it is has nothing to be told. */
std::vector<uint64_t> Adapter::begin_sync() const
{
    std::vector<uint64_t> syncs;
    if (captures_are_announced())
        return syncs; /* a fence covers all that this wait does */
    for (cenote_pool *each : pools_) {
        uint64_t sync = UINT64_MAX; /* of no pool */
        cenote_pool_sync_begin(each, &sync);
        syncs.push_back(sync);
    }
    return syncs;
}

/* Of each pool its own number. One that has nothing to do with the device, or is told of a green context, makes nothing of it. */
void Adapter::end_sync(const std::vector<uint64_t> &syncs) const
{
    for (size_t device = 0; device < syncs.size(); device++)
        cenote_pool_sync_end(pools_[device], syncs[device]);
}

/* Blocks of any device may have been used on it. */
void Adapter::retire(cudaStream_t stream) const
{
    for (cenote_pool *each : pools_)
        check(cenote_stream_retire(each, stream));
}

static thread_local std::vector<uint64_t> begun;

} // namespace cenote_torch

void cenote_torch_sync_begin()
{
    cenote_torch::contain([] { cenote_torch::begun = cenote_torch::adapter()->begin_sync(); }, [](const char *) { cenote_torch::begun.clear(); });
}

void cenote_torch_sync_end()
{
    cenote_torch::contain([] { cenote_torch::adapter()->end_sync(std::exchange(cenote_torch::begun, {})); }, [](const char *) {});
}

int cenote_torch_retire(unsigned long long stream, char *why, size_t room)
{
    return cenote_torch::guarded(why, room, [&] { cenote_torch::adapter()->retire(reinterpret_cast<cudaStream_t>(stream)); });
}
