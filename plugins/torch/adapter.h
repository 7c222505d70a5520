/*
 * adapter.h: cenote as PyTorch's CUDA allocator. It translates PyTorch's interface to cenote's C API and decides nothing about memory. It is
 * compiled against the user's own torch.
 *
 * LOCKING: an allocation takes no lock of the adapter. `observers_lock_` guards the list of observers and is not held while they run;
 * `direct_lock_` guards the addresses of blocks that came from cudaMalloc, `received_lock_` memory that other processes sent. No thread holds
 * two of them. lock.h says what a forked child may do.
 */
#pragma once

/* As PyTorch's own build for Linux has it: without it, headers before 2.15 say to all that includes them that expandable segments are off. */
#ifndef PYTORCH_C10_DRIVER_API_SUPPORTED
#define PYTORCH_C10_DRIVER_API_SUPPORTED
#endif

#include <history.h> /* beside this file */
#include <lock.h>
#include <routes.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace cenote_torch {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

cenote_stats read_stats(cenote_pool *pool);
std::string message_of(int error);
void record_last(cenote_pool *pool, int devices); /* as cenote_torch_on_ran_out said */
DeviceStats device_stats(cenote_pool *pool);
void say_not_expandable();
void put_pool_level(DeviceStats &stats, MempoolId_t id, const cenote_level &level);
std::vector<cenote_piece> pieces_of(cenote_pool *pool, cenote_group *group);
void fit_trace(std::vector<TraceEntry> &trace, const std::vector<SegmentInfo> &segments, DeviceIndex device, size_t page);

/* Owns a block that was just allocated: frees it if an exception leaves the scope before keep(). */
class Taken {
public:
    explicit Taken(void *block) : block_(block) {}
    Taken(const Taken &) = delete;
    ~Taken()
    {
        if (C10_UNLIKELY(block_ != nullptr))
            cenote_free(block_);
    }
    void *get() const { return block_; }
    void *keep() { return std::exchange(block_, nullptr); }

private:
    void *block_;
};

/* pools.cpp */
struct Foreign;

struct PrivatePool {
    cenote_group *group = nullptr;
    int uses = 0;
    unsigned flags = 0;         /* CENOTE_GROUP_LEND, _WHOLE, _PLAIN */
    Foreign *foreign = nullptr; /* the allocator of its memory, if that is not cenote */
};

/* A pool that was released: statistics and a last empty_cache of this pool still need these figures. */
struct Released {
    DeviceIndex device;
    MempoolId_t id;
    uint64_t held, idle; /* bytes held when it was released; bytes of those outside live blocks */
};

/* Functions of another library that hear of each block: names (plugins/names). They run while the block is the caller's, under no lock, and
 * `taken` may take Python's. They never go, once they are there. */
struct Watchers {
    void (*taken)(int device, const void *block, size_t size, size_t bytes, const void *stream, const void *group);
    void (*freeing)(const void *block);
    void (*emptied)();
};

/*
 * It derives from PyTorch's CUDAPluggableAllocator, which PyTorch has to keep whole: a method that a later PyTorch adds has a default there. An
 * `override` marks what cenote needs: if PyTorch calls that otherwise, the compiler refuses. The other methods of the interface are rows of
 * methods.def: one that PyTorch has dropped or changed is lost, and said.
 */
using Base = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

class Adapter final : public Base {
public:
    Adapter();

