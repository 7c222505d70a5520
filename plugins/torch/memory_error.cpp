/*
 * memory_error.cpp: errors of cenote as errors of PyTorch. If memory runs out, observers are called first; then the caller gets an
 * OutOfMemoryError with the text of cenote_pool_explain, which uses PyTorch's phrases where programs parse them.
 */
#include "adapter.h"
#include "install.h"
#include "last_words.h"
#include "outward.h"

#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace cenote_torch
{

/* A dry run says what would help, of the whole program and in numbers: advice about what has happened so far would contradict it. */
static std::string without_advice(const std::string &text)
{
    std::string kept;
    for (size_t at = 0; at < text.size();) {
        size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
        if (text.compare(at, 7, "Advice:") != 0 && text.compare(at, 7, "    or:") != 0)
            kept.append(text, at, end - at);
        at = end;
    }
    return kept;
}

/* cenote_message(); if the driver failed, after "CUDA error: ", as PyTorch's own messages begin. The runtime uses the driver's error numbers. */
std::string message_of(int error)
{
    std::string words = cenote_message();
    if (error != CENOTE_DRIVER && error != CENOTE_DEVICE_LOST)
        return words;
    return std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(cenote_driver_result())) + ": " + words;
}

/* --- the function that describes the moment of an allocation */

static Lock moment_lock;
static cenote_moment_fn moment_function;
static void *moment_arg;

/* The function waits for Python's lock, whose holder may be waiting until no call is inside the gate: so this call leaves the gate. */
static void tell_moment(cenote_pool *pool, cenote_moment *moment, void *)
{
    Call::Outside outside;
    moment->keeps_history = c10::GradMode::is_enabled();
    std::unique_lock<Lock> hold(moment_lock);
    cenote_moment_fn function = moment_function;
    void *arg = moment_arg;
    hold.unlock();
    if (function)
        ask_python([&] { function(pool, moment, arg); });
}

static int set_moment(cenote_moment_fn function, void *arg, size_t size)
{
    if (is_child())
        return CENOTE_FORKED;
    Hold hold(moment_lock);
    moment_function = function;
    moment_arg = arg;
    return (cenote_on_moment)(&tell_moment, nullptr, size);
}

/* --- the function that writes down what is held */

static std::atomic<cenote_torch_ran_out_fn> ran_out_function;
static std::atomic<unsigned long long> ran_out_records;

/* Recording has no price that a step would notice: two tens of nanoseconds a record. */
void record_last(cenote_pool *pool, int devices)
{
    unsigned long long records = ran_out_records.load() / static_cast<unsigned>(std::max(devices, 4));
    if (records && cenote_pool_record(pool, records))
        TORCH_WARN_ONCE("cenote: ", cenote_message());
}

/* Its line for the error. The gate is left already. */
static std::string written_down(DeviceIndex device, const std::string &text)
{
    char line[1024] = "";
    cenote_torch_ran_out_fn function = ran_out_function.load();
    if (function)
        ask_python([&] { function(device, text.c_str(), line, sizeof line); });
    return line[0] ? std::string("\n") + line : "";
}

/* Calls the observers, then throws. */
void Adapter::fail(int error, DeviceIndex device, size_t bytes)
{
    std::string words = message_of(error);
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
        Hold hold(observers_lock_);
        observers = observers_;
    }
    Call::Outside outside;
    for (const auto &observer : observers)
        ask_python([&] { observer(device, bytes, stats.limit ? stats.limit : total, left); });
    if (secure_getenv("CENOTE_DRY_RUN"))
        words = without_advice(words);
    words += written_down(device, words);
    if (error == CENOTE_OUT_OF_MEMORY)
        words += last_words(cenote_pool_provider(pool(device)));
    TORCH_CHECK_WITH(OutOfMemoryError, false, words);
}

} // namespace cenote_torch

int cenote_torch_on_moment(cenote_moment_fn function, void *arg, size_t size)
{
    return cenote_torch::set_moment(function, arg, size);
}

void cenote_torch_on_ran_out(cenote_torch_ran_out_fn function, unsigned long long records)
{
    cenote_torch::ran_out_function = function;
    cenote_torch::ran_out_records = records;
}
