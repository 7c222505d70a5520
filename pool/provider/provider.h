/* provider.h: where an arena's address space and its segments come from, and go back to; see provider.c. */
#ifndef CENOTE_POOL_PROVIDER_PROVIDER_H
#define CENOTE_POOL_PROVIDER_PROVIDER_H

#include "pool/pool.h"

bool provider_moves_pages(const cenote_pool *pool, const struct arena *a);
bool provider_is_plain(const cenote_pool *pool, const struct arena *a);
bool provider_guards(const cenote_pool *pool, const struct arena *a);
CUresult provider_take(cenote_pool *pool, struct arena *a, uint64_t bytes, CUdeviceptr *at);
void provider_close(cenote_pool *pool);
bool provider_give_back(cenote_pool *pool, struct region *r);
bool provider_give_segment(cenote_pool *pool, struct arena *a, bool is_sourced, uint64_t at, uint64_t bytes);
const cenote_source *provider_source(const cenote_pool *pool, const struct arena *a);
void provider_close_region(struct region *r);
uint64_t provider_allowance(const cenote_pool *pool);

#endif
