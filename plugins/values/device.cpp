/*
 * device.cpp: the entries of the simulated GPU (sim/sim.h) and of the driver that the tape uses. They are looked up, not linked: the library is in
 * the process already.
 */
#include "device.h"

#include "tape.h"

#include <dlfcn.h>

#include <atomic>

namespace cenote_values
{

struct Range {
    uint64_t from, to;
};

static int (*copy_to_host)(void *, unsigned long long, size_t);
static int (*copy_to_device)(unsigned long long, const void *, size_t);
static int (*exchange_capture_mode)(int *);
static bool (*explain)(bool);
static uint64_t (*unexplained)(uint64_t, Range *, int);
static const std::atomic<uint64_t> *unexplained_count;
static int (*answer)(const uint64_t *, int);
static uint64_t forgotten;

constexpr int RELAXED = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED */
constexpr int RANGES = 64; /* that are asked for at a time */

template <class F> static bool find(void *library, const char *name, F &function)
{
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
}

bool connect_device()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const std::atomic<uint64_t> *(*count)();
    if (!driver || !find(driver, "cuMemcpyDtoH_v2", copy_to_host) || !find(driver, "cuMemcpyHtoD_v2", copy_to_device) ||
         !find(driver, "cuThreadExchangeStreamCaptureMode", exchange_capture_mode) ||
        !find(driver, "sim_explain", explain) || !find(driver, "sim_unexplained", unexplained) || !find(driver, "sim_answer", answer) ||
        !find(driver, "sim_unexplained_count", count))
        return false;
    unexplained_count = count();
    return true;
}

bool read_device(const void *from, void *to, int64_t bytes)
{
    int mode = RELAXED;
    exchange_capture_mode(&mode);
    int result = bytes ? copy_to_host(to, reinterpret_cast<unsigned long long>(from), static_cast<size_t>(bytes)) : 0;
    exchange_capture_mode(&mode);
    return !result;
}

bool write_device(void *to, const void *from, int64_t bytes)
{
    Explained explained;
    int mode = RELAXED;
    exchange_capture_mode(&mode);
    int result = bytes ? copy_to_device(reinterpret_cast<unsigned long long>(to), from, static_cast<size_t>(bytes)) : 0;
    exchange_capture_mode(&mode);
    return !result;
}

Explained::Explained() : before_(explain(true)) {}

Explained::~Explained()
{
    explain(before_);
}

void forget_unexplained()
{
    while (unexplained_count->load(std::memory_order_acquire) != forgotten) {
        Range ranges[RANGES];
        uint64_t now = unexplained_count->load(std::memory_order_acquire);
        uint64_t told = unexplained(forgotten, ranges, RANGES);
        if (now - forgotten > told) { /* too many to remember */
            tape_forget_all();
            forgotten = now;
            return;
        }
        for (uint64_t i = 0; i < told; i++)
            if (ranges[i].from || ranges[i].to != UINT64_MAX)
                tape_forget_range(ranges[i].from, ranges[i].to);
            else
                tape_forget_all();
        forgotten += told;
    }
}

int answer_copies(const uint64_t *numbers, int count)
{
    return answer(numbers, count);
}

} // namespace cenote_values
