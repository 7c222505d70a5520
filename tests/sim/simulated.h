/* simulated.h: for tests that hold the simulated device in their hand: every case starts on a new machine. */
#ifndef CENOTE_TESTS_SIM_SIMULATED_H
#define CENOTE_TESTS_SIM_SIMULATED_H

#include "sim/sim.h"
#include "tests/sim/machine.h"

#define SIMULATED_PAGE (2 << 20)

/* A card of 1 GiB whose clock moves by hand only; its primary context is held and current. No violation is printed. */
void simulated_begin(void);

/* The same, of another shape. */
void simulated_begin_as(const struct sim_shape *shape);
struct sim_shape simulated_shape(void);

CUstream simulated_stream(void);    /* a new one that does not wait for the default stream */
uint64_t simulated_violations(void);
struct sim_books simulated_books(void);

#endif
