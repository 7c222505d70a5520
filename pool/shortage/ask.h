/*
 * ask.h: the program's shortage function: called by threads that run short, and gone once it was taken away; see
 * ask.c. LOCKING: none.
 */
#ifndef CENOTE_POOL_SHORTAGE_ASK_H
#define CENOTE_POOL_SHORTAGE_ASK_H

#include "pool/pool.h"

bool ask_to_free(cenote_pool *pool, uint64_t bytes);

#endif
