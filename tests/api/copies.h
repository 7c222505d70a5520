/*
 * copies.h: a driver between cenote and the simulated one, under which another thread acts while a pause or a resume waits for a copy, or for the
 * device, and copies of a pause take their time.
 */
#ifndef CENOTE_TESTS_API_COPIES_H
#define CENOTE_TESTS_API_COPIES_H

#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/scene.h"

static struct {
    const struct driver *below;
    void (*meanwhile)(void); /* NULL: nothing */
    bool     at_any_wait;    /* also while the device is waited for */
    int      skip;           /* so many waits come before */
    uint64_t fetch_ns;       /* each copy of a pause takes so long */
} copies;

static void *copies_act(void *what)
{
    ((void (*)(void))what)();
    return NULL;
}

static void copies_come(void)
{
    void (*what)(void) = copies.skip ? NULL : copies.meanwhile;
    pthread_t thread;
    copies.meanwhile = copies.skip ? copies.meanwhile : NULL;
    copies.skip -= copies.skip > 0;
    if (what) {
        DONE(pthread_create(&thread, NULL, copies_act, (void *)what));
        DONE(pthread_join(thread, NULL));
    }
}

static CUresult copies_wait(CUstream stream)
{
    copies_come();
    return copies.below->cuStreamSynchronize(stream);
}

static CUresult copies_wait_for_device(CUevent event)
{
    if (copies.at_any_wait)
        copies_come();
    return copies.below->cuEventSynchronize(event);
}

static CUresult copies_fetch(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    DONE(sim_launch_wait(stream, copies.fetch_ns));
    return copies.below->cuMemcpyDtoHAsync(to, from, bytes, stream);
}

static const struct driver *copies_over(const struct driver *driver)
{
    static struct driver table;
    copies.below = driver_fault_over(driver);
    table = *copies.below;
    table.cuStreamSynchronize = copies_wait;
    table.cuEventSynchronize = copies_wait_for_device;
    table.cuMemcpyDtoHAsync = copies_fetch;
    return &table;
}

/* Once the driver is loaded: from now on another thread does that, once, while the next copy is waited for. */
static inline void at_the_next_copy(void (*what)(void))
{
    fault_arm("cuInit", 1, CUDA_SUCCESS, false); /* puts its own layer in place, the first time */
    fault_disarm();
    if (!copies.below)
        driver_interpose(copies_over);
    copies.meanwhile = what;
}

#endif
