/*
 * adapter.cpp: the way of an allocation from PyTorch to cenote and back, and the calls about a device as a whole.
 */
#include "adapter.h"

#include "install.h"
#include "outward.h"
#include "streams.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <pthread.h>

namespace cenote_torch
{

/* --- allocation */

static Adapter *the_adapter;

/* The deleter of tensors. It runs in destructors, which must not throw. */
static void delete_block(void *block)
{
    contain([&] { the_adapter->raw_delete(block); }, [](const char *reason) { TORCH_WARN(reason); });
}

cenote_pool *Adapter::pool(DeviceIndex device) const
{
    TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < pools_.size(), "Allocator not initialized for device ",
                static_cast<int>(device), ": did you call init?");
    return pools_[static_cast<size_t>(device)];
}

/* c10::cuda::current_device without its check for failed assertions of kernels, which takes longer than an allocation. */
static DeviceIndex device_now()
{
    DeviceIndex device = -1;
    return C10_LIKELY(c10::cuda::GetDevice(&device) == cudaSuccess) ? device : c10::cuda::current_device(); /* throws with the reason */
}

static void report(void *block, int64_t bytes, cenote_pool *pool, DeviceIndex device)
{
    if (C10_LIKELY(!c10::memoryProfilingEnabled()))
        return;
    cenote_stats stats = read_stats(pool);
    c10::reportMemoryUsageToProfiler(block, bytes, stats.allocated.current, stats.reserved.current, c10::Device(c10::kCUDA, device));
}

void *Adapter::take(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    if (C10_UNLIKELY(!enabled_))
        return take_directly(bytes);
    if (C10_UNLIKELY(watchers_.load(std::memory_order_relaxed) != nullptr))
        return take_watched(device, bytes, stream);
    return take_unwatched(device, bytes, stream);
}

void *Adapter::take_unwatched(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    if (C10_UNLIKELY(!streams_declared_[static_cast<size_t>(device)].load(std::memory_order_relaxed)))
        declare_streams(device);
    if (C10_UNLIKELY(history_.sees_allocations()))
        return take_recorded(device, bytes, stream);
    void *block = take_unrecorded(device, bytes, stream);
    return C10_UNLIKELY(history_.sees_allocations()) ? record_late(block) : block;
}

void *Adapter::take_watched(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    void *block = take_unwatched(device, bytes, stream);
    const Watchers *watchers = watchers_.load(std::memory_order_acquire);
    cenote_block known;
    bool is_known = !cenote_find(block, &known);
    ask_python([&] { watchers->taken(device, block, is_known ? known.size : bytes, bytes, stream, is_known ? known.group : nullptr); });
    return block;
}

void Adapter::watch(const Watchers &watchers)
{
    if (!watchers_)
        watchers_.store(new Watchers(watchers), std::memory_order_release);
}

/* For a graph, or a pool of the program. */
static int take_from(cenote_group *group, size_t bytes, cudaStream_t stream, void **block)
{
    cenote_request request = {};
    request.bytes = bytes;
    request.group = group;
    request.stream = stream;
    return cenote_alloc_with(nullptr, &request, block);
}

void *Adapter::take_unrecorded(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    void *block = nullptr;
    cenote_pool *from = pool(device);
    cenote_group *group = C10_UNLIKELY(routes_.any()) ? route(device, stream) : nullptr;
    int error = C10_UNLIKELY(group != nullptr) ? take_from(group, bytes, stream, &block) : cenote_alloc(from, bytes, stream, &block);
    if (C10_UNLIKELY(error))
        fail(error, device, bytes);
    Taken taken(block);
    report(block, static_cast<int64_t>(bytes), from, device);
    return taken.keep();
}

/* --- while the adapter is switched off: memory from cudaMalloc */

void *Adapter::take_directly(size_t bytes)
{
    void *block = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&block, bytes));
    Hold hold(direct_lock_);
    direct_.insert(block);
    has_direct_.store(true, std::memory_order_relaxed);
    return block;
}

bool Adapter::give_directly(void *block)
{
    {
        Hold hold(direct_lock_);
        if (!direct_.erase(block))
            return false;
    }
    C10_CUDA_CHECK(cudaFree(block));
    return true;
}

/* --- the calls of PyTorch */

/* What the base class would call: it calls neither, because its methods that do are overridden. */
Adapter::Adapter()
    : Base([this](size_t bytes, int, cudaStream_t stream) { return raw_alloc_with_stream(bytes, stream); },
           [this](void *block, size_t, int, cudaStream_t) { raw_delete(block); })
{
}

