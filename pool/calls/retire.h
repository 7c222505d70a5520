/* retire.h: a stream is about to end (cenote_stream_retire); see retire.c. LOCKING: none held, not inside. */
#ifndef CENOTE_POOL_CALLS_RETIRE_H
#define CENOTE_POOL_CALLS_RETIRE_H

#include "pool/pool.h"

void retire_meet_captured(cenote_pool *pool, uint64_t key, CUstream stream);
void retire_another(cenote_pool *pool, uint64_t key, CUstream stream);

#endif
