/*
 * machine.h: processes on one machine: they share the memory of its devices; see machine.c. LOCKING: the model's lock; between processes machine.c
 * has locks of its own. Devices are named by their index on the machine, see visible.c.
 */
#ifndef CENOTE_SIM_MACHINE_H
#define CENOTE_SIM_MACHINE_H

#include "sim/machine/model.h"

#define MACHINE_PROCESSES_MAX 64   /* as many as a record has bits */

extern bool machine_joined;     /* we are on the machine that the shape names; most of the below is for that case */

bool     machine_enter(void);                           /* that the shape names, if it does; false: why not is said on stderr */
void     machine_leave(void);
uint64_t machine_id(void);                              /* enters it; unlike any other's; 0: there is none, or it refuses us */

/* --- this process's share */
bool     machine_take(int device, uint64_t bytes, bool for_context, uint64_t capacity);     /* false: less is left in `capacity` */
void     machine_give(int device, uint64_t bytes, bool for_context);
uint64_t machine_others(int device);                    /* what the other processes hold; forgets the dead */

/* --- memory that several processes hold: the device has it once, for as long as one holds it */
uint32_t machine_record(uint64_t id, int device, uint64_t bytes);       /* of memory charged to this process; 0: no more records */
uint32_t machine_hold(uint32_t record, uint64_t id, int device, uint64_t bytes);    /* its record; 0: no process holds it any more */
void     machine_let_go(uint32_t record, bool charged); /* charged: to this process, which is so no longer */

/* Needs not be on it. */
int      machine_processes(int device, struct sim_process *list, int room);

#endif