c10::DataPtr Adapter::allocate(size_t bytes)
{
    DeviceIndex device = device_now();
    void *block = nullptr;
    if (bytes) {
        auto stream = c10::cuda::getCurrentCUDAStream(device);
        if (is_immortal(stream)) {
            thread_local cudaStream_t last_stream = reinterpret_cast<cudaStream_t>(-1);
            thread_local DeviceIndex last_device = -1;
            if (C10_UNLIKELY(last_stream != stream.stream() || last_device != device)) {
                cenote_stream_set_immortal(pool(device), stream.stream());
                last_stream = stream.stream();
                last_device = device;
            }
        }
        block = take(device, bytes, stream.stream());
    }
    c10::DataPtr owner = owner_of(block, device);
    const c10::impl::PyInterpreter *interp = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interp) && block)
        ask_python([&] { (*interp)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block)); });
    return owner;
}

c10::DataPtr Adapter::owner_of(void *block, DeviceIndex device) const
{
    return {block, block, &delete_block, c10::Device(c10::kCUDA, device)};
}

c10::DeleterFnPtr Adapter::raw_deleter() const
{
    return &delete_block;
}

void *Adapter::raw_alloc(size_t bytes)
{
    return bytes ? raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(device_now()).stream()) : nullptr;
}

void *Adapter::raw_alloc_with_stream(size_t bytes, cudaStream_t stream)
{
    return bytes ? take(device_now(), bytes, stream) : nullptr;
}

/* An exception ends here: the block is freed in any case. */
static void trace_free(const c10::impl::PyInterpreter *interp, void *block)
{
    contain([&] { ask_python([&] { (*interp)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block)); }); },
            [](const char *reason) { TORCH_WARN("a memory tracer in Python failed at a free: ", reason); });
}

void Adapter::raw_delete(void *block)
{
    if (!block)
        return;
    const c10::impl::PyInterpreter *interp = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interp))
        trace_free(interp, block);
    const Watchers *watchers = watchers_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(watchers != nullptr))
        watchers->freeing(block);
    if (C10_UNLIKELY(history_.sees_frees()))
        delete_recorded(block);
    else
        delete_unrecorded(block);
}

void Adapter::delete_unrecorded(void *block)
{
    if (C10_UNLIKELY(has_direct_.load(std::memory_order_relaxed)) && give_directly(block))
        return;
    cenote_block known;
    bool watched = C10_UNLIKELY(c10::memoryProfilingEnabled()) && !cenote_find(block, &known);
    int error = cenote_free(block);
    if (C10_LIKELY(!error)) {
        if (watched)
            report(block, -static_cast<int64_t>(known.requested), known.pool, static_cast<DeviceIndex>(cenote_pool_device(known.pool)));
        return;
    }
    if (error == CENOTE_FORKED) /* a child drops its copy of a tensor; the memory stays the parent's */
        return;
    TORCH_CHECK(false, "invalid device pointer: ", block, ": ", cenote_message());
}

void Adapter::recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream)
{
    if (!block.get() || block.get_deleter() != &delete_block) /* for example a tensor that wraps memory of another library */
        return;
    cenote_block known;
    if (cenote_find(block.get(), &known)) /* from cudaMalloc, while the adapter was switched off: cudaFree waits for the device */
        return;
    if (is_immortal(stream))
        cenote_stream_set_immortal(known.pool, stream.stream());
    int error = cenote_use_on_device(block.get(), stream.device_index(), stream.stream());
    TORCH_CHECK(!error, "record_stream: ", message_of(error));
}

/* --- devices */

/* cenote calls this before an allocation fails: other parts of PyTorch may free device memory, such as memory that other processes sent. */
static int free_other_memory(cenote_pool *, size_t, void *)
{
    Call::Outside outside;
    bool any = false;
    auto ask = [&] {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            contain([&] { any |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute(); },
                    [](const char *reason) { TORCH_WARN("a callback that frees device memory failed: ", reason); });
    };
    contain(ask, [](const char *) {}); /* no host memory: nothing was freed, and nothing may be thrown through C */
    return any;
}

void check(int error)
{
    TORCH_CHECK(!error, message_of(error));
}

static void set_fraction(cenote_pool *pool, double fraction)
{
    double bytes = fraction * static_cast<double>(read_stats(pool).capacity);
    check(cenote_pool_set_limit(pool, fraction < 1 ? std::max<uint64_t>(static_cast<uint64_t>(bytes), 1) : 0));
    double threshold = c10::CachingAllocator::AcceleratorAllocatorConfig::garbage_collection_threshold();
    if (threshold > 0) /* PyTorch, too, applies the threshold only if a fraction is set */
        check(cenote_pool_set_trim_above(pool, threshold));
}

