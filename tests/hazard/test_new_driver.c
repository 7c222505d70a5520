/* test_new_driver.c: every sequence of hazards.def on a driver that has everything. */
#include "tests/hazard/hazards.h"

bool hazards_are_announced = true;

#define HAZARD(name) \
    CASE(name)       \
    {                \
        hazard_##name(); \
    }
#define HAZARD_ENDS HAZARD
#define HAZARD_NEW HAZARD
#include "tests/hazard/hazards.def"
#undef HAZARD
#undef HAZARD_ENDS
#undef HAZARD_NEW

SCENES_MAIN("hazards: new driver")
