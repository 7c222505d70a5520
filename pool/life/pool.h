/* pool.h: may a call of the API run, on the process and on the pool? See pool.c. */
#ifndef CENOTE_POOL_LIFE_POOL_H
#define CENOTE_POOL_LIFE_POOL_H

#include "pool/pool.h"

int pool_process_usable(void);                           /* CENOTE_OK, FORKED, EXITING, or INVALID:
                                                            a callback that must not call */
int pool_usable(const cenote_pool *pool);                /* CENOTE_OK, or why no call can be served */
int pool_answers(const cenote_pool *pool);               /* CENOTE_OK, or why no question of the books is answered */
int pool_take_lock(cenote_pool *pool);                   /* CENOTE_OK, with the pool's lock; or the same, without it */
int pool_driver_error(cenote_pool *pool, CUresult result, const char *call);
int pool_driver_error_of_any(cenote_pool *pool, CUresult result, const char *call);
uint64_t pool_now(const cenote_pool *pool);

#endif
