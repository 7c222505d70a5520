/* start.h: how the model starts, for model.c, entries.c and control.c. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_START_H
#define CENOTE_SIM_START_H

#include "sim/machine/model.h"

void model_start(const struct sim_shape *shape);
void model_start_from_environment(void);

/* --- lookup.c, entries.c */
void     entries_reset(void);               /* nothing is hidden */
bool     entries_hide(const char *name);    /* false: too many */
uint64_t entries_calls(void);               /* driver calls since the reset */
void     entries_count_reset(void);

/* --- calls.c */
void calls_after_fork(void);                /* in the child */

/* --- streams.c */
void streams_close_thread(uint64_t thread); /* the per-thread default streams of a thread that ends */

#endif
