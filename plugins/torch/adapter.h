/*
 * adapter.h: cenote as PyTorch's CUDA allocator: a translator from PyTorch's interface to cenote's C API. No decision about memory is made
 * here. Compiled against the user's own torch.
 *
 * LOCKING: none of its own on the way of an allocation. `observers_lock_` guards the list of observers and is not held while they run;
 * `direct_lock_` guards what was taken past cenote. `foreign_lock_` is explained in foreign_streams.cpp. None is
 * taken while another is held.
 */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cenote/cenote.h>

#include <atomic>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace cenote_torch {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

/* A call that PyTorch may make and that is not there yet. */
[[noreturn]] void not_yet(const char *method);

cenote_stats read_stats(cenote_pool *pool);
DeviceStats device_stats(cenote_pool *pool);

/* Methods that not every supported torch has: present where its CUDAAllocator declares them. Nothing is ever rejected before it was tried. */
template <class Base, class = void> class Younger : public Base {};

template <class Base> class Younger<Base, std::void_t<decltype(&Base::attachOomRejectionObserver)>> : public Base {
public:
    void attachOomRejectionObserver(std::function<void(int64_t, size_t, size_t, size_t)>) override {}
};

class Adapter final : public Younger<CUDAAllocator> {
public:
    /* allocation */
    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void *to, const void *from, size_t bytes) const override;
    void *raw_alloc(size_t bytes) override;
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
    void raw_delete(void *block) override;
    void recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream) override;
    void enable(bool value) override { enabled_ = value; }
    bool isEnabled() const override { return enabled_; }

    /* devices */
    void init(int device_count) override;
    bool initialized() override { return !pools_.empty(); }
    double getMemoryFraction(DeviceIndex device) override;
    void setMemoryFraction(double fraction, DeviceIndex device) override;
    void emptyCache(MempoolId_t id) override;
    void cacheInfo(DeviceIndex device, size_t *largest) override;
    void *getBaseAllocation(void *block, size_t *size) override;
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                            bool peers) override;
    std::string name() override { return "cenote"; }

    /* what is known about memory */
    DeviceStats getDeviceStats(DeviceIndex device) override { return device_stats(pool(device)); }
    void resetAccumulatedStats(DeviceIndex device) override { cenote_reset_totals(pool(device)); }
    void resetPeakStats(DeviceIndex device) override { cenote_reset_peaks(pool(device)); }
    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
    bool isHistoryEnabled() override { return false; }
    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }

    /* not there yet: history and snapshots, private pools and graphs, sharing */
    SnapshotInfo snapshot(MempoolId_t, bool) override { not_yet("snapshot"); }
    void recordHistory(bool, CreateContextFn, size_t, RecordContext, bool, const std::vector<std::string> &) override
    {
        not_yet("recordHistory");
    }
    void attachAllocatorTraceTracker(AllocatorTraceTracker) override { not_yet("attachAllocatorTraceTracker"); }
    void beginAllocateToPool(DeviceIndex, MempoolId_t, std::function<bool(cudaStream_t)>) override { not_yet("beginAllocateToPool"); }
    void endAllocateToPool(DeviceIndex, MempoolId_t) override { not_yet("endAllocateToPool"); }
    void releasePool(DeviceIndex, MempoolId_t) override { not_yet("releasePool"); }
    ShareableHandle shareIpcHandle(void *) override { not_yet("shareIpcHandle"); }
    std::shared_ptr<void> getIpcDevPtr(std::string) override { not_yet("getIpcDevPtr"); }
    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex, MempoolId_t) override { not_yet("getCheckpointState"); }
    CheckpointDelta setCheckpointPoolState(DeviceIndex, std::shared_ptr<AllocatorState>) override { not_yet("setCheckpointPoolState"); }

private:
    cenote_pool *pool(DeviceIndex device) const;
    void *take(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_directly(size_t bytes);
    bool give_directly(void *block);
    void use_on_foreign(void *block, c10::cuda::CUDAStream stream);
    std::vector<c10::cuda::CUDAStream> forget_foreign(void *block);
    void follow_foreign(void *block);
    [[noreturn]] void fail(int error, DeviceIndex device, size_t bytes);

    std::vector<cenote_pool *> pools_; /* by device; filled once by init, before any allocation */
    std::atomic<bool> enabled_{true};
    std::mutex direct_lock_;
    std::unordered_set<void *> direct_; /* taken while it was switched off */
    std::atomic<bool> has_foreign_{false};
    std::mutex foreign_lock_;
    std::unordered_multimap<void *, c10::cuda::CUDAStream> foreign_; /* blocks used on streams of other devices */
    std::mutex observers_lock_;
    std::vector<OutOfMemoryObserver> observers_;
};

/* The only one. It is never deleted: tensors may die after every static object. */
Adapter *adapter();

} // namespace cenote_torch
