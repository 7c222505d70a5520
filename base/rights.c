/*
 * rights.c: may a library be called that reads its settings from the environment?
 *
 * Where the process has rights that its caller lacks, the environment is the caller's: a variable that names a file or a plug-in would have the
 * process read or run it. Ours are read by secure_getenv alone (tools/check/library.py), which finds none there. Other libraries read theirs by
 * getenv; to take them out of the environment is not safe beside other threads. So such a library is not called if one of its variables is set.
 *
 * LOCKING: none; it reads the environment as getenv does.
 */
#include "base/rights.h"

#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

bool rights_forbid(const char *prefix)
{
    bool found = false;
    for (char **variable = getauxval(AT_SECURE) ? environ : NULL; variable && *variable && !found; variable++)
        found = !strncmp(*variable, prefix, strlen(prefix));
    return found;
}
