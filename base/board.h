/*
 * board.h: memory of this process that others read while it changes. See board.c.
 *
 * A board is a file in memory (memfd), which has a number in /proc/PID/fd as long as the process lives, and there the name BOARD_NAME. First comes
 * a head of text, then slots of one size. Who may open it is the system's affair: its mode is 0600.
 */
#ifndef CENOTE_BASE_BOARD_H
#define CENOTE_BASE_BOARD_H

#include <stdbool.h>
#include <stddef.h>

#define BOARD_NAME "cenote-board"
#define BOARD_HEAD_MAX 8192     /* bytes of the head, with its 0 */

/*
 * `memory` is whole pages of the system, all zeros, and each slot has as many bytes. From now on they are a slot of the board, with what `head` says;
 * or, where the system makes none, what they were. False: they cannot be used any more. LOCKING: the caller's global lock.
 */
bool board_place(void *memory, size_t bytes, const char *head);

#endif
