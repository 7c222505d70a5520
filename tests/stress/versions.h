/*
 * versions.h: drivers of several versions in one process. cenote looks for the driver's entry points once, so a test that gives the simulated card an
 * older version later changes nothing; here those that are younger than the version leave the table, and come back.
 */
#ifndef CENOTE_TESTS_STRESS_VERSIONS_H
#define CENOTE_TESTS_STRESS_VERSIONS_H

#include "driver/driver.h"
#include "tests/harness.h"

#define VERSION_NEWEST 13000

enum version_need { VERSION_required, VERSION_optional };

/* While the process has no pool. VERSION_NEWEST stands at the end of a program. */
static inline void version_set(int wanted)
{
    static struct driver full;
    int error = 0;
    struct driver *table = (struct driver *)driver_table(&error);
    REQUIRE(table);
    if (!full.cuInit)
        full = *table;
#define DRIVER(need, time, name, version, parameters, arguments) \
    table->name = VERSION_##need == VERSION_optional && (version) > wanted ? NULL : full.name;
#include "driver/driver.def"
#undef DRIVER
}

#endif
