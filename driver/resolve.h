/* resolve.h: from the names in driver.def to functions of one library. See resolve.c. Used by loader.c alone. */
#ifndef CENOTE_DRIVER_RESOLVE_H
#define CENOTE_DRIVER_RESOLVE_H

#include "driver/driver.h"

/* As dlsym: the address of a symbol that the library exports, or NULL. */
typedef void *(*symbol_fn)(void *library, const char *symbol);

/* Fills in `table`, NULL where the driver lacks an entry point. Returns the first required one that it lacks, or DRIVER_CALLS. */
enum driver_call driver_resolve(struct driver *table, symbol_fn symbol, void *library);

/* The CUDA version that brought an entry point in the form we call, as 12050. */
int driver_call_version(enum driver_call call);

#endif
