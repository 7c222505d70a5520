/* events.h: fences where they meet the driver: recorded, and queried without waiting; see events.c. */
#ifndef CENOTE_POOL_CLOCK_EVENTS_H
#define CENOTE_POOL_CLOCK_EVENTS_H

#include "pool/pool.h"

void events_close(cenote_pool *pool);
bool events_await_replays(cenote_pool *pool);
void events_cover_replays(cenote_pool *pool);
void events_all_done(cenote_pool *pool, tick covers);
CUresult events_become_careful(cenote_pool *pool);
CUresult events_query(cenote_pool *pool, tick needed);
CUresult events_poll(cenote_pool *pool, tick needed);
CUresult events_fence(cenote_pool *pool, tick needed);

#endif
