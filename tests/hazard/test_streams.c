/*
 * test_streams.c: the sequences of hazards.def for a program that promises nothing about captures: fences are events on its streams, which
 * live as long as the program.
 */
#include "tests/hazard/hazards.h"

bool hazards_are_announced = false;

#define HAZARD(name) \
    CASE(name)       \
    {                \
        hazard_##name(); \
    }
#define HAZARD_ENDS(name)
#define HAZARD_NEW(name)
#include "tests/hazard/hazards.def"
#undef HAZARD
#undef HAZARD_ENDS
#undef HAZARD_NEW

SCENES_MAIN("hazards: fences on streams")
