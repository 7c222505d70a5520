/*
 * entry.cpp: what inside/values.py calls, by ctypes.
 */
#include "device.h"
#include "seeing.h"
#include "telling.h"

#include <cstdint>

#define ENTRY extern "C" __attribute__((visibility("default")))

using namespace cenote_values;

/* 0: values are kept from now on, in threads that ask for it. 1: not on this GPU. 2: not with this PyTorch. `told`: see
 * telling.h; called with the kind of what was read, in the thread that reads. */
ENTRY int cenote_values_begin(int which, void *told)
{
    if (!connect_device())
        return 1;
    policy = static_cast<Policy>(which);
    tell_to(told);
    return begin_seeing() ? 0 : 2;
}

ENTRY void cenote_values_see_thread(int on)
{
    see_this_thread(on);
}

/* Python ends, and can be told no more. */
ENTRY void cenote_values_python_ends()
{
    tell_to(nullptr);
}

ENTRY void cenote_values_capture(int on)
{
    std::lock_guard<std::mutex> hold(tape_lock);
    set_capturing(on);
}

/* An optimizer of the program's has stepped. */
ENTRY void cenote_values_stepped()
{
    std::lock_guard<std::mutex> hold(tape_lock);
    note_step();
}

/* All bytes of these addresses, which code outside of PyTorch writes to. */
ENTRY void cenote_values_forget(uint64_t from, uint64_t to)
{
    std::lock_guard<std::mutex> hold(tape_lock);
    tape_forget_range(from, to);
}

struct cenote_values_counts {
    uint64_t recorded, computed, known_reads, storages;
};

ENTRY void cenote_values_count(cenote_values_counts *out)
{
    std::lock_guard<std::mutex> hold(tape_lock);
    *out = {recorded(), computed(), known_reads(), tape_size()};
}
