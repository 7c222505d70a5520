/* shortage.h: serves what the arena cannot serve from pages in place: the shortage ladder; see shortage.c. */
#ifndef CENOTE_POOL_SHORTAGE_SHORTAGE_H
#define CENOTE_POOL_SHORTAGE_SHORTAGE_H

#include "pool/pool.h"

int shortage_refuse_now(const struct request *q);
int shortage_serve(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at);

#endif
