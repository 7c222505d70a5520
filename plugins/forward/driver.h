/* driver.h: the driver behind the forwarding libcuda.so.1. See driver.c. */
#ifndef CENOTE_FORWARD_DRIVER_H
#define CENOTE_FORWARD_DRIVER_H

/* Once real_open has found it (plugins/preload/real.h); NULL before. */
void *driver_handle(void);

#endif
