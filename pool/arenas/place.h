/*
 * place.h: serves a request from pages in place, and gives a block that no stream uses any more back to its arena:
 * both without a driver call; see place.c.
 */
#ifndef CENOTE_POOL_ARENAS_PLACE_H
#define CENOTE_POOL_ARENAS_PLACE_H

#include "pool/arenas/locate.h"

struct requester place_requester(const cenote_pool *pool, const struct arena *a);
void place_give(cenote_pool *pool, const struct block_ref *w, tick freed);
enum fit place_try(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q, bool slide,
                   struct place *place, uint64_t *at);
void place_resize(cenote_pool *pool, const struct block_ref *w, uint64_t bytes);
int place_refuse(const struct request *q);
int place_refuse_now(const cenote_pool *pool, struct arena *a, const struct request *q, bool is_free);
bool place_try_heaps(cenote_pool *pool, struct arena *a, const struct requester *who, const struct request *q,
                     uint64_t *at);
void place_shape(const cenote_pool *pool, const struct arena *a, struct request *q);
uint64_t place_commit(cenote_pool *pool, struct arena *a, const struct request *q, uint32_t block);
bool place_reserve_books(cenote_pool *pool, uint64_t mark);

#endif
