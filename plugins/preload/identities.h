/* identities.h: what programs ask and say of blocks that the driver knows of allocations: their numbers. See identities.c. */
#ifndef CENOTE_PRELOAD_IDENTITIES_H
#define CENOTE_PRELOAD_IDENTITIES_H

#include <stdbool.h>
#include <stdint.h>

struct place;

/* Of the live block of the place that starts there. 0: no host memory. */
unsigned long long identity_of(const struct place *place, const void *block);

/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the block, which at first is not set. False: no host memory. */
bool identity_set_synchronizes(const struct place *place, const void *block, bool does);
bool identity_synchronizes(const void *block);

/* The block is freed next; all blocks of the place end next. */
void identity_forget(const void *block);
void identities_end(const struct place *place);

#endif
