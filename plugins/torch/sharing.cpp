/*
 * sharing.cpp: memory of one process in another, for torch.multiprocessing: it exports the block of a tensor that is sent, and imports it in the
 * receiver.
 *
 * A handle is the cenote_share of a block; the offset is the storage's place in the block. PyTorch keeps the sender's block until the last
 * receiver has dropped it, and expects the same pointer for the same handle as long as that pointer lives.
 *
 * A receiver may drop memory while a graph is captured, when cenote refuses to close it. Such memory is closed later: when the next received
 * memory is dropped, when a capture ends, or when the cache is emptied.
 *
 * LOCKING: `received_lock_` guards the lists of received memory. No memory is imported or closed under it.
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
    TORCH_CHECK(!error, "cannot share this memory with another process: ", message_of(error));
    return {static_cast<char *>(block) - static_cast<char *>(found.start), std::string(reinterpret_cast<char *>(&share), sizeof share)};
}

/* The live memory of that name, or NULL. LOCKING: received_lock_ */
std::shared_ptr<void> Adapter::find_received(const std::string &name)
{
    auto known = received_.find(name);
    return known == received_.end() ? nullptr : known->second.lock();
}

/* Closes the memory in unclosed_ and `address`, if it is not NULL. What cenote refuses to close stays in unclosed_. */
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
    TORCH_CHECK(!error, "cannot use memory that another process sent: ", message_of(error));
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
    auto alive = find_received(name); /* if another thread was faster: `made` is closed after the lock is released */
    if (!alive)
        received_[name] = made;
    return alive ? alive : made;
}

} // namespace cenote_torch
