/* thread.h: threads of our own, beside those of the program. See thread.c. */
#ifndef CENOTE_BASE_THREAD_H
#define CENOTE_BASE_THREAD_H

#include <stdbool.h>

/* One more thread: it hears no signals, and no thread waits for its end. False: the system gives none; errno says why. */
bool thread_start(const char *name, void *(*run)(void *));

#endif
