/*
 * things.c: pools, groups and captures of a scenario. What a refused call left open is closed by act_clear once the failure is gone.
 */
#include "tests/faults/act.h"

/* The first place that holds nothing. */
#define PLACE_FOR(array) \
    ({ int place_ = 0; \
       while (place_ < ACT_THINGS && array[place_]) \
           place_++; \
       REQUIRE(place_ < ACT_THINGS); \
       &array[place_]; })

cenote_pool *act_pool(struct act *act, int device, const cenote_options *options)
{
    cenote_pool *pool = NULL;
    cenote_pool **place = PLACE_FOR(act->pools);
    if (!act_done(act, cenote_pool_create(device, options, &pool))) {
        EXPECT(!pool);
        return NULL;
    }
    return *place = pool;
}
