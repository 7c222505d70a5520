/*
 * barrier.c: makes the system run a memory barrier on each processor that runs this process (membarrier). So a road that threads go all the time
 * needs none, and a thread that comes seldom makes it for all: those that wait for a lock (lock.c), those that look into another thread's caches.
 *
 * LOCKING: none. It keeps the caller's errno.
 */
#include "base/barrier.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool command(int what) { return !syscall(SYS_membarrier, what, 0, 0); }

bool barrier_everywhere(void)
{
    int before = errno;
    bool done = command(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    if (!done && command(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)) /* the first time in a process */
        done = command(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    errno = before;
    return done;
}
