/* barrier.h: a memory barrier that another thread pays for. See barrier.c. */
#ifndef CENOTE_BASE_BARRIER_H
#define CENOTE_BASE_BARRIER_H

#include <stdbool.h>

/* Every thread of the process has passed a barrier when this returns. False: the system has no such call, or forbids it. */
bool barrier_everywhere(void);

#endif
