/*
 * memory_error.cpp: running out of memory, said as PyTorch says it: programs and people look for its words. Figures only, no decision.
 */
#include "adapter.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

namespace cenote_torch
{

static std::string size_text(uint64_t bytes)
{
    const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    double size = static_cast<double>(bytes);
    size_t unit = 0;
    for (; size >= 1024 && unit < 3; unit++)
        size /= 1024;
    char text[64];
    snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", size, units[unit]);
    return text;
}

/* --- who else is on the device: NVML says it, where there is one */

struct Process { /* nvmlProcessInfo_t */
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
};

struct Nvml {
    int (*init)();
    int (*device)(const char *bus, void **handle);
    int (*processes)(void *handle, unsigned *count, Process *found);
};

static std::optional<Nvml> load_nvml()
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        return std::nullopt;
    Nvml nvml;
    nvml.init = reinterpret_cast<decltype(nvml.init)>(dlsym(library, "nvmlInit_v2"));
    nvml.device = reinterpret_cast<decltype(nvml.device)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    nvml.processes = reinterpret_cast<decltype(nvml.processes)>(dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
    if (!nvml.init || !nvml.device || !nvml.processes || nvml.init())
        return std::nullopt;
    return nvml;
}

static std::string users_text(DeviceIndex device)
{
    static const std::optional<Nvml> nvml = load_nvml();
    char bus[32];
    void *handle;
    Process found[128];
    unsigned count = 128;
    if (!nvml || cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess || nvml->device(bus, &handle) ||
        nvml->processes(handle, &count, found))
        return "";
    std::string text;
    for (unsigned i = 0; i < count; i++) {
        bool is_ours = found[i].pid == static_cast<unsigned>(getpid());
        text += is_ours ? "Including non-PyTorch memory, this process" : "Process " + std::to_string(found[i].pid);
        text += " has " + size_text(found[i].used) + " memory in use. ";
    }
    return text;
}

static std::string explain(size_t bytes, DeviceIndex device, size_t left, size_t total, const cenote_stats &stats, uint64_t in_pools)
{
    if (bytes >= size_t{1} << 60)
        return "CUDA out of memory. Tried to allocate more than 1EB memory.";
    std::string private_pools = in_pools ? "with " + size_text(in_pools) + " allocated in private pools (e.g., CUDA Graphs), " : "";
    std::string allowed = stats.limit ? size_text(stats.limit) + " allowed; " : "";
    return "CUDA out of memory. Tried to allocate " + size_text(bytes) + ". GPU " + std::to_string(device) + " has a total capacity of " +
           size_text(total) + " of which " + size_text(left) + " is free. " + users_text(device) + allowed + "Of the allocated memory " +
           size_text(stats.allocated.current) + " is allocated by PyTorch, " + private_pools + "and " +
           size_text(stats.reserved.current - stats.allocated.current) +
           " is reserved by PyTorch but unallocated. cenote moves what is unallocated to where it is needed, so that "
           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would not help.  See documentation for Memory Management  "
           "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
}

/* What cenote said last, behind what PyTorch says when the driver fails: the driver's numbers are the runtime's. */
std::string words_of(int error)
{
    std::string words = cenote_message();
    if (error != CENOTE_DRIVER && error != CENOTE_DEVICE_LOST)
        return words;
    return std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(cenote_driver_result())) + ": " + words;
}

/* The allocation failed: whoever watches is told, and then the caller. */
void Adapter::fail(int error, DeviceIndex device, size_t bytes)
{
    std::string words = words_of(error);
    TORCH_CHECK(error == CENOTE_OUT_OF_MEMORY || error == CENOTE_OUT_OF_ADDRESSES, words);
    c10::cuda::CUDAGuard guard(device);
    size_t left = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    cenote_stats stats = read_stats(pool(device));
    if (c10::memoryProfilingEnabled())
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), stats.allocated.current, stats.reserved.current,
                                         c10::Device(c10::kCUDA, device));
    history_.ran_out(device, bytes, left);
    std::vector<OutOfMemoryObserver> observers;
    {
        std::lock_guard<std::mutex> hold(observers_lock_);
        observers = observers_;
    }
    Call::Outside outside;
    for (const auto &observer : observers)
        observer(device, bytes, stats.limit ? stats.limit : total, left);
    if (error == CENOTE_OUT_OF_MEMORY)
        words = explain(bytes, device, left, total, stats, allocated_in_pools(device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, words);
}

} // namespace cenote_torch