    /* allocation */
    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void *raw_alloc(size_t bytes) override;
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
    void raw_delete(void *block) override;
    void recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream) override;
    void enable(bool value) { enabled_ = value; }
    bool isEnabled() const { return enabled_; }

    void forked();
    void watch(const Watchers &watchers);

    /* devices */
    void init(int device_count) override;
    bool initialized() override { return !pools_.empty(); }
    double getMemoryFraction(DeviceIndex device);
    void setMemoryFraction(double fraction, DeviceIndex device) override;
    void emptyCache(MempoolId_t id) override;
    void cacheInfo(DeviceIndex device, size_t *largest);
    std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device);
    void *getBaseAllocation(void *block, size_t *size) override;
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                            bool peers) override;
    std::string name() override { return "cenote"; }

    /* pools, graphs and checkpoints */
    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator);
    void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override;
    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
    void releasePool(DeviceIndex device, MempoolId_t id) override;
    int getPoolUseCount(DeviceIndex device, MempoolId_t id);
    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool on) { change_pool(device, id, CENOTE_GROUP_LEND, on); }
    void setNoSplit(DeviceIndex device, MempoolId_t id);
    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id);
    CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> recorded);
    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void *> &expected);
    c10::DataPtr allocateWithAddress(size_t bytes, void *address);
    MempoolId_t pool_of(cenote_group *group);
    cenote_group *group_of(DeviceIndex device, MempoolId_t id);

    /* statistics */
    DeviceStats getDeviceStats(DeviceIndex device);
    void resetAccumulatedStats(DeviceIndex device) { cenote_pool_reset_totals(pool(device)); }
    void resetPeakStats(DeviceIndex device);
    void attachOutOfMemoryObserver(OutOfMemoryObserver observer);
    void attachOomRejectionObserver(std::function<void(int64_t, size_t, size_t, size_t)>) {} /* cenote tries before it refuses */
    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) { return {}; }

    /* history and snapshots */
    SnapshotInfo snapshot(MempoolId_t id, bool include_traces);
    void recordHistory(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear,
                       const std::vector<std::string> &skip)
    {
        history_.record(enabled, gather, most, when, clear, skip);
        add_spans_to_history();
    }
    bool isHistoryEnabled() { return history_.is_enabled(); }
    std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *block);
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &text);
    void pushCompileContext(std::string &text) { push_compile_context(text); }
    void popCompileContext() { pop_compile_context(); }
    bool supportsUserMetadata() { return true; }
    void setUserMetadata(const std::string &text) { set_user_metadata(text); }
    std::string getUserMetadata() { return user_metadata(); }
    void annotateMemory(const void *block, const std::string &text);
    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker)
    {
        history_.track(std::move(tracker));
        add_spans_to_history();
    }

    /* sharing.cpp: memory of one process in another */
    ShareableHandle shareIpcHandle(void *block);
    std::shared_ptr<void> getIpcDevPtr(std::string handle);

    /* synced.cpp: the program waits for a device as a whole, or is about to end a stream */
    std::vector<uint64_t> begin_sync() const;
    void end_sync(const std::vector<uint64_t> &syncs) const;
    void retire(cudaStream_t stream) const;

private:
    cenote_pool *pool(DeviceIndex device) const;
    void *take(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_unwatched(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_watched(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_recorded(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_unrecorded(DeviceIndex device, size_t bytes, cudaStream_t stream);
    int take_at(DeviceIndex device, cenote_group *group, void *block, size_t bytes, cudaStream_t stream);
    void delete_recorded(void *block);
    void delete_unrecorded(void *block);
    void record_taken(Call &call, void *block);
    void *record_late(void *block);
    void add_spans_to_history();
    void add_segments(std::vector<SegmentInfo> &segments, DeviceIndex device, MempoolId_t wanted);
    c10::DataPtr owner_of(void *block, DeviceIndex device) const;
    PrivatePool &enter_pool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator);
    void change_pool(DeviceIndex device, MempoolId_t id, unsigned flag, bool on);
    bool lends(DeviceIndex device, MempoolId_t id);
    void remember(const Released &gone);
    void declare_streams(DeviceIndex device);
    void give_back(DeviceIndex device, uint64_t idle);
    void empty_pool(DeviceIndex device, MempoolId_t id);
    void empty_refused(DeviceIndex device);
    void empty_deferred(DeviceIndex device);
    void add_pool_stats(DeviceIndex device, DeviceStats &stats);
    void end_lost_captures();
    cenote_group *group_in_use(DeviceIndex device, MempoolId_t id);
    cenote_group *route(DeviceIndex device, cudaStream_t stream);
    bool delete_live(void *block);
    void *take_directly(size_t bytes);
    bool give_directly(void *block);
    std::shared_ptr<void> find_received(const std::string &name);
    void close_received(void *address);
    [[noreturn]] void fail(int error, DeviceIndex device, size_t bytes);

    std::vector<cenote_pool *> pools_; /* by device; filled once by init, before any allocation */
    std::array<std::atomic<bool>, C10_COMPILE_TIME_MAX_GPUS> streams_declared_{};
    std::atomic<bool> enabled_{true};
    std::atomic<const Watchers *> watchers_{nullptr};
    Lock direct_lock_;
    std::unordered_set<void *> direct_; /* blocks from cudaMalloc, allocated while the adapter was switched off */
    std::atomic<bool> has_direct_{false}; /* stays true from the first of them on */
    Lock pools_lock_;
    std::map<std::pair<DeviceIndex, MempoolId_t>, PrivatePool> private_;
    std::deque<Released> released_;              /* the last RELEASED_MAX */
    std::map<DeviceIndex, uint64_t> refused_;    /* idle bytes of released pools that a trim could not give back yet */
    std::unordered_map<cenote_group *, MempoolId_t> id_of_group_;
    Routes routes_{pools_lock_};
    History history_;
    Lock observers_lock_;
    std::vector<OutOfMemoryObserver> observers_;
    Lock received_lock_;
    std::unordered_map<std::string, std::weak_ptr<void>> received_; /* memory of other processes, by handle and device */
    std::vector<void *> unclosed_; /* received memory that PyTorch dropped during a capture: closed after the capture */
};

/* The only Adapter. It is never deleted: tensors may die after every static object. */
Adapter *adapter();

} // namespace cenote_torch
