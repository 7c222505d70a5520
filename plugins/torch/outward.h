/*
 * outward.h: the ways out of the adapter, into functions of others: what they throw, and what becomes of a thread that asks Python when it ends.
 *
 * Python before 3.14 ends a thread that wants Python's lock after the interpreter has begun to end: by pthread_exit, which unwinds the stack
 * and, at the first frame that must not throw, as a tensor's destructor, ends the process by std::terminate. So the adapter does
 * what Python does from 3.14 on: that thread stops where it is. And it stops seldom: python_ends, which is called before, waits for the
 * threads that ask, and then no thread asks any more.
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
    Asking() { inside_++; }
    ~Asking() { inside_--; }
    static bool may() { return !over_; }
    static void end();
    static void forget() { inside_ = 0; } /* in a child */
    [[noreturn]] static void stop_here();

private:
    inline static std::atomic<int> inside_{0};
    inline static std::atomic<bool> over_{false};
};

/* Calls what may take Python's lock, unless Python has ended. No lock is held. */
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

/* Calls what must not throw further, as C or a destructor is above us: `failed` gets its words. */
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

/* For an entry that C calls: 0, or 1 and the reason in `why`, which has room for `room` bytes. */
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
