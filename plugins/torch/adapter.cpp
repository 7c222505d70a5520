/*
 * adapter.cpp: the road of an allocation from PyTorch to cenote and back, and the calls about a device as a whole.
 */
#include "adapter.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstdlib>

namespace cenote_torch
{

/* --- allocation */

static Adapter *the_adapter;

/* For tensors: they die in destructors, where nothing may be thrown. */
static void delete_block(void *block)
{
    try {
        the_adapter->raw_delete(block);
    } catch (const c10::Error &error) {
        TORCH_WARN(error.what_without_backtrace());
    }
}

cenote_pool *Adapter::pool(DeviceIndex device) const
{
    TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < pools_.size(), "Allocator not initialized for device ",
                static_cast<int>(device), ": did you call init?");
    return pools_[static_cast<size_t>(device)];
}

/* c10::cuda::current_device without its look at what assertions in kernels have reported, which takes longer than a block does. */
static DeviceIndex device_now()
{
    DeviceIndex device = -1;
    return C10_LIKELY(c10::cuda::GetDevice(&device) == cudaSuccess) ? device : c10::cuda::current_device(); /* which says what is wrong */
}

/* PyTorch's own streams live as long as the program; a program's, whose number is its handle, may die. */
static bool is_immortal(const c10::cuda::CUDAStream &stream)
{
    return stream.id() & 1;
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
    return C10_UNLIKELY(history_.sees_allocations()) ? take_recorded(device, bytes, stream) : take_unseen(device, bytes, stream);
}

void *Adapter::take_unseen(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    void *block = nullptr;
    cenote_pool *from = pool(device);
    cenote_group *group = C10_UNLIKELY(has_routes_.load(std::memory_order_relaxed)) ? route(device, stream) : nullptr;
    int error = C10_UNLIKELY(group != nullptr) ? cenote_group_alloc(group, bytes, 1, stream, &block) : cenote_alloc(from, bytes, stream, &block);
    if (C10_UNLIKELY(error))
        fail(error, device, bytes);
    report(block, static_cast<int64_t>(bytes), from, device);
    return block;
}

/* --- while it is switched off: memory of the driver's */

void *Adapter::take_directly(size_t bytes)
{
    void *block = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&block, bytes));
    std::lock_guard<std::mutex> hold(direct_lock_);
    direct_.insert(block);
    has_direct_.store(true, std::memory_order_relaxed);
    return block;
}

bool Adapter::give_directly(void *block)
{
    {
        std::lock_guard<std::mutex> hold(direct_lock_);
        if (!direct_.erase(block))
            return false;
    }
    C10_CUDA_CHECK(cudaFree(block));
    return true;
}

/* --- the calls of PyTorch */

c10::DataPtr Adapter::allocate(size_t bytes)
{
    DeviceIndex device = device_now();
    void *block = nullptr;
    if (bytes) {
        auto stream = c10::cuda::getCurrentCUDAStream(device);
        if (is_immortal(stream)) {
            thread_local cudaStream_t said = reinterpret_cast<cudaStream_t>(-1);
            thread_local DeviceIndex said_of = -1;
            if (C10_UNLIKELY(said != stream.stream() || said_of != device)) {
                cenote_stream_immortal(pool(device), stream.stream());
                said = stream.stream();
                said_of = device;
            }
        }
        block = take(device, bytes, stream.stream());
        const c10::impl::PyInterpreter *interp = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(interp))
            (*interp)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
    }
    return owner_of(block, device);
}

c10::DataPtr Adapter::owner_of(void *block, DeviceIndex device) const
{
    return {block, block, &delete_block, c10::Device(c10::kCUDA, device)};
}

c10::DeleterFnPtr Adapter::raw_deleter() const
{
    return &delete_block;
}

void Adapter::copy_data(void *to, const void *from, size_t bytes) const
{
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

void *Adapter::raw_alloc(size_t bytes)
{
    return bytes ? raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(device_now()).stream()) : nullptr;
}

void *Adapter::raw_alloc_with_stream(size_t bytes, cudaStream_t stream)
{
    return bytes ? take(device_now(), bytes, stream) : nullptr;
}

void Adapter::raw_delete(void *block)
{
    if (!block)
        return;
    const c10::impl::PyInterpreter *interp = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interp))
        (*interp)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
    if (C10_UNLIKELY(history_.sees_frees()))
        delete_recorded(block);
    else
        delete_unseen(block);
}

void Adapter::delete_unseen(void *block)
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
    if (error == CENOTE_FORKED) /* a child drops its copy of a tensor: the memory is the parent's */
        return;
    TORCH_CHECK(false, "invalid device pointer: ", block, ": ", cenote_message());
}

