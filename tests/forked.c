/*
 * forked.c: what AddressSanitizer asks in a child of a fork. It is linked into every test program; without the sanitizer, nothing calls it.
 *
 * A child has one thread. What the parent's other threads had in hand at the fork looks lost there, and a lock of the sanitizer's allocator that
 * one of them held is held for ever: a look for leaks at the child's exit would report what is no leak, or hang. So only the first process of a
 * test program looks for leaks. A program that a child executes is a first process again.
 *
 * LOCKING: none; the pid is written before main.
 */
#include <unistd.h>

int __lsan_is_turned_off(void);

static pid_t first_process;

__attribute__((constructor)) static void remember_first_process(void) { first_process = getpid(); }

int __lsan_is_turned_off(void) { return getpid() != first_process; }
