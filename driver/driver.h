/*
 * driver.h: the CUDA driver as a table of functions. Real or simulated, traced, failing on order: the layers above cannot tell.
 *
 * driver.def has one row per entry point; the table, the loader, the tracer, the fault injector and the simulated GPU expand from it.
 * We never link against libcuda: the library loads everywhere and says clearly what is missing.
 */
#ifndef CENOTE_DRIVER_DRIVER_H
#define CENOTE_DRIVER_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The entry points, in the order of driver.def. */
enum driver_call {
#define DRIVER(need, time, name, version, parameters, arguments) CALL_##name,
#include "driver/driver.def"
#undef DRIVER
    DRIVER_CALLS
};

struct driver {
#define DRIVER(need, time, name, version, parameters, arguments) CUresult (*name) parameters;
#include "driver/driver.def"
#undef DRIVER
};

/* --- loader.c: the table in use. The first call loads it: dlopen("libcuda.so.1"), cuGetProcAddress, cuInit. */

/*
 * NULL and a CENOTE_ error in *error (NO_DRIVER, DRIVER_TOO_OLD, NO_DEVICE, FORKED, EXITING) with the reason in driver_load_message(). A
 * failed load is tried again at the next call. Optional entry points the driver lacks are NULL in the table.
 * The environment variable CENOTE_DRIVER names another library than libcuda.so.1.
 */
const struct driver *driver_table(int *error);
const char *driver_load_message(void); /* of this thread's last failed call */

/* Puts a wrapper (fault.c) between the tracer and the driver: now, for tables handed out too, or when the driver is loaded. Once. */
void driver_interpose(const struct driver *(*wrap)(const struct driver *inner));

/* The driver version, as 13000; 0 before a load. */
int driver_version(void);

/* The process is on its way out (atexit has run), or is a fork of the one that loaded the driver: no driver call may be made. */
bool driver_is_exiting(void);
bool driver_is_forked(void);

/* Between true and false a fork makes a child that can do nothing (driver_is_forked): the caller loads what is of no use half loaded. */
void driver_forbid_forks(bool begins);

/* This code stays, whatever dlclose is told. False: the system says no, as dlerror tells. */
bool driver_stay_loaded(void);

/* --- trace.c: a wrapper that counts calls and time. Rows marked `untimed` in driver.def pass through uncounted. Always in place. */

struct driver_tally {
    uint64_t calls;
    uint64_t failed;
    uint64_t ns;
};

const struct driver *driver_trace_over(const struct driver *inner);
void driver_trace_inner(const struct driver *inner); /* calls go there from now on; it has the same entry points */
void driver_tallies(struct driver_tally tallies[DRIVER_CALLS]);
void driver_tallies_reset(void);

/* This thread is inside a device and keeps its gate shut (device.h): no call of it may wait, as debug builds check. */
extern _Thread_local bool driver_gate_is_shut;

/* The clock that measures calls, for replays on a simulated clock; NULL: the system's. */
void driver_trace_clock(uint64_t (*now_ns)(void *), void *arg);

/* --- fault.c: a wrapper that fails calls on order. In place only after the first fault_arm (tests). */

const struct driver *driver_fault_over(const struct driver *inner);

/*
 * The n-th call (from 1, counted from now) of `name`, or of any call if NULL, fails with `error`; if `persistent` all after it too.
 * CUDA_SUCCESS: it is made as it is.
 */
void     fault_arm(const char *name, uint64_t nth, CUresult error, bool persistent);
void     fault_meanwhile(void (*visit)(void)); /* after fault_arm: called in the n-th call, before that fails or is made; NULL: nothing is */
void     fault_disarm(void);
uint64_t fault_calls(void);   /* calls of that name since fault_arm */
uint64_t fault_fired(void);   /* of these, how many failed on order */
enum driver_call fault_last(void); /* the one that failed last; after fault_fired */

/* --- names.c */

const char *driver_call_name(enum driver_call call);
const char *driver_result_name(CUresult result);       /* "CUDA_ERROR_OUT_OF_MEMORY", from a table of our own */
bool        driver_result_is_sticky(CUresult result);  /* the context is lost */

#endif
