/* turn.h: the turn; see turn.c. */
#ifndef CENOTE_POOL_LIFE_TURN_H
#define CENOTE_POOL_LIFE_TURN_H

#include "pool/pool.h"

int turn_take(cenote_pool *pool);
bool turn_try(cenote_pool *pool);
int turn_begin(cenote_pool *pool);
void turn_end(cenote_pool *pool);
void turn_leave(cenote_pool *pool);
void turn_pause(cenote_pool *pool);
void turn_go_on(cenote_pool *pool);
bool turn_go_over(const cenote_pool *pool, cenote_pool *other);
void turn_come_back(const cenote_pool *pool, cenote_pool *other);
CUresult turn_resume(cenote_pool *pool);
CUresult turn_let_go(cenote_pool *pool, CUresult (*wait)(struct device *device, bool *whole), bool *whole);

#endif
