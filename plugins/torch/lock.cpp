/*
 * lock.cpp: the locks of the plug-in in a forked child. Not a lock of PyTorch's or Python's, which are theirs to care for.
 *
 * A fork copies each lock as it is. A thread that the child does not have may hold it, and may be in the middle of a change to what the lock
 * guards. So:
 *
 *   a child of a process that has used a GPU    takes no lock: to drop memory does nothing, all else is refused (Lock::lock throws)
 *   a child of any other process                may begin for itself: its locks are made anew
 */
#include "lock.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <new>
#include <pthread.h>

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
    TORCH_CHECK(!is_child(), "this process is a fork of one that uses a GPU: its memory is the parent's. Start workers with spawn");
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
