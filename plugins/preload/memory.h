/* memory.h: taking and giving blocks for the hooks. See memory.c. */
#ifndef CENOTE_PRELOAD_MEMORY_H
#define CENOTE_PRELOAD_MEMORY_H

#include "plugins/preload/place.h"

/*
 * A block of the pool, or of the family, in the order of `stream`; `family` is NULL for memory that is for all streams. False: cenote cannot serve
 * it, and the driver has to. True: *result is what the program is told.
 */
bool memory_take(struct place *p, struct family *family, CUdeviceptr *at, size_t bytes, CUstream stream, CUresult *result);

/* While a capture is open: does the driver refuse what takes or gives memory for all streams? Then it has ended what captures it ends by that. */
CUresult memory_ask(const struct place *p);

/* Frees a block, in the order of the streams that use it. A CENOTE_ error. */
int memory_give(struct place *p, const cenote_block *block);

/* A place opens, and its device may be full later: then the driver has memory of its own to free. The context is current. */
void memory_begin_to_ask(struct place *p);

/* The program has freed the block while a stream was being captured, and cenote has not yet. */
bool memory_is_kept(const void *block);

/* How many bytes of it such blocks have. The place closes: they are its own again. */
uint64_t memory_kept(struct place *p);
void     memory_forget(struct place *p);

/* The last capture may have ended: then such blocks come back when the device is done with what it was given so far. */
void memory_return_kept(void);

/* The pool is short of memory: such blocks come back, if the device can be waited for. As cenote_shortage_fn. */
int memory_return_in_shortage(cenote_pool *pool, size_t bytes, void *place);

/* What a program is told of a call of cenote that must not fail. */
CUresult memory_said(int error);

#endif
