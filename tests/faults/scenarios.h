/* scenarios.h: the scenarios of scenarios.def as functions; they are in memory.c, grades.c, shortage.c, streams.c, groups.c, devices.c,
 * pools.c and share.c. */
#ifndef CENOTE_TESTS_FAULTS_SCENARIOS_H
#define CENOTE_TESTS_FAULTS_SCENARIOS_H

#include "tests/faults/act.h"

#define SCENARIO(name, ...) void scenario_##name(struct act *act);
#include "tests/faults/scenarios.def"
#undef SCENARIO

#endif
