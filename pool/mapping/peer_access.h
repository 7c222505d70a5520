/* peer_access.h: kernels of other devices may use a pool's memory (cenote_pool_grant); see peer_access.c. */
#ifndef CENOTE_POOL_MAPPING_PEER_ACCESS_H
#define CENOTE_POOL_MAPPING_PEER_ACCESS_H

#include "pool/pool.h"

int peer_access_open_contexts(cenote_pool *pool);

#endif
