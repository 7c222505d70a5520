/* families.h: pools of the driver (CUmemoryPool) that cenote stands for. See families.c. */
#ifndef CENOTE_PRELOAD_FAMILIES_H
#define CENOTE_PRELOAD_FAMILIES_H

#include "plugins/preload/place.h"

/* The one that memory of this pool is counted in, on this device; NULL: the pool is the driver's alone, or of another device. */
struct family *family_of_pool(struct place *p, CUmemoryPool pool);

/* Of a block in stream order; NULL: its pool was destroyed. */
struct family *family_of_block(struct place *p, const cenote_block *block);

/* Sets *group to where its blocks are taken: NULL for a default pool. False: it has no group, and cenote cannot make one. */
bool family_group(struct place *p, struct family *f, cenote_group **group);

void family_count_taken(struct family *f, size_t bytes);
void family_count_given(struct family *f, size_t bytes);

/* The place closes: its groups go. The pools stay the program's. */
void families_close(struct place *p);

#endif
