/* wait.h: waits, for what the device has to do first; see wait.c. */
#ifndef CENOTE_POOL_SHORTAGE_WAIT_H
#define CENOTE_POOL_SHORTAGE_WAIT_H

#include "pool/pool.h"

struct sight {                      /* what a wait looks at: memory has come back, or
                                       can be moved, when one of these has changed */
    uint64_t moved;                 /* of the fences */
    uint64_t inactive;              /* bytes that went back to their arenas so far */
};

bool wait_came(cenote_pool *pool, struct sight *seen);
enum awaited wait_look(cenote_pool *pool, tick limit, CUresult *result);
bool wait_for_rest(cenote_pool *pool, enum awaited awaited, uint32_t looks, CUresult *result);
void wait_count(cenote_pool *pool, uint32_t looks);
bool wait_for_progress(cenote_pool *pool, tick limit, CUresult *result);
CUresult wait_for_all(cenote_pool *pool);
CUresult wait_for_device(cenote_pool *pool, bool live, bool *all);

#endif
