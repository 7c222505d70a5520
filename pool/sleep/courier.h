/*
 * courier.h: carries bytes between the device and host memory; see courier.c.
 */
#ifndef CENOTE_POOL_SLEEP_COURIER_H
#define CENOTE_POOL_SLEEP_COURIER_H

#include <stdbool.h>
#include <stdint.h>

#include <cenote/cenote.h>

#include "driver/driver.h"

#define STAGES 2u

/* Of a pool, from its first copy to its end. LOCKING: the turn. */
struct courier {
    CUstream streams[STAGES];       /* a stage each: the thread waits for one while the device has the other */
    char    *staging;               /* pinned: STAGES of them; NULL: there is none yet */
    uint64_t stage_bytes;
    bool     is_taken;              /* a thread pauses or resumes, which may have let go of the turn */
    bool     is_out[STAGES];        /* the device may still copy to or from the stage */
    bool     is_stuck[STAGES];      /* so it may, and the driver has refused to wait for that */
};

/* No thread waits for copies that may be under way: nothing is unmapped then. LOCKING: the turn. */
static inline bool courier_is_stuck(const struct courier *c)
{
    return c->is_stuck[0] || c->is_stuck[STAGES - 1];
}

int      courier_open(cenote_pool *pool, uint32_t stage);
void     courier_close(cenote_pool *pool);
bool     courier_is_out(const cenote_pool *pool);
int      courier_come_back(cenote_pool *pool);
char    *courier_stage(cenote_pool *pool, uint32_t stage);
CUresult courier_fetch(cenote_pool *pool, uint32_t stage, char *to, uint64_t from, uint64_t bytes);
CUresult courier_bring(cenote_pool *pool, uint32_t stage, uint64_t to, const char *from, uint64_t bytes);
CUresult courier_wait(cenote_pool *pool, uint32_t stage);
CUresult courier_wait_for_all(cenote_pool *pool);

#endif