void Adapter::recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream)
{
    if (!block.get() || block.get_deleter() != &delete_block) /* as tensors that wrap memory of others */
        return;
    cenote_block known;
    if (cenote_find(block.get(), &known)) /* taken while cenote was switched off: its free waits for the device */
        return;
    if (is_immortal(stream))
        cenote_stream_immortal(known.pool, stream.stream());
    int error = cenote_use_on(block.get(), stream.device_index(), stream.stream());
    TORCH_CHECK(!error, "record_stream: ", cenote_message());
}

/* --- devices */

/* Before an allocation fails: what other parts of PyTorch hold and could let go, as memory that other processes sent. */
static int ask_others(cenote_pool *, size_t, void *)
{
    Call::Outside outside;
    bool any = false;
    for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
        any |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    return any;
}

void Adapter::init(int device_count)
{
    double fraction = CUDAAllocatorConfig::per_process_memory_fraction();
    if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"))
        enabled_ = false;
    for (int device = static_cast<int>(pools_.size()); device < device_count; device++) {
        cenote_pool *made = nullptr;
        TORCH_CHECK(!cenote_pool_default(device, &made), "cenote on device ", device, ": ", cenote_message());
        cenote_pool_on_shortage(made, &ask_others, nullptr);
        cenote_pool_set_user(made, "PyTorch");
        pools_.push_back(made);
        history_.add_device(made);
        if (fraction < 1)
            setMemoryFraction(fraction, static_cast<DeviceIndex>(device));
    }
}

double Adapter::getMemoryFraction(DeviceIndex device)
{
    cenote_stats stats = read_stats(pool(device));
    return stats.limit ? static_cast<double>(stats.limit) / static_cast<double>(stats.capacity) : 1.0;
}

void Adapter::setMemoryFraction(double fraction, DeviceIndex device)
{
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    double bytes = fraction * static_cast<double>(read_stats(pool(device)).capacity);
    int error = cenote_pool_set_limit(pool(device), fraction < 1 ? std::max<uint64_t>(static_cast<uint64_t>(bytes), 1) : 0);
    TORCH_CHECK(!error, cenote_message());
    double threshold = c10::CachingAllocator::AcceleratorAllocatorConfig::garbage_collection_threshold();
    if (threshold > 0) /* without a fraction PyTorch has no threshold either */
        TORCH_CHECK(!cenote_pool_set_trim_above(pool(device), threshold), cenote_message());
}

void Adapter::emptyCache(MempoolId_t id)
{
    if (id != MempoolId_t{0, 0}) {
        for (size_t device = 0; device < pools_.size(); device++)
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
            TORCH_CHECK(!cenote_trim(each, 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_OFTEN), cenote_message());
    }
}

/* Somebody looks what emptyCache has brought: what it has put off goes now. */
void Adapter::empty_owed(DeviceIndex device)
{
    if (cenote_trim(pool(device), 0, CENOTE_TRIM_WAIT | CENOTE_TRIM_OWED))
        TORCH_WARN_ONCE("cenote: ", cenote_message());
}

std::pair<size_t, size_t> Adapter::getMemoryInfo(DeviceIndex device)
{
    size_t left = 0, total = 0;
    empty_owed(device);
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    return {left, total};
}

/* All that is free may serve one block, since pages move. */
void Adapter::cacheInfo(DeviceIndex device, size_t *largest)
{
    *largest = getMemoryInfo(device).first + read_stats(pool(device)).harvestable;
}

void *Adapter::getBaseAllocation(void *block, size_t *size)
{
    cenote_block found;
    TORCH_CHECK(!cenote_find(block, &found), cenote_message());
    if (size)
        *size = found.size;
    return found.start;
}

/* `device` may use the memory of `peer`: what the runtime gives out, for which it has to be asked, and what cenote maps. */
void Adapter::enablePeerAccess(DeviceIndex device, DeviceIndex peer)
{
    c10::cuda::CUDAGuard guard(device);
    cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError(); /* the runtime remembers it as an error */
    else
        C10_CUDA_CHECK(result);
    TORCH_CHECK(!cenote_pool_grant(pool(peer), device), cenote_message());
}

/* Where the devices cannot use each other's memory, mapped memory needs the driver's copy between peers. */
cudaError_t Adapter::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool peers)
{
    if (peers || to_device == from_device)
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

void Adapter::attachOutOfMemoryObserver(OutOfMemoryObserver observer)
{
    std::lock_guard<std::mutex> hold(observers_lock_);
    observers_.push_back(std::move(observer));
}

Adapter *adapter()
{
    if (!the_adapter)
        the_adapter = new Adapter;
    return the_adapter;
}

} // namespace cenote_torch
