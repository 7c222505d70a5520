/*
 * stubs.c: where the functions jump to that are forwarded (stubs.S).
 *
 *     stub_first ----the first call of any of them: the driver is there----> the driver's function, or lacks: this driver has none
 *
 * A program that looks for a function which its driver lacks would get none from the driver itself. From here it gets one that says
 * CUDA_ERROR_NOT_SUPPORTED.
 *
 * LOCKING: none. Threads that come at once find the same, and each writes it.
 */
#include "plugins/forward/driver.h"
#include "plugins/preload/real.h"

#include <stdatomic.h>

#include "base/check.h"

enum {
#define FORWARD(symbol) FORWARD_##symbol,
#include "plugins/forward/names.def"
    FORWARDS
};

static const char *const names[FORWARDS] = {
#define FORWARD(symbol) #symbol,
#include "plugins/forward/names.def"
};

/* For stubs.S alone. */
void  stub_first(void);
void *stub_find(unsigned number);

__attribute__((visibility("hidden"))) void *_Atomic stub_slots[FORWARDS] = {
#define FORWARD(symbol) (void *)stub_first,
#include "plugins/forward/names.def"
};

static CUresult lacks(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult has_no_driver(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

/* The function of that number. Where there is no driver it is looked for again at the next call. */
__attribute__((used)) void *stub_find(unsigned number)
{
    CHECK(number < FORWARDS);
    void *driver = real() ? driver_handle() : NULL;
    if (!driver)
        return (void *)has_no_driver;
    for (int i = 0; i < FORWARDS; i++) {
        void *function = real_dlsym(driver, names[i]);
        atomic_store_explicit(&stub_slots[i], function ? function : (void *)lacks, memory_order_relaxed);
    }
    return atomic_load_explicit(&stub_slots[number], memory_order_relaxed);
}
