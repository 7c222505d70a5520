/*
 * host.cpp: libcenote_host.so as PyTorch's allocator of pinned memory: pin_memory(), torch.empty(pin_memory=True), DataLoaders that pin. It is
 * independent of the adapter for device memory and decides nothing.
 *
 * PyTorch calls record_event right after each copy, as cenote_host_use requires. For memory that was pinned before this allocator was installed,
 * and memory that other libraries registered, calls go to the allocator that was installed before.
 *
 * A block allocated while a graph is captured belongs to the graph's pool. When it is freed, it is kept until PyTorch releases the pool, because
 * every replay copies from it or to it.
 *
 * In a forked child, frees do nothing: the memory is the parent's.
 *
 * LOCKING: `lock_` guards captures and pools. Allocations take it while a capture is open, frees while blocks of pools exist.
 */
#include "install.h"
#include "lock.h"
#include "outward.h"
#include "streams.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cenote/host.h>

#include <array>
#include <dlfcn.h>
#include <map>
#include <unordered_map>
#include <vector>

namespace cenote_torch {

using c10::MempoolId_t;

/* The functions of libcenote_host.so that this file calls. */
struct HostCalls {
#define HOST_CALLS(CALL) CALL(alloc) CALL(free) CALL(use) CALL(find) CALL(trim) CALL(node_stats) CALL(reset_peaks) CALL(message) \
    CALL(open) CALL(stream_set_immortal)
#define CALL(name) decltype(&cenote_host_##name) name;
    HOST_CALLS(CALL)
#undef CALL

