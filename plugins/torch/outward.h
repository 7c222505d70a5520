/*
 * outward.h: how the adapter calls functions of PyTorch and the program: it contains their exceptions, and survives the end of Python.
 *
 * If a thread asks for Python's lock after the interpreter has begun to end, Python before 3.14 ends the thread by pthread_exit. That unwinds
 * the stack, and at the first frame that must not throw, such as a tensor's destructor, std::terminate ends the process. So the adapter does
 * what Python does from 3.14 on: the thread stops for ever. That is rare: cenote_torch_python_ends, which runs before the interpreter ends,
 * waits for the threads that are asking, and from then on no thread asks.
 */
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>
#include <cxxabi.h>
#include <exception>

namespace cenote_torch {

/* Threads that may be waiting for Python's lock. */
class Asking {
public:
    Asking() { asking_++; }
    ~Asking() { asking_--; }
    static bool may() { return !ended_; }
    static void end();
    static void forget() { asking_ = 0; } /* in a child, which has none of those threads */
    [[noreturn]] static void stop_here();

private:
    inline static std::atomic<int> asking_{0};
    inline static std::atomic<bool> ended_{false};
};

/* Calls a function that may take Python's lock, unless Python has ended. The caller holds no lock. */
template <class Function> void ask_python(Function ask)
{
    Asking asking;
    if (!Asking::may())
        return;
    try {
        ask();
    } catch (const abi::__forced_unwind &) {
        Asking::stop_here();
    }
}

/* Calls a function whose exceptions must not pass the caller, which C or a destructor called: `failed` gets their text. */
template <class Function, class Failed> void contain(Function call, Failed failed)
{
    try {
        call();
    } catch (const abi::__forced_unwind &) { /* no exception: the thread is being ended */
        throw;
    } catch (const c10::Error &error) {
        failed(error.what_without_backtrace());
    } catch (const std::exception &error) {
        failed(error.what());
    } catch (...) {
        failed("an exception of no known type");
    }
}

/* For an entry that C calls: returns 0, or 1 and the reason in `why`, a buffer of `room` bytes. */
template <class Function> int guarded(char *why, size_t room, Function call)
{
    int status = 0;
    contain(call, [&](const char *reason) {
        snprintf(why, room, "%s", reason);
        status = 1;
    });
    return status;
}

} // namespace cenote_torch
