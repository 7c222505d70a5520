/* process.h: what the system says of another process. See process.c. */
#ifndef CENOTE_BASE_PROCESS_H
#define CENOTE_BASE_PROCESS_H

#include <stdbool.h>

#define PROCESS_COMMAND 64  /* room for its command line; a longer one ends in ... */

struct process {
    int  parent, group, session;
    bool is_others;                 /* another user's */
    char command[PROCESS_COMMAND];  /* printable ASCII; "" where the system does not tell */
};

bool process_read(int pid, struct process *p);      /* false: there is none, or it may not be seen */
bool process_is_gone(int pid);
bool process_is_left(int pid, const struct process *p);

#endif
