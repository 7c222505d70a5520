/* cost.h: the modelled cost of driver calls, from cost.def. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_COST_H
#define CENOTE_SIM_COST_H

#include "sim/machine/model.h"

enum cost_call {
    COST_NOTHING,
#define PRICES(name, text)
#define COST(name, per, ...) COST_##name,
#include "sim/machine/cost.def"
#undef PRICES
#undef COST
    COST_CALLS
};

bool cost_reset(const char *prices);            /* a list of cost.def, or a file; "": a100. False: neither, said on stderr */
enum cost_call cost_find(const char *name);     /* COST_NOTHING where there is no row */
void cost_charge_call(enum cost_call call);     /* the rows that are charged once a call; entries.c does, for every call */
void cost_charge(enum cost_call call, uint64_t handles);    /* the rows that are charged by handle */
uint64_t cost_of_copy(bool to_host, bool pinned, uint64_t bytes);   /* ns between host and device; 0: the clock does not go on by costs */
void cost_spend(void);                          /* takes the host that long, where the shape says so */

#endif
