/* exits.h: functions of ours that run at the end of the process. See exits.c. */
#ifndef CENOTE_BASE_EXITS_H
#define CENOTE_BASE_EXITS_H

#include <stdbool.h>

/* From now on exit() calls the function. It cannot be taken back. False: no host memory. */
bool exits_call(void (*function)(void));

#endif
