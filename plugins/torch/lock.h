/*
 * lock.h: the locks of the plug-in, and what a forked child may do with them. See lock.cpp.
 */
#pragma once

#include <mutex>

namespace cenote_torch {

/* From now on memory of a GPU is in use: a child that is forked owns none of it. */
void note_use();

/* This process was forked from one that used a GPU. What drops memory, pools or routes asks this first, and then does nothing. */
bool is_child();

/* Lives until the process ends. Throws in a child, before it waits. */
class Lock {
public:
    Lock();
    Lock(const Lock &) = delete;
    void lock();
    void unlock() { mutex_.unlock(); }

private:
    friend void renew_locks();

    std::mutex mutex_;
    Lock *next_; /* in the list of all */
};

using Hold = std::lock_guard<Lock>;

} // namespace cenote_torch
