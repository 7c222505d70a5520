/* near.h: which processors are near a device. See near.c. */
#ifndef CENOTE_DRIVER_NEAR_H
#define CENOTE_DRIVER_NEAR_H

#include <sched.h>

#include "driver/device.h"

/* False: it cannot be told. Reads the machine's topology, which takes milliseconds. */
bool near_processors(const struct device *d, cpu_set_t *processors);

#endif
