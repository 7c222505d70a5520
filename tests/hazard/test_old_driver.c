/*
 * test_old_driver.c: the sequences of hazards.def on a driver without cuCtxRecordEvent and cuStreamGetId: only waiting says how far the
 * device got, and streams are told apart by their handles. The library asks the driver for its entry points once per process, so they are
 * hidden before the first case.
 */
#include "tests/hazard/hazards.h"

__attribute__((constructor)) static void hide_what_is_new(void)
{
    sim_hide("cuCtxRecordEvent");
    sim_hide("cuStreamGetId");
}

/* The first cenote call of the process loads the driver while the names are hidden; the next sim_reset brings them back too late. */
CASE(driver_is_loaded_as_an_old_one)
{
    cenote_pool *pool;
    DONE(cenote_pool_create(0, NULL, &pool));
    DONE(cenote_pool_destroy(pool));
}

#define HAZARD(name) \
    CASE(name)       \
    {                \
        hazard_##name(); \
    }
#define HAZARD_NEW(name)
#include "tests/hazard/hazards.def"
#undef HAZARD
#undef HAZARD_NEW

SUITE_MAIN("hazards: old driver")