void Adapter::init(int device_count)
{
    double fraction = CUDAAllocatorConfig::per_process_memory_fraction();
    if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"))
        enabled_ = false;
    note_use();
    for (int device = static_cast<int>(pools_.size()); device < device_count; device++) {
        cenote_pool *made = nullptr;
        int error = cenote_pool_default(device, &made);
        TORCH_CHECK(!error, "cenote on device ", device, ": ", message_of(error));
        cenote_pool_on_shortage(made, &free_other_memory, nullptr);
        cenote_pool_set_user(made, "PyTorch");
        record_last(made, device_count);
        if (cenote_pool_provider(made) != CENOTE_VMM)
            say_not_expandable();
        if (fraction < 1)
            set_fraction(made, fraction);
        pools_.reserve(static_cast<size_t>(device_count));
        history_.add_device(made);
        pools_.push_back(made); /* last, and it cannot throw: a device in pools_ is completely set up */
    }
}

double Adapter::getMemoryFraction(DeviceIndex device)
{
    cenote_stats stats = read_stats(pool(device));
    if (stats.limit == 1) /* what set_fraction makes of 0 */
        return 0;
    return stats.limit ? static_cast<double>(stats.limit) / static_cast<double>(stats.capacity) : 1.0;
}

void Adapter::setMemoryFraction(double fraction, DeviceIndex device)
{
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    set_fraction(pool(device), fraction);
}

/*
 * With announced:0, before the first allocation on each device. From then on a fence has an event on each of these streams: kernels may read a tensor
 * on any of them, and the program need not have said so if it orders the tensor's own stream behind them.
 */
void Adapter::declare_streams(DeviceIndex device)
{
    if (!captures_are_announced())
        for (cudaStream_t stream : streams_of_pools(device))
            check(cenote_stream_set_immortal(pool(device), stream));
    streams_declared_[static_cast<size_t>(device)] = true;
}

void Adapter::emptyCache(MempoolId_t id)
{
    if (id != MempoolId_t{0, 0}) {
        for (size_t device = 0; device < pools_.size() && !is_child(); device++)
            empty_pool(static_cast<DeviceIndex>(device), id);
        return;
    }
    std::optional<Call> call;
    if (history_.sees_allocations())
        call.emplace(history_, RecordContext::ALL);
    end_lost_captures();
    for (cenote_pool *each : pools_) {
        cenote_stats stats = read_stats(each);
        if (stats.reserved.current)
            check(cenote_pool_trim(each, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC));
    }
    if (const Watchers *watchers = watchers_.load(std::memory_order_acquire))
        watchers->emptied();
}

/* Before a figure is read: trims that emptyCache deferred, and those that failed when a pool was released, happen now. */
void Adapter::empty_deferred(DeviceIndex device)
{
    if (cenote_pool_trim(pool(device), 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_DEFERRED)) {
        TORCH_WARN_ONCE("cenote: ", cenote_message());
        return;
    }
    empty_refused(device);
}

std::pair<size_t, size_t> Adapter::getMemoryInfo(DeviceIndex device)
{
    size_t left = 0, total = 0;
    empty_deferred(device);
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    return {left, total};
}

/* One block may use all free pages, because pages move. */
void Adapter::cacheInfo(DeviceIndex device, size_t *largest)
{
    *largest = getMemoryInfo(device).first + read_stats(pool(device)).harvestable;
}

void *Adapter::getBaseAllocation(void *block, size_t *size)
{
    cenote_block found;
    check(cenote_find(block, &found));
    if (size)
        *size = found.size;
    return found.start;
}

/* `device` may use the memory of `peer`: cudaDeviceEnablePeerAccess for memory from cudaMalloc, cenote_pool_grant for memory that cenote maps. */
void Adapter::enablePeerAccess(DeviceIndex device, DeviceIndex peer)
{
    c10::cuda::CUDAGuard guard(device);
    cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError(); /* clears it: the runtime keeps this result as the last error */
    else
        C10_CUDA_CHECK(result);
    check(cenote_pool_grant(pool(peer), device));
}

/* Without peer access between the devices, mapped memory has to be copied with cudaMemcpyPeerAsync. */
cudaError_t Adapter::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool peers)
{
    if (peers || to_device == from_device)
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

void Adapter::attachOutOfMemoryObserver(OutOfMemoryObserver observer)
{
    Hold hold(observers_lock_);
    observers_.push_back(std::move(observer));
}

/* In a child: the calls of the parent's other threads are forgotten, and later frees of the parent's blocks do nothing. */
static void adapter_forked()
{
    Asking::forget();
    the_adapter->forked();
}

void Adapter::forked()
{
    history_.forked();
    if (!is_child())
        return;
    has_direct_ = false;
    routes_.forget();
}

Adapter *adapter()
{
    if (!the_adapter) {
        the_adapter = new Adapter;
        pthread_atfork(nullptr, nullptr, &adapter_forked);
    }
    return the_adapter;
}

} // namespace cenote_torch

void cenote_torch_watch_blocks(cenote_torch_taken_fn taken, cenote_torch_freeing_fn freeing, cenote_torch_emptied_fn emptied)
{
    cenote_torch::adapter()->watch({taken, freeing, emptied});
}
