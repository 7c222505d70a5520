/* machine.h: how much memory this process may have. See machine.c. LOCKING: none. */
#ifndef CENOTE_HOST_MACHINE_H
#define CENOTE_HOST_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

uint64_t machine_memory(void);                       /* of the machine, or of the control group if that is less */
uint64_t machine_group_limit(const char *root);      /* of the group alone; the files of the system lie below `root` */

#endif
