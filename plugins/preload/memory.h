/* memory.h: taking and giving blocks for the hooks. See memory.c. */
#ifndef CENOTE_PRELOAD_MEMORY_H
#define CENOTE_PRELOAD_MEMORY_H

#include "plugins/preload/place.h"

/*
 * A block of the pool, or of the group if there is one, in the order of `stream`. False: cenote cannot serve it, which is counted, and the driver
 * has to. True: *result is what the program is told.
 */
bool memory_take(struct place *p, cenote_group *group, CUdeviceptr *at, size_t bytes, CUstream stream, CUresult *result);

/* The program has freed the block while a stream was being captured, and cenote has not yet. */
bool memory_is_kept(const void *block);

/* Frees such blocks of the place, up to the one of that number: the device is done with them. */
void memory_free_kept(struct place *p, uint64_t last);

/* What a program is told of a call of cenote that must not fail. */
CUresult memory_said(int error);

#endif
