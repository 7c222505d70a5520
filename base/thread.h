/* thread.h: threads: the number of the calling one, and those of our own beside the program's. See thread_number.c and thread.c. */
#ifndef CENOTE_BASE_THREAD_H
#define CENOTE_BASE_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* Of the calling thread, from 1. No other thread of the process ever has it: the system's numbers are given again when a thread has ended. */
uint64_t thread_number(void);

/* One more thread: it hears no signals, and no thread waits for its end. False: the system gives none; errno says why. */
bool thread_start(const char *name, void *(*run)(void *));

#endif
