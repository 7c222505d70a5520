/*
 * test_old_driver.c: the sequences of hazards.def on a driver without cuCtxRecordEvent and cuStreamGetId: only waiting says how far the
 * device got, and streams are told apart by their handles. The library asks the driver for its entry points once per process, so they are
 * hidden, and the driver loaded, before anything else; the sim_reset of the first case brings the names back too late.
 */
#include "driver/driver.h"
#include "tests/hazard/hazards.h"

bool hazards_are_announced = true;

__attribute__((constructor)) static void load_an_old_driver(void)
{
    int error;
    sim_hide("cuCtxRecordEvent");
    sim_hide("cuStreamGetId");
    driver_table(&error);
}

CASE(the_driver_is_an_old_one)
{
    int error = 0;
    const struct driver *table = driver_table(&error);
    REQUIRE(table != NULL);
    EXPECT(!table->cuCtxRecordEvent && !table->cuStreamGetId);
}

#define HAZARD(name) \
    CASE(name)       \
    {                \
        hazard_##name(); \
    }
#define HAZARD_ENDS HAZARD
#define HAZARD_NEW(name)
#include "tests/hazard/hazards.def"
#undef HAZARD
#undef HAZARD_ENDS
#undef HAZARD_NEW

SCENES_MAIN("hazards: old driver")
