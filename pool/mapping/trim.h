/* trim.h: memory goes back to the driver; see trim.c. */
#ifndef CENOTE_POOL_MAPPING_TRIM_H
#define CENOTE_POOL_MAPPING_TRIM_H

#include "pool/pool.h"

uint64_t trim_to(cenote_pool *pool, uint64_t keep, tick latest);
void trim_end(cenote_pool *pool);
uint64_t trim_without_sources(cenote_pool *pool, uint64_t keep, tick latest);
uint64_t trim_other_size(cenote_pool *pool, uint32_t shift, uint64_t bytes);
uint64_t trim_segments(cenote_pool *pool);
void trim_surplus(cenote_pool *pool);
uint64_t trim_once(cenote_pool *pool, uint64_t keep, tick latest);
void trim_spares(cenote_pool *pool);
void trim_orphans(cenote_pool *pool);
void trim_flush(cenote_pool *pool);
uint64_t trim_free(cenote_pool *pool);
void trim_group(cenote_pool *pool, const cenote_group *group);
bool trim_slot(cenote_pool *pool, struct region *r, uint32_t slot);
bool trim_region(cenote_pool *pool, uint32_t number);

#endif
