/*
 * trace.c: counts and times what the layers above ask of the driver.
 *
 * The wrapper is always in place and the layers above keep its table for good. What it calls, the driver itself or the fault injector over
 * it, is one pointer that may change while calls are under way; the set of entry points may not.
 *
 * LOCKING: none. Tallies are single words changed atomically; the three of one entry point may be read at slightly different moments. No call is
 * made under the lock of a pool, of the addresses or of the labels (rule 9).
 */
#include <stdatomic.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/lock.h"
#include "driver/driver.h"

static struct driver table;
static const struct driver *_Atomic inner;

static struct {
    _Atomic uint64_t calls;
    _Atomic uint64_t failed;
    _Atomic uint64_t ns;
} tallies[DRIVER_CALLS];

_Thread_local bool driver_gate_is_shut;

typedef uint64_t (*clock_fn)(void *arg);
static _Atomic clock_fn clock_now;
static void *_Atomic clock_arg;

static uint64_t now_ns(void)
{
    clock_fn now = atomic_load_explicit(&clock_now, memory_order_acquire);
    if (now)
        return now(atomic_load_explicit(&clock_arg, memory_order_relaxed));
    return clock_ns();
}

/* Set it while no call is under way: a call that sees two clocks tallies nonsense. */
void driver_trace_clock(uint64_t (*now)(void *), void *arg)
{
    atomic_store_explicit(&clock_arg, arg, memory_order_relaxed);
    atomic_store_explicit(&clock_now, now, memory_order_release);
}

/* An answer of "not yet" is no failure. */
static CUresult tally(enum driver_call call, uint64_t begun, CUresult result)
{
    atomic_fetch_add_explicit(&tallies[call].ns, now_ns() - begun, memory_order_relaxed);
    atomic_fetch_add_explicit(&tallies[call].calls, 1, memory_order_relaxed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        atomic_fetch_add_explicit(&tallies[call].failed, 1, memory_order_relaxed);
    return result;
}

static const struct driver *called(void)
{
    CHECK(lock_none_above(LOCK_WATCH)); /* rule 9 of docs/design.md */
    return atomic_load_explicit(&inner, memory_order_acquire);
}

#define WRAP_timed(wrapper, call, name, parameters, arguments) \
    static CUresult wrapper parameters \
    { \
        uint64_t begun = now_ns(); \
        return tally(call, begun, called()->name arguments); \
    }
#define WRAP_waits(wrapper, call, name, parameters, arguments) \
    static CUresult wrapper parameters \
    { \
        CHECK(!driver_gate_is_shut); \
        uint64_t begun = now_ns(); \
        return tally(call, begun, called()->name arguments); \
    }
#define WRAP_untimed(wrapper, call, name, parameters, arguments) \
    static CUresult wrapper parameters { return called()->name arguments; }

#define DRIVER(need, time, name, version, parameters, arguments) \
    WRAP_##time(trace_##name, CALL_##name, name, parameters, arguments)
#include "driver/driver.def"
#undef DRIVER

void driver_trace_inner(const struct driver *driver)
{
    atomic_store_explicit(&inner, driver, memory_order_release);
}

const struct driver *driver_trace_over(const struct driver *driver)
{
#define DRIVER(need, time, name, version, parameters, arguments) table.name = driver->name ? trace_##name : NULL;
#include "driver/driver.def"
#undef DRIVER
    driver_trace_inner(driver);
    return &table;
}

void driver_tallies(struct driver_tally copies[DRIVER_CALLS])
{
    for (int call = 0; call < DRIVER_CALLS; call++) {
        copies[call].calls = atomic_load_explicit(&tallies[call].calls, memory_order_relaxed);
        copies[call].failed = atomic_load_explicit(&tallies[call].failed, memory_order_relaxed);
        copies[call].ns = atomic_load_explicit(&tallies[call].ns, memory_order_relaxed);
    }
}

void driver_tallies_reset(void)
{
    for (int call = 0; call < DRIVER_CALLS; call++) {
        atomic_store_explicit(&tallies[call].calls, 0, memory_order_relaxed);
        atomic_store_explicit(&tallies[call].failed, 0, memory_order_relaxed);
        atomic_store_explicit(&tallies[call].ns, 0, memory_order_relaxed);
    }
}
