/*
 * fault.c: makes driver calls fail on order, for tests. An ordered failure does not reach the driver and leaves results unset.
 *
 * A process that never arms a fault never calls through here: the first fault_arm puts the wrapper under the tracer, where it reaches
 * pools that exist already, and it stays there. A visit lets a test do something at the very call that is to fail: what it calls is not counted.
 *
 * LOCKING: none. Calls count themselves atomically, so that exactly one call is the n-th; arm and disarm while no call is under way
 * if the count matters.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "driver/driver.h"

enum { TARGET_NONE = -1, TARGET_ANY = DRIVER_CALLS };

static struct driver table;
static const struct driver *inner;

static struct {
    _Atomic int      target; /* an enum driver_call, or one of the above */
    _Atomic int      error;
    _Atomic uint64_t nth;
    atomic_bool      persistent;
    _Atomic uint64_t calls;
    _Atomic uint64_t fired;
    _Atomic int      last;   /* the call that failed last on order */
    void           (*_Atomic visit)(void);
    atomic_bool      visited; /* the visit is under way */
} order = {.target = TARGET_NONE};

/* Calls that come while a visit is under way, in any thread, are not counted: it ends before the call that it came to. */
static bool fails_on_order(enum driver_call call)
{
    int target = atomic_load(&order.target);
    if ((target != TARGET_ANY && target != (int)call) || atomic_load(&order.visited))
        return false;
    uint64_t made = atomic_fetch_add(&order.calls, 1) + 1;
    uint64_t nth = atomic_load(&order.nth);
    if (made != nth && !(made > nth && atomic_load(&order.persistent)))
        return false;
    atomic_fetch_add(&order.fired, 1);
    atomic_store(&order.last, (int)call);
    void (*visit)(void) = atomic_exchange(&order.visit, NULL);
    if (visit) {
        atomic_store(&order.visited, true);
        visit();
        atomic_store(&order.visited, false);
    }
    return atomic_load(&order.error) != CUDA_SUCCESS; /* else only the visit was wanted, and the call is made */
}

#define WRAP(wrapper, call, name, parameters, arguments) \
    static CUresult wrapper parameters \
    { \
        return fails_on_order(call) ? (CUresult)atomic_load(&order.error) : inner->name arguments; \
    }
#define DRIVER(need, time, name, version, parameters, arguments) WRAP(fault_##name, CALL_##name, name, parameters, arguments)
#include "driver/driver.def"
#undef DRIVER

const struct driver *driver_fault_over(const struct driver *driver)
{
    inner = driver;
#define DRIVER(need, time, name, version, parameters, arguments) table.name = driver->name ? fault_##name : NULL;
#include "driver/driver.def"
#undef DRIVER
    return &table;
}

/* A misspelt name would make a test that cannot fail, so it ends the program in every build. */
static int target_named(const char *name)
{
    if (!name)
        return TARGET_ANY;
    for (int call = 0; call < DRIVER_CALLS; call++)
        if (!strcmp(name, driver_call_name((enum driver_call)call)))
            return call;
    check_failed("fault_arm: no such entry point in driver.def", __FILE__, __LINE__);
}

void fault_arm(const char *name, uint64_t nth, CUresult error, bool persistent)
{
    static atomic_flag in_place = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&in_place))
        driver_interpose(driver_fault_over);

    fault_disarm();
    atomic_store(&order.error, (int)error);
    atomic_store(&order.nth, nth);
    atomic_store(&order.persistent, persistent);
    atomic_store(&order.calls, 0);
    atomic_store(&order.fired, 0);
    atomic_store(&order.target, target_named(name));
}

void fault_meanwhile(void (*visit)(void))
{
    atomic_store(&order.visit, visit);
}

void fault_disarm(void)
{
    atomic_store(&order.visit, NULL);
    atomic_store(&order.target, TARGET_NONE);
}

uint64_t fault_calls(void)
{
    return atomic_load(&order.calls);
}

uint64_t fault_fired(void)
{
    return atomic_load(&order.fired);
}

enum driver_call fault_last(void)
{
    return (enum driver_call)atomic_load(&order.last);
}
