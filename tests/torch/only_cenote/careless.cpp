/*
 * careless.cpp: functions of others that an allocator of PyTorch's calls, each as bad as it may be: it throws, or it does not return until it is
 * let go. And threads that are not Python's. Compiled by the tests (careless.py).
 *
 * LOCKING: none; what a function does is chosen before it can be called.
 */
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace c10::cuda::CUDACachingAllocator;

namespace
{

enum Manner { NOTHING, THROWS, STAYS, THROWS_A_NUMBER };

std::atomic<int> manner_of_callback, manner_of_tracker, manner_of_filter;
std::atomic<int> staying, callbacks, told_of[16];
std::atomic<bool> may_go;

bool behave(int manner)
{
    if (manner == THROWS)
        throw std::runtime_error("careless");
    if (manner == THROWS_A_NUMBER)
        throw 7;
    staying += manner == STAYS;
    while (manner == STAYS && !may_go)
        usleep(1000);
    return false;
}

struct Callback : c10::FreeMemoryCallback {
    bool Execute() override
    {
        callbacks++;
        behave(manner_of_callback);
        return manner_of_callback == STAYS; /* what it stayed for may be free now */
    }
};

struct Profiler : c10::MemoryReportingInfoBase {
    int manner = NOTHING;

    void reportMemoryUsage(void *, int64_t, size_t, size_t, c10::Device) override { behave(manner); }
    bool memoryProfilingEnabled() const override { return true; }
};

std::shared_ptr<Profiler> profiler = std::make_shared<Profiler>();
std::optional<c10::DebugInfoGuard> profiling;

} // namespace

namespace c10
{
REGISTER_FREE_MEMORY_CALLBACK("careless", Callback)
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void careless_callback(int manner)
{
    manner_of_callback = manner;
}

EXPORT int careless_callbacks()
{
    return callbacks;
}

EXPORT void careless_tracker(int manner)
{
    static bool attached;
    manner_of_tracker = manner;
    if (!std::exchange(attached, true))
        attachAllocatorTraceTracker([](const TraceEntry &entry) {
            told_of[entry.device_]++;
            behave(manner_of_tracker);
        });
}

/* How often the tracker was told of that device. */
EXPORT int careless_told_of(int device)
{
    return told_of[device];
}

/* What is allocated on the device goes to a pool, if the filter returns. */
EXPORT void careless_filter(int manner, uint64_t first, uint64_t second)
{
    manner_of_filter = NOTHING;
    get()->beginAllocateToPool(0, {first, second}, [](cudaStream_t) { return !behave(manner_of_filter); });
    manner_of_filter = manner;
}

EXPORT void careless_filter_ends(uint64_t first, uint64_t second)
{
    get()->endAllocateToPool(0, {first, second});
    get()->releasePool(0, {first, second});
}

EXPORT void careless_profiler(int manner)
{
    profiling.reset();
    profiler->manner = manner;
    if (manner != NOTHING)
        profiling.emplace(c10::DebugInfoKind::PROFILER_STATE, profiler);
}

/* A thread that takes a block and gives it back; `careless_staying` tells when one of our functions keeps it. */
EXPORT void careless_allocate()
{
    std::thread([] {
        try {
            at::DataPtr block = get()->allocate(1 << 20);
        } catch (const c10::Error &) {
        }
    }).detach();
}

EXPORT int careless_staying()
{
    return staying;
}

EXPORT void careless_let_go()
{
    may_go = true;
}

/* Threads that take and drop blocks until the process ends. A dropped block is dropped in a destructor, where nothing may be thrown. */
EXPORT void careless_for_ever(int threads)
{
    for (int i = 0; i < threads; i++)
        std::thread([] {
            try {
                for (;;)
                    at::DataPtr block = get()->allocate(1 << 20);
            } catch (const c10::Error &) { /* the process ends */
            }
        }).detach();
}

/* A thread that asks for a picture, which waits for the calls that are inside. */
EXPORT void careless_snapshot()
{
    std::thread([] { get()->snapshot(); }).detach();
}
