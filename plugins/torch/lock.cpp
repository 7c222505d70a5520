/*
 * lock.cpp: the locks of the plug-in in a forked child. PyTorch and Python care for their own locks.
 *
 * A fork copies each lock as it is. A thread that does not exist in the child may hold it, and may have been changing what the lock guards. So:
 *
 *   a child of a process that has used a GPU    takes no lock: freeing memory does nothing, all else is refused (Lock::lock throws)
 *   a child of any other process                gets new locks, and may use a GPU itself
 */
#include "lock.h"

#include <atomic>
#include <new>
#include <pthread.h>
#include <stdexcept>

namespace cenote_torch
{

static std::atomic<Lock *> all_locks{nullptr};
static std::atomic<bool> used{false}, forked{false};

void note_use()
{
    used.store(true, std::memory_order_relaxed);
}

bool is_child()
{
    return forked.load(std::memory_order_relaxed);
}

Lock::Lock() : next_(all_locks.load())
{
    while (!all_locks.compare_exchange_weak(next_, this))
        continue;
}

void Lock::lock()
{
    if (is_child())
        throw std::runtime_error("this process was forked from one that uses a GPU, and cannot use its memory. Start workers with spawn");
    mutex_.lock();
}

/* In the child of a fork, which has one thread. */
void renew_locks()
{
    for (Lock *each = all_locks.load(); each; each = each->next_)
        new (&each->mutex_) std::mutex;
    forked = used.load();
}

__attribute__((constructor)) static void watch_forks()
{
    pthread_atfork(nullptr, nullptr, &renew_locks);
}

} // namespace cenote_torch
