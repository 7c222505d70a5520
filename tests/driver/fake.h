/* fake.h: a driver table of a few functions that keep no state but what a test sets here. For tests that need no device at all. */
#ifndef CENOTE_TESTS_DRIVER_FAKE_H
#define CENOTE_TESTS_DRIVER_FAKE_H

#include <stdatomic.h>

#include "driver/driver.h"

struct fake {
    CUresult         answer;      /* what each call returns */
    CUdeviceptr      last_freed;  /* argument of the last cuMemFree */
    _Atomic uint64_t calls;       /* that reached it */
};

extern struct fake fake;

/* Its entry points: cuMemFree, cuEventQuery, cuCtxSynchronize, cuStreamGetId, and cuMemAlloc, which gives FAKE_BLOCK plus the size. */
extern const struct driver fake_driver;

#define FAKE_BLOCK 0x7f1200000000ull

#endif
