/*
 * rights.h: a process that runs with other rights than its caller's (set-uid, set-gid, file capabilities), and the environment that the caller
 * has given it. See rights.c.
 */
#ifndef CENOTE_BASE_RIGHTS_H
#define CENOTE_BASE_RIGHTS_H

#include <stdbool.h>

bool rights_forbid(const char *prefix); /* a library must not be called that obeys variables whose names begin so */

#endif
