/*
 * thread_number.c: counts threads, when they first ask for their number. Each library that has this file counts for itself.
 *
 * LOCKING: none.
 */
#include <stdatomic.h>

#include "base/thread.h"

uint64_t thread_number(void)
{
    static _Atomic(uint64_t) threads;
    static _Thread_local uint64_t mine;
    if (!mine)
        mine = atomic_fetch_add(&threads, 1) + 1;
    return mine;
}