    explicit HostCalls(const char *path)
    {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(library, dlerror());
#define CALL(name)                                                        \
    name = (decltype(name))dlsym(library, "cenote_host_" #name);          \
    TORCH_CHECK(name, path, " has no cenote_host_" #name);
        HOST_CALLS(CALL)
#undef CALL
    }
};

class PinnedAllocator final : public at::HostAllocator {
public:
    PinnedAllocator(const char *path, at::HostAllocator *before) : call_(path), before_(before)
    {
        /* If jemalloc is missing or an option is wrong, fail here, where the program can still choose another allocator. */
        int error = call_.open(nullptr, 0);
        TORCH_CHECK(!error || error == CENOTE_BUSY, call_.message());
    }

    at::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override { return give; }
    void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
    bool record_event(void *at, void *context, c10::Stream stream) override;
    void empty_cache() override;
    at::HostStats get_stats() override;
    void reset_accumulated_stats() override { began_ = read(); }
    void reset_peak_stats() override { call_.reset_peaks(); }
    void begin_allocate_to_pool(MempoolId_t id, std::function<bool(c10::Stream)> filter) override;
    void end_allocate_to_pool(MempoolId_t id) override;
    void release_pool(MempoolId_t id) override;

private:
    struct Pool { int users = 0; std::vector<void *> freed; };
    using PoolKey = std::pair<uint64_t, uint64_t>;

    static void give(void *block);
    void take_back(void *block);
    void enter_pool(void *block);
    void declare_streams(c10::DeviceIndex device);
    cenote_host_stats read() const;

    HostCalls call_;
    at::HostAllocator *before_;
    cenote_host_stats began_{};      /* the counters at the last reset: totals are relative to them */
    Lock lock_;
    std::array<std::atomic<bool>, C10_COMPILE_TIME_MAX_GPUS> streams_declared_{};
    std::atomic<int> captures_open_{0}, blocks_in_pools_{0};
    std::vector<std::pair<PoolKey, std::function<bool(c10::Stream)>>> captures_;
    std::map<PoolKey, Pool> pools_;
    std::unordered_map<void *, PoolKey> in_pool_;
};

static PinnedAllocator *pinned; /* never deleted: tensors may die after every static object */

static int device_to_serve()
{
    auto device = c10::cuda::getDeviceIndexWithPrimaryContext(); /* any device will do, memory is portable: so make no new context */
    return device ? *device : c10::cuda::current_device();
}

at::DataPtr PinnedAllocator::allocate(size_t bytes)
{
    void *block = nullptr;
    note_use();
    int error = call_.alloc(device_to_serve(), bytes, &block);
    TORCH_CHECK_WITH(OutOfMemoryError, error != CENOTE_OUT_OF_HOST_MEMORY, "cenote: no pinned memory: ", call_.message());
    TORCH_CHECK(!error, "cenote: no pinned memory: ", call_.message());
    at::DataPtr owner(block, block, give, at::kCPU); /* before enter_pool: a filter may throw */
    if (captures_open_.load(std::memory_order_relaxed) && block)
        enter_pool(block);
    return owner;
}

void PinnedAllocator::enter_pool(void *block)
{
    c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
    Hold guard(lock_);
    for (auto &[id, filter] : captures_)
        if (filter(stream)) {
            in_pool_[block] = id;
            blocks_in_pools_++;
            return;
        }
}

void PinnedAllocator::give(void *block)
{
    pinned->take_back(block);
}

/* Destructors call this: it drops errors. */
void PinnedAllocator::take_back(void *block)
{
    if (is_child())
        return;
    if (blocks_in_pools_.load(std::memory_order_relaxed)) {
        Hold guard(lock_);
        auto found = in_pool_.find(block);
        if (found != in_pool_.end()) {
            pools_[found->second].freed.push_back(block);
            return;
        }
    }
    call_.free(block);
}

/* A tensor of this allocator has its block as context. Another tensor has another context, or none, but may still lie in a block of this one. */
bool PinnedAllocator::record_event(void *at, void *context, c10::Stream stream)
{
    cenote_host_block block;
    if (call_.find(context, &block, sizeof block) && call_.find(at, &block, sizeof block))
        return before_ && before_->record_event(at, context, stream);
    c10::cuda::CUDAStream on(c10::cuda::CUDAStream::UNCHECKED, stream);
    if (!streams_declared_[static_cast<size_t>(on.device_index())].load(std::memory_order_relaxed) &&
        (is_immortal(on) || captures_open_.load(std::memory_order_relaxed)))
        declare_streams(on.device_index());
    TORCH_CHECK(!call_.use(block.start, on.device_index(), on.stream()), "cenote: ", call_.message());
    return true;
}

/*
 * With announced:0 a block that a graph copies waits, once the graph is gone, for the streams on which it may have been replayed. The first copy in a
 * capture, or on a stream of PyTorch's pools, comes before all that.
 */
void PinnedAllocator::declare_streams(c10::DeviceIndex device)
{
    if (!captures_are_announced())
        for (cudaStream_t stream : streams_of_pools(device))
            TORCH_CHECK(!call_.stream_set_immortal(device, stream), "cenote: ", call_.message());
    streams_declared_[static_cast<size_t>(device)].store(true, std::memory_order_relaxed);
}

/* While a capture is open, the host must not wait for the device. */
void PinnedAllocator::empty_cache()
{
    if (before_)
        before_->empty_cache();
    call_.trim(0, captures_open_.load() ? 0 : CENOTE_TRIM_WAIT);
}

cenote_host_stats PinnedAllocator::read() const
{
    cenote_host_stats stats{};
    TORCH_CHECK(!call_.node_stats(-1, &stats, sizeof stats), "cenote: ", call_.message());
    return stats;
}

static at::Stat stat(const cenote_level &level, const cenote_level &began)
{
    at::Stat stat;
    stat.current = (int64_t)level.current;
    stat.peak = (int64_t)level.peak;
    stat.allocated = (int64_t)(level.total_in - began.total_in);
    stat.freed = (int64_t)(level.total_out - began.total_out);
    return stat;
}

static at::DurationStat duration(uint64_t ns, uint64_t count)
{
    at::DurationStat duration;
    duration.total = (int64_t)(ns / 1000);
    duration.count = (int64_t)count;
    return duration;
}

/* Registrations stand where the native allocator counts calls of cudaHostAlloc. Blocks are not counted by size: `bucket_allocation` stays 0. */
at::HostStats PinnedAllocator::get_stats()
{
    cenote_host_stats now = read();
    at::HostStats stats;
    cenote_level chunks{now.registrations - now.unregistrations, now.registrations - now.unregistrations, now.registrations, now.unregistrations};
    cenote_level chunks_began{0, 0, began_.registrations, began_.unregistrations};
    stats.active_requests = stat(now.blocks, began_.blocks);
    stats.active_bytes = stat(now.allocated, began_.allocated);
    stats.allocations = stat(chunks, chunks_began);
    stats.allocated_bytes = stat(now.registered, began_.registered);
    stats.num_host_alloc = stats.allocations.allocated;
    stats.num_host_free = stats.allocations.freed;
    stats.host_alloc_time = duration(now.registration_ns - began_.registration_ns, now.registrations - began_.registrations);
    stats.host_free_time = duration(now.unregistration_ns - began_.unregistration_ns, now.unregistrations - began_.unregistrations);
    return stats;
}

void PinnedAllocator::begin_allocate_to_pool(MempoolId_t id, std::function<bool(c10::Stream)> filter)
{
    Hold guard(lock_);
    PoolKey key{id.first, id.second};
    pools_[key].users++;
    captures_.emplace_back(key, std::move(filter));
    captures_open_++;
}

void PinnedAllocator::end_allocate_to_pool(MempoolId_t id)
{
    if (is_child())
        return;
    Hold guard(lock_);
    for (auto capture = captures_.begin(); capture != captures_.end(); ++capture)
        if (capture->first == PoolKey{id.first, id.second}) {
            captures_.erase(capture);
            captures_open_--;
            return;
        }
    TORCH_CHECK(false, "cenote: end_allocate_to_pool: no begin_allocate_to_pool is open for this pool of pinned memory");
}

/* The graphs of the pool are destroyed. Blocks that tensors still hold become ordinary blocks. */
void PinnedAllocator::release_pool(MempoolId_t id)
{
    std::vector<void *> freed;
    if (is_child())
        return;
    {
        Hold guard(lock_);
        PoolKey key{id.first, id.second};
        auto pool = pools_.find(key);
        if (pool == pools_.end() || --pool->second.users)
            return;
        freed.swap(pool->second.freed);
        pools_.erase(pool);
        for (auto block = in_pool_.begin(); block != in_pool_.end();)
            block = block->second == key ? (blocks_in_pools_--, in_pool_.erase(block)) : std::next(block);
    }
    for (void *block : freed)
        call_.free(block);
}

} // namespace cenote_torch

int cenote_torch_install_host(const char *library, char *why, size_t room)
{
    return cenote_torch::guarded(why, room, [library] {
        if (!cenote_torch::pinned)
            cenote_torch::pinned = new cenote_torch::PinnedAllocator(library, at::getHostAllocator(at::kCUDA));
        at::setHostAllocator(at::kCUDA, cenote_torch::pinned, 1);
    });
}
