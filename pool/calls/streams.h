/* streams.h: the stream that a call names; see streams.c. LOCKING: none, and not inside. */
#ifndef CENOTE_POOL_CALLS_STREAMS_H
#define CENOTE_POOL_CALLS_STREAMS_H

#include "pool/pool.h"

int stream_key(cenote_pool *pool, CUstream stream, uint64_t *key);
int stream_key_on(cenote_pool *pool, int ordinal, CUstream stream, uint64_t *key, struct device **other);
int stream_device(cenote_pool *pool, CUstream stream, uint64_t key, struct device **other);
int stream_check_named(cenote_pool *pool, CUstream stream, uint64_t key, const struct device *named);
int stream_check_own(cenote_pool *pool, CUstream stream, uint64_t key);
bool stream_is_immortal(const cenote_pool *pool, CUstream stream, uint64_t key);

#endif
