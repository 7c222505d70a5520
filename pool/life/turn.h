/*
 * turn.h: the turn, the right to change a pool's mappings; see turn.c.
 *
 *     taken, given back      turn_begin, turn_end: together with the gate; turn_begin_now: if both are free; turn_take:
 *                            without the gate; turn_try: by a thread that is inside already, if the turn is free
 *     let go of for a while  turn_pause, turn_go_on: the gate is open meanwhile; turn_leave, turn_resume: the device is
 *                            left; turn_let_go: around a wait
 *     that of a sibling      turn_go_over, turn_come_back: within a pause of the own one
 */
#ifndef CENOTE_POOL_LIFE_TURN_H
#define CENOTE_POOL_LIFE_TURN_H

#include "pool/pool.h"

int turn_take(cenote_pool *pool);
bool turn_try(cenote_pool *pool);
int turn_begin(cenote_pool *pool);
int turn_begin_now(cenote_pool *pool);
void turn_end(cenote_pool *pool);
void turn_leave(cenote_pool *pool);
void turn_pause(cenote_pool *pool);
void turn_go_on(cenote_pool *pool);
bool turn_go_over(const cenote_pool *pool, cenote_pool *other);
void turn_come_back(const cenote_pool *pool, cenote_pool *other);
CUresult turn_resume(cenote_pool *pool);
CUresult turn_let_go(cenote_pool *pool, CUresult (*wait)(struct device *device, bool *whole), bool *whole);

#endif
