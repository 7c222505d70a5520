/*
 * lock.h: the locks of the plug-in, and what a forked child may do with them. See lock.cpp.
 */
#pragma once

#include <mutex>

namespace cenote_torch {

/* Called before a GPU's memory is used: a child that is forked from now on owns none of it. */
void note_use();

/* This process was forked from one that used a GPU. Functions that free memory, pools or routes ask this first, and do nothing if so. */
bool is_child();

/* A lock lives until the process ends. In a child lock() throws and does not wait. */
class Lock {
public:
    Lock();
    Lock(const Lock &) = delete;
    void lock();
    void unlock() { mutex_.unlock(); }

private:
    friend void renew_locks();

    std::mutex mutex_;
    Lock *next_; /* in the list of all locks */
};

using Hold = std::lock_guard<Lock>;

} // namespace cenote_torch
