/*
 * sharing.cpp: blocks of this process for others, and those of others here: what torch.multiprocessing asks for when it sends a tensor.
 *
 * A handle is a cenote_share of the block, and the storage's place in it the offset. PyTorch keeps the sender's block until the last
 * receiver has let go, and expects one pointer for one handle as long as it lives.
 *
 * A receiver may let go while a graph is captured: cenote refuses to close memory then. Such memory stays open, and is closed at the next of these
 * calls after the capture, at its end or when the cache is emptied.
 *
 * LOCKING: `received_lock_` guards what was received. Nothing is imported or closed under it.
 */
#include "adapter.h"

#include <c10/util/Exception.h>
#include <cenote/share.h>

#include <algorithm>
#include <cstring>

namespace cenote_torch
{

ShareableHandle Adapter::shareIpcHandle(void *block)
{
    cenote_block found;
    cenote_share share;
    int error = cenote_find(block, &found);
    if (!error)
        error = cenote_export(found.start, &share);
    TORCH_CHECK(!error, "this memory cannot go to another process: ", words_of(error));
    return {static_cast<char *>(block) - static_cast<char *>(found.start), std::string(reinterpret_cast<char *>(&share), sizeof share)};
}

/* What is alive under that name, or nothing. LOCKING: received_lock_ */
std::shared_ptr<void> Adapter::find_received(const std::string &name)
{
    auto known = received_.find(name);
    return known == received_.end() ? nullptr : known->second.lock();
}

/* Closes what waits to be closed, and `address`, if it is one. */
void Adapter::close_received(void *address)
{
    std::vector<void *> due;
    {
        Hold hold(received_lock_);
        due.swap(unclosed_);
    }
    if (address)
        due.push_back(address);
    auto refused = [](void *each) { return cenote_import_close(each) == CENOTE_BUSY; };
    due.erase(std::partition(due.begin(), due.end(), refused), due.end());
    Hold hold(received_lock_);
    unclosed_.insert(unclosed_.end(), due.begin(), due.end());
}

std::shared_ptr<void> Adapter::getIpcDevPtr(std::string handle)
{
    DeviceIndex device = c10::cuda::current_device();
    std::string name = handle + static_cast<char>(device);
    {
        Hold hold(received_lock_);
        if (auto alive = find_received(name))
            return alive;
    }
    cenote_share share{};
    void *at = nullptr;
    std::memcpy(&share, handle.data(), std::min(handle.size(), sizeof share));
    int error = cenote_import(&share, handle.size(), device, &at);
    TORCH_CHECK(!error, "memory of another process cannot be used here: ", words_of(error));
    std::shared_ptr<void> made(at, [this, name](void *address) {
        if (is_child())
            return;
        close_received(address);
        Hold hold(received_lock_);
        auto mine = received_.find(name);
        if (mine != received_.end() && mine->second.expired())
            received_.erase(mine);
    });
    Hold hold(received_lock_);
    auto alive = find_received(name); /* another thread may have been faster: then ours goes, once the lock is free */
    if (!alive)
        received_[name] = made;
    return alive ? alive : made;
}

} // namespace cenote_torch
