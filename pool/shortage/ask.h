/*
 * ask.h: the program's shortage functions: called by threads that run short, and gone once they were taken away; see
 * ask.c. LOCKING: none.
 */
#ifndef CENOTE_POOL_SHORTAGE_ASK_H
#define CENOTE_POOL_SHORTAGE_ASK_H

#include "pool/pool.h"

/* The calls that one allocation has made. Begin with zeros. */
struct asks {
    struct asked last;          /* the function that freed something the last time, */
    uint32_t     calls;         /* so many times in a row */
    struct asked done;          /* it and those before it are not called any more */
};

bool ask_to_free(cenote_pool *pool, uint64_t bytes, struct asks *asks);

#endif
